"""Clients that leave: what is done for them ends."""

import asyncio
import select
from collections.abc import Awaitable, Callable

from aiohttp import web

LOOK_S = 0.2
"""How often it is looked whether the client is still there."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ClientDisconnected(ConnectionError):
    """The client has gone."""


async def run(request: web.Request, handler: Handler) -> web.StreamResponse:
    """The handler, cancelled when the client leaves. A WebSocket's sees for itself."""
    if "upgrade" in request.headers.get("Connection", "").lower():
        return await handler(request)
    running = asyncio.ensure_future(handler(request))
    try:
        while not running.done():
            await asyncio.wait((running,), timeout=LOOK_S)
            if not running.done() and has_left(request):
                raise ClientDisconnected("the client left")
        return running.result()
    finally:
        if not running.done():
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


def has_left(request: web.Request) -> bool:
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
