"""How a call goes, from dialling to its end, for whoever looks then or later."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Literal

State = Literal["dialing", "ringing", "early_media", "answered", "ended"]

PROGRESS_KEPT = 64
"""Of one call, for who asks late, and in the queue of each reader; the oldest are forgotten."""


class DialError(RuntimeError):
    """The call was not made or not taken; the message says why in plain words."""

    def __init__(self, status: int, reason: str) -> None:
        """`status`: of SIP, 0 where it never got so far."""
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True)
class CallProgress:
    """Where a call is now."""

    state: State
    status: int = 0
    """Of SIP, or what says the same in SIP; 0 without one."""
    reason: str = ""


class CallHistory:
    """Every state of one call so far, the last PROGRESS_KEPT of them."""

    def __init__(self) -> None:
        self._past = [CallProgress("dialing")]
        self._readers: set[asyncio.Queue[CallProgress]] = set()

    @property
    def past(self) -> tuple[CallProgress, ...]:
        return tuple(self._past)

    @property
    def state(self) -> State:
        return self._past[-1].state

    def add(self, progress: CallProgress) -> None:
        """Nothing may follow "ended"."""
        self._past.append(progress)
        del self._past[:-PROGRESS_KEPT]
        for queue in self._readers:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(progress)

    async def events(self) -> AsyncGenerator[CallProgress, None]:
        """Every state from the beginning on, until it ended."""
        queue: asyncio.Queue[CallProgress] = asyncio.Queue(PROGRESS_KEPT)
        for progress in self._past:
            queue.put_nowait(progress)
        self._readers.add(queue)
        try:
            while True:
                progress = await queue.get()
                yield progress
                if progress.state == "ended":
                    return
        finally:
            self._readers.discard(queue)
