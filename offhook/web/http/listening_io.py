"""Listens for HTTP connections and limits slow clients.

aiohttp only limits idle connections. This adds limits for incomplete heads, stalled or dripping
bodies, and unread responses, which would otherwise occupy a socket and memory as long as the client
likes.
"""

import asyncio
import errno
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from time import monotonic
from typing import cast

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from offhook.pipeline.speech.remote.worker_list_io import UNIX
from offhook.web.http.access import is_loopback
from offhook.web.http.server_io import HttpServer

HEAD_S = 15.0
"""Time limit in s for the whole head of a new connection's first request; then the connection is
closed."""
IDLE_S = 75.0
"""Time limit in s between two requests on a connection, including the second head; then it is
closed. Longer than the 60 s of nginx and load balancers, since the client must close first."""
BODY_STALL_S = 40.0
BODY_LEAST_BYTES_PER_S = 1024
"""Minimum average rate of a body after BODY_STALL_S; a slower or stalled body is not waited for."""
UNREAD_S = 120.0
"""Time in s without reading after which a client is disconnected."""
LOOK_S = 1.0
"""Interval in s at which connections are checked."""
BACKLOG = 2048
"""Connections queued by the system before they are accepted, so that bursts of callers are not
refused; limited by net.core.somaxconn."""
ACCEPTED_AT_ONCE = 16
"""Connections accepted before others are served: asyncio would accept as many as BACKLOG, and run
out of descriptors before the share of a peer is looked at."""


class BodyTimeoutError(TimeoutError):
    """Raised when the body of a request does not arrive in time: 408 (RFC 9110 §15.5.9)."""

    def __init__(self) -> None:
        super().__init__("the body did not come in time")


@dataclass
class _Seen:
    """State of a connection at its last activity."""

    since: float
    """When it was opened, or its current request began."""
    received_at: float
    taken_at: float
    request: object = None
    received: int = 0
    """Bytes of the body received."""
    untaken: int = 0
    """Bytes waiting to be sent."""


class Runner(web.AppRunner):
    """An AppRunner with all limits, whose sites listen with BACKLOG.

    It relies on private names of aiohttp's RequestHandler; tests/web/http/test_listening.py fails
    if they change.
    """

    def __init__(self, app: web.Application, shutdown_timeout: float = 60.0) -> None:
        super().__init__(app, handle_signals=False, shutdown_timeout=shutdown_timeout)
        self._seen: dict[RequestHandler, _Seen] = {}
        self._looking: asyncio.Task[None] | None = None

    async def setup(self) -> None:
        await super().setup()
        self._looking = asyncio.create_task(self._look_for_ever(), name="connections")

    async def _make_server(self) -> HttpServer:
        self._server_made = HttpServer(
            await super()._make_server(), access_log=None, keepalive_timeout=IDLE_S
        )
        return self._server_made

    async def cleanup(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
            self._looking = None
        await super().cleanup()

    async def listen(self, host: str, port: int, *, reuse_port: bool = False) -> None:
        """Accepts connections on a TCP port. Raises OSError."""
        site = web.TCPSite(self, host, port, backlog=ACCEPTED_AT_ONCE, reuse_port=reuse_port)
        await site.start()
        _queue_more(site)

    async def listen_unix(self, path: str) -> None:
        """Accepts connections on a Unix socket. Raises OSError."""
        site = web.UnixSite(self, path, backlog=ACCEPTED_AT_ONCE)
        await site.start()
        _queue_more(site)

    async def _look_for_ever(self) -> None:
        server = self._server_made
        while True:
            if not server.connections:  # an idle server sleeps
                server.connected.clear()
                await server.connected.wait()
            await asyncio.sleep(LOOK_S)
            self._look(monotonic())

    def _look(self, now: float) -> None:
        assert self.server is not None
        connections = self.server.connections
        seen = {
            c: self._seen.get(c) or _Seen(now, received_at=now, taken_at=now) for c in connections
        }
        self._seen = seen
        for connection, state in seen.items():
            end = self._fault(connection, state, now)
            if end is not None:
                end()

    def _fault(
        self, connection: RequestHandler, seen: _Seen, now: float
    ) -> Callable[[], None] | None:
        """Returns what ends the connection or its request; None if it is within the limits."""
        transport = connection.transport
        if transport is None:
            return None
        waiting = transport.get_write_buffer_size()
        if not waiting or waiting != seen.untaken:
            seen.untaken, seen.taken_at = waiting, now
        elif now - seen.taken_at > UNREAD_S:
            return transport.abort
        request = connection._current_request
        if request is not seen.request:
            seen.request, seen.since = request, now
            seen.received, seen.received_at = 0, now
        if request is None:
            late = not connection._request_count and now - seen.since > HEAD_S
            return connection.force_close if late else None
        return self._body_fault(connection, request, seen, now)

    def _body_fault(
        self,
        connection: RequestHandler,
        request: web.BaseRequest,
        seen: _Seen,
        now: float,
    ) -> Callable[[], None] | None:
        body = request.content
        if body.is_eof() or body.exception() is not None:
            return None
        if connection._reading_paused or body.total_raw_bytes != seen.received:
            # Paused: we are responsible for reading what came.
            seen.received, seen.received_at = body.total_raw_bytes, now
        took = now - seen.since - BODY_STALL_S
        stalled = now - seen.received_at > BODY_STALL_S
        drips = took > 0 and seen.received < took * BODY_LEAST_BYTES_PER_S
        if stalled or (drips and not connection._reading_paused):
            return lambda: body.set_exception(BodyTimeoutError())
        return None


def _queue_more(site: web.BaseSite) -> None:
    """Lets the system queue BACKLOG connections, of which asyncio accepts fewer at once."""
    server = cast(asyncio.Server, site._server)  # uvloop's is no subclass
    for listener in server.sockets:
        with socket.socket(fileno=os.dup(listener.fileno())) as queue:
            queue.listen(BACKLOG)


# --- addresses ---

REMEDIES = {
    errno.EADDRINUSE: "is in use: end what listens there, or set another port",
    errno.EADDRNOTAVAIL: "is not an address of this machine",
    errno.EACCES: "is not for this user: ports below 1024 are for root, so set another one",
}


@asynccontextmanager
async def kept_port(
    host: str,
    port: int,
    host_key: str,
    port_key: str,
    kind: socket.SocketKind = socket.SOCK_STREAM,
) -> AsyncIterator[int]:
    """Yields the port, a free one for 0, and keeps it bound meanwhile: whoever shares it with
    SO_REUSEPORT can listen there, and nobody else is given it. Raises OSError, which names the
    configuration's key and the remedy."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host or None, port, type=kind, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise OSError(f"{host_key}: {host!r} has no address: {error.strerror}") from error
    with ExitStack() as bound:
        for family, _, protocol, _, address in found:
            one = bound.enter_context(socket.socket(family, kind, protocol))
            if kind is socket.SOCK_STREAM:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family is socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                one.bind((address[0], port, *address[2:]))
            except OSError as error:
                if error.errno == errno.EADDRNOTAVAIL and len(found) > 1:
                    continue  # of a family that this machine does not have
                key = host_key if error.errno == errno.EADDRNOTAVAIL else port_key
                what = REMEDIES.get(error.errno or 0, f"cannot be used: {error.strerror}")
                raise OSError(f"{key}: {host}:{port} {what}") from error
            port = one.getsockname()[1]
            if hasattr(socket, "SO_REUSEPORT"):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        yield port


@dataclass(frozen=True)
class Address:
    """A TCP or Unix address to listen on."""

    host: str = "127.0.0.1"
    port: int = 0
    path: str = ""
    """Path of a Unix socket; host and port are then unused."""

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Parses HOST:PORT, [IPV6]:PORT or unix:PATH. Raises ValueError."""
        if text.startswith(UNIX) and len(text) > len(UNIX):
            return cls(path=text.removeprefix(UNIX))
        host, _, port = text.rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65535:
            raise ValueError(f"--listen {text}: give HOST:PORT or {UNIX}PATH")
        return cls(host.strip("[]"), int(port))

    @property
    def local(self) -> bool:
        return bool(self.path) or is_loopback(self.host)


Listen = Callable[[Runner], Awaitable[str]]
"""Starts accepting connections for the runner and returns the address as text."""


def listener(address: Address) -> Listen:
    async def listen(runner: Runner) -> str:
        if not address.path:
            await runner.listen(address.host, address.port)
            host, port = runner.addresses[0][:2]
            return f"http://{host}:{port}"
        mask = os.umask(0o177)  # private from the first moment
        try:
            await runner.listen_unix(address.path)
        finally:
            os.umask(mask)
        return UNIX + address.path

    return listen
