"""Reads the RTP ports of all calls on the compiled path."""

import asyncio
import select
import socket
from time import monotonic

from offhook.media import native

READY_PORTS = 64
"""Ports read in one round of the event loop, before it attends to others, which are read in the
next one; of each at most `clock_io.DRAIN_DATAGRAMS` datagrams."""
TICK_ROUNDS = 16
"""As many times that are read at a tick: 1024 ports, those of 2000 calls with packets of 20 ms."""


class RtpReader:
    """As a source of the packet clock, reads ports before each tick while that runs, with the
    kernel's times of arrival: to wake up for each packet costs more than the packet. Without a
    clock that runs, the event loop reads them as packets come."""

    def __init__(self) -> None:
        self._clocked = False
        self._ports: dict[int, native.Port] = {}
        """By file descriptor."""
        self._epoll: select.epoll
        """Tells at which ports something has arrived; open while there are any."""
        self._compiled: native.Ports

    def add(self, sock: socket.socket, port: "native.Port") -> None:
        """Read the socket until it is removed."""
        if not self._ports:
            self._epoll = select.epoll()
            self._compiled = native.Ports(self._epoll.fileno(), self._ports)
            self._watch(not self._clocked)
        self._ports[sock.fileno()] = port
        self._epoll.register(sock, select.EPOLLIN)

    def remove(self, sock: socket.socket) -> None:
        self._epoll.unregister(sock)
        del self._ports[sock.fileno()]
        if not self._ports:
            self._watch(False)
            self._epoll.close()

    def follow(self, clocked: bool) -> None:
        """As `PacketSource` has it."""
        self._clocked = clocked
        if self._ports:
            self._watch(not clocked)

    def read(self) -> None:
        """As `PacketSource` has it."""
        now = monotonic()
        for _ in range(TICK_ROUNDS):
            if not self._ports or self._compiled.read(now, True) < READY_PORTS:
                break

    def _watch(self, watched: bool) -> None:
        """Have the event loop read the ports, or not."""
        loop, epoll = asyncio.get_running_loop(), self._epoll.fileno()
        if watched:
            loop.add_reader(epoll, self._drain)
        else:
            loop.remove_reader(epoll)

    def _drain(self) -> None:
        self._compiled.read(monotonic(), False)
