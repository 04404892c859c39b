"""The connections of all carriers' streams: on the compiled path they are read before ticks and
written without the event loop, for which each message would be an event."""

import asyncio
import contextlib
import select
from collections.abc import Callable
from time import monotonic
from typing import NamedTuple

from offhook.media import native

UNUSABLE = -1
"""In place of the file descriptor of a connection that only the event loop reads and writes."""


class _Connection(NamedTuple):
    transport: asyncio.Transport
    receive: Callable[[bytes, float], None]


class Connections:
    """As a source of the packet clock, reads connections before each tick while that runs, with the
    kernel's times of arrival: to wake up for each message costs more than the message. Without a
    clock that runs, and at the end of a connection, the event loop reads as data comes."""

    def __init__(self) -> None:
        self._clocked = False
        self._by_fd: dict[int, _Connection] = {}
        self._epoll: select.epoll
        """Tells at which connections something has arrived; open while there are any."""
        self._flushes: list[Callable[[], None]] = []
        """To be called in this iteration of the event loop."""

    def add(self, transport: asyncio.Transport, receive: Callable[[bytes, float], None]) -> int:
        """Read a connection until it is removed or ends: `receive` is called with some bytes and
        the time, in monotonic seconds, at which the last of them arrived. Returns the file
        descriptor for `write`; UNUSABLE, with no effect, under TLS and without the compiled
        path."""
        sock = transport.get_extra_info("socket")
        if not native.used or sock is None or transport.get_extra_info("sslcontext") is not None:
            return UNUSABLE
        if not self._by_fd:
            self._epoll = select.epoll()
        fd: int = sock.fileno()
        native.request_times(fd)
        self._epoll.register(fd, select.EPOLLIN)
        self._by_fd[fd] = _Connection(transport, receive)
        if self._clocked:
            transport.pause_reading()
        return fd

    def remove(self, transport: asyncio.Transport) -> None:
        """Leave a connection to the event loop from now on. No-op if it is not read here."""
        for fd, connection in self._by_fd.items():
            if connection.transport is transport:
                self._remove(fd, transport)
                return

    def _remove(self, fd: int, transport: asyncio.Transport) -> None:
        del self._by_fd[fd]
        with contextlib.suppress(OSError):  # it has been closed
            self._epoll.unregister(fd)
        if self._clocked:
            _resume(transport)
        if not self._by_fd:
            self._epoll.close()

    def follow(self, clocked: bool) -> None:
        """As `PacketSource` has it."""
        if clocked is self._clocked:
            return
        self._clocked = clocked
        for connection in self._by_fd.values():
            if not clocked:
                _resume(connection.transport)
            elif not connection.transport.is_closing():
                connection.transport.pause_reading()

    def read(self) -> None:
        """As `PacketSource` has it."""
        if not self._by_fd:
            return
        now = monotonic()
        for fd, _ in self._epoll.poll(0, len(self._by_fd)):
            connection = self._by_fd.get(fd)
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

    def flush_soon(self, flush: Callable[[], None]) -> None:
        """Call this once, after the ticks of all legs if it is asked for in one."""
        if not self._flushes:
            asyncio.get_running_loop().call_soon(self._flush)
        self._flushes.append(flush)

    def _flush(self) -> None:
        flushes, self._flushes = self._flushes, []
        for flush in flushes:
            flush()


def write(fd: int, transport: asyncio.Transport, data: bytes) -> None:
    """Write to a connection, or queue what it does not take now. Errors are the transport's."""
    if fd == UNUSABLE or transport.get_write_buffer_size():
        transport.write(data)
    elif (written := native.write_stream(fd, data)) < len(data):
        transport.write(data[written:])


def _resume(transport: asyncio.Transport) -> None:
    if not transport.is_closing():
        transport.resume_reading()
