"""An agent that answers on request alone, and what is reported of its responses."""

from dataclasses import replace

import pytest
from pipecat.processors.aggregators.llm_context import LLMContext

from benchmarks.servers.scripted import WORD_MS
from offhook.media.pcm import Pcm
from offhook.pipeline.conversation.agents.openai_agent_io import (
    OpenAIAgentSettings,
    model_connections,
    openai_agent,
)
from offhook.pipeline.conversation.call_io import Agent, Call
from offhook.pipeline.conversation.directed_io import (
    Direction,
    ResponseListener,
    ResponseRequest,
    function_tool,
)
from offhook.pipeline.conversation.events import CallerTurn, Interrupted
from offhook.pipeline.conversation.turns.turn import TurnSettings
from tests.pipeline.conversation.phone import (
    Answerer,
    Words,
    calls,
    model,
    phone_call,
    says,
)


class Reports(ResponseListener):
    """What was reported, in order; audio as its samples so far."""

    def __init__(self) -> None:
        self.all: list[tuple[object, ...]] = []
        self.samples = 0

    def on_text(self, response_id: str, delta: str) -> None:
        self.all.append(("text", response_id, delta))

    def on_audio(self, response_id: str, pcm: Pcm) -> None:
        self.samples += len(pcm)

    def on_word(self, response_id: str, text: str, end_ms: int) -> None:
        self.all.append(("word", response_id, text, end_ms))

    def on_function_call(self, response_id: str, call_id: str, name: str, arguments: str) -> None:
        self.all.append(("call", response_id, name, arguments))

    def on_done(self, response_id: str, usage: object, incomplete: str | None) -> None:
        self.all.append(("done", response_id))

    def on_playout_started(self) -> None:
        self.all.append(("started",))

    def on_playout_stopped(self) -> None:
        self.all.append(("stopped",))


def directed(agent: Answerer, reports: Reports):
    return lambda call: replace(agent.agent(), direction=Direction(reports))


def request(response_id: str, asks: str = "hello", spoken: bool = True) -> ResponseRequest:
    context = LLMContext([{"role": "user", "content": asks}])
    return ResponseRequest(response_id=response_id, context=context, spoken=spoken)


WORD_PACKETS = WORD_MS // 20


async def test_nothing_is_said_without_a_request() -> None:
    agent, reports = Answerer("never"), Reports()
    async with phone_call(directed(agent, reports)) as phone:
        await phone.press("1#")
        await phone.until(lambda: phone.of(CallerTurn))
        phone.call.responses.leave_unanswered()
        await phone.pass_ms(1000)
        assert phone.leg.said == 0
    assert agent.turns == []
    assert reports.all == []


async def test_a_response_is_reported_word_by_word() -> None:
    agent, reports = Answerer("one two"), Reports()
    async with phone_call(directed(agent, reports)) as phone:
        phone.call.responses.request(request("r1"))
        await phone.until(lambda: ("stopped",) in reports.all)
    words = [report for report in reports.all if report[0] == "word"]
    assert words == [("word", "r1", "one", WORD_MS), ("word", "r1", "two", 2 * WORD_MS)]
    assert reports.samples == 2 * WORD_MS * 24
    kinds = [report[0] for report in reports.all]
    assert kinds.index("text") < kinds.index("word") < kinds.index("done") < kinds.index("stopped")
    assert agent.turns == ["hello"]


async def test_a_response_of_text_is_not_spoken() -> None:
    agent, reports = Answerer("one two", "three"), Reports()
    async with phone_call(directed(agent, reports)) as phone:
        phone.call.responses.request(request("r1", spoken=False))
        await phone.until(lambda: ("done", "r1") in reports.all)
        assert reports.all == [("text", "r1", "one two"), ("done", "r1")]
        phone.call.responses.request(request("r2"))
        await phone.until(lambda: ("stopped",) in reports.all)
    assert ("word", "r2", "three", WORD_MS) in reports.all


async def test_a_cancelled_response_is_over_at_once_and_the_next_is_said() -> None:
    agent, reports = Answerer("one two three four", "five"), Reports()
    async with phone_call(directed(agent, reports)) as phone:
        phone.call.responses.request(request("r1"))
        await phone.until(lambda: phone.leg.said > WORD_PACKETS)
        phone.call.responses.cancel("r1")
        phone.call.responses.request(request("r2", "again"))
        said = phone.leg.said
        await phone.until(lambda: ("done", "r2") in reports.all)
        await phone.until(lambda: reports.all[-1] == ("stopped",))
        assert phone.leg.said - said <= WORD_PACKETS + 1
    assert agent.turns == ["hello", "again"]
    assert phone.of(Interrupted)[0].heard == "one"
    assert ("word", "r2", "five", WORD_MS) in reports.all


async def test_an_agent_that_says_nothing_has_done_so() -> None:
    agent, reports = Answerer(""), Reports()
    async with phone_call(directed(agent, reports)) as phone:
        phone.call.responses.request(request("r1"))
        await phone.until(lambda: ("done", "r1") in reports.all)
        assert phone.leg.said == 0


@pytest.mark.parametrize("cancelled", ["r1", "r2"])
async def test_a_request_that_was_cancelled_before_it_arrived_is_dropped(cancelled: str) -> None:
    agent, reports = Answerer("one"), Reports()
    async with phone_call(directed(agent, reports)) as phone:
        phone.call.responses.request(request("r1"))
        phone.call.responses.request(request("r2"))  # in place of the first
        if cancelled == "r2":
            phone.call.responses.cancel("r2")
            await phone.pass_ms(400)
            assert reports.all == []
        else:
            await phone.until(lambda: ("done", "r2") in reports.all)
    assert not [report for report in reports.all if report[1:2] == ("r1",)]


# --- turns that a program ends ---


async def test_a_manual_turn_ends_with_the_commit_and_no_sooner() -> None:
    agent = Answerer("never")
    recognizer = Words("when are you open", "and on sunday")
    async with phone_call(directed(agent, Reports()), recognizer=recognizer) as phone:
        hearing = phone.call.hearing
        hearing.configure(TurnSettings(), manual=True)
        await phone.pass_ms(3000)
        assert not phone.of(CallerTurn)
        hearing.commit()
        await phone.until(lambda: phone.of(CallerTurn))
        await phone.pass_ms(500)
        hearing.commit()
        await phone.until(lambda: len(phone.of(CallerTurn)) == 2)
    assert [turn.text for turn in phone.of(CallerTurn)] == ["when are you open", "and on sunday"]


async def test_a_manual_turn_that_is_cleared_has_no_transcript() -> None:
    agent = Answerer("never")
    async with phone_call(directed(agent, Reports()), recognizer=Words("only this")) as phone:
        hearing = phone.call.hearing
        hearing.configure(TurnSettings(), manual=True)
        await phone.pass_ms(1000)
        hearing.clear()
        await phone.pass_ms(1000)
        hearing.commit()
        await phone.until(lambda: phone.of(CallerTurn))
    assert [turn.text for turn in phone.of(CallerTurn)] == ["only this"]


async def test_an_idle_leg_hears_nothing_not_even_silence() -> None:
    agent = Answerer("never")
    recognizer = Words("all of it")
    async with phone_call(directed(agent, Reports()), recognizer=recognizer) as phone:
        hearing = phone.call.hearing
        hearing.configure(TurnSettings(), manual=True)
        await phone.pass_ms(1000)
        heard = phone.leg.heard_ms
        phone.leg.idle = True
        await phone.pass_ms(1000)
        hearing.commit()
        await phone.until(lambda: phone.of(CallerTurn))
    assert phone.of(CallerTurn)[0].at_ms in (heard - 20, heard)


# --- a language model ---


async def test_a_model_gets_the_instructions_and_tools_of_the_request() -> None:
    reports = Reports()
    parameters = {"type": "object", "properties": {"day": {"type": "string"}}, "required": ["day"]}
    tools = [function_tool("opening_hours", "When the shop is open.", parameters)]
    context = LLMContext([{"role": "user", "content": "when on sunday"}], tools=tools)
    asked = ResponseRequest(response_id="r1", context=context, instructions="Be brief.")
    async with model([calls("opening_hours", day="sunday")], [says("Never.")]) as there:

        def agent(call: Call) -> Agent:
            settings = OpenAIAgentSettings("scripted", there.url, "", "Be long.")
            made = openai_agent(settings, call, connections)
            return replace(made, direction=Direction(reports))

        connections = model_connections()
        async with phone_call(agent) as phone:
            phone.call.responses.request(asked)
            await phone.until(lambda: ("done", "r1") in reports.all)
            context.add_message({"role": "user", "content": "and now"})
            phone.call.responses.request(replace(asked, response_id="r2"))
            await phone.until(lambda: ("done", "r2") in reports.all)
        await connections.aclose()
    assert reports.all[:2] == [
        ("call", "r1", "opening_hours", '{"day": "sunday"}'),
        ("done", "r1"),
    ]
    assert ("text", "r2", "Never.") in reports.all
    first = there.requests[0]
    assert first["messages"][0] == {"role": "system", "content": "Be brief."}
    assert first["tools"][0]["function"]["name"] == "opening_hours"
    assert len(there.requests) == 2
