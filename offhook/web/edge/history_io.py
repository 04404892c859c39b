"""The /calls routes of calls that are kept: search, one call, its timeline, its recording and what
else can be made of it, and the deletion of what is known of a person."""

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import web
from loguru import logger

from offhook.web.edge.http_io import EDGE, error, json_of, wanted_tenant
from offhook.web.edge.sound_io import send_sound
from offhook.web.http.access_io import GRANT, peer_of
from offhook.web.records.bucket.places import in_bucket

if TYPE_CHECKING:
    from offhook.web.records.deletion import Deletion, Forgotten
    from offhook.web.records.store import CallStore

NOT_KEPT = "calls are not kept here: see [records] url"


class NoRecords(Exception):
    """Raised when the store cannot answer; says why."""


def store_of(request: web.Request) -> "CallStore":
    """Returns the store of the edge. Raises NoRecords if it keeps none."""
    kept = request.app[EDGE].records.kept
    if kept is None:
        raise NoRecords(NOT_KEPT)
    return kept.store


def parameters(request: web.Request) -> dict[str, str]:
    """Returns the parameters of a request. Raises SearchError if one is there twice: only one of
    its values would count."""
    from offhook.web.records.errors import SearchError

    for name in request.query:
        if len(request.query.getall(name)) > 1:
            raise SearchError(f"{name}: is there twice, and one value is looked for")
    return dict(request.query)


async def found(request: web.Request) -> web.Response:
    """GET /calls?…: calls by what is known of them, the last first."""
    from offhook.web.records.errors import SearchError
    from offhook.web.records.search import Search

    store = store_of(request)
    try:
        search = replace(Search.of(parameters(request)), tenant=wanted_tenant(request))
        calls, cursor = await ask(request, store.find, search)
    except SearchError as fault:
        return error(400, str(fault))
    return web.json_response({"calls": calls, "cursor": cursor})


async def shown(request: web.Request) -> web.Response:
    """GET /calls/{call}/record, and GET /calls/{call} of a call that is long over."""
    call = await ask(request, store_of(request).show, request.match_info["call"])
    if call is None:
        return error(404, "unknown call_id")
    return web.json_response(call)


async def timeline(request: web.Request) -> web.Response:
    """GET /calls/{call}/timeline: what has happened in a call, in order."""
    store, call_id = store_of(request), request.match_info["call"]
    if await ask(request, store.show, call_id) is None:
        return error(404, "unknown call_id")
    events = await ask(request, store.timeline, call_id)
    return web.json_response({"call_id": call_id, "timeline": events})


async def exported(request: web.Request) -> web.Response:
    """GET /calls/{call}/export: all that is known of a call with its timeline, as a file."""
    store, call_id = store_of(request), request.match_info["call"]
    call = await ask(request, store.show, call_id)
    if call is None:
        return error(404, "unknown call_id")
    whole = {**call, "timeline": await ask(request, store.timeline, call_id)}
    return web.json_response(whole, headers=_as_file(call_id, "json"))


async def scenario(request: web.Request) -> web.Response:
    """GET /calls/{call}/scenario: a file for `offhook eval` in which the caller says the same."""
    from offhook.web.records.scenario import scenario_of

    store, call_id = store_of(request), request.match_info["call"]
    events = await ask(request, store.timeline, call_id)
    if not events and await ask(request, store.show, call_id) is None:
        return error(404, "unknown call_id")
    try:
        text = await asyncio.to_thread(scenario_of, call_id, events)  # YAML takes its time
    except ValueError as fault:
        return error(409, f"this call makes no scenario: {fault}")
    headers = _as_file(call_id, "yaml")
    return web.Response(text=text, content_type="application/yaml", headers=headers)


def _as_file(call_id: str, kind: str) -> dict[str, str]:
    """Returns the headers of a file that is named after a call."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", call_id)
    disposition = f'attachment; filename="{name}.{kind}"'
    return {"Content-Disposition": disposition, "Cache-Control": "no-store"}


async def recording(request: web.Request) -> web.StreamResponse:
    """GET /calls/{call}/recording: Ogg Opus, the caller left and the agent right; ranges too. Who
    listens is noted in the store, once in a while."""
    store, call_id = store_of(request), request.match_info["call"]
    call = await ask(request, store.show, call_id)
    if call is None:
        return error(404, "unknown call_id")
    if not in_bucket(call["recording"]) and not await _is_file(call["recording"]):
        # It may have been uploaded at this moment.
        call = await ask(request, store.show, call_id) or call
    place = call["recording"]
    if not place:
        return error(404, "this call was not recorded, or its recording has been deleted")
    if not in_bucket(place) and not await _is_file(place):
        return error(404, f"the recording is at the server {call['server']}")
    # Whatever part of it: all but the first byte would be as good as all.
    await ask(request, store.look, call_id, "recording", peer_of(request), time.time())
    line = logger.bind(a_minute=f"{call_id} {peer_of(request)}")
    line.info("{}: somebody at {} listens to the recording", call_id, peer_of(request))
    edge = request.app[EDGE]
    return await send_sound(request, place, edge.config.recording, edge.records)


async def _is_file(path: str) -> bool:
    return await asyncio.to_thread(Path(path).is_file)


async def numbers(request: web.Request) -> web.Response:
    """GET /calls/numbers?from=…&to=…: what calls add up to; of the last 24 hours by default."""
    from offhook.web.records.errors import SearchError
    from offhook.web.records.search import read_time

    store = store_of(request)
    try:
        given = parameters(request)
        start = read_time("from", given.get("from", "24h"))
        end = read_time("to", given.get("to", "0m"))
        if start >= end:
            raise SearchError("from: is not before to")
    except SearchError as fault:
        return error(400, str(fault))
    sums = await ask(request, store.numbers, start, end, wanted_tenant(request))
    return web.json_response(sums)


async def forget(request: web.Request) -> web.Response:
    """POST /calls/forget: deletes what is known of the calls of a number, or of one call, with
    their recordings. The rows stay, so that calls can be counted."""
    store = store_of(request)
    try:
        body = await json_of(request)
        (name, wanted), *more = body.items()
        if more or name not in ("number", "call_id") or not isinstance(wanted, str) or not wanted:
            raise ValueError
    except (ValueError, AttributeError):
        return error(400, 'the body is {"number": "+49…"} or {"call_id": "…"}')
    deletion = store.deletion
    forget_it = deletion.forget_call if name == "call_id" else deletion.forget_number
    forgotten, waiting = await forget_now(request, deletion, forget_it, wanted)
    return web.json_response(
        {
            "calls": forgotten.calls,
            "recordings": len(forgotten.recordings),
            "recordings_waiting": waiting,
        }
    )


async def forget_now(
    request: web.Request, deletion: "Deletion", forget_it: Callable[..., "Forgotten"], wanted: str
) -> "tuple[Forgotten, int]":
    """Deletes what is known of a person from the store, the disk and the bucket: `forget_it` is
    what forgets a number, or a call. Returns what that was, and how many recordings are in the
    bucket until it can be reached. Raises NoRecords."""
    from offhook.web.records.writing.writer_io import report_faults

    now, bucket = time.time(), request.app[EDGE].records.bucket
    forgotten = await ask(request, forget_it, wanted, now, request[GRANT].tenant)
    faults, waiting = await ask(request, deletion.finish, forgotten, now, bucket)
    report_faults(faults)
    return forgotten, waiting


async def ask(request: web.Request, question: Any, *arguments: Any) -> Any:
    """Answers a question to the store in a thread. Raises NoRecords."""
    from offhook.web.records.errors import StoreError

    async with request.app[EDGE].records.looking:
        try:
            return await asyncio.to_thread(question, *arguments)
        except StoreError as fault:
            raise NoRecords(str(fault)) from fault


def add_routes(router: web.UrlDispatcher) -> None:
    router.add_post("/calls/forget", forget)
    router.add_get("/calls/numbers", numbers)
    router.add_get("/calls/{call}/record", shown)
    router.add_get("/calls/{call}/timeline", timeline)
    router.add_get("/calls/{call}/export", exported)
    router.add_get("/calls/{call}/scenario", scenario)
    router.add_get("/calls/{call}/recording", recording)
