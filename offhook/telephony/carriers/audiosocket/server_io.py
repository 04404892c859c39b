"""The TCP server for Asterisk's AudioSocket: each connection is one call."""

import asyncio
import contextlib
import socket
from collections.abc import Sequence
from ipaddress import ip_network
from time import monotonic
from typing import TYPE_CHECKING, cast

from loguru import logger

from offhook.media.end_reason import End
from offhook.media.pcm import PACKET_MS
from offhook.telephony.carriers.audiosocket.stream import AudioSocketStream
from offhook.telephony.carriers.provider import OpenLeg
from offhook.telephony.carriers.settings import CarrierSettings
from offhook.telephony.carriers.streams.stream import CarrierError, Message
from offhook.telephony.sip.trunks.trunks import read_address

if TYPE_CHECKING:
    from offhook.telephony.carriers.leg_io import CarrierLeg

START_TIMEOUT_S = 10.0
"""Time limit in s from the connection to the UUID; then the connection is closed."""
SEND_TIMEOUT_S = 5.0
"""Time in s that audio may wait because the far end does not read; then the call ends."""
WRITE_BUFFER_BYTES = 256 * 1024
"""Maximum bytes that may be queued meanwhile, SEND_TIMEOUT_S of audio at 24 kHz; beyond it the call
ends."""
KERNEL_BUFFER_BYTES = 32 * 1024
"""Kernel send buffer, which by default would accept minutes of unread audio. Linux doubles it."""
UNACKNOWLEDGED_MS = 10_000
"""Time in ms without an acknowledgement after which the kernel drops the connection. Audio is sent
all the time, so no keep-alive is needed."""
HANG_UP_TIMEOUT_S = 1.0
"""Time limit in s for the far end to read the end of the call and close the connection; then it is
dropped."""
MAX_CONNECTIONS = 1000
"""Simultaneous connections; further ones are closed at once. CPU limits the calls long before."""
BACKLOG = 128


class AudioSocketServer:
    """Listens for AudioSocket on one address and owns its connections."""

    def __init__(
        self,
        host: str,
        port: int,
        addresses: Sequence[str],
        open_leg: OpenLeg,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        """`addresses`: IP addresses and networks (CIDR) of allowed peers; ValueError if invalid."""
        self._host = host
        self._port = port
        self.set_allowed_addresses(addresses)
        self._open_leg = open_leg
        self._max_connections = max_connections
        self._connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None

    def use(self, settings: CarrierSettings) -> None:
        """Apply the addresses of new settings."""
        self.set_allowed_addresses(settings.addresses)

    def set_allowed_addresses(self, addresses: Sequence[str]) -> None:
        """Set the peers allowed to connect from now on. Raises ValueError if one is invalid."""
        self._networks = [ip_network(address, strict=False) for address in addresses]

    async def start(self) -> tuple[str, int]:
        """Start listening. Returns host and port, which matters if port was 0. Raises OSError."""
        self._server = await asyncio.get_running_loop().create_server(
            lambda: _Connection(self), self._host, self._port, backlog=BACKLOG
        )
        host, port, *_ = self._server.sockets[0].getsockname()
        return host, port

    async def close(self) -> None:
        """Stop accepting calls, end the current ones, and wait until all connections are closed."""
        if self._server is not None:
            self._server.close()
        connections = tuple(self._connections)
        await asyncio.gather(*(connection.finish() for connection in connections))
        if self._server is not None:
            await self._server.wait_closed()
            self._server = None

    def __len__(self) -> int:
        """Number of connections."""
        return len(self._connections)

    def admit(self, connection: "_Connection", peer: str) -> bool:
        """Register a connection if it is allowed. Returns whether it is."""
        address = read_address(peer)
        if address is None or not any(address in network for network in self._networks):
            self._refuse(peer, "the address is not allowed")
            return False
        if self._server is None or not self._server.is_serving():
            return False
        if len(self._connections) >= self._max_connections:
            self._refuse(peer, f"limit of {self._max_connections} connections reached")
            return False
        self._connections.add(connection)
        return True

    def open_leg(self, connection: "_Connection", peer: str) -> "CarrierLeg":
        return self._open_leg(connection.stream, connection.send, peer)

    def forget(self, connection: "_Connection") -> None:
        self._connections.discard(connection)

    def _refuse(self, peer: str, reason: str) -> None:
        logger.bind(a_minute="refused").warning("AudioSocket {}: {}", peer, reason)


class _Connection(asyncio.Protocol):
    """The connection of one call."""

    def __init__(self, server: AudioSocketServer) -> None:
        self.stream = AudioSocketStream()
        self._server = server
        self._peer = ""
        self._transport: asyncio.Transport
        self._leg: CarrierLeg | None = None
        """None if the connection was refused."""
        self._task: asyncio.Task[None] | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._lost = asyncio.Event()

    # --- called by the leg and the server ---

    def send(self, message: Message) -> None:
        """Write a message. Never blocks; aborts the connection if too much is queued."""
        assert isinstance(message, bytes)
        if self._transport.is_closing():
            return
        if self._transport.get_write_buffer_size() + len(message) > WRITE_BUFFER_BYTES:
            self._abort("Asterisk does not read its audio")
        else:
            self._transport.write(message)

    async def finish(self) -> None:
        """End the call if it is up, and return when the connection is closed."""
        assert self._leg is not None
        assert self._task is not None
        await self._leg.hang_up(End.SERVER_STOPS)
        await self._task

    # --- asyncio.Protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass
        name = transport.get_extra_info("peername")
        self._peer = str(name[0]) if name else ""  # None if it is already closed
        if not self._server.admit(self, self._peer):
            self._transport.abort()
            return
        _set_socket_options(transport.get_extra_info("socket"))
        self._transport.set_write_buffer_limits(high=0)
        self._leg = self._server.open_leg(self, self._peer)
        self._task = asyncio.create_task(self._serve(self._leg), name="AudioSocket")

    def data_received(self, data: bytes) -> None:
        if self._leg is None or self._leg.closed is not None:
            return
        try:
            self._leg.receive(data, monotonic())
        except CarrierError as error:
            self._abort(str(error))

    def eof_received(self) -> None:
        if self._leg is not None:
            self._leg.close(End.ASTERISK_CLOSED, "remote")

    def connection_lost(self, error: Exception | None) -> None:
        self._lost.set()
        self.resume_writing()
        if self._leg is not None:
            why = End.ASTERISK_LOST + f": {error or 'closed'}"
            self._leg.close(why, "transport")

    def pause_writing(self) -> None:
        """The kernel's send buffer is full."""
        loop = asyncio.get_running_loop()
        self._stalled = loop.call_later(
            SEND_TIMEOUT_S, self._abort, "Asterisk does not read its audio"
        )

    def resume_writing(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    # --- the call ---

    async def _serve(self, leg: "CarrierLeg") -> None:
        """Serve the connection until it ends."""
        try:
            await self._until_started(leg)
            await leg.until_closed()
            await self._close_gracefully()
        finally:
            leg.close(End.SERVER_STOPS)
            self._transport.abort()
            self._server.forget(self)

    async def _until_started(self, leg: "CarrierLeg") -> None:
        deadline = monotonic() + START_TIMEOUT_S
        while not self.stream.started and leg.closed is None:
            if monotonic() > deadline:
                self._abort(f"no UUID received within {START_TIMEOUT_S:.0f} s")
                return
            await asyncio.sleep(PACKET_MS / 1000)
            self.data_received(b"")

    async def _close_gracefully(self) -> None:
        """Let the far end close: with unread data pending, closing would reset the connection and
        lose the last audio."""
        if self._transport.is_closing():
            return
        with contextlib.suppress(TimeoutError, OSError):  # already closed
            self._transport.write_eof()
            async with asyncio.timeout(HANG_UP_TIMEOUT_S):
                await self._lost.wait()

    def _abort(self, reason: str) -> None:
        logger.bind(a_minute=reason).info("AudioSocket {}: {}", self._peer, reason)
        self._transport.abort()
        if self._leg is not None:
            self._leg.close(reason, "transport")


def _set_socket_options(sock: socket.socket | None) -> None:
    with contextlib.suppress(OSError, AttributeError):  # closed meanwhile
        assert sock is not None
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BUFFER_BYTES)
