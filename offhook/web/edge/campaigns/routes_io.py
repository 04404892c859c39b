"""The /campaigns and /do-not-call routes."""

import asyncio
import time
import uuid
from collections.abc import Iterator
from functools import partial

from aiohttp import web
from loguru import logger

from offhook.web.campaigns.errors import CampaignError
from offhook.web.campaigns.recipients_csv import MAX_CSV_BYTES
from offhook.web.edge.calls_io import check_message
from offhook.web.edge.campaigns.requests import (
    CSV,
    CampaignRequest,
    parse_action,
    parse_campaign,
    parse_numbers,
    parse_reason,
    parse_recipients,
)
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.history_io import ask, store_of
from offhook.web.edge.http_io import EDGE, error, wanted_tenant
from offhook.web.edge.placing.requests import DialRequestError, outbound_routes
from offhook.web.edge.refusals import NoPhones
from offhook.web.edge.tenants.asked import check_placed, tenant_placed
from offhook.web.http.access_io import GRANT, peer_of


async def listed(request: web.Request) -> web.Response:
    """GET /campaigns: the last ones with their progress, the last first."""
    found = await ask(request, store_of(request).campaigns.listed, wanted_tenant(request))
    return web.json_response({"campaigns": found})


async def begun(request: web.Request) -> web.Response:
    """POST /campaigns."""
    campaigns, query = store_of(request).campaigns, request.query
    named = {name: query.getall(name) for name in query}
    body = await _body(request)
    asked, recipients = await asyncio.to_thread(parse_campaign, request.content_type, body, named)
    edge, tenant = request.app[EDGE], request[GRANT].tenant
    check_placed(edge.config, tenant, asked)
    check_route(edge, asked)
    campaign = asked.id or uuid.uuid4().hex[:12]
    if tenant:  # no tenant learns of the ids of others, not even by the fault of one that is there
        campaign = f"{tenant}.{campaign}"
    add = partial(campaigns.add, paused=asked.paused, tenant=tenant_placed(edge.config, asked))
    added = await ask(request, add, campaign, asked.settings(), recipients, time.time())
    logger.info(
        "campaign {} of {} recipients, asked for by {}", campaign, added["added"], peer_of(request)
    )
    answer = {"campaign_id": campaign, "state": "paused" if asked.paused else "running", **added}
    headers = {"Location": f"/campaigns/{campaign}"}
    return web.json_response(answer, status=201, headers=headers)


def check_route(edge: Edge, asked: CampaignRequest) -> None:
    """Checks that the calls can be placed, as far as this process knows. Raises NoPhones, DialError
    and DialRequestError."""
    edge.agents.check(asked.agent)
    check_message(edge, asked)
    alone = edge.config.server.processes == 1  # otherwise, another one may have the phones
    ways = outbound_routes(edge.config)
    wanted = asked.carrier or asked.trunk
    if alone and not ways:
        raise NoPhones
    if wanted and wanted not in ways and (alone or asked.carrier):
        field = "carrier" if asked.carrier else "trunk"
        there = ", ".join(ways)
        raise DialRequestError(f"{field}: none that can call others is called {wanted!r} ({there})")
    if alone and not wanted and edge.config.sip is None:
        raise DialRequestError("carrier: which one is to place the calls?")


async def shown(request: web.Request) -> web.Response:
    """GET /campaigns/{campaign}."""
    return web.json_response(await ask(request, store_of(request).campaigns.show, _id(request)))


async def changed(request: web.Request) -> web.Response:
    """POST /campaigns/{campaign}: pauses, resumes or cancels it."""
    action = parse_action(await request.read())
    state = await ask(request, store_of(request).campaigns.act, _id(request), action, time.time())
    logger.info("campaign {}: {} by {}", _id(request), action, peer_of(request))
    return web.json_response({"campaign_id": _id(request), "state": state})


async def appended(request: web.Request) -> web.Response:
    """POST /campaigns/{campaign}/recipients."""
    store, body = store_of(request), await _body(request)
    recipients = await asyncio.to_thread(parse_recipients, request.content_type, body)
    added = await ask(request, store.campaigns.append, _id(request), recipients, time.time())
    return web.json_response({"campaign_id": _id(request), **added})


async def reported(request: web.Request) -> web.StreamResponse:
    """GET /campaigns/{campaign}/report.csv: all recipients and what became of them."""
    lines: Iterator[str] = store_of(request).campaigns.report(_id(request))
    part = await ask(request, next, lines, "")
    disposition = f'attachment; filename="{_id(request)}.csv"'
    headers = {"Content-Type": f"{CSV}; charset=utf-8", "Content-Disposition": disposition}
    response = web.StreamResponse(headers={**headers, "Cache-Control": "no-store"})
    await response.prepare(request)
    while part:
        await response.write(part.encode())
        part = await ask(request, next, lines, "")
    return response


# --- who is not called ---


async def not_called(request: web.Request) -> web.Response:
    """GET /do-not-call: the last numbers, and how many there are."""
    lists = store_of(request).do_not_call
    numbers, total = await ask(request, lists.listed, wanted_tenant(request))
    return web.json_response({"numbers": numbers, "total": total})


async def forbidden(request: web.Request) -> web.Response:
    """POST /do-not-call, and POST /do-not-call/{number}, as an agent's tool asks for: adds numbers;
    whoever waits in a campaign is not called."""
    body, number = await request.read(), request.match_info.get("number")
    if number is None:
        numbers, reason = parse_numbers(body)
    else:
        numbers, reason = [number], parse_reason(body)
    lists, tenant = store_of(request).do_not_call, wanted_tenant(request)
    added = await ask(request, lists.add, numbers, reason, time.time(), tenant)
    return web.json_response({"added": added, "known": len(numbers) - added})


async def allowed(request: web.Request) -> web.Response:
    """DELETE /do-not-call/{number}."""
    lists, tenant = store_of(request).do_not_call, wanted_tenant(request)
    if not await ask(request, lists.remove, request.match_info["number"], tenant):
        return error(404, "this number is not on the do-not-call list")
    return web.json_response({"removed": 1})


WITH_CSV = frozenset({begun, appended})
"""Handlers that take CSV as well as JSON."""


def _id(request: web.Request) -> str:
    return request.match_info["campaign"]


async def _body(request: web.Request) -> bytes:
    """Returns a body that may be as large as a file of recipients. Raises CampaignError."""
    found = bytearray()
    async for part in request.content.iter_chunked(1 << 16):
        found += part
        if len(found) > MAX_CSV_BYTES:
            raise CampaignError(f"the body has over {MAX_CSV_BYTES >> 20} MiB: append it in parts")
    return bytes(found)


def add_routes(router: web.UrlDispatcher) -> None:
    router.add_get("/campaigns", listed)
    router.add_post("/campaigns", begun)
    router.add_get("/campaigns/{campaign}", shown)
    router.add_post("/campaigns/{campaign}", changed)
    router.add_post("/campaigns/{campaign}/recipients", appended)
    router.add_get("/campaigns/{campaign}/report.csv", reported)
    router.add_get("/do-not-call", not_called)
    router.add_post("/do-not-call", forbidden)
    router.add_post("/do-not-call/{number}", forbidden)
    router.add_delete("/do-not-call/{number}", allowed)
