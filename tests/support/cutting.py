"""A way over TCP that a test can cut."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Way:
    """Passes on TCP connections to a port, until they are cut."""

    def __init__(self, port: int) -> None:
        self._to = port
        self.port = 0
        """Where it is entered."""
        self.connections = 0
        """How many there have been."""
        self._open: set[asyncio.StreamWriter] = set()

    async def pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there, back = await asyncio.open_connection("127.0.0.1", self._to)
        self._open |= {writer, back}
        await asyncio.gather(self._copy(reader, back), self._copy(there, writer))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()

    def cut(self) -> None:
        """Resets the connections; new ones are passed on."""
        for writer in self._open:
            writer.transport.abort()
        self._open.clear()


@asynccontextmanager
async def way_to(port: int) -> AsyncIterator[Way]:
    """A way to a port of this machine."""
    way = Way(port)
    server = await asyncio.start_server(way.pass_on, "127.0.0.1", 0)
    way.port = server.sockets[0].getsockname()[1]
    try:
        yield way
    finally:
        way.cut()
        server.close()
