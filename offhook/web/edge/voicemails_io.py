"""The /voicemails routes: the messages that callers have left, and their deletion."""

from functools import partial

from aiohttp import web

from offhook.web.edge.history_io import ask, forget_now, parameters, store_of
from offhook.web.edge.http_io import error, wanted_tenant

PARAMETERS = frozenset({"mailbox", "heard", "tenant"})


async def listed(request: web.Request) -> web.Response:
    """GET /voicemails?mailbox=101&heard=false: messages, the last first."""
    from offhook.web.records.errors import SearchError

    store = store_of(request)
    try:
        asked = parameters(request)
    except SearchError as fault:
        return error(400, str(fault))
    if unknown := asked.keys() - PARAMETERS:
        return error(400, f"{min(unknown)}: there are mailbox, heard and tenant")
    if asked.get("heard", "false") != "false":
        return error(400, "heard: is false, for what nobody has heard, or left out")
    new = "heard" in asked
    which = partial(store.voicemails.list, new=new, tenant=wanted_tenant(request))
    found = await ask(request, which, asked.get("mailbox", ""))
    return web.json_response({"voicemails": found})


async def deleted(request: web.Request) -> web.Response:
    """DELETE /voicemails/{call}: deletes a message with all that is known of its call."""
    store, call_id = store_of(request), request.match_info["call"]
    if not await ask(request, store.voicemails.is_there, call_id):
        return error(404, "there is no such voicemail")
    await forget_now(request, store.deletion, store.deletion.forget_call, call_id)
    return web.Response(status=204)


def add_routes(router: web.UrlDispatcher) -> None:
    router.add_get("/voicemails", listed)
    router.add_delete("/voicemails/{call}", deleted)
