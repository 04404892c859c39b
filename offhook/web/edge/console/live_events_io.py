"""GET /calls/events: what happens in all calls in progress, as server-sent events."""

import asyncio
import time
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from aiohttp import web

from offhook.web.edge.calls_io import EVENT_STREAM, KEEP_ALIVE_S
from offhook.web.edge.history_io import NOT_KEPT, NoRecords
from offhook.web.edge.http_io import EDGE, error, wanted_tenant
from offhook.web.http.connection_io import has_disconnected

if TYPE_CHECKING:  # it takes memory, and a server may keep no calls
    from offhook.web.edge.console.live_feed_io import Listener

WRITE_S = 20.0
"""Time limit in s for a listener's system to accept what was sent; then the connection is
dropped."""
STREAM_S = 900.0
"""Maximum time in s of a stream; then the listener has to come back, with a key or session that
still holds."""
BACK_MS = 2000
"""Time in ms after which browsers come back by themselves."""
BUSY_S = 5
"""Time in s after which a refused listener may ask again."""


async def events(request: web.Request) -> web.StreamResponse:
    """GET /calls/events: a snapshot, then what changes."""
    feed = request.app[EDGE].records.live
    if feed is None:
        raise NoRecords(NOT_KEPT)
    tenant = wanted_tenant(request)
    if tenant and tenant not in request.app[EDGE].config.tenants:
        return error(404, f"tenant: there is no [tenants.{tenant}]")
    feed = feed.of(tenant)
    if feed.is_full:
        words = "all places for live screens are taken: close one, or ask GET /calls?state=live"
        return error(503, words, **{"Retry-After": str(BUSY_S)})
    return await stream(request, feed.listening(), STREAM_S)


async def stream(
    request: web.Request, listening: "AbstractContextManager[Listener]", limit_s: float
) -> web.StreamResponse:
    """Sends what a listener gets, for so long at most."""
    response = web.StreamResponse(headers={**EVENT_STREAM, "X-Accel-Buffering": "no"})
    with listening as listener:
        await response.prepare(request)
        try:
            await _send(request, response, listener, limit_s)
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
        except ConnectionError:
            pass  # the listener has left
    return response


async def _send(
    request: web.Request, response: web.StreamResponse, listener: "Listener", limit_s: float
) -> None:
    """Raises TimeoutError, ConnectionError."""
    from offhook.web.edge.console.live_calls import LiveEvent
    from offhook.web.edge.console.live_feed_io import as_line

    async def write(data: bytes) -> None:
        await asyncio.wait_for(response.write(data), WRITE_S)

    end = time.monotonic() + limit_s
    await write(f"retry: {BACK_MS}\n\n".encode())
    while not has_disconnected(request):
        lines = await listener.next(KEEP_ALIVE_S)
        await write(lines or b":\n\n")
        if not listener.ended and time.monotonic() >= end:
            listener.end("this stream has lasted long enough: come back")
        if listener.ended:
            await write(as_line(LiveEvent("reconnect", {"why": listener.ended})))
            return


def add_routes(router: web.UrlDispatcher) -> None:
    router.add_get("/calls/events", events, allow_head=False)  # it has no end
