"""People are called for a caller, by a transfer or from a queue, until one is connected."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from offhook.media.pcm import Pcm
from offhook.pipeline.conversation.call_io import Call
from offhook.pipeline.conversation.events import TransferProgress, TransferState
from offhook.web.edge.transfers.briefed import Event
from offhook.web.edge.transfers.people_io import Person

MAX_NEWS = 256
"""News of the people called for one caller that may wait: a few for each."""


class Search:
    """One of a transfer, or of a place in a queue."""

    def __init__(self, call: Call, target: str) -> None:
        self._call, self._target = call, target
        self._news: asyncio.Queue[tuple[Person, Event, str] | None] = asyncio.Queue(MAX_NEWS)
        """What becomes of people; None: of the caller."""

    def _note(self, person: Person, event: Event, reason: str) -> None:
        if not self._news.full():
            self._news.put_nowait((person, event, reason))

    @contextmanager
    def _playing(self, sound: Iterator[Pcm]) -> Iterator[None]:
        """Has the caller, whose end is news, hear a sound."""
        leg = self._call.leg
        leaving = asyncio.create_task(leg.until_closed(), name=f"caller {leg.call_id}")
        leaving.add_done_callback(lambda _: self._news.put_nowait(None))
        try:
            with leg.playing(sound):
                yield
        finally:
            leaving.cancel()

    def _emit(self, state: TransferState, person: Person | None = None, reason: str = "") -> None:
        placed = None if person is None else person.placed
        self._call.emit(
            TransferProgress(
                *(self._call.leg.heard_ms, self._target, state),
                address="" if person is None else person.address,
                reason=reason,
                called="" if placed is None else placed.call_id,
            )
        )
