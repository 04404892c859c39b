"""A data channel that a program on the far end opened to exchange events, such as OpenAI's
"oai-events"."""

import asyncio
from collections.abc import Awaitable, Callable

from aiortc import RTCDataChannel
from loguru import logger

MAX_BUFFERED_BYTES = 4 << 20
"""Bytes that may wait for a slow reader; beyond it the channel is closed."""
MAX_INBOX = 1000
"""Events that may wait to be handled; beyond it the channel is closed."""
MAX_INBOX_CHARACTERS = 4 << 20
"""Characters of these events together; beyond it the channel is closed."""


class EventChannel:
    """Sends and receives events in order."""

    def __init__(self, channel: RTCDataChannel) -> None:
        self._channel = channel
        self._inbox: asyncio.Queue[str | None] = asyncio.Queue(MAX_INBOX)
        """None ends it."""
        self._waiting = 0
        """Characters in it."""
        channel.on("message", self._message)
        channel.on("close", lambda: self._end())

    def send(self, text: str) -> None:
        """Queues an event; closes the channel of a reader that is too slow."""
        channel = self._channel
        if channel.readyState != "open":
            return
        if channel.bufferedAmount > MAX_BUFFERED_BYTES:
            line = logger.bind(a_minute="events out")
            line.warning("events are read too slowly: their channel is closed")
            channel.close()
            self._end()
        else:
            channel.send(text)

    def close(self, code: int, reason: str) -> None:
        """Stops receiving; the channel ends with its peer connection."""
        self._end()

    async def run(self, receive: Callable[[str], Awaitable[None]]) -> None:
        """Handles events one by one until the channel closes."""
        while (text := await self._inbox.get()) is not None:
            self._waiting -= len(text)
            await receive(text)

    def _message(self, message: str | bytes) -> None:
        text = message if isinstance(message, str) else ""  # no event is binary
        if self._inbox.full() or self._waiting + len(text) > MAX_INBOX_CHARACTERS:
            line = logger.bind(a_minute="events in")
            line.warning("too many events wait: their channel is closed")
            self._channel.close()
            self._end()
        else:
            self._waiting += len(text)
            self._inbox.put_nowait(text)

    def _end(self) -> None:
        if self._inbox.full():
            self._inbox.get_nowait()
        self._inbox.put_nowait(None)
