"""The TCP server that Asterisk's AudioSocket connects to: one connection is one call."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence
from ipaddress import ip_network
from time import monotonic
from typing import cast

from loguru import logger

from offhook.media.end_reason import End
from offhook.media.pcm import PACKET_MS
from offhook.telephony.carriers.leg_io import CarrierLeg
from offhook.telephony.carriers.streams.audiosocket import AudioSocketStream
from offhook.telephony.carriers.streams.stream import CarrierError, Message
from offhook.telephony.sip.trunks.trunks import read_address

OpenLeg = Callable[[AudioSocketStream, Callable[[Message], None], str], CarrierLeg]
"""Makes the leg of a call from its stream, what sends to it, and Asterisk's address."""

START_S = 10.0
"""For the UUID, from the connection on."""
SEND_S = 5.0
"""How long sound may wait because the far end does not read; then the call ends."""
WRITE_BUFFER_BYTES = 256 * 1024
"""What may wait meanwhile: SEND_S of sound at 24 kHz."""
KERNEL_BUFFER_BYTES = 32 * 1024
"""Of the kernel, for what we send: it would else take minutes of sound that nobody reads. Linux
doubles it."""
UNACKNOWLEDGED_MS = 10_000
"""After which the kernel takes a far end for gone that acknowledges nothing: sound goes out all
the time, so nothing else is needed to find that out."""
GOODBYE_S = 1.0
"""For the far end to read that the call is over, and to close the connection."""
MAX_CONNECTIONS = 1000
"""At a time; more are refused. A call costs the most long before."""
BACKLOG = 128
REFUSED_S = 10.0
"""Between log lines about connections that were refused."""


class AudioSocketServer:
    """Listens on one address; owns the connections to it."""

    def __init__(
        self,
        host: str,
        port: int,
        addresses: Sequence[str],
        open_leg: OpenLeg,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        """`addresses`: IP addresses and networks (CIDR) of the peers that are let in. ValueError
        for what is neither."""
        self._host = host
        self._port = port
        self.let_in(addresses)
        self._open_leg = open_leg
        self._max_connections = max_connections
        self._connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None
        self._refused_at = -REFUSED_S

    def let_in(self, addresses: Sequence[str]) -> None:
        """Peers that connect from now on. ValueError as in the constructor."""
        self._networks = [ip_network(address, strict=False) for address in addresses]

    async def start(self) -> tuple[str, int]:
        """Listen; says where, which tells the port when it was 0. Raises OSError."""
        self._server = await asyncio.get_running_loop().create_server(
            lambda: _Connection(self), self._host, self._port, backlog=BACKLOG
        )
        host, port, *_ = self._server.sockets[0].getsockname()
        return host, port

    async def close(self) -> None:
        """Take no more calls, end those that are, and wait until all is closed."""
        if self._server is not None:
            self._server.close()
        connections = tuple(self._connections)
        await asyncio.gather(*(connection.finish() for connection in connections))
        if self._server is not None:
            await self._server.wait_closed()
            self._server = None

    def __len__(self) -> int:
        """Connections."""
        return len(self._connections)

    def admit(self, connection: "_Connection", peer: str) -> bool:
        """Whether it may stay."""
        address = read_address(peer)
        if address is None or not any(address in network for network in self._networks):
            self._refuse(peer, "it is none of the addresses configured")
            return False
        if self._server is None or not self._server.is_serving():
            return False
        if len(self._connections) >= self._max_connections:
            self._refuse(peer, f"there are {self._max_connections} connections")
            return False
        self._connections.add(connection)
        return True

    def open_leg(self, connection: "_Connection", peer: str) -> CarrierLeg:
        return self._open_leg(connection.stream, connection.send, peer)

    def forget(self, connection: "_Connection") -> None:
        self._connections.discard(connection)

    def _refuse(self, peer: str, reason: str) -> None:
        now = monotonic()
        if now - self._refused_at >= REFUSED_S:
            self._refused_at = now
            logger.warning("x AudioSocket {}: {}", peer, reason)


class _Connection(asyncio.Protocol):
    """One call."""

    def __init__(self, server: AudioSocketServer) -> None:
        self.stream = AudioSocketStream()
        self._server = server
        self._peer = ""
        self._transport: asyncio.Transport
        self._leg: CarrierLeg | None = None
        """None when it was not let in."""
        self._task: asyncio.Task[None] | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._lost = asyncio.Event()

    # --- what the leg and the server ask ---

    def send(self, message: Message) -> None:
        """Never blocks."""
        assert isinstance(message, bytes)
        if self._transport.is_closing():
            return
        if self._transport.get_write_buffer_size() + len(message) > WRITE_BUFFER_BYTES:
            self._give_up("Asterisk does not read")
        else:
            self._transport.write(message)

    async def finish(self) -> None:
        """End the call, if it has not; returns when the connection is closed."""
        assert self._leg is not None
        assert self._task is not None
        await self._leg.hang_up(End.SERVER_STOPS)
        await self._task

    # --- what asyncio tells ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        name = transport.get_extra_info("peername")
        self._peer = str(name[0]) if name else ""  # None when it is gone already
        if not self._server.admit(self, self._peer):
            self._transport.abort()
            return
        _prepare(transport.get_extra_info("socket"))
        self._transport.set_write_buffer_limits(high=0)
        self._leg = self._server.open_leg(self, self._peer)
        self._task = asyncio.create_task(self._serve(self._leg), name="AudioSocket")

    def data_received(self, data: bytes) -> None:
        if self._leg is None or self._leg.closed is not None:
            return
        try:
            self._leg.receive(data, monotonic())
        except CarrierError as error:
            self._give_up(str(error))

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
        """The kernel's buffer is full."""
        loop = asyncio.get_running_loop()
        self._stalled = loop.call_later(SEND_S, self._give_up, "Asterisk does not read")

    def resume_writing(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    # --- the call ---

    async def _serve(self, leg: CarrierLeg) -> None:
        """From the connection to its end."""
        try:
            await self._until_started(leg)
            await leg.until_closed()
            await self._say_goodbye()
        finally:
            leg.close(End.SERVER_STOPS)
            self._transport.abort()
            self._server.forget(self)

    async def _until_started(self, leg: CarrierLeg) -> None:
        deadline = monotonic() + START_S
        while not self.stream.started and leg.closed is None:
            if monotonic() > deadline:
                self._give_up(f"no UUID came within {START_S:.0f} s")
                return
            await asyncio.sleep(PACKET_MS / 1000)
            self.data_received(b"")

    async def _say_goodbye(self) -> None:
        """What came and was not read would have the kernel break the connection and with it what
        was said last: so the far end is the one to close it."""
        if self._transport.is_closing():
            return
        with contextlib.suppress(TimeoutError, OSError):  # OSError: it has gone already
            self._transport.write_eof()
            async with asyncio.timeout(GOODBYE_S):
                await self._lost.wait()

    def _give_up(self, reason: str) -> None:
        logger.info("x AudioSocket {}: {}", self._peer, reason)
        self._transport.abort()
        if self._leg is not None:
            self._leg.close(reason, "transport")


def _prepare(sock: socket.socket | None) -> None:
    with contextlib.suppress(OSError, AttributeError):  # closed meanwhile
        assert sock is not None
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BUFFER_BYTES)
