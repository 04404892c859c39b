"""The UDP sockets of the SIP edge, and the addresses that sockets have."""

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
"""Datagrams taken from one socket before others have their turn."""
LEAST_DATAGRAM_BYTES = 16
"""Shorter ones are keep-alives of phones behind a NAT: line breaks, zeros, "jaK"."""
RECEIVE_BUFFER_BYTES = 1024 * 1024
"""Of the kernel, for a UDP socket: some hundred messages that come at once."""
LOST = (errno.EAGAIN, errno.ENOBUFS, errno.EMSGSIZE, errno.EPERM)
"""Errors of one datagram, which count as its loss; others mean that there is no way to the peer."""

ADDRESS_S = 10.0
"""How long our address towards a peer is taken to stay the same: it is wanted for each message, and
networks come and go seldom."""
ADDRESSES_KEPT = 1000
"""Peers; beyond it all are forgotten and looked for anew."""


def local_address_for(remote_host: str) -> str:
    """The local address that the kernel would send from; loopback when there is no way there."""
    family = family_of(remote_host)
    with contextlib.closing(socket.socket(family, socket.SOCK_DGRAM)) as sock:
        try:
            sock.connect((remote_host, 9))
        except OSError:
            return "::1" if family == socket.AF_INET6 else "127.0.0.1"
        return str(sock.getsockname()[0])


class LocalAddresses:
    """What `local_address_for` has found, kept for ADDRESS_S."""

    def __init__(
        self,
        find: Callable[[str], str] = local_address_for,
        now: Callable[[], float] = monotonic,
    ) -> None:
        self._find = find
        self._now = now
        self._found: dict[str, tuple[str, float]] = {}
        """Peer → our address, and until when that holds."""

    def towards(self, remote_host: str) -> str:
        now = self._now()
        address, until = self._found.get(remote_host, ("", 0.0))
        if not address or now >= until:
            if len(self._found) >= ADDRESSES_KEPT:
                self._found.clear()
            address = self._find(remote_host)
            self._found[remote_host] = address, now + ADDRESS_S
        return address


def family_of(host: str) -> socket.AddressFamily:
    """Raises ValueError when the host is not numeric."""
    return socket.AF_INET6 if ip_address(host).version == 6 else socket.AF_INET


def listening_hosts(host: str) -> tuple[str, ...]:
    """The addresses of the sockets for a `host` to listen on. Every address is "::", both families
    at once, or "0.0.0.0" for IPv4 alone; the families have sockets of their own."""
    return ("::", "0.0.0.0") if host == "::" else (host,)


def host_port(address: tuple[str, int] | tuple[str, int, int, int]) -> tuple[str, int]:
    """Of a socket address; a link-local one keeps its interface."""
    if len(address) == 4 and address[3]:
        return f"{address[0].partition('%')[0]}%{address[3]}", address[1]
    return address[0], address[1]


class UdpSocket:
    """Read by the event loop itself: asyncio's transport takes one datagram a turn and allocates
    256 KiB for it, and queues without limit what cannot be sent now."""

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
            except OSError:  # an ICMP error of an earlier datagram
                continue
            if size < LEAST_DATAGRAM_BYTES:
                continue
            remote = address if len(address) == 2 else host_port(address)
            self._on_message(bytes(self._buffer[:size]), Flow("UDP", remote, self.local))
            if self._sock.fileno() < 0:  # closed by what came
                return

    def send(self, data: bytes, remote: tuple[str, int]) -> bool:
        """Whether it has left, or was lost as datagrams are."""
        try:
            self._sock.sendto(data, remote)
        except OSError as error:
            logger.info("x UDP {}: {}", remote, error)
            return error.errno in LOST
        return True

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._sock)
        self._sock.close()
