"""A connection whose request was read by one process and is answered by another."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import cast

from aiohttp import web


class HandedOver(web.StreamResponse):
    """The (empty) response to a request that another process answers."""

    def __init__(self, status: int = 200) -> None:
        super().__init__(status=status)
        self.force_close()

    async def prepare(self, request: web.BaseRequest) -> None:
        pass

    async def write_eof(self, data: bytes = b"") -> None:
        pass


def packed_head(
    request: web.Request, without: Collection[bytes] = (), more: Sequence[bytes] = ()
) -> bytes:
    """Returns the request's head as it came, `without` some headers, in lower case, and with `more`
    lines."""
    version = request.version
    line = f"{request.method} {request.raw_path} HTTP/{version.major}.{version.minor}"
    lines = [line.encode("utf-8", "surrogateescape")]
    lines += [b": ".join(pair) for pair in request.raw_headers if pair[0].lower() not in without]
    return b"\r\n".join((*lines, *more, b"", b""))


class Adopted(asyncio.Protocol):
    """Connects such a connection to a server's protocol, which gets the bytes read before first."""

    def __init__(self, protocol: Callable[[], asyncio.Protocol], data: bytes) -> None:
        self._protocol, self._data = protocol, data

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        protocol = self._protocol()
        transport.set_protocol(protocol)
        protocol.connection_made(cast(asyncio.Transport, transport))  # uvloop's is no subclass
        protocol.data_received(self._data)
