"""What all handlers of the server share."""

from collections.abc import Awaitable, Callable

from aiohttp import web

from offhook.web.edge_io import Edge

EDGE: web.AppKey[Edge] = web.AppKey("edge", Edge)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def error(status: int, message: str, **headers: str) -> web.Response:
    """An answer that says what was wrong."""
    return web.json_response({"error": message}, status=status, headers=headers)
