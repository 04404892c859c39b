"""The sockets of a port that all WebRTC calls share: UDP, and TCP for those behind firewalls."""

import asyncio
import errno
import socket
from collections.abc import Sequence
from time import monotonic

import aioice.ice
from aioice import Candidate
from aioice.candidate import candidate_foundation, candidate_priority
from loguru import logger

from offhook.media import native
from offhook.media.clock_io import DRAIN_DATAGRAMS
from offhook.signaling.ice.demultiplexer import Address, Demultiplexer
from offhook.signaling.ice.tcp_io import TcpListener

RECEIVE_BUFFER_BYTES = 16 * 1024 * 1024
"""Receive buffer for the packets of all calls while the event loop is busy; further ones are
dropped by the kernel. It is 3 s of 170 calls or more, as Linux grants twice as much, for its own
accounting, in which a packet counts 0.8 to 1.3 kB. It grants at most net.core.rmem_max."""
MAX_DATAGRAM_BYTES = 2048
"""Maximum size of a datagram; longer ones are cut, and then fail authentication. Paths carry at
most 1500."""
TICK_DRAINS = 16
"""As many times that are read at a tick: 1024 datagrams, the packets of 2000 calls. What a flood
sends beyond that waits in the kernel, which drops what it has no room for."""
_TCP_PRIORITY = (90 << 24) + (((4 << 13) + (1 << 13) - 1) << 8) + 255
"""Below every UDP candidate that we offer; 4 is the direction preference of passive host candidates
(RFC 6544 §4.2)."""


class UdpSocket:
    """The socket of one local address, and its part of the demultiplexer."""

    def __init__(self, address: str, port: int, demultiplexer: Demultiplexer) -> None:
        """Raises OSError."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_DGRAM)
        try:
            self._socket.setblocking(False)
            if family == socket.AF_INET6:
                self._socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
            self._socket.bind((address, port))
        except OSError:
            self._socket.close()
            raise
        self.address = address
        self.unsent = 0
        """Datagrams that the kernel did not take."""
        self.local = demultiplexer.open_local(self)
        self._compiled: native.SharedPort | None = None
        if native.used:
            self._compiled = native.SharedPort(
                self._socket.fileno(), self.local.paths, self.local.receive
            )
        asyncio.get_running_loop().add_reader(self._socket, self._drain)

    def follow(self, clocked: bool) -> None:
        """As `PacketSource` has it. In Python the event loop always reads: it does not know when a
        datagram has arrived."""
        if self._compiled is None:
            return
        loop = asyncio.get_running_loop()
        if clocked:
            loop.remove_reader(self._socket)
        else:
            loop.add_reader(self._socket, self._drain)

    def read(self) -> None:
        """As `PacketSource` has it."""
        if self._compiled is None:
            return
        now = monotonic()
        for _ in range(TICK_DRAINS):
            if self._compiled.read(now, True) < DRAIN_DATAGRAMS:
                break

    def _drain(self) -> None:
        now = monotonic()
        if self._compiled is not None:
            self._compiled.read(now, False)
            return
        receive, recvfrom = self.local.receive, self._socket.recvfrom
        for _ in range(DRAIN_DATAGRAMS):
            try:
                data, remote = recvfrom(MAX_DATAGRAM_BYTES)
            except OSError:  # BlockingIOError: no more; else of an earlier sendto
                return
            receive(data, remote if len(remote) == 2 else remote[:2], now)

    def sendto(self, data: bytes, remote: Address) -> None:
        """Sends a datagram, or drops it if the kernel does not take it."""
        try:
            self._socket.sendto(data, remote)
        except OSError:
            self.unsent += 1

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()


class IcePort:
    """One UDP socket and one TCP listener for each local address, all on the same port."""

    def __init__(self, port: int, public_addresses: Sequence[str] = ()) -> None:
        """Public addresses, at most one of IPv4 and of IPv6, are offered instead of the local ones
        of their kind, for a 1:1 NAT that forwards the port."""
        self.port = port
        self.demultiplexer = Demultiplexer()
        self.sockets: dict[str, UdpSocket] = {}
        """By local address."""
        self.tcp = TcpListener(self.demultiplexer)
        self._public = {":" in address: address for address in public_addresses}

    async def open(self) -> None:
        """Binds the port on all addresses of this machine that are offered. Raises OSError."""
        try:
            for address in aioice.ice.get_host_addresses(True, True):
                await self._bind(address)
            if not self.sockets:
                raise OSError(errno.EADDRNOTAVAIL, "no local address to bind")
        except BaseException:
            await self.close()
            raise

    async def _bind(self, address: str) -> None:
        try:
            udp = UdpSocket(address, self.port, self.demultiplexer)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise OSError(error.errno, f"{address} port {self.port}/udp is in use") from error
            logger.info("no WebRTC on {}: {}", address, error.strerror)
            return
        self.sockets[address] = udp
        try:
            await self.tcp.listen(address, self.port)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise OSError(error.errno, f"{address} port {self.port}/tcp is in use") from error
            logger.info("no ICE-TCP on {}: {}", address, error.strerror)

    def follow(self, clocked: bool) -> None:
        """As `PacketSource` has it."""
        for udp in self.sockets.values():
            udp.follow(clocked)

    def read(self) -> None:
        """As `PacketSource` has it."""
        for udp in self.sockets.values():
            udp.read()

    def candidates(self) -> list[tuple[UdpSocket, Candidate]]:
        """Returns the UDP sockets and how each is offered, IPv4 first."""
        ordered = sorted(self.sockets.items(), key=lambda item: ":" in item[0])
        return [(udp, self._udp_candidate(address)) for address, udp in ordered]

    def tcp_candidates(self) -> list[Candidate]:
        """Returns what is offered of ICE-TCP (RFC 6544): we only listen."""
        return [
            Candidate(
                foundation=candidate_foundation("host", "tcp", address),
                component=1,
                transport="tcp",
                priority=_TCP_PRIORITY,
                host=self._advertised(address),
                port=self.port,
                type="host",
                tcptype="passive",
            )
            for address in sorted(self.tcp.addresses, key=lambda address: ":" in address)
        ]

    def _udp_candidate(self, address: str) -> Candidate:
        return Candidate(
            foundation=candidate_foundation("host", "udp", address),
            component=1,
            transport="udp",
            priority=candidate_priority(1, "host"),
            host=self._advertised(address),
            port=self.port,
            type="host",
        )

    def _advertised(self, address: str) -> str:
        return self._public.get(":" in address, address)

    async def close(self) -> None:
        """Closes all sockets. Calls in progress hear nothing any more."""
        await self.tcp.close()
        for udp in self.sockets.values():
            udp.close()
        self.sockets.clear()
