"""A call that agents of the configuration hand over to each other: what the caller hears, by which
voice, in which order, and what each agent knows."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
import soxr
from aiohttp import web

from offhook.media.leg import CallInfo
from offhook.media.pcm import RATE_IN, RATE_OUT, Pcm
from offhook.pipeline.conversation import call_io, summary_io
from offhook.pipeline.conversation.agents.prompt import TAKEN_OVER
from offhook.pipeline.conversation.events import (
    AgentChanged,
    AgentFailed,
    AgentTurn,
    CallEnded,
    CallerTurn,
    CallStarted,
    Event,
    Interrupted,
)
from offhook.pipeline.conversation.sentences import SENTENCES, Occasion
from offhook.pipeline.conversation.turns.end_of_turn import EndSettings
from offhook.pipeline.conversation.turns.turn import TurnState
from offhook.pipeline.speech.recognizer import StreamOptions
from offhook.pipeline.speech.synthesizer import SynthesizerStream, VoiceOptions
from offhook.web.app.cli.caller_io import ScriptedCall, ScriptLine
from offhook.web.config.config import Agent, Config
from offhook.web.edge.calls.handoffs_io import MAX_HANDOFFS
from offhook.web.edge.edge_io import Edge
from tests.pipeline.conversation.phone import COUNT, Model, calls, completion, model, says
from tests.support.ports import free_port
from tests.support.waiting import HANGS_S, until
from tests.web.edge.agents.test_agent import Page, called, said_by_flite
from tests.web.edge.agents.test_realtime_agent import agent_at, elsewhere
from tests.web.edge.scripted_edge import ScriptedEdge

pytestmark = pytest.mark.asyncio(loop_scope="module")
HELLO, PUT_THROUGH = "Hello.", "I put you through to billing."
TO_BILLING = [says(PUT_THROUGH), calls("hand_over_to_billing", reason="a bill that is too high")]
BILLING = "Billing here, which bill is it?"


@pytest.fixture(scope="module")
def question() -> Pcm:
    return said_by_flite("When are you open?")


@pytest.fixture(scope="module")
def long_question() -> Pcm:
    return said_by_flite("When are you open on Saturday and on Sunday in the winter?")


def agent(endpoint: Model, **more: Any) -> Agent:
    at = {"kind": "openai", "base_url": endpoint.url, "model": "scripted", "think_ahead": False}
    return Agent(**{**at, **more})


class Call:
    """A call to the first of the agents, and what was said in it."""

    def __init__(self, edge: Edge, leg: Page, spoken: list[tuple[str, str]]) -> None:
        self.edge, self.leg = edge, leg
        self.events: list[Event] = []
        self.spoken = spoken
        """The voice and the text of all that was spoken."""

    @property
    def words(self) -> str:
        return self.leg.words()

    @property
    def conversation(self) -> Any:
        return self.edge.conversations[self.leg.call_id]

    def of(self, *kinds: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kinds)]

    def types(self, text: str) -> None:
        self.leg.hear(type="send-text", id="1", data={"content": text})

    async def hears(self, text: str) -> None:
        await until(lambda: text in self.words)

    async def turns(self, *texts: str) -> None:
        """The agents have said exactly this to its end."""
        await until(lambda: [turn.text for turn in self.of(AgentTurn)] == list(texts))


@pytest.fixture
def spoken(edge: Edge, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The voice and the text of each reply that is synthesized."""
    replies: list[tuple[str, str]] = []
    voice = edge.engines.configured.synthesizer
    before = voice.open

    def opened(options: VoiceOptions) -> SynthesizerStream:
        stream, at = before(options), len(replies)
        replies.append((options.voice, ""))
        write = stream.write

        def written(text: str) -> None:
            replies[at] = options.voice, replies[at][1] + text
            write(text)

        monkeypatch.setattr(stream, "write", written)
        return stream

    monkeypatch.setattr(voice, "open", opened)
    return replies


@asynccontextmanager
async def calling(
    edge: Edge, agents: dict[str, Agent], spoken: list[tuple[str, str]], leg: Page | None = None
) -> AsyncIterator[Call]:
    async with called(edge, agents, leg or Page()) as page:
        call = Call(edge, page, spoken)
        await until(lambda: page.call_id in edge.conversations)
        call.conversation.listeners.append(call.events.append)
        yield call


def said_to(request: dict[str, Any]) -> list[tuple[str, Any]]:
    """What a model was told of the conversation."""
    return [(m["role"], m.get("content")) for m in request["messages"] if m["role"] != "system"]


def prompt(request: dict[str, Any]) -> str:
    return str(request["messages"][0]["content"])


def tools(request: dict[str, Any]) -> dict[str, str]:
    """The names and descriptions of a request's tools."""
    functions = [tool["function"] for tool in request.get("tools", ())]
    return {function["name"]: function["description"] for function in functions}


async def test_the_caller_is_put_through_to_another_agent_and_back(
    edge: Edge, spoken: list[tuple[str, str]]
) -> None:
    back = [says("Back to the front."), calls("hand_over_to_front", reason="a new order")]
    async with (
        model([says(HELLO)], TO_BILLING, [says("What do you order?")]) as front,
        model([says(BILLING)], back) as billing,
    ):
        agents = {
            "front": agent(front, voice="slt", handoffs=["billing"]),
            "billing": agent(
                *(billing,),
                voice="rms",
                handoffs=["front"],
                description="knows all bills",
                instructions="You know bills.",
            ),
        }
        async with calling(edge, agents, spoken) as call:
            call.leg.hear(type="client-ready", id="0", data={"version": "2.1.0"})
            await call.hears(HELLO)
            call.types("My bill is too high.")
            await call.turns(HELLO, PUT_THROUGH, BILLING)
            call.types("I order a bell.")
            await call.turns(
                HELLO, PUT_THROUGH, BILLING, "Back to the front.", "What do you order?"
            )
    assert call.spoken == [
        ("slt", HELLO),
        ("slt", PUT_THROUGH),
        ("rms", BILLING),
        ("rms", "Back to the front."),
        ("slt", "What do you order?"),
    ]
    # What each was told.
    assert "knows all bills" in tools(front.requests[1])["hand_over_to_billing"]
    assert said_to(billing.requests[0])[-3:] == [
        ("user", "My bill is too high."),
        ("assistant", PUT_THROUGH),
        ("user", TAKEN_OVER),
    ]
    told = prompt(billing.requests[0])
    assert told.startswith("You know bills.")
    assert '{"agent": "front", "says": "a bill that is too high"}' in told
    assert "hand_over_to_front" in tools(billing.requests[0])
    assert "hand_over_to_billing" not in tools(billing.requests[0])
    assert '{"agent": "billing", "says": "a new order"}' in prompt(front.requests[2])
    # What is told of it.
    changes = [(event.before, event.agent, event.text) for event in call.of(AgentChanged)]
    assert changes == [
        ("front", "billing", "a bill that is too high"),
        ("billing", "front", "a new order"),
    ]
    kinds = [m["type"] for m in call.leg.told]
    assert kinds.count("bot-ready") == 1
    own = [m["data"] for m in call.leg.told if m["type"] == "server-message"]
    assert [data["agent"] for data in own if data["type"] == "agent-changed"] == [
        "billing",
        "front",
    ]
    assert sum(data["type"] == "welcome" for data in own) == 1
    assert len(call.of(CallEnded)) == 1
    assert not call.of(AgentFailed)


@asynccontextmanager
async def front_and_billing(
    edge: Edge,
    spoken: list[tuple[str, str]],
    *answers: list[dict[str, Any]],
    front: tuple[list[dict[str, Any]], ...] = (),
    leg: Page | None = None,
    **billing: Any,
) -> AsyncIterator[tuple[Call, Model, Model]]:
    """A call that the front agent is about to hand over: the caller has heard its greeting and
    says why they call. `answers` are of the model of billing."""
    async with model([says(HELLO)], *front or (TO_BILLING,)) as first, model(*answers) as second:
        agents = {
            "front": agent(first, voice="slt", handoffs=["billing"], think_ahead=True),
            "billing": agent(second, **{"voice": "rms", **billing}),
            "desk": Agent(kind="frontdesk"),
        }
        async with calling(edge, agents, spoken, leg) as call:
            await call.hears(HELLO)
            await until(lambda: not call.leg.playout.speaking)
            call.types("My bill is too high.")
            yield call, first, second


async def test_a_phone_hears_the_same(edge: Edge, spoken: list[tuple[str, str]]) -> None:
    leg = Page()
    leg.info = CallInfo(edge="sip", caller="+4930555123", called="100")
    async with front_and_billing(edge, spoken, [says(BILLING)], leg=leg) as (call, *_):
        await call.turns(HELLO, PUT_THROUGH, BILLING)
    assert [voice for voice, _ in call.spoken] == ["slt", "slt", "rms"]


async def test_an_agent_that_takes_over_greets_and_the_front_desk_does_too(
    edge: Edge, spoken: list[tuple[str, str]]
) -> None:
    to_desk = [says("One moment."), calls("hand_over_to_desk", reason="opening hours")]
    greeting = "Billing, good morning."
    async with front_and_billing(
        *(edge, spoken, to_desk), greeting=greeting, greeting_interruptible=False, handoffs=["desk"]
    ) as (call, _, billing):
        await call.turns(HELLO, PUT_THROUGH, greeting)
        assert not billing.requests  # a greeting is not asked for
        call.types("When are you open?")
        await call.hears("Lighthouse Bicycles")
        assert said_to(billing.requests[0])[-2:] == [
            ("assistant", f"{PUT_THROUGH} {greeting}"),
            ("user", "When are you open?"),
        ]


async def test_whoever_interrupts_the_announcement_stays(
    edge: Edge, spoken: list[tuple[str, str]]
) -> None:
    announced = [says(COUNT), calls("hand_over_to_billing", reason="a bill")]
    stays = [says("Of course, what else?")]
    async with front_and_billing(
        *(edge, spoken, [says(BILLING)]), front=(announced, stays, TO_BILLING)
    ) as (call, front, billing):
        await call.hears("three")
        call.types("No, wait.")
        await call.hears("what else?")
        assert call.of(Interrupted)
        assert not call.of(AgentChanged)
        assert not billing.requests
        call.types("Now the bill.")  # and may be handed over later
        await call.hears(BILLING)
    assert [event.agent for event in call.of(AgentChanged)] == ["billing"]
    assert front.requests[2]["messages"][-1]["content"] == "No, wait."


def later(*answers: str) -> tuple[asyncio.Event, Callable[[web.Request], Any]]:
    """A server that gives these answers, not streamed, once the event is set."""
    due, texts = asyncio.Event(), list(answers)

    async def answer(request: web.Request) -> web.StreamResponse:
        await due.wait()
        return web.json_response(completion([says(texts.pop(0))]))

    return due, answer


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A summary, and a caller's sentence, may take as long as a busy machine takes for them."""
    monkeypatch.setattr(summary_io, "SUMMARY_S", HANGS_S)
    monkeypatch.setattr(call_io, "LISTENS_S", HANGS_S)


@pytest.mark.usefixtures("unhurried")
async def test_what_is_said_meanwhile_is_for_the_next_agent_and_heard_once(
    edge: Edge, spoken: list[tuple[str, str]], question: Pcm
) -> None:
    """The switch is held up by a summary; the caller speaks."""
    due, answer = later("The caller has a bill of 40 euros.")
    async with front_and_billing(
        *(edge, spoken, [says("We open at nine.")]), handoff_context="summary"
    ) as (call, front, billing):
        front.ill = answer
        await call.turns(HELLO, PUT_THROUGH)
        await until(lambda: len(front.requests) == 3)
        await until(lambda: not call.leg.playout.speaking)
        call.leg.feed(question)
        await until(lambda: len(call.of(CallerTurn)) == 1)
        due.set()
        await call.hears("We open at nine.")
    turn = call.of(CallerTurn)[-1].text
    assert turn
    assert len(front.requests) == 3  # two answers and the summary: the turn was not its
    assert len(billing.requests) == 1
    assert said_to(billing.requests[0]) == [("user", turn)]
    assert "The caller has a bill of 40 euros." in prompt(billing.requests[0])
    assert "a bill that is too high" in prompt(billing.requests[0])


@pytest.mark.usefixtures("unhurried")
async def test_who_speaks_during_the_switch_is_answered_at_the_end_of_the_turn(
    edge: Edge, spoken: list[tuple[str, str]], long_question: Pcm
) -> None:
    due, answer = later("A bill.")
    async with front_and_billing(
        *(edge, spoken, [says("We open at nine.")]),
        handoff_context="summary",
        context="bicycle",  # recognized by another stream
        greeting="Billing, good morning.",
    ) as (call, front, billing):
        front.ill = answer
        await call.turns(HELLO, PUT_THROUGH)
        await until(lambda: len(front.requests) == 3)
        await until(lambda: not call.leg.playout.speaking)
        call.leg.feed(long_question)
        await until(lambda: call.conversation.hearing.state is TurnState.HEARING)
        due.set()
        await call.hears("We open at nine.")
    turn = call.of(CallerTurn)[-1].text
    assert len(call.of(CallerTurn)) == 1
    assert said_to(billing.requests[0]) == [("user", turn)]
    assert turn.split()[0] == "when"  # the whole of it, by the recognizer of the next agent
    assert "Billing" not in call.words


@pytest.mark.parametrize("context", ["keep", "reset"])
async def test_what_the_next_agent_knows(
    edge: Edge, spoken: list[tuple[str, str]], context: str
) -> None:
    async with front_and_billing(edge, spoken, [says(BILLING)], handoff_context=context) as (
        call,
        _,
        billing,
    ):
        await call.hears(BILLING)
    known = json.dumps(said_to(billing.requests[0]))
    assert (PUT_THROUGH in known) is (context == "keep")
    assert ("too high" in known) is (context == "keep")
    assert "a bill that is too high" in prompt(billing.requests[0])


async def test_without_a_summary_the_next_agent_knows_all(
    edge: Edge, spoken: list[tuple[str, str]]
) -> None:
    async def fails(request: web.Request) -> web.StreamResponse:
        return web.Response(status=500)

    async with front_and_billing(*(edge, spoken, [says(BILLING)]), handoff_context="summary") as (
        call,
        front,
        billing,
    ):
        front.ill = fails
        await call.turns(HELLO, PUT_THROUGH, BILLING)
    assert ("assistant", PUT_THROUGH) in said_to(billing.requests[0])
    assert not call.of(AgentFailed)


async def test_a_language_of_its_own_is_spoken_and_heard(
    edge: Edge, spoken: list[tuple[str, str]], question: Pcm, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[StreamOptions] = []
    recognizer = edge.engines.configured.recognizer
    before = recognizer.open

    async def opened(options: StreamOptions) -> Any:
        heard.append(options)
        return await before(options)

    monkeypatch.setattr(recognizer, "open", opened)
    async with front_and_billing(
        *(edge, spoken, [says(BILLING)]), language="en-GB", context="Lindqvist"
    ) as (call, *_):
        await call.turns(HELLO, PUT_THROUGH, BILLING)
        call.leg.feed(question)
        await until(lambda: len(call.of(CallerTurn)) == 1)
    assert [(one.language, one.context) for one in heard][-1] == ("en-GB", "Lindqvist")
    assert len(heard) == 2
    assert call.of(CallerTurn)[-1].text.startswith("when are you")


async def test_steps_of_a_silence_are_those_of_the_agent_on_the_line(
    edge: Edge, spoken: list[tuple[str, str]]
) -> None:
    silence = ({"after": 1, "say": "Do you see the bill?"}, {"after": 1, "hang_up": True})
    async with front_and_billing(
        *(edge, spoken, [says(BILLING)]), silence=silence, goodbye="Goodbye from billing."
    ) as (call, *_):
        await until(lambda: call.leg.closed)
    assert [text for voice, text in call.spoken if voice == "rms"] == [
        BILLING,
        "Do you see the bill?",
        "Goodbye from billing.",
    ]


@pytest.mark.parametrize("fallback", ["", "desk"])
async def test_of_an_agent_whose_model_is_dead_the_caller_hears_what_is_usual(
    edge: Edge, spoken: list[tuple[str, str]], fallback: str
) -> None:
    dead = {"base_url": "http://127.0.0.1:9/v1", "fallback": fallback}
    async with front_and_billing(edge, spoken, **dead) as (call, *_):
        usual = "Lighthouse" if fallback else SENTENCES["en"][Occasion.TROUBLE]
        await call.hears(usual)
    assert tuple({voice for voice, text in call.spoken if usual in text}) == ("rms",)
    assert call.of(AgentFailed)


async def test_hand_overs_are_bounded_and_the_model_is_told(
    edge: Edge, spoken: list[tuple[str, str]]
) -> None:
    over = [[calls(f"hand_over_to_{name}", reason="x")] for name in ("billing", "front")]
    half = MAX_HANDOFFS // 2
    async with (
        model([says(HELLO)], *([over[0]] * half), over[0], [says("So I do it.")]) as front,
        model(*([over[1]] * half)) as billing,
    ):
        agents = {
            "front": agent(front, handoffs=["billing"]),
            "billing": agent(billing, handoffs=["front"]),
        }
        async with calling(edge, agents, spoken) as call:
            await call.hears(HELLO)
            call.types("My bill is too high.")
            await call.hears("So I do it.")
    assert len(call.of(AgentChanged)) == MAX_HANDOFFS
    assert "too often" in front.results()[-1]["error"]


@pytest.mark.parametrize("when", ["announced", "summary"])
async def test_a_caller_who_hangs_up_meanwhile(
    edge: Edge, spoken: list[tuple[str, str]], when: str
) -> None:
    due, answer = later("A bill.")
    announced = [says(COUNT), calls("hand_over_to_billing", reason="a bill")]
    async with front_and_billing(
        *(edge, spoken, [says(BILLING)]),
        front=(announced,) if when == "announced" else (),
        handoff_context="summary",
    ) as (call, front, billing):
        front.ill = answer
        await call.hears("three" if when == "announced" else PUT_THROUGH)
        await until(lambda: len(front.requests) == 3)
        if when == "summary":
            await until(lambda: not call.leg.playout.speaking)
        call.leg.close("hung up")
        await until(lambda: call.of(CallEnded))
        due.set()
    assert [str(event.reason) for event in call.of(CallEnded)] == ["hung up"]
    assert not billing.requests


async def test_a_call_is_continued_elsewhere_by_the_agent_on_the_line(
    edge: Edge, spoken: list[tuple[str, str]]
) -> None:
    async with front_and_billing(
        *(edge, spoken, [says(BILLING)], [says("The one of May.")]), instructions="You know bills."
    ) as (call, _, billing):
        await call.turns(HELLO, PUT_THROUGH, BILLING)
        saved = edge.saved(call.leg.call_id, "front")
        assert saved is not None
        call.leg.close("it continues elsewhere")
        await until(lambda: call.of(CallEnded))
        again = Page()
        again.call_id = "again"
        running = asyncio.create_task(edge.run_call(again, "front", returned=saved))
        again.connect()
        await until(lambda: SENTENCES["en"][Occasion.NOT_TRANSFERRED] in again.words())
        again.hear(type="send-text", id="1", data={"content": "Which one?"})
        await until(lambda: "The one of May." in again.words())
        again.close("the test is over")
        await running
    assert (saved.agent, saved.answering) == ("front", "billing")
    assert prompt(billing.requests[1]).startswith("You know bills.")
    assert "a bill that is too high" in prompt(billing.requests[1])
    assert ("user", "My bill is too high.") in said_to(billing.requests[1])
    assert call.spoken[-1] == ("rms", "The one of May.")


async def test_speech_to_speech_models_take_over_and_hand_over(
    edge: Edge, spoken: list[tuple[str, str]], question: Pcm
) -> None:
    back = [says("Back to the front."), calls("hand_over_to_front", reason="it is done")]
    async with (
        model([says(HELLO)], TO_BILLING, [says("Anything else?")]) as front,
        model([says(BILLING)], back) as there,
        elsewhere(there) as wire,
    ):
        agents = {
            "front": agent(front, handoffs=["billing"]),
            "billing": agent_at(wire, handoffs=["front"]),
        }
        async with calling(edge, agents, spoken) as call:
            await call.hears(HELLO)
            call.types("My bill is too high.")
            await call.turns(HELLO, PUT_THROUGH, BILLING)
            await until(lambda: not call.leg.playout.speaking)
            call.leg.feed(question)
            await call.hears("Anything else?")
    assert ("user", "My bill is too high.") in said_to(there.requests[0])
    assert ("assistant", PUT_THROUGH) in said_to(there.requests[0])
    waits = SENTENCES["en"][Occasion.WAIT]  # a busy machine is slow
    heard = [turn.text for turn in call.of(AgentTurn) if turn.text != waits]
    assert heard == [HELLO, PUT_THROUGH, BILLING, "Back to the front.", "Anything else?"]
    assert call.spoken[-1][1] == "Anything else?"
    assert BILLING not in [text for _, text in call.spoken]  # a voice of its own


@pytest.mark.parametrize(
    ("front", "fault"),
    [
        ({"handoffs": ["bills"]}, "agents.front.handoffs: no agent is called 'bills'"),
        ({"handoffs": ["front"]}, "agents.front.handoffs: 'front' is the agent itself"),
        ({"handoffs": ["quiet"]}, "agents.front.handoffs: 'quiet' cannot take a call over"),
        ({"handoffs": ["agent", "agent"]}, "two are called hand_over_to_agent"),
        (
            {"kind": "frontdesk", "handoffs": ["agent"]},
            'handoffs: only for kind = "openai" or "realtime"',
        ),
        ({"handoffs": ["agent"]}, ""),
    ],
)
async def test_names_are_checked_at_the_start(front: dict[str, Any], fault: str) -> None:
    agents = {"front": {"kind": "openai", **front}, "quiet": {"kind": "silent"}}
    if not fault:
        assert Config.model_validate({"agents": agents}).agents["front"].handoffs == ("agent",)
        return
    with pytest.raises(ValueError, match=fault):
        Config.model_validate({"agents": agents})


async def test_a_call_by_sip_has_one_record_which_names_who_took_it(question: Pcm) -> None:
    port, voice = free_port(), soxr.resample(question, RATE_IN, RATE_OUT)
    async with model(TO_BILLING) as front, model([says(BILLING)]) as billing:
        front.usage = {"prompt_tokens": 1000, "completion_tokens": 20}
        cached = {"prompt_tokens_details": {"cached_tokens": 400}}
        billing.usage = {"prompt_tokens": 500, "completion_tokens": 5, **cached}
        of_front = {"greeting": HELLO, "handoffs": ("billing",)}
        agents = {"front": agent(front, **of_front), "billing": agent(billing)}
        phones = {
            "udp": port,
            "tcp": False,
            "allow_anonymous": True,
            "routes": [{"agent": "front"}],
        }
        table = {
            "server": {"port": 0, "drain_seconds": 0},
            "sip": phones,
            "agents": agents,
            "prices": {"scripted": {"input": 2, "output": 8, "cached": 1}},
        }
        edge = ScriptedEdge(Config.model_validate(table))
        await edge.start()
        try:
            caller = ScriptedCall(
                f"sip:desk@127.0.0.1:{port}", [ScriptLine("When are you open?", voice)]
            )
            running = asyncio.create_task(caller.run())
            await until(lambda: edge.turns() == [HELLO, PUT_THROUGH, BILLING])
            await running
            await until(lambda: edge.records.ended)
            (ended,) = edge.records.ended.values()
        finally:
            await edge.close()
    assert ended.record.agent == "front"
    tokens = (ended.record.input_tokens, ended.record.cached_tokens, ended.record.output_tokens)
    assert tokens == (1500, 400, 25)
    assert json.loads(ended.record.line())["cost"] == 0.0028  # 1100 × 2 + 400 × 1 + 25 × 8
    registry = edge.metrics.registry
    assert registry.get_sample_value("offhook_model_cost_total", {"model": "scripted"}) == (
        pytest.approx(0.0028)
    )
    labels = {"model": "scripted", "kind": "output"}
    assert registry.get_sample_value("offhook_model_tokens_total", labels) == 25
    assert [type(event) for event in edge.events].count(CallStarted) == 1
    assert len(edge.ends()) == 1


WAITS = [name for name in vars(EndSettings) if name.startswith(("end_silence", "end_answer"))]


async def test_an_agent_waits_for_its_callers_as_long_as_its_table_says(
    edge: Edge, spoken: list[tuple[str, str]], question: Pcm
) -> None:
    patient = dict.fromkeys(WAITS, 4000)
    async with front_and_billing(
        *(edge, spoken, [says(BILLING)], [says("Yes.")], [says("Yes.")]), turn=patient
    ) as (call, *_):
        await call.turns(HELLO, PUT_THROUGH, BILLING)
        pause = np.zeros(int(2.5 * RATE_IN), np.int16)  # after which other agents have answered
        call.leg.feed(np.concatenate([question, pause, question]))
        await call.hears("Yes.")
    (turn,) = call.of(CallerTurn)
    assert turn.text.count("when are you") == 2
