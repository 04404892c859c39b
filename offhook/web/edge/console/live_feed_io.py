"""Looks into the store once a second for all live screens of a process, and hands on what is new.

Calls are never asked: what they do is in the store a fifth of a second later, also that of other
processes and servers that share it. Without a listener nobody looks.
"""

import asyncio
import json
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Generic, TypeVar

from loguru import logger

from offhook.web.edge.console.live_calls import LiveCalls, LiveEvent
from offhook.web.records.errors import StoreError
from offhook.web.records.live_look import LiveLook

LOOK_S = 1.0
"""Interval in s between two looks into the store."""
MAX_LISTENERS = 50
"""Maximum listeners of a process; further ones are refused with 503."""
MAX_WAITING = 500
"""Maximum events that wait for one listener, who reads too slowly; then it is dropped, and has to
come back for another snapshot."""

Read = Callable[[Mapping[str, int], Collection[str], str], Awaitable[LiveLook]]
"""Looks into the store, given what was seen and the tenant; see `LiveReader.look`. Raises
StoreError."""


class Listener:
    """Somebody who reads the events of live calls, at their own pace."""

    def __init__(self) -> None:
        self.ended = ""
        """Why nothing follows any more; empty while it does."""
        self._waiting: deque[bytes] = deque()
        self._wakes = asyncio.Event()

    def put(self, line: bytes) -> None:
        """Adds an event; never waits."""
        if self.ended:
            return
        if len(self._waiting) >= MAX_WAITING:
            self._waiting.clear()
            self.end("too much has happened that was not read: come back for all of it")
            return
        self._waiting.append(line)
        self._wakes.set()

    def end(self, why: str) -> None:
        """Has it end after what waits."""
        self.ended = self.ended or why
        self._wakes.set()

    async def next(self, limit_s: float) -> bytes:
        """Returns what waits, once there is something; empty after that time, or at the end."""
        if not self._waiting and not self.ended:
            self._wakes.clear()
            try:
                await asyncio.wait_for(self._wakes.wait(), limit_s)
            except TimeoutError:
                return b""
        lines = b"".join(self._waiting)
        self._waiting.clear()
        return lines


L = TypeVar("L", bound=Listener)


class Feed(ABC, Generic[L]):
    """Listeners, and the task that looks for them while there are any."""

    def __init__(self, name: str, interval_s: float) -> None:
        """`name` is the task's; `interval_s`: between two looks."""
        self._name, self._interval_s = name, interval_s
        self._listeners: set[L] = set()
        self._looking: asyncio.Task[None] | None = None
        self._wakes = asyncio.Event()

    @abstractmethod
    async def _look(self) -> None: ...

    def wake(self) -> None:
        """Has it look at once."""
        self._wakes.set()

    @contextmanager
    def _listening(self, listener: L) -> Iterator[L]:
        self._listeners.add(listener)
        if self._looking is None:
            self._looking = asyncio.create_task(self._look_for_ever(), name=self._name)
        try:
            yield listener
        finally:
            self._listeners.discard(listener)

    async def close(self) -> None:
        """Ends all streams, and looks no more."""
        for listener in self._listeners:
            listener.end("the server stops: come back")
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def _look_for_ever(self) -> None:
        try:
            while self._listeners:
                await self._look()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wakes.wait(), self._interval_s)
                self._wakes.clear()
        finally:
            self._looking = None


class LiveFeed(Feed[Listener]):
    """The live screens of one process; those of a tenant have a feed of their own."""

    def __init__(self, read: Read, tenant: str = "") -> None:
        super().__init__("live calls", LOOK_S)
        self._read, self._tenant = read, tenant
        self._of_tenants: dict[str, LiveFeed] = {}
        self._calls: LiveCalls | None = None
        """As seen at the last look; None if there was none, or it has failed."""
        self._fault = ""

    @property
    def is_full(self) -> bool:
        return len(self._listeners) >= MAX_LISTENERS

    @contextmanager
    def listening(self) -> Iterator[Listener]:
        """Has somebody get a snapshot, and what happens from then on, while inside."""
        listener = Listener()
        if self._calls is not None:
            listener.put(as_line(self._calls.snapshot()))
        elif self._fault:
            listener.put(as_line(_unavailable(self._fault)))
        with self._listening(listener):
            yield listener

    def of(self, tenant: str) -> "LiveFeed":
        """Returns the feed of a tenant, which is one of the configuration; "" for all calls."""
        if not tenant:
            return self
        return self._of_tenants.setdefault(tenant, LiveFeed(self._read, tenant))

    async def close(self) -> None:
        for feed in self._of_tenants.values():
            await feed.close()
        await super().close()

    async def _look_for_ever(self) -> None:
        try:
            await super()._look_for_ever()
        finally:
            self._calls, self._fault = None, ""

    async def _look(self) -> None:
        calls = self._calls or LiveCalls()
        try:
            changes = calls.update(await self._read(calls.positions, calls.campaigns, self._tenant))
        except StoreError as fault:
            self._fail(str(fault))
            return
        except Exception:
            logger.bind(a_minute="live calls").exception(
                "the calls in progress cannot be looked at"
            )
            self._fail("the calls in progress cannot be looked at: see the server's log")
            return
        if self._calls is None:
            self._calls, self._fault = calls, ""
            changes = [calls.snapshot()]
        for change in changes:
            self._put(change)

    def _fail(self, fault: str) -> None:
        if self._calls is not None or not self._fault:
            self._put(_unavailable(fault))
        self._calls, self._fault = None, fault

    def _put(self, event: LiveEvent) -> None:
        line = as_line(event)
        for listener in self._listeners:
            listener.put(line)


def _unavailable(fault: str) -> LiveEvent:
    return LiveEvent("unavailable", {"error": fault})


def as_line(event: LiveEvent) -> bytes:
    """Returns an event as the stream has it."""
    return f"event: {event.kind}\ndata: {json.dumps(event.data)}\n\n".encode()
