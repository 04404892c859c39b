"""What a desk sees beside its calls, and does about them. The phones are by hand; the page's
requests, the lines, the queue and the store are real."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from offhook.pipeline.conversation.call_io import Call
from offhook.web.config.config import Config
from offhook.web.edge import admission_io
from offhook.web.edge.desk import feed_io, panels_io
from offhook.web.records.errors import StoreError
from offhook.web.records.people.desks import MAX_NOTES
from tests.support.waiting import HANGS_S, until
from tests.telephony.sip.extensions.desks import Desk
from tests.web.edge.phones import Served
from tests.web.edge.scripted_edge import ScriptedEdge
from tests.web.edge.test_extensions import desk, office, table
from tests.web.edge.test_live_events import Stream

HOSTILE = '<img src=x onerror="document.title=1">'


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy process has time left for another call."""
    monkeypatch.setattr(admission_io, "BUSY_SHARE", 100.0)
    monkeypatch.setattr(feed_io, "LOOK_S", 0.05)


def config(folder: Path, **more: Any) -> Config:
    queue = {"members": ["ext:101"], "wrap_up_seconds": 600}
    return Config.model_validate(
        {
            **table(folder),
            "server": {"port": 0, "drain_seconds": 0, "admin_key": "operator"},
            "agent": {"greeting": "Hello, one moment."},
            "queues": {"support": queue},
            **more,
        }
    )


class Page:
    """Somebody who has signed in to a desk."""

    def __init__(self, http: aiohttp.ClientSession, origin: str) -> None:
        self._http, self._origin = http, {"Origin": origin}

    async def post(self, path: str, status: int = 200, **body: Any) -> Any:
        async with self._http.post(path, json=body, headers=self._origin) as response:
            assert response.status == status, await response.text()
            return await response.json()

    async def status(self, path: str, **body: Any) -> int:
        async with self._http.post(path, json=body, headers=self._origin) as response:
            return response.status

    async def get(self, path: str, status: int = 200) -> Any:
        async with self._http.get(path) as response:
            assert response.status == status, await response.text()
            return await response.json()

    @asynccontextmanager
    async def events(self) -> AsyncIterator[Stream]:
        async with self._http.get("/desk/events") as response:
            assert response.status == 200, await response.text()
            yield Stream(response)


@asynccontextmanager
async def page(server: Served, number: str) -> AsyncIterator[Page]:
    jar = aiohttp.CookieJar(unsafe=True)
    async with aiohttp.ClientSession(server.url, cookie_jar=jar, read_bufsize=1 << 20) as http:
        found = Page(http, server.url)
        await found.post("/desk/session", number=number, password=f"pass-{number}")
        yield found


async def until_calls(stream: Stream, **wanted: Any) -> dict[str, Any]:
    """The first call of the desk, once it is as wanted."""
    while True:
        for call in (await stream.until("calls"))["calls"]:
            if wanted.items() <= call.items():
                return dict(call)


async def until_queue(stream: Stream, **wanted: Any) -> dict[str, Any]:
    while True:
        [queue] = (await stream.until("queues"))["queues"]
        if wanted.items() <= queue.items():
            return dict(queue)


async def conversation(server: Served, caller: Desk) -> Call:
    await caller.begins_to_call("500")
    await caller.is_answered()
    await until(lambda: server.edge.conversations)
    (call,) = server.edge.conversations.values()
    assert isinstance(call, Call)
    return call


async def test_a_call_from_its_offer_to_the_note_and_ready_again(tmp_path: Path) -> None:
    async with (
        office(config(tmp_path)) as server,
        desk(server, "101") as ann,
        desk(server, "102") as bob,
        page(server, "101") as screen,
        screen.events() as stream,
        screen.events() as queues,
    ):
        assert (await until_queue(queues, state="ready"))["waiting"] == 0
        call = await conversation(server, bob)
        edge = server.edge
        assert isinstance(edge, ScriptedEdge)
        await until(edge.turns)
        transfer = asyncio.create_task(call.transfer("queue:support"))
        invite = await ann.rings()
        offered = await until_calls(stream, state="ringing", target="queue:support")
        assert offered["number"] == "102"
        assert "102" in offered["briefing"]
        assert offered["since"] > 0
        while not offered["words"]:
            offered = await until_calls(stream, state="ringing")
        assert offered["words"] == [{"who": "agent", "text": "Hello, one moment."}]
        assert (await until_queue(queues, state="ringing"))["waiting"] == 1
        place = f"/desk/calls/{offered['call_id']}"
        assert (await screen.get(f"{place}/history"))["calls"] == []
        await screen.post(f"{place}/decision", decision="accept")
        assert (await until_calls(stream, accepted=True))["state"] == "ringing"
        ann.far.reply(invite, 200, sdp=ann.line.sdp())
        await ann.far.asked("ACK")
        await transfer
        await ann.talks_with(bob)
        shown = await until_calls(stream, state="answered")
        while "briefing" in shown:
            shown = await until_calls(stream, state="answered", may_add=True)
        assert (await until_queue(queues, state="speaking"))["waiting"] == 0
        await screen.post(f"{place}/decision", 409, decision="decline")
        await screen.post(f"{place}/notes", 201, text=" wants a red one ")
        await bob.far.hang_up()
        await ann.far.is_hung_up()
        await until_queue(queues, state="wrap_up")
        await until(lambda: not server.sip.calls)
        await screen.post(f"{place}/notes", 201, text=HOSTILE)
        ready = await screen.post("/desk/queues/support", paused=False)
        assert ready["queues"][0]["state"] == "ready"
        await screen.post("/desk/queues/support", paused=True)
        await until_queue(queues, state="paused")
        operator = {"Authorization": "Bearer operator"}
        record = await server.get(f"/calls/{call.leg.call_id}/record", **operator)
        assert [(note["by"], note["text"]) for note in record["notes"]] == [
            ("101", "wants a red one"),
            ("101", HOSTILE),
        ]
        exported = await server.get(f"/calls/{call.leg.call_id}/export", **operator)
        assert exported["notes"] == record["notes"]
        await until(lambda: not server.edge.conversations)
        again = await conversation(server, bob)
        transfer = asyncio.create_task(again.transfer("ext:101"))
        await ann.rings()
        shown = await until_calls(stream, state="ringing")
        async with asyncio.timeout(HANGS_S):
            found: list[dict[str, Any]] = []
            while "red" not in json.dumps(found):
                answer = await screen.get(f"/desk/calls/{shown['call_id']}/history")
                found = answer["calls"]
        assert "link" not in found[0]
        await bob.far.hang_up()
        await asyncio.gather(transfer, return_exceptions=True)
        await until(lambda: not server.sip.calls)
        forgotten = {"call_id": call.leg.call_id}
        gone = await server.client.post("/calls/forget", json=forgotten, headers=operator)
        assert (await gone.json())["calls"] == 1
        record = await server.get(f"/calls/{call.leg.call_id}/record", **operator)
        assert "notes" not in record


async def test_who_has_no_phone_is_not_rung(tmp_path: Path) -> None:
    async with (
        office(config(tmp_path)) as server,
        desk(server, "102") as bob,
        page(server, "101") as screen,
        screen.events() as queues,
    ):
        await until_queue(queues, state="no_phone")
        call = await conversation(server, bob)
        transfer = asyncio.create_task(call.transfer("queue:support"))
        assert (await until_queue(queues, waiting=1))["state"] == "no_phone"
        async with desk(server, "101") as ann:
            await ann.rings()
            await until_queue(queues, state="ringing")
            await bob.far.hang_up()
            await ann.far.asked("CANCEL")
        await asyncio.gather(transfer, return_exceptions=True)


async def test_a_colleague_who_is_called_has_no_history(tmp_path: Path) -> None:
    async with (
        office(config(tmp_path)) as server,
        desk(server, "101") as ann,
        desk(server, "102") as bob,
        page(server, "101") as screen,
        screen.events() as stream,
    ):
        call = await conversation(server, bob)
        await bob.far.hang_up()
        await until(lambda: not server.sip.calls)
        kept = server.edge.records.kept
        assert kept is not None
        store = kept.store

        def is_kept() -> bool:
            with suppress(StoreError):  # nothing was kept before
                return store.desks.history("102", "", "") != []
            return False

        await until(is_kept)
        await ann.begins_to_call("102")
        await bob.answers()
        shown = await until_calls(stream, state="answered")
        assert (shown["number"], call.leg.info.caller) == ("102", "102")
        place = f"/desk/calls/{shown['call_id']}"
        assert await screen.get(f"{place}/history") == {"number": "102", "calls": []}
        await bob.far.hang_up()
        await until(lambda: not server.sip.calls)
        assert await screen.get(f"{place}/history") == {"number": "102", "calls": []}


async def test_another_desk_sees_and_does_nothing(tmp_path: Path) -> None:
    async with (
        office(config(tmp_path)) as server,
        desk(server, "101") as ann,
        desk(server, "102") as bob,
        page(server, "101") as screen,
        page(server, "102") as others,
        screen.events() as stream,
        others.events() as theirs,
    ):
        assert (await theirs.until("queues"))["queues"] == []
        call = await conversation(server, bob)
        transfer = asyncio.create_task(call.transfer("queue:support"))
        await ann.rings()
        offered = await until_calls(stream, state="ringing")
        place = f"/desk/calls/{offered['call_id']}"
        await others.post(f"{place}/decision", 404, decision="accept")
        await others.post(f"{place}/notes", 404, text="mine")
        await others.get(f"{place}/history", 404)
        await others.post(f"/desk/calls/{call.leg.call_id}/decision", 409, decision="accept")
        await others.post("/desk/queues/support", 404, paused=True)
        own = await until_calls(theirs, state="answered")
        assert (own["call_id"], own["number"]) == (call.leg.call_id, "500")
        assert not own["may_add"]
        for path in ("/calls", "/queues", f"/calls/{call.leg.call_id}/record", "/calls/events"):
            await screen.get(path, 401)
        await screen.post(f"{place}/decision", decision="decline")
        await ann.far.asked("CANCEL")
        await screen.post(f"{place}/notes", 404, text="it was not mine")
        await bob.far.hang_up()
        await asyncio.gather(transfer, return_exceptions=True)


NOTHING: list[tuple[str, dict[str, Any]]] = [
    ("decision", {}),
    ("decision", {"decision": "maybe"}),
    ("decision", {"decision": ["accept"]}),
    ("notes", {"text": ""}),
    ("notes", {"text": 7}),
    ("notes", {"text": "x", "more": "y"}),
    ("members", {"to": ""}),
    ("members", {"to": "1" * 50}),
    ("notes", {"text": "x" * (panels_io.MAX_NOTE_CHARS + 1)}),
]


async def test_bodies_that_say_nothing_are_refused(tmp_path: Path) -> None:
    async with (
        office(config(tmp_path)) as server,
        desk(server, "102") as bob,
        page(server, "102") as screen,
    ):
        call = await conversation(server, bob)
        for path, body in NOTHING:
            await screen.post(f"/desk/calls/{call.leg.call_id}/{path}", 400, **body)
        await screen.post("/desk/queues/support", 400, paused="yes")
        with_agent = await screen.post(f"/desk/calls/{call.leg.call_id}/members", 409, to="101")
        assert "between two telephones" in with_agent["error"]


async def test_one_extension_does_not_have_all_places_for_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_io, "MAX_DESKS_OF_EXTENSION", 1)
    async with (
        office(config(tmp_path)) as server,
        page(server, "101") as screen,
        page(server, "102") as others,
        screen.events(),
    ):
        await screen.get("/desk/events", 503)
        async with others.events() as theirs:
            assert (await theirs.until("queues"))["queues"] == []


async def test_a_call_has_so_many_notes(tmp_path: Path) -> None:
    async with (
        office(config(tmp_path)) as server,
        desk(server, "102") as bob,
        page(server, "102") as screen,
    ):
        call = await conversation(server, bob)
        path = f"/desk/calls/{call.leg.call_id}/notes"
        async with asyncio.timeout(HANGS_S):
            while await screen.status(path, text="the first") != 201:  # not in the store yet
                await asyncio.sleep(0.05)
        for number in range(1, MAX_NOTES):
            await screen.post(path, 201, text=f"note {number}")
        await screen.post(path, 409, text="one more")


async def test_a_changed_password_ends_the_stream(tmp_path: Path) -> None:
    async with (
        office(config(tmp_path)) as server,
        page(server, "101") as screen,
        screen.events() as stream,
    ):
        await stream.until("queues")
        sip = server.edge.config.sip
        assert sip is not None
        changed = {"101": {"password": "another"}, "102": {"password": "pass-102"}}
        server.edge.config = Config.model_validate(
            {**table(tmp_path), "sip": {"udp": sip.udp, "extensions": changed}}
        )
        assert "password" in (await stream.until("reconnect"))["why"]
        assert await stream.next() == ("", None)
        await screen.get("/desk/events", 401)


async def test_a_server_that_stops_says_so(tmp_path: Path) -> None:
    async with AsyncExitStack() as outer:
        async with office(config(tmp_path)) as server:
            screen = await outer.enter_async_context(page(server, "101"))
            stream = await outer.enter_async_context(screen.events())
            await stream.until("queues")
        assert "stops" in (await stream.until("reconnect"))["why"]
