"""Listens for HTTP connections and limits slow clients.

aiohttp only limits idle connections. This adds limits for incomplete heads, stalled or dripping
bodies, and unread responses, which would otherwise occupy a socket and memory as long as the client
likes.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import monotonic

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from offhook.pipeline.speech.remote.worker_list_io import UNIX
from offhook.web.http.access import is_loopback

HEAD_S = 15.0
"""Time limit in s for the whole head of a new connection's first request."""
IDLE_S = 75.0
"""Time limit in s between two requests on a connection, including the second head. Longer than the
60 s of nginx and load balancers, since the client must close first."""
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
MAX_LINE_BYTES = 1 << 16
"""Maximum request line; a stream's context is in its query, 4000 characters of up to 12 bytes
each."""

MAX_FIELD_BYTES = 16 << 10
"""Maximum header; a client secret with its session is in one."""


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

    def __init__(
        self, app: web.Application, shutdown_timeout: float = 60.0, lingering_time: float = 10.0
    ) -> None:
        super().__init__(
            app,
            access_log=None,
            handle_signals=False,
            shutdown_timeout=shutdown_timeout,
            lingering_time=lingering_time,
            keepalive_timeout=IDLE_S,
            max_line_size=MAX_LINE_BYTES,
            max_field_size=MAX_FIELD_BYTES,
        )
        self._seen: dict[RequestHandler, _Seen] = {}
        self._looking: asyncio.Task[None] | None = None
        self._connected = asyncio.Event()

    async def setup(self) -> None:
        await super().setup()
        server = self.server
        assert server is not None
        connection_made = server.connection_made

        def note_connection(handler: RequestHandler, transport: asyncio.Transport) -> None:
            connection_made(handler, transport)
            self._connected.set()

        setattr(server, "connection_made", note_connection)  # noqa: B010
        self._looking = asyncio.create_task(self._look_for_ever(), name="connections")

    async def cleanup(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
            self._looking = None
        await super().cleanup()

    async def listen(self, host: str, port: int, *, reuse_port: bool = False) -> None:
        """Accepts connections on a TCP port. Raises OSError."""
        await web.TCPSite(self, host, port, backlog=BACKLOG, reuse_port=reuse_port).start()

    async def listen_unix(self, path: str) -> None:
        """Accepts connections on a Unix socket. Raises OSError."""
        await web.UnixSite(self, path, backlog=BACKLOG).start()

    async def _look_for_ever(self) -> None:
        assert self.server is not None
        while True:
            if not self.server.connections:  # an idle server sleeps
                self._connected.clear()
                await self._connected.wait()
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


# --- addresses ---


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
