"""Cancels a handler when its client disconnects."""

import asyncio
import select
from collections.abc import Awaitable, Callable

from aiohttp import web

LOOK_S = 0.2
"""The interval at which the connection is checked."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ClientDisconnected(ConnectionError):
    """The client closed its connection before its answer was complete."""


async def run(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Runs the handler, and cancels it when the client disconnects; a WebSocket's handler notices
    by itself. Raises ClientDisconnected."""
    if "upgrade" in request.headers.get("Connection", "").lower():
        return await handler(request)
    running = asyncio.ensure_future(handler(request))
    try:
        while not running.done():
            await asyncio.wait((running,), timeout=LOOK_S)
            if not running.done() and has_disconnected(request):
                raise ClientDisconnected("the client disconnected")
        return running.result()
    finally:
        if not running.done():
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


def has_disconnected(request: web.Request) -> bool:
    """Whether the client has closed its connection. While a body waits to be read the loop does not
    look, so the system is asked; it knows once it has taken the rest of what the client sent."""
    transport = request.transport
    if transport is None or transport.is_closing():
        return True
    socket = transport.get_extra_info("socket")
    if socket is None or not hasattr(select, "POLLRDHUP"):
        return False
    poll = select.poll()
    poll.register(socket.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))
