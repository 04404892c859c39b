"""Cancels a handler when its client disconnects."""

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web

from offhook.web.http.connection_io import has_disconnected

LOOK_S = 0.2
"""Interval in s at which the connection is checked."""

ELSEWHERE: web.RequestKey[bool] = web.RequestKey("elsewhere", bool)
"""Set once another process has the connection, and checks it."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ClientDisconnected(ConnectionError):
    """Raised when the client closed its connection before the response was complete."""


async def run(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Runs the handler and cancels it if the client disconnects; a WebSocket's handler notices by
    itself. Raises ClientDisconnected."""
    if "upgrade" in request.headers.get("Connection", "").lower():
        return await handler(request)
    running = asyncio.ensure_future(handler(request))
    try:
        while not running.done():
            elsewhere = request.get(ELSEWHERE, False)
            await asyncio.wait((running,), timeout=None if elsewhere else LOOK_S)
            if not running.done() and has_disconnected(request):
                raise ClientDisconnected("the client disconnected")
        return running.result()
    finally:
        if not running.done():
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        elif not running.cancelled():
            running.exception()  # asyncio would miss it if this was cancelled as the handler failed
