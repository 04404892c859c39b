"""Suspects are tried again one at a time; see `retry.Losses`."""

import asyncio
from collections.abc import Callable

ALONE_S = 1.0
"""Maximum time in s for which one suspect keeps the others waiting; then the next one is tried
beside it."""


class Quarantine:
    """Lets the suspects of a process be tried again one at a time, so that the next loss shows
    which of them it was."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def enter(self) -> Callable[[], None]:
        """Waits for the caller's turn; returns a function that ends it, as ALONE_S do."""
        await self._lock.acquire()
        is_over = False

        def leave() -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                self._lock.release()
                timer.cancel()

        timer = asyncio.get_running_loop().call_later(ALONE_S, leave)
        return leave
