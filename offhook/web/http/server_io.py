"""The HTTP server of a listener: whose connections it holds, and how many of each peer.

Connections take descriptors, as calls do. One peer may hold a share of them; when it opens more,
its idle connections are closed, the oldest first, so that the door stays open for everybody.
"""

import asyncio
import resource
from collections.abc import Iterable
from functools import partial
from typing import Any

from aiohttp import web
from aiohttp.web_protocol import RequestHandler
from loguru import logger

from offhook.web.http.connection_io import Connection, Request, refusing_unreadable
from offhook.web.http.shares import peer_name

CONNECTIONS_SHARE = 0.5
"""Share of the process's file descriptors (ulimit -n) that connections of a listener may use; the
rest is for calls, files and workers. To accept a further one an idle connection is closed; if none
is idle, the new one is closed."""
PEER_SHARE = 0.5
"""Share of these connections that one peer may hold. To accept a further one its oldest idle
connection is closed; if none is idle, the new one is closed."""


def max_connections() -> int:
    """Returns how many connections a listener may hold."""
    return int(CONNECTIONS_SHARE * resource.getrlimit(resource.RLIMIT_NOFILE)[0])


class HttpServer(web.Server):
    """Makes a Connection of each that is accepted."""

    def __init__(self, app_server: web.Server, **settings: Any) -> None:
        """`app_server` is what aiohttp made of the application; `settings` are those of its
        RequestHandler."""
        super().__init__(
            refusing_unreadable(app_server.request_handler),
            request_factory=partial(app_server.request_factory, _cls=Request),  # type: ignore[call-arg]
        )
        self._settings = settings
        self._most = max_connections()
        self._peers: dict[str, dict[Connection, None]] = {}
        """Open connections of each peer, the oldest first; of "", that of Unix sockets, any
        number."""
        self._peer_of: dict[Connection, str] = {}
        self.connected = asyncio.Event()
        """Set when a connection is made."""

    def __call__(self) -> Connection:
        return Connection(self, loop=self._loop, **self._settings)

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self.connected.set()
        assert isinstance(handler, Connection)
        peer = peer_name((transport.get_extra_info("peername") or ("",))[0])
        if peer and not self._make_room(peer):
            logger.warning("connection from {}: too many are open, and all are in use", peer)
            # not at once, as aiohttp's task would miss the server of a connection that is lost
            self._loop.call_soon(transport.abort)
            return
        self._peers.setdefault(peer, {})[handler] = None
        self._peer_of[handler] = peer

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        assert isinstance(handler, Connection)
        self._forget(handler)

    def _make_room(self, peer: str) -> bool:
        """Closes an idle connection if one too many would be open. Returns whether it worked."""
        own = self._peers.get(peer, {})
        if len(own) >= PEER_SHARE * self._most:
            return self._close_idle(own)
        if len(self._peer_of) >= self._most:
            most = max(self._peers, key=lambda one: len(self._peers[one]))
            return self._close_idle(self._peers[most])
        return True

    def _close_idle(self, connections: Iterable[Connection]) -> bool:
        idle = next((c for c in connections if c.is_idle), None)
        if idle is None:
            return False
        idle.force_close()
        self._forget(idle)
        return True

    def _forget(self, connection: Connection) -> None:
        peer = self._peer_of.pop(connection, None)
        if peer is not None:
            del self._peers[peer][connection]
            if not self._peers[peer]:
                del self._peers[peer]
