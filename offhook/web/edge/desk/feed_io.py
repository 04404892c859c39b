"""Looks for all desks of a process what has changed in their queues and calls, and sends it."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from loguru import logger

from offhook.web.edge.console.live_calls import LiveEvent
from offhook.web.edge.console.live_feed_io import Listener, as_line
from offhook.web.edge.desk.calls import calls_of
from offhook.web.edge.edge_io import Edge
from offhook.web.records.errors import StoreError

LOOK_S = 0.5
"""Interval in s between two looks."""
MAX_DESKS = 200
"""Maximum streams of desks of a process; further ones are refused with 503."""

MAX_DESKS_OF_EXTENSION = 8
"""Maximum streams of one extension, so that it does not have all places; further ones are refused
with 503."""


@dataclass
class _Desk:
    """The page of an extension, and what it was sent last, by kinds of events."""

    extension: str
    password: str
    sent: dict[str, Any] = field(default_factory=dict)


class DeskFeed:
    """The desks that read events, and the task that looks for them. What a desk is sent is always
    whole: `queues` and `calls` as they are, whenever they are others than before."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._desks: dict[Listener, _Desk] = {}
        self._looking: asyncio.Task[None] | None = None
        self._wakes = asyncio.Event()

    def is_full(self, extension: str) -> bool:
        """Returns whether there is no place for another desk of an extension."""
        its = sum(desk.extension == extension for desk in self._desks.values())
        return len(self._desks) >= MAX_DESKS or its >= MAX_DESKS_OF_EXTENSION

    @contextmanager
    def listening(self, extension: str) -> Iterator[Listener]:
        """Has a desk get what is now, and what changes from then on, while inside."""
        listener = Listener()
        self._desks[listener] = _Desk(extension, self._edge.access.desks.get(extension, ""))
        if self._looking is None:
            self._looking = asyncio.create_task(self._look_for_ever(), name="desks")
        self.wake()
        try:
            yield listener
        finally:
            del self._desks[listener]

    def wake(self) -> None:
        """Something was changed from a desk."""
        self._wakes.set()

    async def close(self) -> None:
        """Ends all streams, and looks no more."""
        for listener in self._desks:
            listener.end("the server stops: come back")
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def _look_for_ever(self) -> None:
        try:
            while self._desks:
                for listener, desk in tuple(self._desks.items()):
                    await self._look(listener, desk)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wakes.wait(), LOOK_S)
                self._wakes.clear()
        finally:
            self._looking = None

    async def _look(self, listener: Listener, desk: _Desk) -> None:
        if self._edge.access.desks.get(desk.extension) != desk.password:
            listener.end("the extension's password is another one: sign in again")
            return
        try:
            found: dict[str, Any] = {
                "queues": self._edge.queues.presence(desk.extension),
                "calls": [
                    {**await call.shown(), "words": await self._words(call.caller_call)}
                    for call in calls_of(self._edge, desk.extension)
                ],
            }
        except Exception:
            logger.bind(a_minute="desks").exception("desk {}: nothing is shown", desk.extension)
            return
        for kind, value in found.items():
            if desk.sent.get(kind) != value:
                desk.sent[kind] = value
                listener.put(as_line(LiveEvent(kind, {kind: value})))

    async def _words(self, call_id: str) -> list[dict[str, str]]:
        """Returns what was said in a call; nothing where that is not kept."""
        records = self._edge.records
        if records.kept is None:
            return []
        async with records.looking:
            try:
                return await asyncio.to_thread(records.kept.store.desks.words, call_id)
            except StoreError:
                return []
