"""A Realtime model elsewhere as the agent: another edge, with a scripted language model."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from offhook.media.pcm import Pcm
from offhook.pipeline.conversation.agents.agent_faults import Fault, Place
from offhook.pipeline.conversation.events import AgentFailed, AgentTurn, CallerTurn, Event
from offhook.pipeline.conversation.sentences import SENTENCES, Occasion
from offhook.web.config.config import Agent
from offhook.web.edge.edge_io import Edge
from tests.pipeline.conversation.phone import COUNT, Model, calls, chunk, model, says, stream
from tests.support.waiting import HANGS_S
from tests.web.edge.agents.test_agent import Page, called, said_by_flite
from tests.web.realtime.test_webrtc import edge_for

pytestmark = pytest.mark.asyncio(loop_scope="module")
PREFIX = "The price of it"


class Wire:
    """The network between the two edges, which can be cut."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, onward = await asyncio.open_connection("127.0.0.1", self._to)
        self._open |= {writer, onward}
        await asyncio.gather(_copy(reader, onward), _copy(there, writer))

    def cut(self) -> None:
        self._server.close()
        for writer in self._open:
            writer.transport.abort()
        self._open.clear()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    writer.close()


@asynccontextmanager
async def elsewhere(there: Model) -> AsyncIterator[Wire]:
    """Another edge whose [agent] is the model."""
    async with edge_for(there) as (_, url):
        wire = Wire(int(url.split(":")[2].split("/")[0]))
        await wire.start()
        try:
            yield wire
        finally:
            wire.cut()


def agent_at(wire: Wire, **more: Any) -> Agent:
    url = f"http://127.0.0.1:{wire.port}/v1"
    return Agent(
        kind="realtime", base_url=url, model="gpt-realtime", instructions="Be kind.", **more
    )


class Talk:
    """A call to the first of the agents, and its events."""

    def __init__(self, edge: Edge, leg: Page) -> None:
        self.edge, self.leg = edge, leg
        self.events: list[Event] = []

    async def listen(self) -> None:
        await self.until(lambda: self.leg.call_id in self.edge.conversations)
        call: Any = self.edge.conversations[self.leg.call_id]
        call.listeners.append(self.events.append)
        self.context = call.context

    def of(self, *kinds: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kinds)]

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(HANGS_S):
            while not condition():
                await asyncio.sleep(0.02)

    async def quiet(self) -> None:
        await self.until(lambda: not self.leg.playout.speaking and not self.leg.playout.queued)

    async def speaks(self) -> None:
        await self.until(lambda: self.leg.playout.speaking)


@asynccontextmanager
async def talking(edge: Edge, agents: dict[str, Agent]) -> AsyncIterator[Talk]:
    async with called(edge, agents, Page()) as leg:
        talk = Talk(edge, leg)
        await talk.listen()
        yield talk


@pytest.fixture(scope="module")
def question() -> Pcm:
    return said_by_flite("When are you open?")


@pytest.fixture(scope="module")
def stop() -> Pcm:
    return said_by_flite("Stop please, what are your opening hours?")


async def stops_in_mid_sentence(request: web.Request) -> web.StreamResponse:
    response = await stream(request)
    await response.write(chunk(says(f"{PREFIX}. And it ")))
    await asyncio.sleep(60)
    return response


async def test_a_turn_a_tool_an_interruption_and_a_server_that_dies(
    edge: Edge, question: Pcm, stop: Pcm
) -> None:
    answers = (
        [says("Good morning.")],
        [calls("send_dtmf", digits="12")],
        [says(COUNT)],
    )
    async with model(*answers) as there, elsewhere(there) as wire:
        there.ill = stops_in_mid_sentence
        agents = {"there": agent_at(wire, fallback="desk"), "desk": Agent(kind="frontdesk")}
        async with talking(edge, agents) as talk:
            await talk.until(lambda: talk.of(AgentTurn))
            assert talk.of(AgentTurn)[0].text == "Good morning."
            await talk.quiet()
            talk.leg.feed(question)
            await talk.until(lambda: talk.leg.pressed == ["12"])
            await talk.until(lambda: "One two" in talk.leg.words())
            await asyncio.sleep(1.5)
            talk.leg.feed(stop)
            # A busy machine says that it needs a moment before it counts.
            await talk.until(lambda: COUNT.startswith(talk.of(AgentTurn)[-1].text))
            cut = talk.of(AgentTurn)[-1]
            assert cut.interrupted
            assert cut.text != COUNT

            await talk.until(lambda: len(talk.of(CallerTurn)) == 2)
            # The reply itself: a busy machine first says that it needs a moment.
            await talk.until(lambda: PREFIX.split()[1] in talk.leg.words())

            def told() -> list[str | None]:
                return [message.get("content") for message in there.requests[-1]["messages"]]

            await talk.until(lambda: cut.text in told())  # the other server has the same words
            assert there.results() == [{"status": "sent"}]
            wire.cut()
            sentence = SENTENCES["en"][Occasion.BROKEN_OFF]
            await talk.until(lambda: " ".join(sentence.split()[:3]) in talk.leg.words())
    failed = talk.of(AgentFailed)
    assert [(event.fault, event.place) for event in failed] == [(Fault.UNREACHABLE, Place.SPEAKING)]
