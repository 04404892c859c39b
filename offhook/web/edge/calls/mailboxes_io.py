"""Has the phones of extensions show how many messages wait for them, whoever leaves or hears them:
any process of any server that shares the store."""

from collections.abc import Callable, Mapping, Sequence

from offhook.web.edge.calls.store_queues.queue_io import StoreQueues
from offhook.web.records.people.voicemails import Voicemails

Counts = Mapping[str, tuple[int, int]]
"""New messages and those that were heard, by extension."""


class Mailboxes:
    """The messages of all mailboxes, as they were shown last."""

    def __init__(self, voicemails: Voicemails, show: Callable[[Counts], None]) -> None:
        """`show` is called when they have changed."""
        self._voicemails, self._show = voicemails, show
        self._shown: Counts | None = None

    def start(self, queues: StoreQueues) -> None:
        queues.serve("mailboxes", self._changed, self._update)

    def _changed(self, now: float) -> Sequence[Counts]:
        """Blocks. Raises StoreError."""
        found = self._voicemails.counts()
        return () if found == self._shown else (found,)

    async def _update(self, counts: Counts) -> None:
        self._shown = counts
        self._show(counts)
