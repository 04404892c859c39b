"""Turns at something that bears only so much at a time."""

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import IntEnum

MAX_REQUESTS = 16
"""At a time, of one server, unless told otherwise."""


class Priority(IntEnum):
    """Who goes first when more is asked for than the server takes at a time."""

    LIVE = 0
    """Somebody waits for it."""
    PARTIAL = 1
    """What is heard so far."""
    FILE = 2


class PrioritySemaphore:
    """At most `most` at a time, by lane and then in order; partials at most half of them, so that
    a final seldom waits for one."""

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
