"""Passes a TCP connection to another process of the server, with everything read from it so far.

caller -- TCP --> process A: reads the request, which concerns a call of B
    A -- the socket, and the bytes read --> B: serves it as if it had arrived there
    caller -- TCP --> process B

The socket itself is passed (SCM_RIGHTS over a Unix socket), so A no longer forwards its bytes.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from aiohttp import web
from loguru import logger

from offhook.media.tasks_io import TaskSet
from offhook.web.http.handed_over_io import Adopted, HandedOver, packed_head

HAND_OVER_S = 2.0
"""Time limit in s for a sibling to accept a connection; then a new call stays with this process,
and any other request is answered with 502."""
MAX_HEAD_BYTES = 512 * 1024
"""Maximum bytes already read, the request's head and what followed it directly; with more the
connection is closed, and a warning is logged."""
BACKLOG = 256
TAKEN = b"\x06"
"""Acknowledgement of a sibling."""

OF_BODY = frozenset((b"connection", b"content-length", b"transfer-encoding"))
"""Headers of a request that is handed over with its body, which are written anew."""

_CHUNK = 64 * 1024


class _Rest:
    """Collects what aiohttp has read beyond the request."""

    def __init__(self) -> None:
        self.data = b""

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        self.data += data
        return False, b""

    def feed_eof(self) -> None:
        pass


async def hand_over(request: web.Request, path: str) -> web.StreamResponse:
    """Passes the connection of a request to the process listening at `path`; one that upgrades
    nothing is the last of its connection. Raises OSError or TimeoutError if it does not listen, in
    which case the request can still be answered. Later failures close the connection."""
    loop = asyncio.get_running_loop()
    head, body = packed_head(request), b""
    if "Upgrade" not in request.headers:
        body = await request.read()
        length = b"Content-Length: %d" % len(body)
        head = packed_head(request, OF_BODY, (length, b"Connection: close"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sibling:
        sibling.setblocking(False)
        async with asyncio.timeout(HAND_OVER_S):
            await loop.sock_connect(sibling, path)
        transport, rest = request.transport, _Rest()
        if transport is None:
            return HandedOver()
        try:
            request.protocol.set_parser(rest)  # type: ignore[arg-type]
            transport.pause_reading()  # later bytes are read by the sibling
            data = head + body + rest.data
            descriptor = transport.get_extra_info("socket").fileno()
            sent = socket.send_fds(sibling, [data[:_CHUNK]], [descriptor])
            async with asyncio.timeout(HAND_OVER_S):
                await loop.sock_sendall(sibling, data[sent:])
                sibling.shutdown(socket.SHUT_WR)
                if await loop.sock_recv(sibling, 1) != TAKEN:
                    raise ConnectionError("it was not taken")
        except (OSError, TimeoutError) as error:
            logger.warning("a connection was lost on its way to a sibling: {}", error)
        finally:
            transport.abort()  # closes our descriptor, not the connection
    return HandedOver()


@asynccontextmanager
async def adopting(path: str, server: web.Server) -> AsyncIterator[None]:
    """Accepts connections from siblings at `path`, in a private directory, while inside. Raises
    OSError."""
    with suppress(FileNotFoundError):
        os.unlink(path)  # left by a crashed process with the same number
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen(BACKLOG)
        listener.setblocking(False)
        async with _Adopter(listener, server):
            yield


class _Adopter:
    """Accepts connections and gives them to the server."""

    def __init__(self, listener: socket.socket, server: web.Server) -> None:
        self._listener, self._server = listener, server
        self._tasks = TaskSet()

    async def __aenter__(self) -> None:
        self._tasks.spawn(self._accept(), "connections of siblings")

    async def __aexit__(self, *exception: object) -> None:
        await self._tasks.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            sibling, _ = await loop.sock_accept(self._listener)
            self._tasks.spawn(self._receive(sibling), "a connection of a sibling")

    async def _receive(self, sibling: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with sibling:
            sibling.setblocking(False)
            try:
                async with asyncio.timeout(HAND_OVER_S):
                    connection, data = await _received(sibling)
                    try:
                        await loop.connect_accepted_socket(
                            lambda: Adopted(self._server, data), connection
                        )
                    except BaseException:
                        connection.close()
                        raise
                    await loop.sock_sendall(sibling, TAKEN)
            except (OSError, TimeoutError) as error:
                logger.warning("a connection of a sibling was not taken: {}", error)


async def _received(sibling: socket.socket) -> tuple[socket.socket, bytes]:
    """Receives a connection and the bytes read from it. Raises OSError."""
    await _readable(sibling)
    data, descriptors, _, _ = socket.recv_fds(sibling, _CHUNK, 1)
    if not descriptors:
        raise ConnectionError("no connection came with it")
    connection = socket.socket(fileno=descriptors[0])
    try:
        connection.set_inheritable(False)
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        while more := await loop.sock_recv(sibling, _CHUNK):
            data += more
            if len(data) > MAX_HEAD_BYTES:
                raise ConnectionError(f"over {MAX_HEAD_BYTES} bytes were read of it")
    except BaseException:
        connection.close()
        raise
    return connection, data


async def _readable(sock: socket.socket) -> None:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sock, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(sock)
