"""OpenAI's agents SDK for Python in a Realtime session of ours, and beside a phone call: it
validates strictly."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from openai import AsyncOpenAI

from offhook.media.pcm import RATE_OUT, Pcm
from tests.pipeline.conversation.phone import COUNT, Model, calls, model, says
from tests.support.waiting import HANGS_S
from tests.web.edge.test_call_control import KEY, Program
from tests.web.realtime.test_openai_python import question
from tests.web.realtime.test_phone import LINES, PatientCall, edge_of_program, lines_of
from tests.web.realtime.test_webrtc import edge_for

agents: Any = pytest.importorskip("agents")
realtime: Any = pytest.importorskip("agents.realtime")

__all__ = ["question"]


class Session:
    """A session of the SDK's, and the events that its application has seen."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self._events = aiter(session)
        self.seen: list[Any] = []

    def of(self, kind: str) -> list[Any]:
        return [event for event in self.seen if event.type == kind]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(HANGS_S):
            while not condition():
                self.seen.append(await anext(self._events))

    async def until_events(self, kind: str, count: int = 1) -> None:
        await self.until(lambda: len(self.of(kind)) >= count)

    def sound_s(self) -> float:
        """Of the agent's sound that has come, in s."""
        return sum(len(event.audio.data) for event in self.of("audio")) / 2 / RATE_OUT

    def said(self) -> list[str]:
        """The transcripts of the agent's messages."""
        return [
            item.content[0].transcript
            for item in self.session._history
            if item.type == "message" and item.role == "assistant" and item.content
        ]

    async def speak(self, pcm: Pcm) -> None:
        """As a microphone does, but ahead of time: a busy machine's is late, which makes gaps."""
        for at in range(0, len(pcm), 2400):
            await self.session.send_audio(pcm[at : at + 2400].tobytes())
            await asyncio.sleep(0.05)

    async def asks_until_it_interrupts(self, pcm: Pcm) -> None:
        """Again, should a busy machine hear the words so late that it takes them for a cough."""
        while not self.of("audio_interrupted"):
            await self.speak(pcm)
            await asyncio.sleep(2)

    def check(self) -> None:
        assert self.of("error") == []
        raw = [event.data for event in self.of("raw_model_event")]
        assert not [event for event in raw if event.type == "error"]


def seller(asked: list[str]) -> Any:
    """An agent with a tool, which notes what it is asked."""

    @agents.function_tool
    def stock(what: str) -> str:
        """How many are in stock."""
        asked.append(what)
        return "12"

    return realtime.RealtimeAgent(name="desk", instructions="Sell.", tools=[stock])


@asynccontextmanager
async def session_with(there: Model, agent: Any) -> AsyncIterator[Session]:
    async with edge_for(there) as (_, url):
        where = {"api_key": "none", "url": f"{url.replace('http', 'ws')}?model=gpt-realtime"}
        runner = realtime.RealtimeRunner(agent)
        async with await runner.run(model_config=where) as session:
            yield Session(session)


async def test_a_session_calls_a_tool_and_hears(question: Pcm) -> None:
    asked: list[str] = []
    answers = (
        [calls("stock", what="bells")],
        [says("There are twelve.")],
        [says("From nine to six.")],
    )
    async with model(*answers) as there, session_with(there, seller(asked)) as talk:
        await talk.session.send_message("How many bells?")
        await talk.until_events("audio_end", 1)
        await asyncio.sleep(1.5)
        await talk.speak(question)
        await talk.until_events("audio_end", 2)
        talk.check()
        assert asked == ["bells"]
        assert talk.sound_s() > 1
    assert there.requests[0]["messages"][0]["content"] == "Sell."


@pytest.mark.slow
async def test_an_interruption_keeps_the_words_that_were_played(question: Pcm) -> None:
    long = " ".join([COUNT] * 3)  # a busy machine interrupts late
    answers = [says(long)], [says("From nine to six.")]
    async with model(*answers) as there, session_with(there, seller([])) as talk:
        await talk.session.send_message("Count.")
        await talk.until(lambda: talk.sound_s() > 8)  # more than is played before the question ends
        await asyncio.sleep(1)  # of it is played
        asking = asyncio.create_task(talk.asks_until_it_interrupts(question))
        await talk.until_events("audio_interrupted")
        await asking
        await talk.until(lambda: "From nine to six." in talk.said())
        talk.check()
        counted = talk.said()[0]
    assert long.startswith(counted)
    assert 1 <= len(counted.split()) < len(long.split())
    assert {"role": "assistant", "content": counted} in there.requests[-1]["messages"]


async def test_a_session_beside_a_phone_call() -> None:
    """By the SDK's own way with phones: the session object is the agent's, and the session joins
    the call by its id."""
    asked: list[str] = []
    agent, beside = seller(asked), realtime.OpenAIRealtimeSIPModel()
    answers = (
        [says("Good morning.")],
        [calls("stock", what="bells")],
        [says("There are twelve.")],
    )
    program = Program()
    async with (
        model(*answers) as there,
        program.running(),
        edge_of_program(there, program.url) as (url, phone),
        AsyncOpenAI(base_url=url, api_key=KEY) as openai,
    ):
        calling = asyncio.create_task(PatientCall(phone, await lines_of(LINES[0])).run())
        call_id = (await program.event()).data.call_id
        named = {"model_name": "model"}
        payload = await beside.build_initial_session_payload(agent, overrides=named)
        await openai.realtime.calls.accept(call_id, **payload.model_dump(exclude_none=True))
        runner = realtime.RealtimeRunner(agent, model=beside)
        socket = f"{url.replace('http', 'ws')}/realtime?call_id={call_id}"
        where = {"api_key": KEY, "url": socket, "call_id": call_id}
        async with await runner.run(model_config=where) as session:
            talk = Session(session)
            greet = realtime.RealtimeModelSendRawMessage(message={"type": "response.create"})
            await session.model.send_event(greet)
            await talk.until(lambda: "There are twelve." in talk.said())
            talk.check()
            assert talk.of("audio") == []
            assert talk.said()[0] == "Good morning."
        await openai.realtime.calls.hangup(call_id)
        await asyncio.wait_for(calling, HANGS_S)
    assert asked == ["bells"]
    assert there.requests[0]["messages"][0]["content"] == "Sell."
