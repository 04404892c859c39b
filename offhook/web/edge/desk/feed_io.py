"""Looks for all desks of a process what has changed in their queues and calls, and sends it."""

import asyncio
from contextlib import AbstractContextManager
from typing import Any

from loguru import logger

from offhook.web.edge.console.live_calls import LiveEvent
from offhook.web.edge.console.live_feed_io import Feed, Listener, as_line
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


class _Desk(Listener):
    """The page of an extension."""

    def __init__(self, extension: str, password: str) -> None:
        super().__init__()
        self.extension, self.password = extension, password
        self.sent: dict[str, Any] = {}
        """What it was sent last, by kinds of events."""


class DeskFeed(Feed[_Desk]):
    """The desks that read events. What a desk is sent is always whole: `queues` and `calls` as they
    are, whenever they are others than before."""

    def __init__(self, edge: Edge) -> None:
        super().__init__("desks", LOOK_S)
        self._edge = edge

    def is_full(self, extension: str) -> bool:
        """Returns whether there is no place for another desk of an extension."""
        its = sum(desk.extension == extension for desk in self._listeners)
        return len(self._listeners) >= MAX_DESKS or its >= MAX_DESKS_OF_EXTENSION

    def listening(self, extension: str) -> AbstractContextManager[_Desk]:
        """Has a desk get what is now, and what changes from then on, while inside."""
        self.wake()
        return self._listening(_Desk(extension, self._edge.access.desks.get(extension, "")))

    async def _look(self) -> None:
        for desk in tuple(self._listeners):
            await self._look_for(desk)

    async def _look_for(self, desk: _Desk) -> None:
        if self._edge.access.desks.get(desk.extension) != desk.password:
            desk.end("the extension's password is another one: sign in again")
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
                desk.put(as_line(LiveEvent(kind, {kind: value})))

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
