"""Callers who wait for people, over real lines."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from benchmarks.servers import scripted
from offhook.media.leg import LegError
from offhook.pipeline.conversation.call_io import Call
from offhook.pipeline.conversation.events import TransferProgress
from offhook.web.edge import admission_io
from offhook.web.edge.queues import queue as order_of_queue
from offhook.web.edge.queues import waiting_io
from offhook.web.edge.queues.phrases import PHRASES, Phrase, announcement
from offhook.web.edge.queues.queues_io import GIVEN_UP
from offhook.web.edge.server_io import application
from offhook.web.edge.transfers import music_io
from tests.support.waiting import until
from tests.telephony.sip.ends import tone
from tests.web.edge.transfers.people import MUSIC_HZ, Office, office


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A word of the agents takes 80 ms, music is a tone, and a busy process has time left for
    another call."""
    music = tone(MUSIC_HZ, 1.0)
    monkeypatch.setattr(music_io, "hold_music", lambda: music)
    word = scripted.word_sound()[: 24 * 80]
    monkeypatch.setattr(scripted, "word_sound", lambda: word)
    monkeypatch.setattr(admission_io, "BUSY_SHARE", 100.0)


def queue(*members: str, **more: Any) -> dict[str, Any]:
    to = [f"sip:{member}@{{people}}" for member in members]
    return {"queues": {"support": {"members": to, "wrap_up_seconds": 0, **more}}}


def states(call: Call) -> list[str]:
    found: list[str] = []
    call.listeners.append(
        lambda e: found.append(e.state) if isinstance(e, TransferProgress) else None
    )
    return found


async def waits(there: Office, number: str) -> "asyncio.Task[None]":
    call = await there.calls(number)
    return asyncio.create_task(call.transfer("queue:support"))


def order(there: Office) -> list[str]:
    return [t.caller for t in there.edge.queues._queue("support").order]


async def hangs_up(there: Office, number: str) -> None:
    await there.callers.lines[number].leg.hang_up("the caller hung up")


async def test_callers_are_connected_in_their_order() -> None:
    async with office(queue("accepts_by_key.1", announce_seconds=60)) as there:
        first = await waits(there, "491")
        await asyncio.wait_for(first, 45)
        await there.callers.lines["491"].hears("person", 5)
        second, third = await waits(there, "492"), await waits(there, "493")
        await until(lambda: order(there) == ["492", "493"])
        await there.callers.lines["493"].hears("agent", 3)  # the place is announced
        await hangs_up(there, "491")
        await asyncio.wait_for(second, 45)
        assert order(there) == ["493"]
        await there.callers.lines["492"].hears("person", 5)
        await hangs_up(there, "492")
        await asyncio.wait_for(third, 45)
        await there.callers.lines["493"].hears("person", 5)
        assert order(there) == []
        await hangs_up(there, "493")
        await until(lambda: not there.edge.conversations)
        metrics = there.edge.metrics.registry
        left = {"queue": "support", "outcome": "answered"}
        assert metrics.get_sample_value("offhook_queue_left_total", left) == 3


@pytest.mark.slow
async def test_who_declines_is_followed_by_the_next_member() -> None:
    table = queue("declines_by_key.1", "accepts_by_key.1", strategy="round_robin")
    async with office(table) as there:
        call = await there.calls("491")
        found = states(call)
        await asyncio.wait_for(call.transfer("queue:support"), 45)
        await there.callers.lines["491"].hears("person", 5)
        await hangs_up(there, "491")
        await until(lambda: not there.edge.conversations)
        assert found == [
            *("requested", "ringing", "briefing", "rejected"),
            *("ringing", "briefing", "accepted", "bridged", "completed"),
        ]


async def test_who_hangs_up_has_left_and_the_member_is_free() -> None:
    async with office(queue("listens.1")) as there:
        waiting = await waits(there, "491")
        await until(lambda: there.people.lines.get("listens.1"))
        (person,) = there.people.lines["listens.1"]
        await person.hears("agent", 3)
        await hangs_up(there, "491")
        with pytest.raises(LegError, match="the call has ended"):
            await waiting
        await person.leg.until_closed()
        await until(lambda: order(there) == [])
        left = {"queue": "support", "outcome": "abandoned"}
        count = there.edge.metrics.registry.get_sample_value("offhook_queue_left_total", left)
        assert count == 1


@pytest.mark.slow
async def test_a_full_queue_and_a_long_wait_lead_back_to_the_agent() -> None:
    table = queue("does_not_answer.1", max_length=1, max_wait_seconds=4)
    async with office(table) as there:
        first, second = await waits(there, "491"), await waits(there, "492")
        with pytest.raises(LegError, match="nobody is free"):
            await second
        with pytest.raises(LegError, match="nobody is free"):
            await first
        assert not there.callers.lines["491"].leg.closed
        assert order(there) == []


async def test_the_operator_sees_the_queue_and_pauses_members() -> None:
    table = queue("accepts_by_key.1")
    async with office(table) as there, TestClient(TestServer(application(there.edge))) as http:
        (shown,) = (await (await http.get("/queues")).json())["queues"]
        (member,) = shown["members"]
        assert (shown["name"], shown["waiting"], member["state"]) == ("support", [], "ready")
        asked = {"member": member["member"], "paused": True}
        paused = await (await http.post("/queues/support/members", json=asked)).json()
        assert paused["members"][0]["state"] == "paused"
        waiting = await waits(there, "491")
        await until(lambda: order(there) == ["491"])
        shown = await (await http.get("/queues/support")).json()
        assert [(w["caller"], w["position"]) for w in shown["waiting"]] == [("491", 1)]
        await http.post("/queues/support/members", json={**asked, "paused": False})
        await asyncio.wait_for(waiting, 45)
        await hangs_up(there, "491")
        for path, body, status, words in (
            ("support", {"member": "x", "paused": True}, 404, "no member of 'support' is 'x'"),
            ("sales", asked, 404, "no queue is called 'sales' (there: support)"),
            ("support", {"member": 7, "paused": True}, 400, "member: is no text"),
            ("support", {"member": "x", "paused": 1}, 400, "paused: is neither true nor false"),
            ("support", {"member": "x"}, 400, "the body is "),
        ):
            answer = await http.post(f"/queues/{path}/members", json=body)
            assert answer.status == status
            assert (await answer.json())["error"].startswith(words)


@pytest.mark.slow
async def test_a_caller_is_called_back_in_the_same_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_io, "FIRST_S", 0.2)
    table = queue("accepts_by_key.1", callback_key="5")
    async with office(table) as there:
        member = next(iter(there.edge.queues._queue("support").members.values()))
        member.paused = True
        name = "is_called_back"
        waiting = await waits(there, name)
        await until(lambda: order(there) == [name])
        await there.callers.lines[name].hears("music", 5)
        there.callers.lines[name].leg.send_dtmf("5")
        with pytest.raises(LegError, match="the caller is called back"):
            await waiting
        await waits(there, "492")
        await until(lambda: order(there) == [name, "492"])
        member.paused = False
        await until(lambda: there.people.lines.get(name))
        (line,) = there.people.lines[name]
        await line.hears("agent", 3)
        await line.hears("person", 5)
        assert order(there) == ["492"]
        await line.leg.hang_up("the caller hung up")
        await until(lambda: len(there.people.lines["accepts_by_key.1"]) == 2)
        await hangs_up(there, "492")


@pytest.mark.slow
async def test_who_is_not_reached_is_called_again_and_then_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiting_io, "FIRST_S", 0.2)
    monkeypatch.setattr(order_of_queue, "CALLBACK_AGAIN_S", 0.1)
    name = "is_busy"
    async with office(queue("accepts_by_key.1", callback_key="5")) as there:
        member = next(iter(there.edge.queues._queue("support").members.values()))
        member.paused = True
        waiting = await waits(there, name)
        await until(lambda: order(there) == [name])
        there.callers.lines[name].leg.send_dtmf("5")
        with pytest.raises(LegError, match="the caller is called back"):
            await waiting
        await until(lambda: order(there) == [name])
        kept: list[Any] = []
        monkeypatch.setattr(there.edge.records, "kept", SimpleNamespace(add=kept.append, words=""))
        asked = there.edge.queues._queue("support").order[0].call
        member.paused = False
        left = {"queue": "support", "outcome": "not_reached"}
        metrics = there.edge.metrics.registry
        await until(lambda: metrics.get_sample_value("offhook_queue_left_total", left) == 1)
        assert order(there) == []
        assert member.state(time.time()) == "ready"
        [given_up] = [one for one in kept if getattr(one, "position", 0) == GIVEN_UP]
        assert (given_up.call, given_up.fields["state"]) == (asked, "failed")
        monkeypatch.setattr(there.edge.records, "kept", None)


def test_every_language_has_every_phrase() -> None:
    assert {frozenset(phrases) for phrases in PHRASES.values()} == {frozenset(Phrase)}
    for language in PHRASES:
        assert "12" in announcement(12, 300, "", language)
        assert "5" in announcement(12, 300, "", language)
        assert "7" in announcement(1, None, "7", language)
    assert announcement(1, None, "", "en") == "You are next."
    assert announcement(3, 45, "", "en") == (
        "You are number 3 in the queue. It takes about one minute."
    )
