"""The timer of a sans-io core, kept by the event loop."""

import asyncio
from collections.abc import Callable
from time import monotonic


class CoreTimer:
    """Calls `due` at the time that `get_timer` returns, in monotonic seconds; None: never."""

    def __init__(self, get_timer: Callable[[], float | None], due: Callable[[], None]) -> None:
        self._get_timer, self._due = get_timer, due
        self._handle: asyncio.TimerHandle | None = None
        self._at: float | None = None

    def update(self) -> None:
        """Sets the timer anew if its time has changed; call it after whatever happens to the
        core."""
        at = self._get_timer()
        if at == self._at:
            return
        self.cancel()
        self._at = at
        if at is not None:
            wait = max(0.0, at - monotonic())
            self._handle = asyncio.get_running_loop().call_later(wait, self._fire)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._at = None

    def _fire(self) -> None:
        self._handle = self._at = None
        self._due()
