"""The data channel for messages between a call and the caller's program."""

import json
from collections.abc import Callable
from time import monotonic

from aiortc import RTCDataChannel
from loguru import logger

MESSAGE_BACKLOG = 64
"""Messages kept until the data channel opens; the oldest are dropped beyond that."""
CHANNEL_BUFFER_BYTES = 256 * 1024
"""Messages are dropped beyond this while the peer does not read its data channel."""
PONG = json.dumps({"type": "pong"})
"""Answer to a ping, which lets the client detect a dead connection. Stock clients ignore JSON
without RTVI's label."""


class MessageChannel:
    """Sends and receives text, and answers pings. Open or not: messages wait until it is."""

    def __init__(self, call_id: str, receive: Callable[[str], None]) -> None:
        """`receive` is called with each message of the far end."""
        self.channel: RTCDataChannel | None = None
        self.alive_at = 0.0
        """When the peer connected or last pinged."""
        self._call_id = call_id
        self._receive = receive
        self._backlog: list[str] = []

    def use(self, channel: RTCDataChannel) -> None:
        """Use this channel from now on."""
        self.channel = channel
        channel.on("message", self._message)
        channel.on("open", self._flush_backlog)
        if channel.readyState == "open":
            self._flush_backlog()

    def send(self, text: str) -> bool:
        """Send a message, or keep it until the channel opens. Returns whether it was sent."""
        channel = self.channel
        if channel is None or channel.readyState != "open":
            self._backlog = [*self._backlog[-(MESSAGE_BACKLOG - 1) :], text]
            return False
        if channel.bufferedAmount > CHANNEL_BUFFER_BYTES:
            return False
        channel.send(text)
        return True

    @property
    def unsent(self) -> bool:
        """Whether messages are still on their way out."""
        channel = self.channel
        return channel is not None and channel.readyState == "open" and channel.bufferedAmount > 0

    def _flush_backlog(self) -> None:
        assert self.channel is not None
        for text in self._backlog:
            self.channel.send(text)
        self._backlog.clear()

    def _message(self, message: str | bytes) -> None:
        if not isinstance(message, str):
            logger.debug("{}: binary message on the data channel ignored", self._call_id)
        elif message.startswith("ping"):
            self.alive_at = monotonic()
            self.send(PONG)
        elif message != PONG:
            self._receive(message)
