"""Conversations by text: as on the phone, with words for sound."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from offhook.media.leg import CallInfo
from offhook.pipeline.conversation.events import Event, LanguageChanged
from offhook.pipeline.conversation.sentences import Occasion
from offhook.pipeline.speech.synthesizer import VoiceOptions
from offhook.web.config.agents import Agent, Silence
from offhook.web.config.config import Config, ConfigError
from offhook.web.config.tools import HttpTool
from offhook.web.edge.text.text_edge_io import TextEdge, ToolCall, conversation, text_edge
from tests.pipeline.conversation.agents.test_agent_faults import FAULTS
from tests.pipeline.conversation.phone import calls, model, says
from tests.web.tools.test_http_tool import shop

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
async def edge() -> AsyncIterator[TextEdge]:
    async with text_edge(Config()) as running:
        yield running


async def test_an_agent_greets_calls_its_tool_and_answers(edge: TextEdge) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.json_response({"status": "sent", "by": request.query["by"]})

    async with shop(answer) as url, model() as endpoint:
        endpoint.answers = [[calls("order_status", number="7")], [says("It was sent.")]]
        tool = {
            "name": "order_status",
            "description": "Looks up an order.",
            "parameters": {"number": "its number"},
            "url": f"{url}/{{number}}?by={{{{customer}}}}",
        }
        agent = Agent(
            kind="openai",
            base_url=endpoint.url,
            model="m",
            greeting="Hello, {{customer}}.",
            variables={"customer": "nobody"},
            tools=(HttpTool.model_validate(tool),),
        )
        edge.config = edge.config.model_copy(update={"agents": {"shop": agent}})
        info = CallInfo(edge="text", variables={"customer": "Ada"})
        async with conversation(edge, "shop", info, lambda text: None) as talk:
            assert (await talk.listen()).text == "Hello, Ada."
            exchange = await talk.say("Where is my order?")
            assert exchange.text == "It was sent."
            assert exchange.tools == [
                ToolCall("order_status", {"number": "7"}, {"status": "sent", "by": "Ada"})
            ]
            assert exchange.first_word_ms is not None
            assert not exchange.faults
            assert not exchange.ended
    assert not edge.calls


async def test_arguments_that_are_nested_without_end_are_shown_as_they_came(
    edge: TextEdge,
) -> None:
    async with model([says("Hello.")]) as endpoint:
        agent = Agent(kind="openai", base_url=endpoint.url, model="m")
        edge.config = edge.config.model_copy(update={"agents": {"deep": agent}})
        async with conversation(edge, "deep", CallInfo(edge="text"), lambda text: None) as talk:
            await talk.say("Hello")
            about = {"name": "f", "arguments": "[" * 60_000}
            message: Any = {"role": "assistant", "tool_calls": [{"id": "1", "function": about}]}
            talk.call.context.add_message(message)
            [tool] = (await talk.listen()).tools
            assert tool.arguments == about["arguments"]


async def test_what_fails_is_told_with_what_the_caller_hears(edge: TextEdge) -> None:
    async with model([says("Hello.")]) as endpoint:
        agent = Agent(kind="openai", base_url=endpoint.url, model="m")
        edge.config = edge.config.model_copy(update={"agents": {"ill": agent}})
        async with conversation(edge, "ill", CallInfo(edge="text"), lambda text: None) as talk:
            assert (await talk.listen()).text == "Hello."
            endpoint.ill = FAULTS["401"].silent
            exchange = await talk.say("Are you there?")
            assert "technical problem" in exchange.text
            assert any(
                fault.startswith("unauthorized: m at 127.0.0.1") for fault in exchange.faults
            ), exchange.faults


async def test_a_flow_goes_from_node_to_node(edge: TextEdge, tmp_path: Path) -> None:
    (tmp_path / "flow.toml").write_text(
        """
        initial = "name"
        [nodes.name]
        task = "Ask for a name."
        functions = [{name = "named", description = "d", next = "bye"}]
        [nodes.bye]
        task = "Say goodbye."
        post_actions = [{hang_up = true}]
        """
    )
    async with model([says("Hello.")], [calls("named")], [says("Goodbye.")]) as endpoint:
        flow = str(tmp_path / "flow.toml")
        agent = Agent(kind="openai", base_url=endpoint.url, model="m", flow=flow)
        edge.config = edge.config.model_copy(update={"agents": {"led": agent}})
        shown: list[str] = []
        async with conversation(edge, "led", CallInfo(edge="text"), shown.append) as talk:
            assert (await talk.listen()).text == "Hello."
            exchange = await talk.say("I am Ada.")
            assert exchange.text == "Goodbye."
            assert exchange.nodes == ["bye"]
            assert [tool.name for tool in exchange.tools] == ["named"]
            assert exchange.ended
        assert "goes on at bye" in shown


async def test_an_agent_hands_over_to_another_one(edge: TextEdge) -> None:
    over = [says("I put you through."), calls("hand_over_to_billing", reason="a bill")]
    async with model([says("Hello.")], over) as first, model([says("Billing here.")]) as second:
        front = Agent(kind="openai", base_url=first.url, model="m", handoffs=("billing",))
        billing = Agent(kind="openai", base_url=second.url, model="m")
        agents = {"front": front, "billing": billing}
        edge.config = edge.config.model_copy(update={"agents": agents})
        async with conversation(edge, "front", CallInfo(edge="text"), lambda text: None) as talk:
            assert (await talk.listen()).text == "Hello."
            exchange = await talk.say("My bill is too high.")
    assert exchange.words == ["I put you through.", "Billing here."]
    assert exchange.agents == ["billing"]
    assert [tool.name for tool in exchange.tools] == ["hand_over_to_billing"]


async def test_the_agent_may_hang_up_and_press_keys(edge: TextEdge) -> None:
    done: list[str] = []
    async with model([calls("send_dtmf", digits="12#")], [calls("end_call")]) as endpoint:
        agent = Agent(kind="openai", base_url=endpoint.url, model="m", greeting="Hi.")
        edge.config = edge.config.model_copy(update={"agents": {"keys": agent}})
        async with conversation(edge, "keys", CallInfo(edge="text"), done.append) as talk:
            assert (await talk.listen()).text == "Hi."
            exchange = await talk.say("Press one two.")
            assert exchange.ended
    assert done == ["presses 12#"]


async def test_silence_is_as_long_as_on_the_phone(edge: TextEdge) -> None:
    steps = (Silence(after=1, say="Are you there?"), Silence(after=1, hang_up=True))
    async with model([says("Well.")]) as endpoint:
        agent = Agent(
            kind="openai",
            base_url=endpoint.url,
            model="m",
            greeting="Hi.",
            silence=steps,
            goodbye="Bye.",
        )
        edge.config = edge.config.model_copy(update={"agents": {"shy": agent}})
        async with conversation(edge, "shy", CallInfo(edge="text"), lambda text: None) as talk:
            heard: list[str] = []
            while not (exchange := await talk.listen()).ended:
                heard += exchange.words
            assert [*heard, *exchange.words] == ["Hi.", "Are you there?", "Bye."]


@pytest.mark.parametrize(
    ("agents", "name", "says"),
    [
        ({}, "gone", "no agent is called 'gone' (there: none)"),
        ({"ear": Agent(kind="silent")}, "ear", 'kind = "silent" converses with nobody'),
    ],
)
async def test_what_cannot_converse_is_said(
    edge: TextEdge, agents: dict[str, Any], name: str, says: str
) -> None:
    edge.config = edge.config.model_copy(update={"agents": agents})
    with pytest.raises(ConfigError) as fault:
        async with conversation(edge, name, CallInfo(edge="text"), lambda text: None):
            pass
    assert says in str(fault.value)


async def test_an_agent_follows_its_caller_into_another_language_and_back(edge: TextEdge) -> None:
    pytest.importorskip("py3langid")
    answers = [[says(text)] for text in ("Sure.", "Gern.", "Noch etwas?", "Yes.", "Of course.")]
    async with model(*answers) as endpoint:
        agent = Agent(
            kind="openai",
            base_url=endpoint.url,
            model="m",
            greeting="Hello.",
            instructions="You sell tea.",
            languages=("en", "de"),
            voices={"de": "anna"},
            sentences={Occasion.TROUBLE: "Our own words."},
        )
        edge.config = edge.config.model_copy(update={"agents": {"tea": agent}})
        voiced: list[VoiceOptions] = []
        changes: list[tuple[str, str]] = []
        info = CallInfo(edge="text")
        async with conversation(edge, "tea", info, lambda text: None) as talk:

            def listen(event: Event) -> None:
                if isinstance(event, LanguageChanged):
                    changes.append((event.before, event.language))
                    voiced.append(call.voice.options)

            call = talk.call
            call.listeners.append(listen)
            await talk.listen()
            await talk.say("I would like to know the price of your tea.")
            await talk.say("Ach, können wir bitte auf Deutsch weitersprechen, das wäre mir lieber.")
            assert changes == [("en", "de")]
            assert call.sentence(Occasion.TROUBLE).startswith("Entschuldigung")
            await talk.say("Ja.")
            await talk.say("Anyway, let us go on in English")
            assert changes == [("en", "de")]
            await talk.say("and tell me what it costs")
            assert changes == [("en", "de"), ("de", "en")]
            assert call.sentence(Occasion.TROUBLE) == "Our own words."
            assert [(each.language, each.voice) for each in voiced] == [("de", "anna"), ("en", "")]
        told = [request["messages"][0]["content"] for request in endpoint.requests]
        assert "The caller now speaks" not in told[0]
        assert told[1].endswith("The caller now speaks German; answer in German.")
        assert told[-1].endswith("The caller now speaks English; answer in English.")
    changed = edge.metrics.language_changes.labels("de")._value.get()
    assert changed == 1
