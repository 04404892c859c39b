"""A semaphore with priorities."""

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import IntEnum

MAX_REQUESTS = 16
"""Default limit of concurrent requests to one server; further ones wait."""


class Priority(IntEnum):
    """Priority of a request when the limit is reached."""

    LIVE = 0
    """A caller waits for the result."""
    PARTIAL = 1
    """A partial transcript."""
    FILE = 2


class PrioritySemaphore:
    """Admits at most `most` requests at a time, by priority and then in order; at most half of them
    partials, so that a final rarely waits for one."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._running = 0
        self._partials = 0
        self._count = itertools.count()
        self._waiting: list[tuple[Priority, int, asyncio.Future[None]]] = []

    @asynccontextmanager
    async def turn(self, lane: Priority) -> AsyncIterator[None]:
        waits = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (lane, next(self._count), waits))
        self._admit()
        try:
            await waits
        except asyncio.CancelledError:
            if waits.done() and not waits.cancelled():
                self._leave(lane)
            raise
        try:
            yield
        finally:
            self._leave(lane)

    def _leave(self, lane: Priority) -> None:
        self._running -= 1
        self._partials -= lane is Priority.PARTIAL
        self._admit()

    def _admit(self) -> None:
        held = []
        while self._waiting and self._running < self._most:
            lane, number, waits = heapq.heappop(self._waiting)
            if waits.cancelled():
                continue
            if lane is Priority.PARTIAL and self._partials >= max(1, self._most // 2):
                held.append((lane, number, waits))
                continue
            self._running += 1
            self._partials += lane is Priority.PARTIAL
            waits.set_result(None)
        for entry in held:
            heapq.heappush(self._waiting, entry)
