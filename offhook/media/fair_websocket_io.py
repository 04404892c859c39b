"""WebSockets of all listeners: no peer's frames keep the event loop from others."""

import asyncio
from time import monotonic
from typing import Any

from aiohttp import WSMessage, WSMsgType, web

from offhook.media.budget import Budget

FRAMES_AT_ONCE = 16
"""Frames read from one WebSocket before other connections get their turn."""
BYTES_AT_ONCE = 64 * 1024
"""The same in bytes: one event may be of megabytes, and several may have come."""
FRAMES_PER_SECOND = 1_000.0
FRAMES_BURST = 2_000.0
"""Maximum frames of a peer that are read in a second, and at once after a pause, of whatever kind;
it is read no faster, so that more wait in its own network. Sound has 50 a second in real time."""
PAUSE_S = 0.02
"""Time in s for which nothing is read from a peer that is faster."""


_DATA = (WSMsgType.TEXT, WSMsgType.BINARY)


class FairWebSocket(web.WebSocketResponse):
    """A server's WebSocket, which passes pings on unless it has `autoping`. One frame costs little,
    but thousands come at once, and aiohttp reads all without a pause. Messages are not compressed:
    sound gets hardly smaller by it, and each would wait for it."""

    def __init__(self, *, autoping: bool = False, **settings: Any) -> None:
        super().__init__(**settings, autoping=False, compress=False)
        self._answers_pings = autoping
        self._frames = Budget(FRAMES_PER_SECOND, FRAMES_BURST)
        self._read_frames = 0
        self._read_bytes = 0
        """Since others had their turn."""

    async def receive(self, timeout: float | None = None) -> WSMessage:  # noqa: ASYNC109  (as aiohttp has it)
        """Receives the next message; the peer's pings too, unless it has `autoping`."""
        while True:
            message: WSMessage = await super().receive(timeout)
            await self._give_way(len(message.data) if message.type in _DATA else 0)
            if not self._answers_pings or message.type not in (WSMsgType.PING, WSMsgType.PONG):
                return message
            if message.type is WSMsgType.PING:
                try:
                    await self.pong(message.data)
                except ConnectionError:  # gone, as the next message says
                    continue

    async def _give_way(self, size: int) -> None:
        self._read_frames += 1
        self._read_bytes += size
        if not self._frames.spend(1, monotonic()):
            await asyncio.sleep(PAUSE_S)
        elif self._read_frames % FRAMES_AT_ONCE and self._read_bytes < BYTES_AT_ONCE:
            return
        else:
            await asyncio.sleep(0)
        self._read_bytes = 0
