"""One agent of one file, called by a browser, a phone, a carrier's stream and a Realtime session:
the same words, the same tool, the same record."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from openai import AsyncOpenAI

from offhook.media.clock_io import PacketClock
from offhook.media.end_reason import End
from offhook.telephony.carriers.settings import CarrierSettings
from offhook.telephony.sip.trunks.routes import Route
from offhook.telephony.sip.trunks.trunks import SipSettings, Trunk
from offhook.web.app.callers.caller_sip_io import SipCaller
from offhook.web.app.callers.caller_webrtc_io import WebRtcCaller
from offhook.web.app.callers.twilio.caller_io import TwilioCaller
from offhook.web.app.callers.twilio.webhook_io import CallFacts
from offhook.web.app.callers.way import Way
from offhook.web.app.evals.eval_line_io import NO_REST
from offhook.web.app.evals.eval_line_io import Caller as Line
from offhook.web.config.config import Config, load
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.server_io import application
from tests.pipeline.conversation.phone import calls, model, says
from tests.support.waiting import until
from tests.web.edge.test_history import keeping

HOST = "127.0.0.1"
SECRET = "0123456789abcdef0123456789abcdef"
FILE = """
[server]
host = "127.0.0.1"
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
greeting = "Corner Bikes, which order is it?"
instructions = "You answer for a bike shop. The call is {{{{direction}}}}."
{agent}

[[agent.tools]]
name = "order_status"
description = "Looks up where an order is."
parameters = {{number = {{type = "integer", description = "the order's number"}}}}
url = "{shop}/orders/{{number}}"
method = "GET"
fields = ["status"]
headers = {{Authorization = "Bearer of-the-shop"}}
{tool}
"""
ANSWER = "It comes tomorrow."


class Shop:
    """The backend of the tool."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.answers = asyncio.Event()
        self.answers.set()
        self.responds = lambda: web.json_response({"status": "sent", "cost": 12})

    async def order(self, request: web.Request) -> web.Response:
        self.asked.append((request.path, request.headers["Authorization"]))
        await self.answers.wait()
        return self.responds()


@asynccontextmanager
async def shop() -> AsyncIterator[tuple[Shop, str]]:
    backend, app = Shop(), web.Application()
    app.router.add_get("/orders/{number}", backend.order)
    async with TestServer(app) as server:
        yield backend, str(server.make_url("")).rstrip("/")


def with_lines(config: Config) -> Config:
    """The file, on doors that only this test knows."""
    trunk = Trunk("phones", addresses=(HOST,))
    sip = SipSettings(host=HOST, udp=0, tcp=None, trunks=(trunk,), routes=(Route(),))
    carrier = CarrierSettings(
        "twilio", secret=SECRET, account=CallFacts().account, rest_url=NO_REST
    )
    return config.model_copy(update={"sip": sip, "carriers": (carrier,)})


@asynccontextmanager
async def serving(
    folder: Path, endpoint: str, backend: str, tool: str = "", agent: str = ""
) -> AsyncIterator[tuple[Edge, str]]:
    """Yields a server and its URL; `tool` and `agent` are more of these tables."""
    path = folder / "offhook.toml"
    tables = {"tool": tool, "agent": agent}
    path.write_text(FILE.format(folder=folder, model=endpoint, shop=backend, **tables))
    config = with_lines(load(path, {}))
    edge = Edge(config)
    async with keeping(edge, config):
        await edge.start()
        server = TestServer(application(edge))
        await server.start_server()
        try:
            yield edge, str(server.make_url("")).rstrip("/")
        finally:
            await edge.close()
            await server.close()


class Caller:
    """Calls, and gives the number of an order once asked for it."""

    def __init__(self, edge: Edge, url: str) -> None:
        self.edge, self.url = edge, url

    @asynccontextmanager
    async def calling(self) -> AsyncIterator[None]:
        """The line is up while inside."""
        line, clock = self.line(), PacketClock()
        await line.call()
        clock.add(line.leg)
        self.leg = line.leg
        try:
            yield
        finally:
            clock.remove(line.leg)
            await line.leg.hang_up(End.CALLER_HUNG_UP)
            await line.close()

    def line(self) -> Line:
        raise NotImplementedError

    async def gives_number(self) -> None:
        self.leg.send_dtmf("7#")


class Browser(Caller):
    def line(self) -> Line:
        return WebRtcCaller(self.url)


class Phone(Caller):
    def line(self) -> Line:
        assert self.edge.sip is not None
        port = next(port for _, _, port in self.edge.sip.bound)
        return SipCaller(f"sip:shop@{HOST}:{port}", PacketClock())


class Carrier(Caller):
    def line(self) -> Line:
        return TwilioCaller(f"{self.url}/carriers/twilio/voice", SECRET, Way())


class Program(Caller):
    """openai-python, which types."""

    @asynccontextmanager
    async def calling(self) -> AsyncIterator[None]:
        client = AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none")
        async with client.realtime.connect(model="default") as self.session:
            reading = asyncio.create_task(self._read())
            await self.session.send({"type": "response.create"})
            try:
                yield
            finally:
                reading.cancel()
                await asyncio.wait((reading,))
        await client.close()

    async def _read(self) -> None:
        async for _ in self.session:
            pass

    async def gives_number(self) -> None:
        part = {"type": "input_text", "text": "7"}
        item = {"type": "message", "role": "user", "content": [part]}
        await self.session.send({"type": "conversation.item.create", "item": item})
        await self.session.send({"type": "response.create"})


class Record:
    """What is kept of the edge's one call."""

    def __init__(self, edge: Edge) -> None:
        assert edge.records.kept is not None
        self._store = edge.records.kept.store
        [self.call_id] = edge.calls

    def events(self, name: str) -> list[dict[str, Any]]:
        return [event for event in self._store.timeline(self.call_id) if event["event"] == name]

    def says(self, words: str) -> bool:
        return any(words in event["text"] for event in self.events("agent_turn"))

    def call(self) -> dict[str, Any]:
        call = self._store.show(self.call_id)
        assert call is not None
        return call


@pytest.mark.parametrize("way", [Browser, Phone, Carrier, Program])
async def test_the_same_words_tool_and_record(way: type[Caller], tmp_path: Path) -> None:
    answers = [calls("order_status", number=7)], [says(ANSWER)]
    async with (
        shop() as (backend, address),
        model(*answers) as endpoint,
        serving(tmp_path, endpoint.url, address) as (edge, url),
    ):
        caller = way(edge, url)
        async with caller.calling():
            await until(lambda: edge.calls)
            kept = Record(edge)
            await until(lambda: kept.says("which order"))
            await caller.gives_number()
            await until(lambda: kept.says(ANSWER))
        await until(lambda: kept.call()["state"] == "ended")
        call = kept.call()
        [used] = kept.events("tool_used")
        said = [event["text"] for event in kept.events("agent_turn")]
    assert backend.asked == [("/orders/7", "Bearer of-the-shop")]
    assert json.loads(used["arguments"]) == {"number": 7}
    assert json.loads(used["result"]) == {"status": "sent"}
    assert (used["name"], used["failed"]) == ("order_status", False)
    assert said == ["Corner Bikes, which order is it?", ANSWER]
    assert (call["agents"], call["direction"]) == (["agent"], "inbound")
    asked = endpoint.requests[-1]["messages"]
    assert "The call is inbound." in asked[0]["content"]
    assert [one["role"] for one in asked[-2:]] == ["assistant", "tool"]
