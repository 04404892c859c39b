"""What a desk sees beside its calls, and does about them: /desk/events, /desk/calls, /desk/queues.

Every route is for whoever has signed in to the desk, and answers of that extension's calls and
queues alone: of any other it says that there is none.
"""

import time
from typing import Any

from aiohttp import web

from offhook.telephony.call_progress_io import DialError
from offhook.web.edge.calls_io import EVENT_STREAM
from offhook.web.edge.console.live_events_io import BUSY_S, STREAM_S, stream
from offhook.web.edge.desk.calls import DeskCall, find
from offhook.web.edge.desk.feed_io import DeskFeed
from offhook.web.edge.history_io import ask, store_of
from offhook.web.edge.http_io import EDGE, error, json_of
from offhook.web.edge.refusals import NoPhones
from offhook.web.http.access_io import GRANT, is_operator

DESKS: web.AppKey[DeskFeed] = web.AppKey("desks", DeskFeed)
MAX_NOTE_CHARS = 2000
"""Maximum characters of a note; a longer one is refused with 400."""
MAX_NUMBER_CHARS = 40
"""Maximum characters of a number to be called; a longer one is refused with 400."""
NOT_YET = "this call is not in the store yet: save the note once it is over"


async def events(request: web.Request) -> web.StreamResponse:
    """GET /desk/events: queues and calls of the desk, whenever they change."""
    edge, feed, grant = request.app[EDGE], request.app[DESKS], request[GRANT]
    if edge.sip is None:
        raise NoPhones
    if request.method == "HEAD":
        return web.Response(headers=EVENT_STREAM)
    if feed.is_full(grant.extension):
        words = "all places for desks are taken: close one"
        return error(503, words, **{"Retry-After": str(BUSY_S)})
    limit_s = min(STREAM_S, grant.expires_at - time.time())
    return await stream(request, feed.listening(grant.extension), limit_s)


def _call(request: web.Request) -> DeskCall:
    """Raises UnknownCall."""
    return find(request.app[EDGE], request[GRANT].extension, request.match_info["call"])


async def _given(request: web.Request, name: str, kind: type) -> Any:
    """Returns the one value of the body; None if it is not that."""
    try:
        body = await json_of(request)
    except ValueError:
        return None
    if not isinstance(body, dict) or body.keys() != {name} or not isinstance(body[name], kind):
        return None
    return body[name]


async def decided(request: web.Request) -> web.Response:
    """POST /desk/calls/{call}/decision: the caller is connected without a briefing, once the phone
    has answered, or is offered to others."""
    call = _call(request)
    decision = await _given(request, "decision", str)
    if decision not in ("accept", "decline"):
        return error(400, 'the body is {"decision": "accept"} or {"decision": "decline"}')
    if call.person is None:
        return error(409, "nobody asks for a decision on this call")
    call.person.decide(decision)
    request.app[DESKS].wake()
    return web.json_response({"decision": decision})


async def history(request: web.Request) -> web.Response:
    """GET /desk/calls/{call}/history: the last calls of whoever is at the other end, but for a
    colleague whom the extension has called: those are the colleague's own."""
    call, edge = _call(request), request.app[EDGE]
    extensions = edge.config.sip.extensions if edge.config.sip is not None else {}
    to_colleague = call.placed and call.number in extensions
    if edge.records.kept is None or to_colleague:  # without a store a desk works all the same
        return web.json_response({"number": call.number, "calls": []})
    desks = store_of(request).desks
    found = await ask(request, desks.history, call.number, call.tenant, call.caller_call)
    if is_operator(request):
        found = [{**row, "link": f"/console#/calls/{row['call_id']}"} for row in found]
    return web.json_response({"number": call.number, "calls": found})


async def noted(request: web.Request) -> web.Response:
    """POST /desk/calls/{call}/notes: keeps a note with the caller's call."""
    call, store = _call(request), store_of(request)
    text = await _given(request, "text", str)
    if text is None or not text.strip() or len(text) > MAX_NOTE_CHARS:
        return error(400, f'the body is {{"text": "…"}}, of {MAX_NOTE_CHARS} characters at most')
    kept = request.app[EDGE].records.kept
    if kept is None or not kept.words:
        return error(409, "notes are not kept here: see [records] words")
    by = request[GRANT].extension
    outcome = await ask(
        request, store.desks.add_note, call.caller_call, by, text.strip(), time.time()
    )
    if outcome == "full":
        return error(409, "this call has as many notes as it may have")
    if outcome == "unknown":
        return error(409, NOT_YET)
    return web.json_response({"call_id": call.call_id}, status=201)


async def added(request: web.Request) -> web.Response:
    """POST /desk/calls/{call}/members: somebody is called, and all hear each other; answered once
    they have answered."""
    call, edge = _call(request), request.app[EDGE]
    to = await _given(request, "to", str)
    if not to or len(to) > MAX_NUMBER_CHARS:
        return error(400, 'the body is {"to": "102"}: an extension, or a number outside')
    line = edge.sip.calls.get(call.call_id) if edge.sip is not None else None
    if edge.sip is None or line is None or call.state != "answered":
        return error(409, "the call is not connected")
    try:
        await edge.sip.extension_calls.add(line, to)
    except DialError as fault:
        return error(409, str(fault))
    request.app[DESKS].wake()
    return web.json_response({"to": to}, status=201)


async def paused(request: web.Request) -> web.Response:
    """POST /desk/queues/{name}: whether the extension is rung for the callers of a queue."""
    paused = await _given(request, "paused", bool)
    if paused is None:
        return error(400, 'the body is {"paused": true} or false')
    queues, extension = request.app[EDGE].queues, request[GRANT].extension
    mine = [q for q in queues.presence(extension) if q["name"] == request.match_info["name"]]
    if not mine:
        return error(404, "this extension is in no queue of that name")
    for one in mine:
        await queues.pause(one["name"], one["member"], paused)
    request.app[DESKS].wake()
    return web.json_response({"queues": queues.presence(extension)})


def add_routes(app: web.Application) -> None:
    feed = app[DESKS] = DeskFeed(app[EDGE])

    async def close(app: web.Application) -> None:
        await feed.close()

    app.on_shutdown.append(close)
    app.router.add_get("/desk/events", events)
    app.router.add_post("/desk/calls/{call}/decision", decided)
    app.router.add_get("/desk/calls/{call}/history", history)
    app.router.add_post("/desk/calls/{call}/notes", noted)
    app.router.add_post("/desk/calls/{call}/members", added)
    app.router.add_post("/desk/queues/{name}", paused)
