"""One TCP or TLS connection that carries SIP (RFC 3261 §18, RFC 5626 §3.5.1 and §4.4.1)."""

import asyncio
import contextlib
import random
import socket
import ssl
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import Protocol, cast

from loguru import logger

from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.messages.framing import FramingError, Ping, StreamFramer
from offhook.telephony.sip.messages.grammar import SipError

WRITE_BUFFER_BYTES = 256 * 1024
"""What may wait for one peer, also while the connection to it is being made: four of the longest
messages. One that does not read so much is cut off."""
CONNECT_S = 8.0
"""For a connection of ours, TLS included: the next target must have its turn before the caller
gives up."""
FIRST_MESSAGE_S = 30.0
"""A peer that has connected must have sent a message by then."""
IDLE_S = 3900.0
"""Without a message: more than the hour for which a registration or a session usually lasts. A
connection whose far end is gone is found out earlier, by the kernel's probes."""
PING_S = (95.0, 120.0)
"""Between our keep-alives on connections of ours (RFC 5626 §4.4.1), drawn anew each time."""
PONG_S = 10.0
"""For the answer, of peers that have ever given one (RFC 5626 §4.4.1): others need not."""
PING, PONG = b"\r\n\r\n", b"\r\n"
TCP_PROBES = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4))
"""Seconds of silence, seconds between probes, and how many stay unanswered: a far end that is gone
is noticed after two minutes."""


class Owner(Protocol):
    """Whom a connection tells."""

    def received(self, data: bytes, flow: Flow) -> None: ...

    def ended(self, connection: "Connection") -> None: ...


class Connection(Protocol):
    """A connection of any stream transport."""

    flow: Flow

    def send(self, data: bytes) -> None:
        """Never blocks."""

    def abort(self) -> None:
        """Idempotent."""

    def check(self, now: float) -> None:
        """Called every second or so: for what takes too long."""


class StreamConnection(asyncio.Protocol):
    """TCP or TLS, ours or a peer's."""

    def __init__(self, flow: Flow, owner: Owner, ours: bool = False) -> None:
        """`ours`: we have made it, or are about to."""
        self.flow = flow
        self._owner = owner
        self._ours = ours
        self._framer = StreamFramer()
        self._transport: asyncio.Transport | None = None
        self._pending: list[bytes] = []
        """Sent before the connection is made."""
        self._closed = False
        self._active_at = monotonic()
        """When it last carried a message, or a peer's keep-alive."""
        self._spoken = False
        """A message has come."""
        self._ping_at = 0.0
        self._pong_due: float | None = None
        self._answers_pings = False

    # --- what the owner asks ---

    def send(self, data: bytes) -> None:
        if self._closed:
            return
        self._active_at = monotonic()
        transport = self._transport
        waiting = (
            sum(map(len, self._pending)) if transport is None else transport.get_write_buffer_size()
        )
        if waiting + len(data) > WRITE_BUFFER_BYTES:
            logger.info("x {} {}: it does not read", self.flow.transport, self.flow.remote)
            self.abort()
        elif transport is not None:
            transport.write(data)
        else:
            self._pending.append(data)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self.closed()

    def closed(self) -> None:
        """It is gone, or could not be made. Idempotent."""
        if not self._closed:
            self._closed = True
            self._pending.clear()
            self._owner.ended(self)

    def check(self, now: float) -> None:
        if self._transport is None:  # being made, which has a time limit of its own
            return
        silent = now - self._active_at
        if self._pong_due is not None and now >= self._pong_due:
            self._give_up("no answer to a keep-alive")
        elif not self._ours and not self._spoken and silent > FIRST_MESSAGE_S:
            self._give_up("no message came")
        elif silent > IDLE_S:
            self._give_up("idle")
        elif self._ours and now >= self._ping_at:
            self._ping_at = now + random.uniform(*PING_S)
            if self._answers_pings and self._pong_due is None:
                self._pong_due = now + PONG_S
            self._write_aside(PING)

    def _give_up(self, reason: str) -> None:
        logger.debug("x {} {}: {}", self.flow.transport, self.flow.remote, reason)
        self.abort()

    def _write_aside(self, data: bytes) -> None:
        """What is no message does not keep the connection, nor fill its buffer."""
        transport = self._transport
        if transport is not None and transport.get_write_buffer_size() < WRITE_BUFFER_BYTES:
            transport.write(data)

    # --- what asyncio tells ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        made = self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        if self._closed:  # given up while it was being made
            made.abort()
            return
        self._active_at = monotonic()
        self._ping_at = self._active_at + random.uniform(*PING_S)
        probe(made.get_extra_info("socket"))
        for data in self._pending:
            made.write(data)
        self._pending.clear()

    def data_received(self, data: bytes) -> None:
        try:
            pieces = self._framer.receive(data)
        except FramingError as error:
            self._take(error.complete)
            self._give_up(str(error))
            return
        if self._pong_due is not None or (self._ours and data == PONG):
            self._pong_due, self._answers_pings = None, True
        self._take(pieces)

    def _take(self, pieces: Sequence[bytes | Ping]) -> None:
        for piece in pieces:
            if self._closed:
                return
            if not isinstance(piece, Ping):
                self._active_at = monotonic()
                self._spoken = True
                self._owner.received(piece, self.flow)
            elif not self._ours:
                self._active_at = monotonic() if self._spoken else self._active_at
                self._write_aside(PONG)

    def connection_lost(self, error: Exception | None) -> None:
        self.closed()


def probe(sock: socket.socket | None) -> None:
    """Have the kernel find out when the far end is gone."""
    with contextlib.suppress(OSError, AttributeError):  # closed meanwhile
        assert sock is not None
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in TCP_PROBES:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def client_context(verify: bool = True, alpn: Sequence[str] = ()) -> ssl.SSLContext:
    """For TLS connections of ours: TLS 1.2 or later, the certificate and its name checked against
    the system's authorities unless told otherwise. Reads files: tens of milliseconds."""
    context = ssl.create_default_context()
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if alpn:
        context.set_alpn_protocols(list(alpn))
    return context


def trusting(authorities: Path) -> ssl.SSLContext:
    """For TLS connections of ours that are checked against these certificates (PEM) besides the
    system's. Raises SipError when they cannot be read."""
    context = client_context()
    try:
        context.load_verify_locations(authorities)
    except (OSError, ssl.SSLError) as error:
        raise SipError(f"the authorities in {authorities}: {error}") from error
    return context
