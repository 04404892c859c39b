"""GET /queues, GET /queues/{name} and POST /queues/{name}/members: who waits, and who is there."""

from aiohttp import web

from offhook.web.config.people.tenants import owner
from offhook.web.edge.http_io import EDGE, error, json_of, wanted_tenant

WANTED = 'the body is {"member": "ADDRESS", "paused": true} or false'


async def listed(request: web.Request) -> web.Response:
    """GET /queues."""
    edge, tenant = request.app[EDGE], wanted_tenant(request)
    tenants, names = edge.config.tenants, edge.config.queues
    its = [name for name in names if not tenant or owner(tenants, "queues", name) == tenant]
    return web.json_response({"queues": [await edge.queues.shown(name) for name in its]})


async def shown(request: web.Request) -> web.Response:
    """GET /queues/{name}."""
    return web.json_response(await request.app[EDGE].queues.shown(request.match_info["name"]))


async def members_changed(request: web.Request) -> web.Response:
    """POST /queues/{name}/members: a member is rung no more, or again."""
    try:
        body = await json_of(request)
    except ValueError:
        return error(400, WANTED)
    if not isinstance(body, dict) or body.keys() != {"member", "paused"}:
        return error(400, WANTED)
    if not isinstance(body["member"], str):
        return error(400, f"member: is no text; {WANTED}")
    if not isinstance(body["paused"], bool):
        return error(400, f"paused: is neither true nor false; {WANTED}")
    queues, name = request.app[EDGE].queues, request.match_info["name"]
    await queues.pause(name, body["member"], body["paused"])
    return web.json_response(await queues.shown(name))


def add_routes(router: web.UrlDispatcher) -> None:
    router.add_get("/queues", listed)
    router.add_get("/queues/{name}", shown)
    router.add_post("/queues/{name}/members", members_changed)
