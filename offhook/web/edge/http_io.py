"""Helpers shared by the edge's HTTP handlers."""

from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from offhook.media.untrusted_json import read_json
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.refusals import RETRY_AFTER_S, Busy
from offhook.web.http.access import Refusal
from offhook.web.http.access_io import GRANT

EDGE: web.AppKey[Edge] = web.AppKey("edge", Edge)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def wanted_tenant(request: web.Request) -> str:
    """Returns whose calls, agents and so on a list is to have, "" for everybody's: the tenant's
    whose key was sent, or what the operator asks for. Raises Refusal."""
    its, asked = request[GRANT].tenant, request.query.get("tenant", "")
    if its and asked not in ("", its):
        raise Refusal(403, f"tenant: this key is for {its} alone")
    return its or asked


async def json_of(request: web.Request) -> Any:
    """Returns what the body of a request says. Raises ValueError if it is not JSON, or JSON that is
    nested too deeply."""
    return read_json(await request.read())


def error(status: int, message: str, **headers: str) -> web.Response:
    """Returns a JSON error response."""
    return web.json_response({"error": message}, status=status, headers=headers)


def busy(fault: Busy) -> web.Response:
    """Returns the response to a refused call, a 429 or 503 with the reason and Retry-After."""
    headers = {"Retry-After": str(RETRY_AFTER_S)}
    return web.json_response(fault.as_dict(), status=fault.status, headers=headers)
