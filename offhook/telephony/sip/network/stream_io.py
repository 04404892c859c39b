"""One TCP or TLS connection carrying SIP (RFC 3261 §18, RFC 5626 §3.5.1 and §4.4.1)."""

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

from offhook.media.budget import Budget
from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.messages.framing import FramingError, Ping, StreamFramer
from offhook.telephony.sip.messages.grammar import SipError

WRITE_BUFFER_BYTES = 256 * 1024
"""Limit of data queued for a peer, also while connecting: four of the longest messages. A peer that
does not read is disconnected."""
CONNECT_TIMEOUT_S = 8.0
"""Time limit in s for connecting, TLS included; then the connection has failed, and the next target
is tried, before the caller gives up."""
FIRST_MESSAGE_TIMEOUT_S = 30.0
"""Time limit in s for a connected peer to send its first message; then it is disconnected."""
IDLE_TIMEOUT_S = 3900.0
"""Time in s without a message after which a connection is closed: longer than the hour usual for
registrations and sessions. A dead far end is detected earlier, by the kernel's probes."""
PING_INTERVAL_S = (95.0, 120.0)
"""Range of the interval between our keep-alives (RFC 5626 §4.4.1), drawn anew each time."""
PONG_TIMEOUT_S = 10.0
"""Time limit in s for a pong from a peer that has ever sent one (RFC 5626 §4.4.1), since others
need not; then the connection is closed."""
PINGS_PER_SECOND, PINGS_BURST = 1.0, 60.0
"""Maximum keep-alives of a peer in a second, and at once after a pause; a peer that sends more is
disconnected. Usual are two a minute."""
PING, PONG = b"\r\n\r\n", b"\r\n"
TCP_PROBES = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4))
"""Seconds of silence, seconds between probes, and unanswered probes: a dead far end is detected
after two minutes."""


class ConnectionOwner(Protocol):
    """Receives the messages and the end of connections."""

    def received(self, data: bytes, flow: Flow) -> None: ...

    def ended(self, connection: "Connection", error: Exception | None = None) -> None:
        """`error`: what ended an established connection, if anything did."""


class Connection(Protocol):
    """A connection of any stream transport."""

    flow: Flow

    def send(self, data: bytes) -> None:
        """Send or queue a message. Never blocks."""

    def abort(self) -> None:
        """Close at once. Idempotent."""

    def check(self, now: float) -> None:
        """Enforce time limits; called every second or so."""


class StreamConnection(asyncio.Protocol):
    """A TCP or TLS connection, opened by us or by a peer."""

    def __init__(self, flow: Flow, owner: ConnectionOwner, ours: bool = False) -> None:
        """`ours`: opened by us."""
        self.flow = flow
        self._owner = owner
        self._ours = ours
        self._framer = StreamFramer()
        self._transport: asyncio.Transport | None = None
        self._pending: list[bytes] = []
        """Messages to send once connected."""
        self._closed = False
        self._active_at = monotonic()
        """When it last carried a message or a peer's keep-alive."""
        self._message_received = False
        """A message has been received."""
        self._ping_at = 0.0
        self._pong_due: float | None = None
        self._answers_pings = False
        self._pings = Budget(PINGS_PER_SECOND, PINGS_BURST)

    # --- called by the owner ---

    def send(self, data: bytes) -> None:
        if self._closed:
            return
        self._active_at = monotonic()
        transport = self._transport
        waiting = (
            sum(map(len, self._pending)) if transport is None else transport.get_write_buffer_size()
        )
        if waiting + len(data) > WRITE_BUFFER_BYTES:
            logger.info("{} {}: peer does not read", self.flow.transport, self.flow.remote)
            self.abort()
        elif transport is not None:
            transport.write(data)
        else:
            self._pending.append(data)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self.closed()

    def closed(self, error: Exception | None = None) -> None:
        """Report the end of the connection, or that it could not be made. Idempotent."""
        if not self._closed:
            self._closed = True
            self._pending.clear()
            self._owner.ended(self, error)

    def check(self, now: float) -> None:
        if self._transport is None:  # connecting, which has its own time limit
            return
        silent = now - self._active_at
        if self._pong_due is not None and now >= self._pong_due:
            self._abort_because("no answer to a keep-alive")
        elif not self._ours and not self._message_received and silent > FIRST_MESSAGE_TIMEOUT_S:
            self._abort_because("no message received")
        elif silent > IDLE_TIMEOUT_S:
            self._abort_because("idle")
        elif self._ours and now >= self._ping_at:
            self._ping_at = now + random.uniform(*PING_INTERVAL_S)
            if self._answers_pings and self._pong_due is None:
                self._pong_due = now + PONG_TIMEOUT_S
            self._write_keep_alive(PING)

    def _abort_because(self, reason: str) -> None:
        logger.debug("{} {}: {}", self.flow.transport, self.flow.remote, reason)
        self.abort()

    def _write_keep_alive(self, data: bytes) -> None:
        """Write a keep-alive, unless the buffer is full; it does not count as activity."""
        transport = self._transport
        if transport is not None and transport.get_write_buffer_size() < WRITE_BUFFER_BYTES:
            transport.write(data)

    # --- asyncio.Protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        made = self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass
        if self._closed:  # closed while connecting
            made.abort()
            return
        self._active_at = monotonic()
        self._ping_at = self._active_at + random.uniform(*PING_INTERVAL_S)
        probe(made.get_extra_info("socket"))
        for data in self._pending:
            made.write(data)
        self._pending.clear()

    def data_received(self, data: bytes) -> None:
        try:
            pieces = self._framer.receive(data)
        except FramingError as error:
            self._deliver(error.complete)
            self._abort_because(str(error))
            return
        if self._pong_due is not None or (self._ours and data == PONG):
            self._pong_due, self._answers_pings = None, True
        pings = 0 if self._ours or data.strip() else max(1, len(data) // len(PING))
        if pings and not self._pings.spend(pings, monotonic()):
            self._abort_because("too many keep-alives")
            return
        self._deliver(pieces)

    def _deliver(self, pieces: Sequence[bytes | Ping]) -> None:
        for piece in pieces:
            if self._closed:
                return
            if not isinstance(piece, Ping):
                self._active_at = monotonic()
                self._message_received = True
                self._owner.received(piece, self.flow)
            elif not self._ours:
                self._active_at = monotonic() if self._message_received else self._active_at
                self._write_keep_alive(PONG)

    def connection_lost(self, error: Exception | None) -> None:
        self.closed(error)


def probe(sock: socket.socket | None) -> None:
    """Enable TCP keep-alive, so that the kernel detects a dead far end."""
    with contextlib.suppress(OSError, AttributeError):  # already closed
        assert sock is not None
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in TCP_PROBES:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def client_context(verify: bool = True, alpn: Sequence[str] = ()) -> ssl.SSLContext:
    """Return a context for our TLS connections: TLS 1.2 or later, certificate and name verified
    against the system's CAs unless `verify` is False. Reads files: tens of milliseconds."""
    context = ssl.create_default_context()
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if alpn:
        context.set_alpn_protocols(list(alpn))
    return context


def trusting(authorities: Path) -> ssl.SSLContext:
    """Return a client context that also trusts these CA certificates (PEM). Raises SipError if they
    cannot be read."""
    context = client_context()
    try:
        context.load_verify_locations(authorities)
    except (OSError, ssl.SSLError) as error:
        raise SipError(f"cannot read the authorities in {authorities}: {error}") from error
    return context
