"""The operator in a call: listens, talks to the agent, takes the call over and hands it back."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import av
import numpy as np
import pytest
from aiohttp.test_utils import TestServer

from offhook.pipeline.speech.recognizer import Recognizer
from offhook.web.config.config import load
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.server_io import application
from tests.pipeline.conversation.phone import Model, model, says
from tests.support.waiting import until
from tests.web.edge.phones import Served
from tests.web.edge.rooms.ends import FAINT_DB, Ends, level, with_doors
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
kind = "openai"
base_url = "{model}"
model = "m"
greeting = "Corner Bikes."
"""


class Call:
    """A phone call with an agent."""

    def __init__(self, ends: Ends, endpoint: Model) -> None:
        self.ends, self.endpoint = ends, endpoint
        self.id = ""

    async def begin(self) -> None:
        self.id = await self.ends.by_sip("caller", 450)
        await self.seen(lambda e: e["event"] == "agent_turn")

    @property
    def edge(self) -> Edge:
        return self.ends.server.edge

    def events(self, *names: str) -> list[dict[str, Any]]:
        assert self.edge.records.kept is not None
        events: list[dict[str, Any]] = self.edge.records.kept.store.timeline(self.id)
        return [event for event in events if not names or event["event"] in names]

    async def seen(self, wanted: Callable[[dict[str, Any]], bool]) -> None:
        await until(lambda: any(map(wanted, self.events())))

    async def asks(self, status: int = 200, **fields: Any) -> dict[str, Any]:
        path = f"/calls/{self.id}/agent"
        answer = await self.ends.server.client.post(path, json=fields)
        assert answer.status == status, await answer.text()
        body: dict[str, Any] = await answer.json()
        return body

    async def keys(self, digit: str) -> None:
        """The caller presses a key, which the conversation notices, if it listens."""
        before = len(self.events("dtmf"))
        self.ends.by_name["caller"].leg.send_dtmf(f"{digit}#")
        await until(lambda: len(self.events("dtmf")) > before)


@asynccontextmanager
async def calling(
    folder: Path,
    *answers: Any,
    more: str = "",
    phone: int = 0,
    words: str = "",
    recognizer: Recognizer | None = None,
) -> AsyncIterator[Call]:
    """`words` are lines of [records]; `recognizer` takes the place of the embedded one."""
    async with model(*answers) as endpoint, AsyncExitStack() as stack:
        path = folder / "offhook.toml"
        text = FILE.format(folder=folder, model=endpoint.url)
        path.write_text(text.replace("[records]", f"[records]\n{words}") + more)
        config = with_doors(load(path, {}), phone)
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
        call = Call(Ends(Served(edge, client, url), stack), endpoint)
        await call.begin()
        yield call
        await written(edge)


async def test_the_agent_says_what_the_operator_writes(tmp_path: Path) -> None:
    async with calling(tmp_path) as call:
        await call.asks(say="A colleague will be with you soon.")
        await call.seen(lambda e: "colleague" in e.get("text", "") and e["event"] == "agent_turn")
        [noted] = call.events("agent_instructed")
        assert (noted["text"], noted["spoken"]) == ("A colleague will be with you soon.", True)


async def test_its_model_knows_what_the_operator_has_told_it(tmp_path: Path) -> None:
    async with calling(tmp_path, [says("There is a discount.")]) as call:
        await call.asks(message="Offer ten percent.", answers=True)
        await call.seen(lambda e: "discount" in e.get("text", ""))
        told = call.endpoint.requests[-1]["messages"]
        assert any(m["role"] == "system" and "Offer ten percent." in m["content"] for m in told)


async def test_a_call_is_taken_over_and_handed_back(tmp_path: Path) -> None:
    async with calling(tmp_path, [says("Here I am again.")]) as call:
        refused = await call.asks(409, action="leave")
        assert refused["error"] == "nobody would be with the caller: let a member in who speaks"
        await call.ends.from_browser(call.id, "boss", 1500)
        await call.asks(action="leave")
        assert (await call.ends.members(call.id))["agent"]["state"] == "away"
        refused = await call.asks(409, say="Hello?")
        assert refused["error"] == "the agent has left the call"
        await call.asks(action="return")
        assert (await call.ends.members(call.id))["agent"]["state"] == "joined"
        await call.keys("7")
        await call.seen(lambda e: "again" in e.get("text", ""))
        told = [e["event"] for e in call.events("member_joined", "agent_left", "agent_returned")]
        assert told == ["member_joined", "agent_left", "agent_returned"]
        [joined] = call.events("member_joined")
        assert (joined["member"], joined["role"]) == ("boss", "speak")


async def test_the_agent_is_back_once_the_caller_is_alone(tmp_path: Path) -> None:
    async with calling(tmp_path) as call:
        boss = await call.ends.from_browser(call.id, "boss", 1500)
        await call.asks(action="leave")
        await boss.leg.hang_up("enough")
        await call.seen(lambda e: e["event"] == "agent_returned")
        told = [e["event"] for e in call.events("member_left", "agent_returned")]
        assert told == ["member_left", "agent_returned"]


async def test_another_call_is_brought_in_and_goes_on_with_its_agent(tmp_path: Path) -> None:
    async with calling(tmp_path) as call:
        other = await call.ends.by_sip("friend", 700)
        live = call.edge.calls[other]
        await until(lambda: live.has_started)
        refused = await call.ends.server.client.post(
            f"/calls/{call.id}/members", json={"call": call.id}
        )
        assert (refused.status, (await refused.json())["error"]) == (409, "call: is this one")
        await call.ends.joins(call.id, call=other, name="friend")
        friend, caller = call.ends.by_name["friend"], call.ends.by_name["caller"]
        friend.says = True
        await until(lambda: len(caller.heard) > 30 and caller.level(700) > -20)
        await call.ends.server.client.delete(f"/calls/{call.id}/members/friend")
        await until(lambda: caller.level(700) < -40)
        assert friend.leg.closed is None
        assert live.conversation is not None
        assert not live.conversation.away


def tracks(path: Path) -> tuple[Any, Any]:
    """What is left and right in a recording, at 24 kHz."""
    with av.open(str(path)) as container:
        sound = np.concatenate([f.to_ndarray() for f in container.decode(audio=0)], axis=1)
    left, right = (sound * 32767).astype(np.int16)[:, ::2]  # Opus is decoded at 48 kHz
    return left, right


async def test_each_member_has_a_track(tmp_path: Path) -> None:
    """Left what a member says, right what he hears; of the call itself, all people and the
    agent."""
    more = f'[recording]\nenabled = "always"\ndirectory = "{tmp_path}"\n'
    hz = {"caller": 450, "page": 1000, "boss": 1500}
    async with calling(tmp_path, more=more) as call:
        await call.ends.from_browser(call.id, "page", hz["page"])
        await call.ends.from_browser(call.id, "boss", hz["boss"], role="listen")
        ids = {name: one.get("call_id") for name, one in (await call.ends.members(call.id)).items()}
        for end in call.ends.by_name.values():
            end.says = True
        await call.ends.by_name["caller"].listens(150)
        await call.ends.by_name["caller"].leg.hang_up("enough")
        await until(lambda: not call.edge.calls)
        await call.edge.records.close()
    said_and_heard = {}
    for name in hz:
        sides = [one[-24_000:-4800] for one in tracks(tmp_path / f"{ids[name]}.ogg")]
        said_and_heard[name] = [
            {n for n, tone in hz.items() if level(side, tone, 24_000) > FAINT_DB} for side in sides
        ]
    assert said_and_heard == {
        "caller": [{"caller", "page"}, set()],
        "page": [{"page"}, {"caller"}],
        "boss": [{"boss"}, {"caller", "page"}],
    }


async def test_pausing_the_calls_recording_pauses_those_of_its_members(tmp_path: Path) -> None:
    more = f'[recording]\nenabled = "always"\ndirectory = "{tmp_path}"\n'
    async with calling(tmp_path, more=more) as call:
        await call.ends.from_browser(call.id, "page", 1000)
        page = call.edge.calls[(await call.ends.members(call.id))["page"]["call_id"]].leg
        assert page.recording.state == "on"
        for action, state in (("pause", "paused"), ("resume", "on")):
            path = f"/calls/{call.id}/recording"
            answer = await call.ends.server.client.post(path, json={"action": action})
            assert answer.status == 200
            await until(lambda state=state: page.recording.state == state)


async def test_the_caller_is_told_that_somebody_listens(tmp_path: Path) -> None:
    more = '[rooms]\nlisten_notice = "A colleague is listening."\n'
    async with calling(tmp_path, more=more) as call:
        await call.ends.from_browser(call.id, "boss", 1500, role="listen")
        await call.seen(lambda e: e["event"] == "agent_turn" and "listening" in e["text"])


BAD = [
    ({}, 'needs one of "dial"'),
    ({"sdp": "v=0", "call": "x"}, 'needs one of "dial"'),
    ({"call": "x", "role": "god"}, 'role: must be "speak"'),
    ({"call": "x", "role": "whisper:"}, 'must be "speak"'),
    ({"call": "x", "name": "agent"}, "name: 'agent' is taken"),
    ({"call": "x", "name": "a b"}, "name: "),
    ({"dial": {"to": ""}}, "dial.to: "),
    ({"dial": {"to": "4711", "agent": "x"}}, "dial: a member has no agent"),
    ({"sdp": "v=0"}, "no audio"),
]


async def test_what_is_asked_wrongly(tmp_path: Path) -> None:
    async with calling(tmp_path) as call:
        client = call.ends.server.client
        for body, why in BAD:
            answer = await client.post(f"/calls/{call.id}/members", json=body)
            assert answer.status == 400, body
            assert why in (await answer.json())["error"], body
        for body in ({"call": "nobody"}, {"call": "x", "role": "whisper:nobody"}):
            answer = await client.post(f"/calls/{call.id}/members", json=body)
            assert answer.status == 409, body
        path = f"/calls/{call.id}/members/nobody"
        assert (await client.patch(path, json={"muted": True})).status == 404
        assert (await client.delete(path)).status == 404
        assert (await client.post("/calls/nobody/members", json={"call": "x"})).status == 404
        assert (await client.post(f"/calls/{call.id}/agent", json={})).status == 400


@pytest.mark.parametrize("dialled", ["4711"])
async def test_who_is_called_in_vain_is_no_member(tmp_path: Path, dialled: str) -> None:
    """Nothing answers at that address."""
    async with calling(tmp_path) as call:
        dial = {"to": dialled, "trunk": "desk", "ring_seconds": 1}
        await call.ends.joins(call.id, name="desk", dial=dial)
        assert (await call.ends.members(call.id))["desk"]["state"] == "connecting"
        await call.seen(lambda e: e["event"] == "member_left" and e["member"] == "desk")
        assert "desk" not in await call.ends.members(call.id)
