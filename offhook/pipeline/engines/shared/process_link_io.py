"""Messages between two of our own processes, over a pair of connected sockets."""

import asyncio
import pickle
import socket
import struct
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from offhook.pipeline.speech.errors import EngineError

MAX_UNREAD_BYTES = 64 << 20
"""Bytes that the other process may leave unread; beyond, the link is cut."""
_LENGTH = struct.Struct("<I")


class Failed(NamedTuple):
    """The engine of the other process could not do what was asked under this number."""

    number: int
    error: EngineError


class ProcessLink(asyncio.Protocol):
    """One end. Messages are what pickle takes; those sent in one turn of the event loop are one
    block. Only for a process that we have started, or that has started us: what a pickle holds is
    run."""

    def __init__(self, receive: Callable[[Any], None], lost: Callable[[], None]) -> None:
        """`receive` gets each message, and `lost` is called once when the link has ended."""
        self._receive, self._lost = receive, lost
        self._out: list[Any] = []
        self._in = bytearray()
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def over(
        cls, end: socket.socket, receive: Callable[[Any], None], lost: Callable[[], None]
    ) -> "ProcessLink":
        """Returns the link over one of the two sockets, which it owns from now on."""
        end.setblocking(False)
        loop = asyncio.get_running_loop()
        _, link = await loop.create_unix_connection(lambda: cls(receive, lost), sock=end)
        return link

    def send(self, message: Any) -> None:
        """Sends a message at the end of the loop's turn; after the link's end, nowhere."""
        self._out.append(message)
        if len(self._out) == 1:
            self._loop.call_soon(self._flush)

    def close(self) -> None:
        """Ends the link once what was sent has left."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def _flush(self) -> None:
        transport = self._transport
        if self._out and transport is not None and not transport.is_closing():
            block = pickle.dumps(self._out, pickle.HIGHEST_PROTOCOL)
            transport.write(_LENGTH.pack(len(block)) + block)
            if transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
                transport.abort()
        self._out.clear()

    # --- of the transport ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's derive from nothing

    def data_received(self, data: bytes) -> None:
        self._in += data
        while len(self._in) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._in)[0]
            if len(self._in) < end:
                return
            block = bytes(self._in[_LENGTH.size : end])
            del self._in[:end]
            for message in pickle.loads(block):
                self._receive(message)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._lost()
