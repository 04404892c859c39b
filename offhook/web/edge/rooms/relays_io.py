"""Members whose line another process of this server has.

    process with the room                          process with the line
    a call with a RelayLeg, the member  -- Unix socket --  a Relay: a room of that leg and the line

Phones are all in the first process, and any process may have a call that is to be brought into a
room of another one. When either process dies the other notices: the member leaves, and a call that
was brought goes on with its own agent.
"""

from contextlib import suppress
from dataclasses import replace
from typing import Any

import aiohttp
from aiohttp import web

from offhook.media.leg import CallInfo
from offhook.pipeline.conversation.events import Event, MemberJoined, MemberLeft
from offhook.telephony.call_progress_io import DialError
from offhook.web.edge.calls_io import UnknownCall, end_call, found
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.http_io import EDGE
from offhook.web.edge.placing.placing_io import place_call
from offhook.web.edge.placing.requests import DialRequestError
from offhook.web.edge.refusals import Busy, NoPhones
from offhook.web.edge.rooms.hosted_io import Seat
from offhook.web.edge.rooms.relay_leg_io import MAX_MESSAGE_BYTES, Elsewhere, RelayLeg
from offhook.web.edge.rooms.requests import MemberRequest, RoomError, parsed
from offhook.web.http.access_io import GRANT

PATH = "/calls/relay/line"
"""On the sockets of siblings alone."""
ASK_S = 10.0
"""Time limit in s for the other process to begin; then the member does not come."""


class Relay:
    """In the process with the line, what rooms take for the call that it is a member of."""

    conversation = infer = notes_by = None
    has_started = False

    def __init__(self, leg: RelayLeg) -> None:
        self.id, self.leg = leg.call_id, leg

    def report(self, event: Event) -> None:
        if isinstance(event, MemberJoined):
            self.leg.note(state="joined")
        elif isinstance(event, MemberLeft):
            self.leg.close(event.reason)


async def line(request: web.Request) -> web.WebSocketResponse:
    """GET /calls/relay/line: the line of a member for the room of another process."""
    if request.remote:  # no sibling: a connection that one has handed over
        raise web.HTTPNotFound
    edge = request.app[EDGE]
    socket = web.WebSocketResponse(max_msg_size=MAX_MESSAGE_BYTES)
    await socket.prepare(request)
    leg = RelayLeg(edge.new_id())
    relay, placed = Relay(leg), ""
    leg.connect()
    edge.clock.add(leg)
    edge.rooms.relays[relay.id] = relay
    try:
        asked = parsed(MemberRequest, (await socket.receive_str(timeout=ASK_S)).encode())
        if asked.dial is not None:
            placed = (await place_call(edge, asked.dial)).call_id
            edge.rooms.expect(placed, Seat(relay.id, placed, "speak", "", False, asked.dial.to))
            line_edge, number = asked.dial.carrier or "sip", asked.dial.to
        else:
            line_edge, number = _bring(edge, relay, asked.call, request[GRANT].tenant)
        await socket.send_json({"edge": line_edge, "number": number})
        await leg.carry(socket, lambda note: None)
    except (RoomError, DialRequestError, DialError, NoPhones, Busy) as error:
        await socket.send_json({"error": str(error) or "this server has no phones: see [sip]"})
    except (TimeoutError, TypeError, ConnectionError):
        pass  # the other process is gone
    finally:
        edge.rooms.leave(relay)
        edge.clock.remove(leg)
        del edge.rooms.relays[relay.id]
        await _hang_up(edge, placed)
    return socket


def _bring(edge: Edge, relay: Relay, call_id: str, tenant: str) -> tuple[str, str]:
    """Brings a call of this process, one of the tenant or "" any; returns how it has come, and
    whose it is. Raises RoomError."""
    call = edge.calls.get(call_id)
    if call is None or tenant not in ("", call.leg.info.tenant):
        raise RoomError(f"call: {call_id!r} is not in progress here")
    info = call.leg.info
    edge.rooms.bring(relay, call, Seat(relay.id, call_id, "speak", "", False, info.caller))
    return info.edge, info.caller


async def _hang_up(edge: Edge, call_id: str) -> None:
    with suppress(UnknownCall):  # it has ended long ago
        if call_id:
            await end_call(edge, found(edge, call_id))


async def admitted(
    edge: Edge, elsewhere: Elsewhere, number: int, asked: MemberRequest, seat: Seat, tenant: str
) -> dict[str, Any]:
    """Lets in a member whose line that process has; `seat` is what he will be, but for his name and
    number where they are not known yet, and `tenant` whose calls may come in. Raises RoomError."""
    try:
        socket = await elsewhere.relay(number, tenant)
    except (aiohttp.ClientError, TimeoutError) as error:
        raise RoomError(f"process {number} of this server does not answer") from error
    try:
        wanted = {"dial", "call"}
        await socket.send_str(asked.model_dump_json(include=wanted, exclude_unset=True))
        answer = await socket.receive_json(timeout=ASK_S)
    except (TypeError, TimeoutError, ConnectionError) as error:
        await socket.close()
        raise RoomError(f"process {number} of this server does not answer") from error
    if "error" in answer:
        await socket.close()
        raise RoomError(answer["error"])
    leg, far_end = RelayLeg(edge.new_id()), answer["number"]
    if asked.dial is None:
        leg.info = CallInfo(answer["edge"], "inbound", caller=far_end)
    else:
        leg.info = CallInfo(answer["edge"], "outbound", called=far_end)
    call = edge.hold(leg)
    name = seat.name or call.id
    taken = edge.rooms.expect(call.id, replace(seat, name=name, number=far_end))

    def note(fields: dict[str, Any]) -> None:
        if fields.get("state") == "joined" and not leg.connected:
            leg.connect()
            edge.begin(call)

    async def carry() -> None:
        await leg.carry(socket, note)
        if not leg.connected:
            call.discard()
            edge.rooms.forget(call.id, str(leg.closed))

    edge.rooms.tasks.spawn(carry(), f"relay {call.id}")
    return {"member": taken.name, "call_id": call.id, "state": "connecting"}


def add_routes(router: web.UrlDispatcher) -> None:
    router.add_get(PATH, line, allow_head=False)
