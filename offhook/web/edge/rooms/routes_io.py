"""Routes of the members of a call and of its agent, for the operator.

GET     /calls/{call}/members            who is in the call
POST    /calls/{call}/members            let in a phone, a browser, or another call
PATCH   /calls/{call}/members/{member}   role, muted, on_hold
DELETE  /calls/{call}/members/{member}   have a member leave
POST    /calls/{call}/agent              say, message, leave, return
"""

from dataclasses import replace
from typing import Any

from aiohttp import web

from offhook.signaling.peer_io import PeerLeg
from offhook.signaling.sdp import check_offer
from offhook.web.edge.calls_io import end_call, found
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.http_io import EDGE, Handler
from offhook.web.edge.placing.placing_io import place_call
from offhook.web.edge.rooms.hosted_io import RoomCall, Seat
from offhook.web.edge.rooms.relays_io import admitted
from offhook.web.edge.rooms.requests import (
    AgentRequest,
    MemberChange,
    MemberRequest,
    RoomError,
    parsed,
    role_of,
)
from offhook.web.edge.tenants.asked import check_placed
from offhook.web.http.access_io import GRANT, peer_of


async def listed(request: web.Request) -> web.Response:
    """GET /calls/{call}/members."""
    edge, call = _call(request)
    return web.json_response({"call_id": call.id, "members": edge.rooms.members(call)})


async def joined(request: web.Request) -> web.Response:
    """POST /calls/{call}/members."""
    asked = parsed(MemberRequest, await request.read())
    edge, call = _call(request)
    tenant = request[GRANT].tenant
    if asked.dial is not None:
        check_placed(edge.config, tenant, asked.dial)
    answer = await _admit(edge, call, asked, peer_of(request), tenant)
    headers = {"Location": f"/calls/{call.id}/members/{answer['member']}"}
    return web.json_response(answer, status=201, headers=headers)


async def _admit(
    edge: Edge, call: RoomCall, asked: MemberRequest, browser: str, tenant: str
) -> dict[str, Any]:
    """Lets a member in; `browser` is the address of one, and `tenant` whose calls may come in, ""
    for all. Raises RoomError, and whatever placing or answering a call does."""
    role, to = role_of(asked.role)
    edge.rooms.check(call, asked.name, to)

    def seat(call_id: str, number: str = "") -> Seat:
        return Seat(call.id, asked.name or call_id, role, to, asked.muted, number)

    elsewhere = edge.rooms.elsewhere
    number = None if elsewhere is None else elsewhere.process_with(asked)
    if elsewhere is not None and number is not None:
        there = Seat(call.id, asked.name, role, to, asked.muted)
        return await admitted(edge, elsewhere, number, asked, there, tenant)
    if asked.call:
        other = edge.calls.get(asked.call)
        if other is None or tenant not in ("", other.leg.info.tenant):
            raise RoomError(f"call: {asked.call!r} is not in progress here")
        taken = seat(other.id, other.leg.info.caller)
        edge.rooms.bring(call, other, taken)
        return {"member": taken.name, "call_id": other.id, "state": "joined"}
    if asked.dial is not None:
        placed = await place_call(edge, asked.dial)
        taken = edge.rooms.expect(placed.call_id, seat(placed.call_id, asked.dial.to))
        return {"member": taken.name, "call_id": placed.call_id, "state": "connecting"}
    check_offer(asked.sdp)
    leg = edge.browsers.leg(PeerLeg)
    leg.info = replace(leg.info, tenant=call.leg.info.tenant)
    taken = edge.rooms.expect(leg.call_id, seat(leg.call_id, browser))
    try:
        sdp = await edge.browsers.begin(leg, asked.sdp)
    except BaseException:
        edge.rooms.forget(leg.call_id)
        raise
    return {"member": taken.name, "call_id": leg.call_id, "state": "connecting", "sdp": sdp}


async def changed(request: web.Request) -> web.Response:
    """PATCH /calls/{call}/members/{member}."""
    asked = parsed(MemberChange, await request.read())
    edge, call = _call(request)
    return web.json_response(edge.rooms.change(call, request.match_info["member"], asked))


async def dismissed(request: web.Request) -> web.Response:
    """DELETE /calls/{call}/members/{member}."""
    edge, call = _call(request)
    name = request.match_info["member"]
    if call_id := edge.rooms.dismiss(call, name):
        await end_call(edge, found(edge, call_id))
    others = [member for member in edge.rooms.members(call) if member["name"] != name]
    return web.json_response({"call_id": call.id, "members": others})


async def instructed(request: web.Request) -> web.Response:
    """POST /calls/{call}/agent."""
    asked = parsed(AgentRequest, await request.read())
    edge, call = _call(request)
    edge.rooms.instruct(call, asked)
    return web.json_response({"call_id": call.id, "members": edge.rooms.members(call)})


def _call(request: web.Request) -> tuple[Edge, RoomCall]:
    """Raises UnknownCall, and RoomError for a call that has no line now."""
    edge, call_id = request.app[EDGE], request.match_info["call"]
    call = edge.calls.get(call_id)
    if call is None:
        found(edge, call_id)
        raise RoomError("the call is not connected")
    return edge, call


HANDLERS: frozenset[Handler] = frozenset({listed, joined, changed, dismissed, instructed})
"""Handlers of requests for the process that has the call."""


def add_routes(router: web.UrlDispatcher) -> None:
    router.add_get("/calls/{call}/members", listed)
    router.add_post("/calls/{call}/members", joined)
    router.add_patch("/calls/{call}/members/{member}", changed)
    router.add_delete("/calls/{call}/members/{member}", dismissed)
    router.add_post("/calls/{call}/agent", instructed)
