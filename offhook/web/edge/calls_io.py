"""The /calls and /sip/trace routes: place, list, follow and end calls, and read SIP traces."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import asdict
from typing import Any, cast

from aiohttp import web

from offhook.media.end_reason import End
from offhook.media.leg import CallInfo, Leg
from offhook.media.line_recording import NotRecorded
from offhook.pipeline.conversation.call_io import Call
from offhook.telephony.call_progress_io import CallProgress, CallState
from offhook.telephony.call_record import CallRecord
from offhook.telephony.carriers.call_io import CarrierCall
from offhook.telephony.sip.call_io import SipCall
from offhook.telephony.sip.capture.pcap import PCAP
from offhook.web.config.agents import DEFAULT
from offhook.web.edge import history_io
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.http_io import EDGE, error, json_of, wanted_tenant
from offhook.web.edge.placing.placing_io import place_call
from offhook.web.edge.placing.requests import CallOptions, DialRequestError, EndedCall, parse_dial
from offhook.web.edge.refusals import NoPhones
from offhook.web.edge.tenants.asked import check_placed
from offhook.web.http.access_io import GRANT
from offhook.web.tools.recording_io import ACTIONS, RecordingAction, change_recording

KEEP_ALIVE_S = 10.0
"""Interval in s of keep-alives in an event stream; proxies close silent connections, and a write
shows whether the reader has left."""
EVENT_STREAM = {"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
HANG_UP_REASON = End.HUNG_UP + " by request"

AnyCall = SipCall | CarrierCall | EndedCall | Leg


class UnknownCall(KeyError):
    """Raised when no current or recent call has that id."""


# --- placing, listing, ending ---


async def place(request: web.Request) -> web.Response:
    """POST /calls."""
    edge = request.app[EDGE]
    if edge.config.sip is None and edge.carriers is None:
        raise NoPhones  # whatever the body says
    asked = parse_dial(await request.read())
    check_placed(edge.config, request[GRANT].tenant, asked)
    check_message(edge, asked)
    call = await place_call(edge, asked)
    headers = {"Location": f"/calls/{call.call_id}"}
    answer = {"call_id": call.call_id, "state": call.state}
    return web.json_response(answer, status=201, headers=headers)


def check_message(edge: Edge, asked: CallOptions) -> None:
    """Raises DialRequestError if a message is to be left on a machine, and there is none."""
    if asked.machine_detection == "message" and not asked.message:
        agent = edge.agents.find(asked.agent or DEFAULT)
        if agent is not None and not agent.message:
            raise DialRequestError("message: what is to be left on a machine? The agent has none")


async def listed(request: web.Request) -> web.Response:
    """GET /calls: all calls in progress; with parameters, those that are kept."""
    if request.query:
        return await history_io.found(request)
    edge, tenant = request.app[EDGE], wanted_tenant(request)
    ids = [*edge.call_ids(), *edge.rooms.conferences.call_ids]
    calls = (described(found(edge, call_id), call_id) for call_id in ids)
    return web.json_response({"calls": [c for c in calls if tenant in ("", c["tenant"])]})


async def shown(request: web.Request) -> web.Response:
    """GET /calls/{call}."""
    call_id, edge = request.match_info["call"], request.app[EDGE]
    try:
        call = found(edge, call_id)
    except UnknownCall:
        if edge.records.kept is None:
            raise
        return await history_io.shown(request)
    return web.json_response(described(call, call_id))


async def hung_up(request: web.Request) -> web.Response:
    """DELETE /calls/{call}."""
    call_id = request.match_info["call"]
    edge = request.app[EDGE]
    call = found(edge, call_id)
    await end_call(edge, call)
    return web.json_response(described(call, call_id))


async def end_call(edge: Edge, call: AnyCall) -> None:
    """Hangs a call up by request."""
    if isinstance(call, SipCall):
        await call.hang_up(HANG_UP_REASON)
    elif isinstance(call, CarrierCall):
        assert edge.carriers is not None
        await edge.carriers.calls.hang_up(call, HANG_UP_REASON)
    elif isinstance(call, Leg):
        call.close(HANG_UP_REASON)


async def recording_changed(request: web.Request) -> web.Response:
    """POST /calls/{call}/recording: pauses, resumes, starts or stops the recording of a call in
    progress."""
    call_id, edge = request.match_info["call"], request.app[EDGE]
    action = await _recording_action(request)
    if (call := edge.calls.get(call_id)) is None:
        found(edge, call_id)
    if call is None or not isinstance(call.conversation, Call):
        return error(409, "no agent has this call now: there is nothing to record")
    try:
        state = await change_recording(call.conversation, action, "operator")
    except NotRecorded as fault:
        return error(409, str(fault))
    return web.json_response({"call_id": call_id, "recording": state})


async def _recording_action(request: web.Request) -> RecordingAction:
    """Raises DialRequestError."""
    try:
        [(name, action)] = (await json_of(request)).items()
    except (ValueError, AttributeError):
        name, action = "", ""
    if name != "action" or action not in ACTIONS:
        wanted = " or ".join(f'{{"action": "{one}"}}' for one in ACTIONS)
        raise DialRequestError(f"the body is {wanted}")
    return cast(RecordingAction, action)


def found(edge: Edge, call_id: str) -> AnyCall:
    """Returns a call by phone, current or recent, or another caller's leg. Raises UnknownCall."""
    if edge.sip is not None and (call := edge.sip.calls.get(call_id)) is not None:
        return call
    if (ended := edge.records.ended.get(call_id)) is not None:
        return ended
    if (
        edge.carriers is not None
        and (carried := edge.carriers.calls.by_id.get(call_id)) is not None
    ):
        return carried
    if (leg := edge.browsers.find(call_id) or edge.rooms.conferences.find(call_id)) is not None:
        return leg
    if (held := edge.calls.get(call_id)) is not None:
        return held.leg
    raise UnknownCall(call_id)


def described(call: AnyCall, name: str) -> dict[str, Any]:
    """Returns the JSON of a call named `name`. `seconds` counts from the answer."""
    match call:
        case (
            EndedCall(record, progress)
            | CarrierCall(record=CallRecord() as record, progress=progress)
        ):
            last = progress[-1]
            info = CallInfo(
                record.edge,
                record.direction,
                caller=record.caller,
                called=record.called,
                diverted_from=record.diverted_from,
                trunk=record.trunk,
                tenant=record.tenant,
            )
            shown = _described(name, "ended", info, record.agent, record.duration_seconds)
            ended = {"status": last.status, "reason": last.reason}
            return {**shown, **ended, "record": json.loads(record.line())}
        case SipCall() | CarrierCall():
            seconds = call.history.duration_s
            return _described(name, call.state, call.info, call.agent, seconds)
        case Leg():
            return _described(name, _state(call), call.info, "", call.heard_ms / 1000)


def _state(leg: Leg) -> CallState:
    if leg.closed is not None:
        return "ended"
    return "answered" if leg.connected else "dialing"


def _described(name: str, state: str, info: CallInfo, agent: str, seconds: float) -> dict[str, Any]:
    return {
        "call_id": name,
        "state": state,
        "edge": info.edge,
        "direction": info.direction,
        "caller": info.caller,
        "called": info.called,
        "diverted_from": info.diverted_from,
        "trunk": info.trunk,
        "tenant": info.tenant,
        "agent": agent,
        "seconds": round(seconds, 3),
    }


# --- following ---


async def followed(request: web.Request) -> web.StreamResponse:
    """GET /calls/{call}/events: every state from the first on as server-sent events, until the call
    ends. https://html.spec.whatwg.org/multipage/server-sent-events.html

    For a call that is not by phone: its current state and its end.
    """
    call = found(request.app[EDGE], request.match_info["call"])
    response = web.StreamResponse(headers=EVENT_STREAM)
    await response.prepare(request)
    async with aclosing(_with_pauses(_progress(call))) as events:
        async for event in events:
            line = ":" if event is None else f"data: {json.dumps(asdict(event))}"
            try:
                await response.write(f"{line}\n\n".encode())
            except ConnectionError:  # the reader has left
                break
    return response


async def _progress(call: AnyCall) -> AsyncGenerator[CallProgress, None]:
    match call:
        case SipCall() | CarrierCall():
            async with aclosing(call.events()) as events:
                async for progress in events:
                    yield progress
        case EndedCall(progress=past):
            for progress in past:
                yield progress
        case Leg():
            yield CallProgress(_state(call))
            yield CallProgress("ended", 0, await call.until_closed())


async def _with_pauses(
    events: AsyncGenerator[CallProgress, None],
) -> AsyncGenerator[CallProgress | None, None]:
    """Yields None whenever nothing has happened for KEEP_ALIVE_S."""
    coming: asyncio.Future[CallProgress] | None = None
    try:
        while True:
            coming = coming or asyncio.ensure_future(anext(events))
            done, _ = await asyncio.wait((coming,), timeout=KEEP_ALIVE_S)
            if not done:
                yield None
                continue
            happened, coming = coming, None
            try:
                yield happened.result()
            except StopAsyncIteration:
                return
    finally:
        if coming is not None:
            coming.cancel()
            await asyncio.wait((coming,))
        await events.aclose()


# --- SIP trace ---


async def trace(request: web.Request) -> web.Response:
    """GET /sip/trace?call=…: a ladder diagram of recent messages; for one call (our id or the SIP
    Call-ID) with the messages themselves. JSON or a pcap file on request."""
    edge = request.app[EDGE]
    if edge.sip is None:
        raise NoPhones
    call_id = _sip_call_id(edge, request.query.get("call", ""))
    wanted = request.headers.get("Accept", "")
    if "application/json" in wanted:
        return web.json_response({"messages": edge.sip.stack.trace.as_dicts(call_id)})
    if PCAP in wanted:
        return web.Response(body=edge.sip.stack.trace.as_pcap(call_id), content_type=PCAP)
    return web.Response(text=edge.sip.stack.trace.render(call_id))


def _sip_call_id(edge: Edge, call_id: str) -> str | None:
    try:
        call = found(edge, call_id)
    except UnknownCall:
        return call_id or None
    if isinstance(call, EndedCall):
        return call.record.remote_call_id or call_id
    return call.session.call_id if isinstance(call, SipCall) and call.session else call_id


OF_CALLS = frozenset({place, listed, shown, followed, hung_up, recording_changed, trace})
"""Handlers that require the operator's key, since they reveal who talks to whom."""


def add_routes(router: web.UrlDispatcher) -> None:
    router.add_post("/calls", place)
    router.add_get("/calls", listed)
    router.add_get("/calls/{call}", shown)
    router.add_delete("/calls/{call}", hung_up)
    router.add_get("/calls/{call}/events", followed, allow_head=False)  # it ends with the call
    router.add_post("/calls/{call}/recording", recording_changed)
    router.add_get("/sip/trace", trace)
