"""A Realtime model in another process as the agent of browsers' and phones' calls: whole
conversations, with interruptions, and the end of that process."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from offhook.pipeline.conversation.call_io import Call
from offhook.pipeline.conversation.events import AgentFailed, AgentTurn, CallerTurn, Event
from offhook.telephony.sip.trunks.trunks import SipSettings
from offhook.web.app.cli.caller_io import GREETING_S, PAUSE_S, REPLY_S, ScriptedCall, ScriptLine
from offhook.web.config.config import Agent, Config
from offhook.web.config.server import Server, WebRtc
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.server_io import application
from tests.pipeline.conversation.phone import Model, chunk, model, says, stream
from tests.support.ports import free_port
from tests.support.waiting import HANGS_S
from tests.web.realtime.test_phone import lines_of

pytestmark = pytest.mark.slow
CALL_S = 200
COUNT = "One two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen."
ASK = "What are your opening hours?"
STOP = "Stop please, what are your opening hours?"
SCRIPT = (ASK, ASK, ASK, STOP, STOP, STOP, ASK, ASK)
INTERRUPTIONS = (3, 4, 5)
"""The lines that interrupt the reply before."""
CUT_S = 2.0
FALL_BACK_S = 2.0


@asynccontextmanager
async def elsewhere(there: Model) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """Another server, whose [agent] is the model; gives its URL and its process."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    environment = {
        **os.environ,
        "OFFHOOK_WEBRTC_ADDRESSES": '["127.0.0.1"]',
        "OFFHOOK_AGENT_KIND": "openai",
        "OFFHOOK_AGENT_THINK_AHEAD": "false",
        "OFFHOOK_AGENT_BASE_URL": there.url,
        "OFFHOOK_AGENT_MODEL": "scripted",
    }
    command = (sys.executable, "-m", "offhook", "serve", "--port", str(port))
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(HANGS_S), aiohttp.ClientSession() as http:
            while not await is_ready(http, url):
                await asyncio.sleep(0.2)
        yield url, process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def is_ready(http: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with http.get(f"{url}/readyz") as response:
            return response.status == 200
    except aiohttp.ClientError:
        return False


@dataclass
class Here:
    """A server whose calls the model elsewhere answers."""

    edge: Edge
    url: str
    phone: str

    async def events(self) -> list[Event]:
        """The events of the next call, as they come."""
        async with asyncio.timeout(HANGS_S):
            while not self.edge.conversations:
                await asyncio.sleep(0.01)
        (call,) = self.edge.conversations.values()
        events: list[Event] = []
        assert isinstance(call, Call)
        call.listeners.append(events.append)
        return events


@asynccontextmanager
async def answered_at(url: str) -> AsyncIterator[Here]:
    phones = SipSettings(udp=free_port(), tcp=None, allow_anonymous=True)
    config = Config(
        agent=Agent(kind="realtime", base_url=f"{url}/v1", model="gpt-realtime", fallback="desk"),
        agents={"desk": Agent(kind="frontdesk")},
        webrtc=WebRtc(addresses=["127.0.0.1"]),
        server=Server(port=0),
        sip=phones,
    )
    edge = Edge(config)
    await edge.start()
    server = TestServer(application(edge))
    await server.start_server()
    try:
        yield Here(edge, str(server.make_url("/")), f"sip:desk@127.0.0.1:{phones.udp}")
    finally:
        await server.close()
        await edge.close()


class Caller(ScriptedCall):
    """Some of its lines interrupt the reply to the line before."""

    async def _converse(self) -> None:
        await self._within(self._agent_speaks, GREETING_S)
        await self._within(self._agent_silent, REPLY_S)
        for number, line in enumerate(self._lines):
            if number not in INTERRUPTIONS:
                await self._within(self._agent_silent, REPLY_S)
                await asyncio.sleep(PAUSE_S)
            await self._say(line)
            await self._listen(cut=CUT_S if number + 1 in INTERRUPTIONS else None)


def of(events: Sequence[Event], kind: type[Event]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


@pytest.mark.parametrize("by", ["WebRTC", "SIP"])
async def test_five_turns_and_three_interruptions(by: str) -> None:
    lines = await lines_of(*SCRIPT)
    answers = [[says("Good morning.")], *([says(COUNT)] for _ in range(20))]
    async with (
        model(*answers) as there,
        elsewhere(there) as (url, _),
        answered_at(url) as here,
    ):
        call = Caller(here.url if by == "WebRTC" else here.phone, lines)
        calling = asyncio.create_task(call.run())
        events = await here.events()
        async with asyncio.timeout(CALL_S):
            await calling
        requests = there.requests
    turns = of(events, AgentTurn)
    whole = [turn.text for turn in turns if not turn.interrupted]
    cut = [turn.text for turn in turns if turn.interrupted]
    assert of(events, AgentFailed) == []
    assert len(of(events, CallerTurn)) >= len(SCRIPT)
    assert whole.count(COUNT) >= len(SCRIPT) - len(INTERRUPTIONS) - 1  # hung up after the last
    assert len(cut) >= len(INTERRUPTIONS)
    assert all(COUNT.startswith(text) for text in cut)
    told = [message.get("content") for message in requests[-1]["messages"]]
    for text in cut[: len(INTERRUPTIONS)]:
        assert text in told  # the model knows what was heard, to the word


class Survivor(ScriptedCall):
    """The process elsewhere is killed while it speaks; the caller then asks somebody else."""

    def __init__(self, url: str, lines: list[ScriptLine], there: asyncio.subprocess.Process):
        super().__init__(url, lines)
        self._there = there
        self.killed_at = self.asked_at = 0.0

    async def _converse(self) -> None:
        await self._within(self._agent_speaks, GREETING_S)
        await asyncio.sleep(CUT_S)
        self._there.kill()
        self.killed_at = asyncio.get_running_loop().time()
        await self._within(self._agent_silent, REPLY_S)
        await asyncio.sleep(3)  # the sentence has begun by then
        await self._within(self._agent_silent, REPLY_S)
        self.asked_at = asyncio.get_running_loop().time()
        await self._say(self._lines[0])
        await self._listen(cut=None)


async def never_ends(request: web.Request) -> web.StreamResponse:
    response = await stream(request)
    while True:
        await response.write(chunk(says(f"{COUNT} ")))
        await asyncio.sleep(2)


@pytest.mark.parametrize("by", ["WebRTC", "SIP"])
async def test_the_fallback_takes_over_when_the_other_process_is_killed(by: str) -> None:
    lines = await lines_of(ASK)
    async with model() as there, elsewhere(there) as (url, process), answered_at(url) as here:
        there.ill = never_ends
        call = Survivor(here.url if by == "WebRTC" else here.phone, lines, process)
        calling = asyncio.create_task(call.run())
        events = await here.events()
        async with asyncio.timeout(CALL_S):
            await calling
    assert [event.fault for event in of(events, AgentFailed)] == ["unreachable"]
    turns = [turn.text for turn in of(events, AgentTurn)]
    assert "lost my thread" in turns[1]
    assert "our opening hours" in turns[-1].lower()  # the front desk, whatever it has understood
    heard = [at for at in call.leg.sounded if call.killed_at - 0.1 <= at < call.asked_at]
    assert max(after - before for before, after in pairwise(heard)) < FALL_BACK_S
