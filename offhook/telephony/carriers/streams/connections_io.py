"""The connections of all carriers' streams: on the compiled path they are read before ticks and
written without the event loop, for which each message would be an event."""

import asyncio
import contextlib
import select
from collections.abc import Callable
from time import monotonic

from offhook.media import native

UNUSABLE = -1
"""In place of the file descriptor of a connection that only the event loop reads and writes."""


class Connection:
    """A connection under a transport of the event loop. `receive` is called with some bytes and the
    time, in monotonic seconds, at which the last of them arrived."""

    def __init__(
        self, transport: asyncio.Transport, receive: Callable[[bytes, float], None]
    ) -> None:
        self.transport = transport
        self.receive = receive
        self.reader: native.MediaReader | None = None
        """Reads what it can before `receive` is called."""
        self.read_at = 0.0
        """Monotonic seconds of the last tick before which data was read."""
        self._fd = UNUSABLE

    @property
    def read_at_ticks(self) -> bool:
        """Whether it is read by `Connections` while a clock runs."""
        return self._fd != UNUSABLE

    def write(self, data: bytes) -> None:
        """Write to the connection, or queue what it does not take now. Errors are the
        transport's."""
        transport = self.transport
        if self._fd == UNUSABLE or transport.get_write_buffer_size():
            transport.write(data)
        elif (written := native.write_stream(self._fd, data)) < len(data):
            transport.write(data[written:])

    def follow(self, clocked: bool) -> None:
        """Have the event loop read no longer, or again."""
        if self.transport.is_closing():
            return
        if clocked:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()


class Connections:
    """As a source of the packet clock, reads connections before each tick while that runs, with the
    kernel's times of arrival: to wake up for each message costs more than the message. Without a
    clock that runs, and at the end of a connection, the event loop reads as data comes."""

    def __init__(self) -> None:
        self._clocked = False
        self._by_fd: dict[int, Connection] = {}
        self._epoll: select.epoll
        """Tells at which connections something has arrived; open while there are any."""
        self._flushes: list[Callable[[], None]] = []
        """To be called in this iteration of the event loop."""

    def add(self, connection: Connection) -> None:
        """Read a connection until it is removed or ends. No-op under TLS and without the compiled
        path, where the event loop reads it, and if it is closing."""
        transport = connection.transport
        sock = transport.get_extra_info("socket")
        if not native.used or sock is None or transport.is_closing():
            return
        if transport.get_extra_info("sslcontext") is not None:
            return
        if not self._by_fd:
            self._epoll = select.epoll()
        fd = connection._fd = sock.fileno()
        native.request_times(fd)
        self._epoll.register(fd, select.EPOLLIN)
        self._by_fd[fd] = connection
        if self._clocked:
            connection.follow(True)

    def remove(self, connection: Connection) -> None:
        """Leave a connection to the event loop from now on. No-op if it is not read here."""
        fd, connection._fd, connection.reader = connection._fd, UNUSABLE, None
        if self._by_fd.get(fd) is not connection:
            return
        del self._by_fd[fd]
        with contextlib.suppress(OSError):  # it has been closed
            self._epoll.unregister(fd)
        if self._clocked:
            connection.follow(False)
        if not self._by_fd:
            self._epoll.close()

    def follow(self, clocked: bool) -> None:
        """As `PacketSource` has it."""
        if clocked is self._clocked:
            return
        self._clocked = clocked
        for connection in self._by_fd.values():
            connection.follow(clocked)

    def read(self) -> None:
        """As `PacketSource` has it."""
        if not self._by_fd:
            return
        now = monotonic()
        for fd, _ in self._epoll.poll(0, len(self._by_fd)):
            connection = self._by_fd.get(fd)
            if connection is None:
                continue
            connection.read_at = now
            read = native.read_stream(fd, now, connection.reader)
            if read is None:
                continue
            data, arrived = read
            if data:
                connection.receive(data, arrived)
            else:
                self.remove(connection)

    def flush_soon(self, flush: Callable[[], None]) -> None:
        """Call this once, after the ticks of all legs if it is asked for in one."""
        if not self._flushes:
            asyncio.get_running_loop().call_soon(self._flush)
        self._flushes.append(flush)

    def _flush(self) -> None:
        flushes, self._flushes = self._flushes, []
        for flush in flushes:
            flush()
