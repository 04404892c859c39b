"""Reads the WebSockets of all carriers' streams on the compiled path."""

import asyncio
import contextlib
import select
from collections.abc import Callable
from time import monotonic
from typing import NamedTuple

from offhook.media import native


class _Connection(NamedTuple):
    transport: asyncio.Transport
    receive: Callable[[bytes, float], None]


class SocketReader:
    """As a source of the packet clock, reads connections before each tick while that runs, with the
    kernel's times of arrival: to wake up for each message costs more than the message. Without a
    clock that runs, and at the end of a connection, the event loop reads as data comes."""

    def __init__(self) -> None:
        self._clocked = False
        self._connections: dict[int, _Connection] = {}
        """By file descriptor."""
        self._epoll: select.epoll
        """Tells at which connections something has arrived; open while there are any."""

    def add(self, transport: asyncio.Transport, receive: Callable[[bytes, float], None]) -> None:
        """Read the connection until it is removed or ends: `receive` is called with some bytes and
        the time, in monotonic seconds, at which the last of them arrived. Leaves to the event loop
        what it reads otherwise: under TLS, and without the compiled path."""
        sock = transport.get_extra_info("socket")
        if not native.used or sock is None or transport.get_extra_info("sslcontext") is not None:
            return
        if not self._connections:
            self._epoll = select.epoll()
        fd = sock.fileno()
        native.request_times(fd)
        self._epoll.register(fd, select.EPOLLIN)
        self._connections[fd] = _Connection(transport, receive)
        if self._clocked:
            transport.pause_reading()

    def remove(self, transport: asyncio.Transport) -> None:
        """Leave the connection to the event loop from now on. No-op if it was never added."""
        for fd, connection in self._connections.items():
            if connection.transport is transport:
                self._remove(fd, transport)
                return

    def _remove(self, fd: int, transport: asyncio.Transport) -> None:
        del self._connections[fd]
        with contextlib.suppress(OSError):  # it has been closed
            self._epoll.unregister(fd)
        if self._clocked:
            _resume(transport)
        if not self._connections:
            self._epoll.close()

    def follow(self, clocked: bool) -> None:
        """As `PacketSource` has it."""
        if clocked is self._clocked:
            return
        self._clocked = clocked
        for connection in self._connections.values():
            if not clocked:
                _resume(connection.transport)
            elif not connection.transport.is_closing():
                connection.transport.pause_reading()

    def read(self) -> None:
        """As `PacketSource` has it."""
        if not self._connections:
            return
        now = monotonic()
        for fd, _ in self._epoll.poll(0, len(self._connections)):
            connection = self._connections.get(fd)
            if connection is None:
                continue
            read = native.read_stream(fd, now)
            if read is None:
                continue
            data, arrived = read
            if data:
                connection.receive(data, arrived)
            else:
                self._remove(fd, connection.transport)


def _resume(transport: asyncio.Transport) -> None:
    if not transport.is_closing():
        transport.resume_reading()
