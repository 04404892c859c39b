"""Conference numbers: a PIN, a room, and its end."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestServer

from offhook.pipeline.speech.recognizer import Recognizer
from offhook.web.config.config import ConfigError, load
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.rooms.pins import MAX_FAILURES, WINDOW_S, PinGuard
from offhook.web.edge.server_io import application
from tests.support.waiting import until
from tests.web.edge.phones import Served
from tests.web.edge.rooms.ends import Ends, with_doors
from tests.web.edge.test_history import keeping, written

FILE = """
[server]
port = 0

[webrtc]
addresses = ["127.0.0.1"]

[records]
url = "sqlite:///{folder}/calls.db"
spool = "{folder}/spool"

[agent]
kind = "conference"
greeting = "The PIN, please."

[agent.settings]
pin = "4711"
"""


@asynccontextmanager
async def conference(
    folder: Path, more: str = "", recognizer: Recognizer | None = None
) -> AsyncIterator[Ends]:
    path = folder / "offhook.toml"
    path.write_text(FILE.format(folder=folder) + more)
    config = with_doors(load(path, {}))
    async with AsyncExitStack() as stack:
        edge = Edge(config)
        await stack.enter_async_context(keeping(edge, config))
        await edge.start()
        if recognizer is not None:
            configured = edge.engines.configured
            edge.engines.configured = replace(configured, recognizer=recognizer)
        stack.push_async_callback(edge.close)
        server = TestServer(application(edge))
        await server.start_server()
        stack.push_async_callback(server.close)
        url = str(server.make_url("")).rstrip("/")
        client = await stack.enter_async_context(aiohttp.ClientSession(url))
        yield Ends(Served(edge, client, url), stack)
        await written(edge)


def rooms(ends: Ends) -> list[str]:
    return ends.server.edge.rooms.conferences.call_ids


async def members(ends: Ends) -> list[dict[str, Any]]:
    return list((await ends.members(rooms(ends)[0])).values()) if rooms(ends) else []


async def until_members(ends: Ends, count: int) -> None:
    while len(await members(ends)) != count:
        await ends.by_name["a"].listens(1)


async def test_callers_with_the_pin_meet_and_the_conference_ends_with_the_last(
    tmp_path: Path,
) -> None:
    async with conference(tmp_path) as ends:
        await ends.by_sip("a", 450)
        ends.by_name["a"].leg.send_dtmf("4711#")
        await until_members(ends, 1)
        [room] = rooms(ends)
        await ends.by_twilio("b", 700)
        ends.by_name["b"].leg.send_dtmf("0000#")  # wrong, and once more
        await ends.by_name["b"].listens(50)
        assert len(await members(ends)) == 1
        ends.by_name["b"].leg.send_dtmf("4711")
        await until_members(ends, 2)
        assert rooms(ends) == [room]
        listed = (await ends.server.get("/calls"))["calls"]
        assert room in [call["call_id"] for call in listed]
        for end in ends.by_name.values():
            end.says = True
        a, b = ends.by_name["a"], ends.by_name["b"]
        await until(lambda: a.level(700) > -20 and b.level(450) > -20)
        await a.leg.hang_up("enough")
        await b.leg.hang_up("enough")
        await until(lambda: not ends.server.edge.calls)
        assert rooms(ends) == []
        assert ends.server.edge.records.kept is not None
        await written(ends.server.edge)
        told = [e["event"] for e in ends.server.edge.records.kept.store.timeline(room)]
        wanted = ["call_started", "member_joined", "member_joined"]
        assert told == [*wanted, "member_left", "member_left", "call_ended"]


async def test_who_does_not_know_the_pin_is_sent_away(tmp_path: Path) -> None:
    async with conference(tmp_path) as ends:
        await ends.by_sip("a", 450)
        ends.by_name["a"].leg.send_dtmf("1234#5678#0000#")
        await until(lambda: ends.by_name["a"].leg.closed)
        assert rooms(ends) == []


AGENT = """
agent = "assistant"

[agents.assistant]
kind = "frontdesk"
greeting = "Hello everybody."
"""


async def test_an_agent_takes_part(tmp_path: Path) -> None:
    async with conference(tmp_path, AGENT) as ends:
        await ends.by_sip("a", 450)
        ends.by_name["a"].leg.send_dtmf("4711#")
        await until_members(ends, 2)
        assert [one["name"] for one in await members(ends)][-1] == "agent"
        kept, [room] = ends.server.edge.records.kept, rooms(ends)
        assert kept is not None
        store = kept.store
        await until(lambda: any("everybody" in e.get("text", "") for e in store.timeline(room)))
        answer = await ends.server.client.delete(f"/calls/{room}")
        assert answer.status == 200
        await until(lambda: ends.by_name["a"].leg.closed)
        await until(lambda: not ends.server.edge.calls)


def test_a_pin_is_not_found_by_calling_again_and_again() -> None:
    guard = PinGuard()
    assert not any(guard.admits("4711", f"{n:04}", 0.0) for n in range(MAX_FAILURES))
    assert not guard.admits("4711", "4711", WINDOW_S - 1)
    assert guard.admits("4711", "4711", WINDOW_S + 1)
    assert guard.admits("4711", "4711", WINDOW_S + 1)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ('pin = "12"', "settings: pin: "),
        ('pin = "4711"\nnotes = true\nagent = "x"', "exclude each other"),
        ('pins = "4711"', "settings: pins: "),
    ],
)
def test_a_conference_configured_wrongly(tmp_path: Path, settings: str, why: str) -> None:
    path = tmp_path / "offhook.toml"
    text = FILE.format(folder=tmp_path).replace('pin = "4711"', settings)
    path.write_text(text)
    with pytest.raises(ConfigError, match=why):
        load(path, {})
