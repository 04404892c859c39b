"""What all handlers of the server share."""

from collections.abc import Awaitable, Callable

from aiohttp import web

from offhook.web.edge.edge_io import Edge
from offhook.web.edge.refusals import RETRY_AFTER_S, Busy

EDGE: web.AppKey[Edge] = web.AppKey("edge", Edge)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def error(status: int, message: str, **headers: str) -> web.Response:
    """An answer that says what was wrong."""
    return web.json_response({"error": message}, status=status, headers=headers)


def busy(fault: Busy) -> web.Response:
    """The answer to a call that is not taken now: why not, and when to try again."""
    headers = {"Retry-After": str(RETRY_AFTER_S)}
    return web.json_response(fault.as_dict(), status=503, headers=headers)
