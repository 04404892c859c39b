"""ICE-TCP (RFC 6544), passive: peers whose firewalls let no UDP through connect to our port."""

import asyncio
import contextlib
import socket
from time import monotonic
from typing import cast

from offhook.signaling.ice.demultiplexer import Address, Demultiplexer
from offhook.signaling.ice.framing import Deframer, FramingError, frame

FIRST_CHECK_S = 5.0
"""A connection is closed unless it begins with a right connectivity check within this time."""
GOODBYE_S = 2.0
"""A connection is closed this time after its call, when the peer has read that it has ended."""
MAX_UNCHECKED = 64
"""Connections that may wait for their first check; the oldest gives way to a further one."""
RTP_BUFFER_BYTES = 16 * 1024
"""Unsent bytes beyond which RTP is dropped: a second of audio, later than anybody waits for."""
SEND_BUFFER_BYTES = 16 * 1024
"""Of the kernel: what is in there can no longer be dropped. Linux doubles it."""
MAX_BUFFER_BYTES = 512 * 1024
"""Unsent bytes of DTLS and STUN at which the connection of a peer that does not read is closed."""


class TcpConnection(asyncio.Protocol):
    """A peer's connection. Stands where aioice has a datagram transport."""

    def __init__(self, listener: "TcpListener") -> None:
        self._listener = listener
        self._deframer = Deframer()
        self._local = listener.demultiplexer.open_local(self, self._unused)
        self._transport: asyncio.Transport
        self._remote: Address = "", 0
        self._timer: asyncio.TimerHandle | None = None
        self.dropped = 0
        """RTP packets dropped because the peer did not read."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._remote = (transport.get_extra_info("peername") or ("", 0))[:2]  # None: it has left
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self._timer = asyncio.get_running_loop().call_later(FIRST_CHECK_S, self.abort)
        self._listener.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        """The call goes on: the peer may connect again, until its consent expires."""
        self._checked()
        for session in set(self._local.paths.values()):
            session.receiver.close_local(self._local)
        self._listener.demultiplexer.close_local(self._local)
        self._listener.remove(self)

    def data_received(self, data: bytes) -> None:
        try:
            frames = self._deframer.receive(data)
        except FramingError:
            self.abort()
            return
        now = monotonic()
        for packet in frames:
            self._local.receive(packet, self._remote, now)
            if self._timer is not None:
                if not self._local.paths:
                    self.abort()
                    return
                self._checked()

    def _unused(self) -> None:
        asyncio.get_running_loop().call_later(GOODBYE_S, self.abort)

    def _checked(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._listener.unchecked.pop(self, None)

    def sendto(self, data: bytes, remote: Address) -> None:
        """Sends a packet; RTP is dropped while the peer does not read."""
        unsent = self._transport.get_write_buffer_size()
        if unsent > RTP_BUFFER_BYTES and data[0] > 127:
            self.dropped += 1
        elif unsent > MAX_BUFFER_BYTES:
            self.abort()
        elif not self._transport.is_closing():
            self._transport.write(frame(data))

    def abort(self) -> None:
        """Closes the connection at once, with what is unsent."""
        self._transport.abort()


class TcpListener:
    """Listens on all addresses, and closes who does not behave like an ICE peer."""

    def __init__(self, demultiplexer: Demultiplexer) -> None:
        self.demultiplexer = demultiplexer
        self.addresses: list[str] = []
        self.connections: set[TcpConnection] = set()
        self.unchecked: dict[TcpConnection, None] = {}
        """Connections without a check so far, the oldest first."""
        self._servers: list[asyncio.Server] = []

    async def listen(self, address: str, port: int) -> None:
        """Raises OSError."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: TcpConnection(self), address, port)
        self._servers.append(server)
        self.addresses.append(address)

    def add(self, connection: TcpConnection) -> None:
        """Keeps a new connection, and closes the one that has waited longest if there are many."""
        self.connections.add(connection)
        self.unchecked[connection] = None
        if len(self.unchecked) > MAX_UNCHECKED:
            oldest = next(iter(self.unchecked))
            del self.unchecked[oldest]
            oldest.abort()

    def remove(self, connection: TcpConnection) -> None:
        self.connections.discard(connection)
        self.unchecked.pop(connection, None)

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        for connection in tuple(self.connections):
            connection.abort()
        for server in self._servers:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await server.wait_closed()
        self._servers.clear()
        self.addresses.clear()
