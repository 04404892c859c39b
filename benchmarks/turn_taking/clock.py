"""Virtual time."""

import asyncio
import heapq
from collections.abc import Callable
from itertools import count

from offhook.media.pcm import PACKET_MS

ROUNDS = 12
"""Rounds of the event loop after a step, in which everything that is due has happened."""


class Clock:
    """The virtual time of all calls, in ms."""

    def __init__(self) -> None:
        self.now = 0
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()

    def later(self, ms: int, act: Callable[[], None]) -> None:
        """Calls `act` in the step in which `ms` are over; calls due at once go in order."""
        heapq.heappush(self._due, (self.now + ms, next(self._numbers), act))

    async def sleep(self, ms: int) -> None:
        over = asyncio.Event()
        self.later(ms, over.set)
        await over.wait()

    async def step(self) -> None:
        self.now += PACKET_MS
        while self._due and self._due[0][0] <= self.now:
            heapq.heappop(self._due)[2]()
        for _ in range(ROUNDS):
            await asyncio.sleep(0)
