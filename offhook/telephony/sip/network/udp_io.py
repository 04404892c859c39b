"""The UDP sockets of the SIP endpoint, and socket addresses."""

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable
from ipaddress import ip_address
from time import monotonic

from loguru import logger

from offhook.telephony.sip.messages.flow import Flow

DATAGRAM_BYTES = 65_535
UDP_BATCH = 32
"""Datagrams read from one socket before others get their turn."""
RECEIVE_BUFFER_BYTES = 1024 * 1024
"""Kernel receive buffer of a UDP socket: bursts of some hundred messages."""
LOST = (errno.EAGAIN, errno.ENOBUFS, errno.EMSGSIZE, errno.EPERM)
"""Errors that lose one datagram; others mean that the peer is unreachable."""

ADDRESS_CACHE_S = 10.0
"""How long our address towards a peer is cached: it is needed for each message and rarely
changes."""
ADDRESSES_KEPT = 1000
"""Limit of peers cached; beyond it the cache is cleared."""


def local_address_for(remote_host: str) -> str:
    """Return the local address the kernel would send from; loopback if there is no route."""
    family = family_of(remote_host)
    with contextlib.closing(socket.socket(family, socket.SOCK_DGRAM)) as sock:
        try:
            sock.connect((remote_host, 9))
        except OSError:
            return "::1" if family == socket.AF_INET6 else "127.0.0.1"
        return str(sock.getsockname()[0])


class LocalAddresses:
    """Results of `local_address_for`, cached for ADDRESS_S."""

    def __init__(
        self,
        find: Callable[[str], str] = local_address_for,
        now: Callable[[], float] = monotonic,
    ) -> None:
        self._find = find
        self._now = now
        self._found: dict[str, tuple[str, float]] = {}
        """Peer → our address and its expiry."""

    def towards(self, remote_host: str) -> str:
        now = self._now()
        address, until = self._found.get(remote_host, ("", 0.0))
        if not address or now >= until:
            if len(self._found) >= ADDRESSES_KEPT:
                self._found.clear()
            address = self._find(remote_host)
            self._found[remote_host] = address, now + ADDRESS_CACHE_S
        return address


def family_of(host: str) -> socket.AddressFamily:
    """Return the address family. Raises ValueError if the host is not numeric."""
    return socket.AF_INET6 if ip_address(host).version == 6 else socket.AF_INET


def listening_hosts(host: str) -> tuple[str, ...]:
    """Return the addresses to bind for a configured `host`. "::" means both families, "0.0.0.0"
    IPv4 alone; each family has its own socket."""
    return ("::", "0.0.0.0") if host == "::" else (host,)


def host_port(address: tuple[str, int] | tuple[str, int, int, int]) -> tuple[str, int]:
    """Return host and port of a socket address; a link-local host keeps its zone."""
    if len(address) == 4 and address[3]:
        return f"{address[0].partition('%')[0]}%{address[3]}", address[1]
    return address[0], address[1]


class UdpSocket:
    """A UDP socket read by the event loop directly: asyncio's transport reads one datagram per
    iteration, allocates 256 KiB for it, and queues without limit what cannot be sent."""

    def __init__(self, sock: socket.socket, on_message: Callable[[bytes, Flow], None]) -> None:
        self.local = host_port(sock.getsockname())
        self.family = sock.family
        self._sock = sock
        self._on_message = on_message
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        self._buffer = memoryview(bytearray(DATAGRAM_BYTES))
        asyncio.get_running_loop().add_reader(sock, self._read)

    def _read(self) -> None:
        for _ in range(UDP_BATCH):
            try:
                size, address = self._sock.recvfrom_into(self._buffer)
            except BlockingIOError:
                return
            except OSError:  # an ICMP error for an earlier datagram
                continue
            remote = address if len(address) == 2 else host_port(address)
            self._on_message(bytes(self._buffer[:size]), Flow("UDP", remote, self.local))
            if self._sock.fileno() < 0:  # closed by the message handler
                return

    def send(self, data: bytes, remote: tuple[str, int]) -> bool:
        """Send a datagram. Returns False if the peer is unreachable; a mere loss counts as sent."""
        try:
            self._sock.sendto(data, remote)
        except OSError as error:
            logger.info("UDP {}: {}", remote, error)
            return error.errno in LOST
        return True

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._sock)
        self._sock.close()
