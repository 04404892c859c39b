"""Routes of the carriers' webhooks and streams; see carriers_io."""

from aiohttp import web

from offhook.web.edge.carriers.carriers_io import Carriers
from offhook.web.edge.http_io import EDGE, busy
from offhook.web.edge.refusals import Busy


async def voice(request: web.Request) -> web.StreamResponse:
    return await _carriers(request).voice(request)


async def status(request: web.Request) -> web.StreamResponse:
    return await _carriers(request).status(request)


async def transfer(request: web.Request) -> web.StreamResponse:
    return await _carriers(request).transfers.webhook(request)


async def resume(request: web.Request) -> web.StreamResponse:
    return await _carriers(request).resume(request)


async def stream(request: web.Request) -> web.StreamResponse:
    try:
        return await _carriers(request).stream(request)
    except Busy as fault:
        return busy(fault)


def _carriers(request: web.Request) -> Carriers:
    carriers = request.app[EDGE].carriers
    if carriers is None:
        raise web.HTTPNotFound(text="unknown carrier")
    return carriers


OF_CARRIERS = frozenset({voice, resume, status, transfer, stream})
"""Handlers that authenticate requests themselves."""
NEW_CALLS = frozenset({voice, resume, stream})
"""Handlers that start a call if the path names none."""


def add_routes(router: web.UrlDispatcher) -> None:
    for path in ("/carriers/{name}/voice", "/carriers/{name}/voice/{call}"):
        router.add_post(path, voice)
        router.add_get(path, voice, allow_head=False)
    router.add_post("/carriers/{name}/status/{call}", status)
    router.add_get("/carriers/{name}/status/{call}", status, allow_head=False)
    router.add_post("/carriers/{name}/resume/{token}", resume)
    router.add_post("/carriers/{name}/transfer/{call}", transfer)
    router.add_get("/carriers/{name}/stream", stream, allow_head=False)
    router.add_get("/carriers/{name}/stream/{ticket}", stream, allow_head=False)
