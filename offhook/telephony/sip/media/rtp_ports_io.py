"""UDP ports for RTP and RTCP: an even port and the next (RFC 3550 §11), one pair per call.

The event loop reads the sockets directly, without asyncio transports, which allocate 256 KiB for
each datagram and queue what cannot be sent; on the compiled path an RtpReader reads those of RTP.
Here audio that cannot be sent at once is dropped.

A released port is not reused for a while: its far end may not have noticed the end of the call, and
must not be heard in the next one.
"""

import asyncio
import errno
import random
import socket
from collections import deque
from collections.abc import Callable
from time import monotonic

from offhook.media import native
from offhook.media.leg import NoPorts
from offhook.media.rtp.rtp_leg import RtpLeg
from offhook.telephony.sip.media.latch import Address, Latch
from offhook.telephony.sip.media.rtp_reader_io import RtpReader

Receiver = Callable[[bytes, Address, float], None]
"""Called with each datagram, its source address and when it arrived, in monotonic seconds."""

DRAIN_S = 30.0
"""How long a port rests after its call. A lost BYE is retransmitted for 32 s (RFC 3261 §17.1.2.2),
and media continue until it arrives."""
DATAGRAM_BYTES = 2048
"""Larger than an audio or DTLS packet; longer datagrams arrive truncated and count as malformed."""
RECEIVE_BUFFER_BYTES = 128 * 1024
"""Kernel receive buffer, which Linux doubles for its own accounting: some seconds of one call's
packets. Anything older would be too late to play."""
EXPEDITED_FORWARDING = 46 << 2
"""DSCP EF (RFC 3246, RFC 8837 §5), for IPv4's type of service and IPv6's traffic class."""


class RtpSockets:
    """The two sockets of one call."""

    def __init__(
        self,
        port: int,
        sockets: tuple[socket.socket, socket.socket],
        receivers: tuple[Receiver, Receiver],
        reader: RtpReader,
        release: Callable[[int], None],
    ) -> None:
        self.port = port
        """RTP port; RTCP has the next."""
        self.unsent = 0
        """Datagrams the kernel did not accept: no buffer, no route, blocked by a firewall."""
        self._rtp, self._rtcp = sockets
        self._reader = reader
        self._compiled = False
        """Whether `_reader` reads RTP."""
        self._release: Callable[[int], None] | None = release
        loop = asyncio.get_running_loop()
        for sock, receiver in zip(sockets, receivers, strict=True):
            loop.add_reader(sock, _reader(sock, receiver))

    def read_compiled(
        self, receive: Receiver, leg: RtpLeg, transport: object, latch: Latch
    ) -> None:
        """Read RTP on the compiled path, if there is one: it gives the leg what comes from the
        source that the latch is locked to, in plain RTP or under the transport's keys, and calls
        `receive` with the rest. Not of a leg that has a `receive_rtp` of its own."""
        if native.used and type(leg).receive_rtp is RtpLeg.receive_rtp:
            asyncio.get_running_loop().remove_reader(self._rtp)
            self._compiled = True
            port = native.Port(self._rtp.fileno(), receive, leg, transport, latch)
            self._reader.add(self._rtp, port)

    @property
    def rtcp_port(self) -> int:
        return self.port + 1

    def send_rtp(self, data: bytes, to: Address) -> None:
        """Send one datagram, or drop it. `to` must be numeric: resolving a name would block the
        loop."""
        try:
            self._rtp.sendto(data, to)
        except OSError:
            self.unsent += 1

    def send_rtcp(self, data: bytes, to: Address) -> None:
        """Send one datagram from the RTCP port, as `send_rtp` does."""
        try:
            self._rtcp.sendto(data, to)
        except OSError:
            self.unsent += 1

    def close(self) -> None:
        """Release the ports. Idempotent; later datagrams are dropped."""
        if self._release is None:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._rtcp)
        if self._compiled:
            self._reader.remove(self._rtp)
        else:
            loop.remove_reader(self._rtp)
        self._rtp.close()
        self._rtcp.close()
        self._release(self.port)
        self._release = None


def _reader(sock: socket.socket, receive: Receiver) -> Callable[[], None]:
    """Read one datagram: they mostly come singly, and checking for more costs as much as the event
    loop's own check."""
    receive_from = sock.recvfrom

    def read() -> None:
        try:
            data, source = receive_from(DATAGRAM_BYTES)
        except OSError:  # spurious wake-up, or an ICMP error for an earlier packet
            return
        receive(data, source if len(source) == 2 else source[:2], monotonic())

    return read


class RtpPorts:
    """The RTP port range `low` to `high`, inclusive, on the local address `host`."""

    def __init__(
        self,
        host: str,
        low: int,
        high: int,
        drain_seconds: float = DRAIN_S,
        now: Callable[[], float] = monotonic,
    ) -> None:
        """Raises ValueError if the range holds no pair of an even port and the next."""
        self._host = host
        self._first = low + low % 2
        self._pairs = (high + 1 - self._first) // 2
        if self._pairs < 1 or low < 0 or high > 65_535:
            raise ValueError(f"ports {low} to {high} contain no pair of an even port and the next")
        self._drain_s = drain_seconds
        self._now = now
        self.reader = RtpReader()
        """Source of the packet clock."""
        self._taken: set[int] = set()
        """In use or resting."""
        self._resting: deque[tuple[float, int]] = deque()
        """(Until when, port), in the order of release."""

    async def open_pair(self, on_rtp: Receiver, on_rtcp: Receiver) -> RtpSockets:
        """Open a pair of ports at a random place in the range, so that those without our SDP cannot
        guess it. Raises NoPorts, also if the system has no sockets left."""
        self._free_rested()
        start = random.randrange(self._pairs)
        for index in range(self._pairs):
            port = self._first + 2 * ((start + index) % self._pairs)
            if port in self._taken or (sockets := self._bind(port)) is None:
                continue
            self._taken.add(port)
            return RtpSockets(port, sockets, (on_rtp, on_rtcp), self.reader, self._release)
        raise NoPorts(f"no free pair of ports among {self._pairs} from {self._first}")

    def _free_rested(self) -> None:
        now = self._now()
        while self._resting and self._resting[0][0] <= now:
            self._taken.discard(self._resting.popleft()[1])

    def _release(self, port: int) -> None:
        self._resting.append((self._now() + self._drain_s, port))

    def _bind(self, port: int) -> tuple[socket.socket, socket.socket] | None:
        """Bind both sockets; None if another program has one of the ports."""
        opened: list[socket.socket] = []
        try:
            for number in (port, port + 1):
                opened.append(self._open())
                opened[-1].bind((self._host, number))
        except OSError as error:
            for sock in opened:
                sock.close()
            if error.errno == errno.EADDRINUSE:
                return None
            raise NoPorts(f"cannot open port {number} on {self._host}: {error}") from error
        return opened[0], opened[1]

    def _open(self) -> socket.socket:
        ipv6 = ":" in self._host
        sock = socket.socket(socket.AF_INET6 if ipv6 else socket.AF_INET, socket.SOCK_DGRAM)
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        if ipv6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, EXPEDITED_FORWARDING)
        else:
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, EXPEDITED_FORWARDING)
        return sock
