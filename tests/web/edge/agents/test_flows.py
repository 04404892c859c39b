"""Calls that a flow leads: what the model is told and offered in each node, and what the caller
hears."""

import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from offhook.media.end_reason import End
from offhook.media.leg import CallInfo, LegError
from offhook.pipeline.conversation.agents.prompt import GOES_ON
from offhook.pipeline.conversation.events import AgentChanged, Interrupted, NodeEntered
from offhook.pipeline.conversation.sentences import SENTENCES, Occasion
from offhook.web.config.config import Agent, load
from offhook.web.edge.calls.page_messages import for_the_page
from offhook.web.edge.edge_io import Edge
from tests.pipeline.conversation.phone import COUNT, Model, calls, model, says
from tests.support.waiting import until
from tests.web.edge.agents.test_agent import Page
from tests.web.edge.agents.test_handover import Call, agent, calling, prompt, said_to, spoken, tools
from tests.web.tools.test_http_tool import shop

assert spoken  # a fixture
pytestmark = pytest.mark.asyncio(loop_scope="module")
DOCUMENT = Path(__file__).parents[4] / "docs" / "flows.md"
HELLO = "Hello."
TWO = """
initial = "name"
[nodes.name]
task = "Ask {{caller}} for a name."
functions = [{name = "named", description = "d", parameters = {who = "n"}, next = "bye"}]
[nodes.bye]
task = "Say goodbye."
post_actions = [{hang_up = true}]
"""


def written(folder: Path, text: str, name: str = "flow.toml") -> str:
    file = folder / name
    file.write_text(text)
    return str(file)


def phone() -> Page:
    leg = Page()
    leg.info = CallInfo(edge="sip", caller="+4930555123", called="100")
    return leg


class Begin:
    """Begins calls to an agent with a flow, or to that of the documentation."""

    def __init__(self, edge: Edge, spoken: list[tuple[str, str]], folder: Path) -> None:
        self._edge, self._spoken, self._folder = edge, spoken, folder

    @asynccontextmanager
    async def __call__(
        self,
        *answers: list[dict[str, Any]],
        flow: str,
        leg: Page | None = None,
        others: Mapping[str, Agent] | None = None,
        **more: Any,
    ) -> AsyncIterator[tuple[Call, Model]]:
        async with model(*answers) as endpoint:
            file = written(self._folder, flow)
            first = agent(endpoint, flow=file, instructions="You are Ada.", **more)
            agents = {"led": first, **(others or {})}
            async with calling(self._edge, agents, self._spoken, leg or phone()) as call:
                yield call, endpoint

    @asynccontextmanager
    async def documented(
        self, *answers: list[dict[str, Any]], url: str = "", leg: Page | None = None
    ) -> AsyncIterator[tuple[Call, Model]]:
        config, flow = re.findall(r"```toml\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
        written(self._folder, flow, "repairs.toml")
        async with model(*answers) as endpoint:
            config = config.replace("http://localhost:8000/v1", endpoint.url)
            config = config.replace("http://localhost:9000", url or "http://localhost:9000")
            agents = load(Path(written(self._folder, config, "offhook.toml")), {}).agents
            async with calling(self._edge, agents, self._spoken, leg or phone()) as call:
                await call.hears("What can I do for you?")
                yield call, endpoint


@pytest.fixture
def begin(
    edge: Edge, spoken: list[tuple[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Begin:
    monkeypatch.chdir(tmp_path)
    return Begin(edge, spoken, tmp_path)


def nodes(call: Call) -> list[str]:
    return [event.node for event in call.of(NodeEntered)]


async def test_each_node_has_its_task_and_functions_and_the_last_one_hangs_up(begin: Begin) -> None:
    answers = [says(HELLO)], [calls("named", who="Ada")], [says("Goodbye, Ada.")]
    async with begin(*answers, flow=TWO) as (
        call,
        asked,
    ):
        await call.hears(HELLO)
        call.types("I am Ada.")
        await until(lambda: call.leg.closed)
    await call.turns(HELLO, "Goodbye, Ada.")
    assert call.leg.done == [f"hang up: {End.AGENT_HUNG_UP}"]
    first, second, third = asked.requests
    assert prompt(first).startswith("You are Ada.")
    assert "Ask +4930555123 for a name." in prompt(first)
    assert prompt(second) == prompt(first)
    assert list(tools(second)) == ["named"]
    assert "Say goodbye." in prompt(third)
    assert "for a name" not in prompt(third)
    assert "tools" not in third
    assert said_to(third)[-1] == ("tool", '{"status": "done"}')
    (event,) = call.of(NodeEntered)
    assert (event.node, event.before, event.function) == ("bye", "name", "named")
    assert for_the_page(event) is None
    assert for_the_page(event, operator=True) == {"type": "node-entered", "node": "bye"}


async def test_a_function_of_another_node_is_not_run(begin: Begin) -> None:
    answers = [says(HELLO)], [calls("transfer_call", target="+4930")], [says("What is your name?")]
    async with begin(*answers, flow=TWO) as (
        call,
        asked,
    ):
        await call.hears(HELLO)
        call.types("Put me through.")
        await call.turns(HELLO, "What is your name?")
        assert not call.of(NodeEntered)
        (result,) = asked.results()
        assert result == {"error": "there is no such function", "functions": ["named"]}
        assert not call.leg.done


async def test_a_second_function_called_with_the_first_is_refused(begin: Begin) -> None:
    flow = TWO.replace("functions = [", "functions = [{name='b', description='d', next='name'}, ")
    both = [{"tool_calls": []}]
    for index, one in enumerate((calls("named", who="Ada"), calls("b"))):
        both[0]["tool_calls"] += [{**one["tool_calls"][0], "index": index}]
    answers = [says(HELLO)], both, [says("Goodbye, Ada.")]
    async with begin(*answers, flow=flow) as (
        call,
        asked,
    ):
        await call.hears(HELLO)
        call.types("I am Ada.")
        await until(lambda: call.leg.closed)
    assert nodes(call) == ["bye"]
    assert {"error": "the conversation goes on elsewhere already"} in asked.results()
    await call.turns(HELLO, "Goodbye, Ada.")
    assert len(asked.requests) == 3


async def test_who_interrupts_the_last_words_is_answered_before_the_end(begin: Begin) -> None:
    answers = [says(HELLO)], [calls("named", who="Ada")], [says(COUNT)], [says("Until Friday.")]
    async with begin(*answers, flow=TWO) as (call, _):
        await call.hears(HELLO)
        call.types("I am Ada.")
        await call.hears("three")
        call.types("Until when?")
        await until(lambda: call.leg.closed)
    assert call.of(Interrupted)
    assert call.words.endswith("Until Friday.")
    assert call.leg.done == [f"hang up: {End.AGENT_HUNG_UP}"]


async def test_who_interrupts_what_is_said_before_an_end_is_answered_first(begin: Begin) -> None:
    flow = TWO.replace("post_actions = [{hang_up", f'pre_actions = [{{say = "{COUNT}"}}, {{hang_up')
    answers = [says(HELLO)], [calls("named", who="Ada")], [says("Until Friday.")]
    async with begin(*answers, flow=flow) as (call, asked):
        await call.hears(HELLO)
        call.types("I am Ada.")
        await call.hears("three")
        call.types("Until when?")
        await until(lambda: call.leg.closed)
    assert call.of(Interrupted)
    assert call.words.endswith("Until Friday.")
    assert call.leg.done == [f"hang up: {End.AGENT_HUNG_UP}"]
    assert len(asked.requests) == 3


@pytest.mark.parametrize("context", ["append", "reset", "summary"])
async def test_what_a_node_knows_of_the_conversation(begin: Begin, context: str) -> None:
    flow = TWO.replace("[nodes.bye]", f'[nodes.bye]\ncontext = "{context}"')
    answers = [[says(HELLO)], [says("How are you?")], [calls("named", who="Ada")]]
    if context == "summary":
        answers.append([says("She is called Ada.")])
    answers.append([says("Goodbye.")])
    async with begin(*answers, flow=flow) as (
        call,
        asked,
    ):
        await call.hears(HELLO)
        call.types("Good morning.")
        await call.hears("How are you?")
        call.types("I am Ada.")
        await until(lambda: call.leg.closed)
    known = said_to(asked.requests[-1])
    assert ("Good morning." in str(known)) is (context == "append")
    assert [role for role, _ in known][-3:] == ["user", "assistant", "tool"]
    assert known[-3][1] == "I am Ada."
    assert "Ada" in json.dumps(asked.requests[-1]["messages"][-2]["tool_calls"])
    summary = {"summary": "She is called Ada."} if context == "summary" else {}
    assert asked.results()[-1] == {"status": "done", **summary}


async def test_what_cannot_be_summarized_is_known_as_it_is(begin: Begin) -> None:
    async def fails(request: web.Request) -> web.StreamResponse:
        asked.ill = None
        return web.Response(status=500)

    flow = TWO.replace("[nodes.bye]", '[nodes.bye]\ncontext = "summary"')
    answers = [says(HELLO)], [calls("named", who="Ada")]
    async with begin(*answers, flow=flow) as (
        call,
        asked,
    ):
        asked.ill = fails
        await call.hears(HELLO)
        call.types("I am Ada.")
        await until(lambda: call.leg.closed)
    assert ("assistant", HELLO) in said_to(asked.requests[-1])
    assert asked.results() == [{"status": "done"}]


async def test_a_node_is_left_only_with_its_details(begin: Begin) -> None:
    flow = TWO.replace("functions", 'collect = ["age"]\nfunctions', 1)
    named = [calls("named", who="Ada")]
    answers = (
        [says(HELLO)],
        named,
        [says("How old are you?")],
        [calls("note_details", age=36)],
        named,
    )
    collect = {"age": {"type": "number"}, "size": {}}
    async with begin(*answers, [says("Goodbye.")], flow=flow, collect=collect) as (call, asked):
        await call.hears(HELLO)
        assert "Before you go on, note: age." in prompt(asked.requests[0])
        call.types("I am Ada.")
        await call.hears("How old are you?")
        assert not nodes(call)
        assert asked.results() == [{"error": "first find out and note: age"}]
        call.types("Thirty-six.")
        await until(lambda: call.leg.closed)
    assert list(tools(asked.requests[0])) == ["named", "note_details"]
    assert "Before you go on" not in prompt(asked.requests[-1])
    assert nodes(call) == ["bye"]


SAYS = """
initial = "a"
[nodes.a]
task = "A."
pre_actions = [{say = "Hello, {{caller}}."}]
functions = [{name = "on", description = "d", next = "b"}]
[nodes.b]
task = "B."
pre_actions = [{say = "Now the number."}]
post_actions = [{say = "Thank you."}]
functions = [{name = "on", description = "d", next = "c"}]
respond_immediately = %s
[nodes.c]
pre_actions = [{say = "One moment."}, {%s}]
"""


@pytest.mark.parametrize("asked_at_once", [True, False])
async def test_actions_are_done_before_and_after_the_model(
    begin: Begin, asked_at_once: bool
) -> None:
    flow = SAYS % (str(asked_at_once).lower(), "hang_up = true")
    answers = [calls("on")], [says("Which?")], [says("Nine.")], [calls("on")]
    async with begin(*answers, flow=flow) as (call, asked):
        await call.hears("Hello, +4930555123.")
        call.types("Go on.")
        await call.hears("Now the number.")
        if asked_at_once:
            await call.hears("Which?")
            assert said_to(asked.requests[1])[-1] == ("user", GOES_ON)
            await call.hears("Thank you.")
            call.types("My number.")
            await call.hears("Nine.")
        else:
            call.types("My number.")
            await call.hears("Which?")
            await call.hears("Thank you.")
            call.types("Nine?")
            await call.hears("Nine.")
        call.types("Go on.")
        await until(lambda: call.leg.closed)
    assert call.words.count("Thank you.") == 1
    assert call.words.endswith("One moment.")
    assert len(asked.requests) == 4


async def test_a_flow_ends_with_a_transfer(begin: Begin) -> None:
    async def rings() -> None:
        await call.hears("One moment.")

    leg = phone()
    leg.transfer_takes = rings
    flow = SAYS % ("true", 'transfer = "+49301"')
    answers = [calls("on")], [says("Which?")], [calls("on")]
    async with begin(*answers, flow=flow, leg=leg) as (call, _):
        await call.hears("Hello")
        call.types("Go on.")
        await call.hears("Thank you.")
        call.types("Go on.")
        await until(lambda: "transfer +49301" in call.leg.done)


async def test_nobody_takes_the_transferred_call(begin: Begin) -> None:
    async def busy() -> None:
        raise LegError("busy")

    leg = phone()
    leg.transfer_takes = busy
    flow = SAYS % ("true", 'transfer = "+49301"')
    answers = [calls("on")], [says("Which?")], [calls("on")], [says("I am still here.")]
    async with begin(*answers, flow=flow, leg=leg) as (call, _):
        await call.hears("Hello")
        call.types("Go on.")
        await call.hears("Thank you.")
        call.types("Go on.")
        await call.hears(SENTENCES["en"][Occasion.NOT_TRANSFERRED])
        call.types("What now?")
        await call.hears("I am still here.")


async def test_calls_are_handed_over_from_flow_to_flow(begin: Begin, tmp_path: Path) -> None:
    """By an action of one, and into the first node of the other."""
    over = TWO.replace("hang_up = true", 'hand_over = "next"')
    answers = [says(HELLO)], [calls("named", who="Ada")], [says("I put you through.")]
    async with model([says("Which bill?")], [calls("named", who="x")], [says("Bye.")]) as billing:
        following = agent(billing, flow=written(tmp_path, TWO, "next.toml"))
        async with begin(*answers, flow=over, others={"next": following}) as (call, _):
            await call.hears(HELLO)
            call.types("I am Ada.")
            await call.turns(HELLO, "I put you through.", "Which bill?")
            assert [event.agent for event in call.of(AgentChanged)] == ["next"]
            assert "for a name." in prompt(billing.requests[0])
            assert list(tools(billing.requests[0])) == ["named"]
            call.types("Bill seven.")
            await until(lambda: call.leg.closed)
    assert nodes(call) == ["bye", "bye"]
    assert call.words.endswith("Bye.")


async def test_a_model_that_only_goes_on_is_stopped(begin: Begin) -> None:
    flow = """
    initial = "a"
    [nodes.a]
    task = "A."
    functions = [{name = "on", description = "d", next = "b"}]
    [nodes.b]
    task = "B."
    context = "reset"
    functions = [{name = "on", description = "d", next = "a"}]
    """
    answers = [[says(HELLO)], *([calls("on")] for _ in range(30))]
    async with begin(*answers, flow=flow, tool_rounds=20) as (call, asked):
        await call.hears(HELLO)
        call.types("Go on.")
        await call.hears(SENTENCES["en"][Occasion.TROUBLE])
        assert nodes(call) == ["b", "a"] * 4
        assert len(asked.requests) <= 22


async def test_the_documented_flow_books_a_repair(begin: Begin) -> None:
    answers = (
        [calls("wants", what="a bicycle")],
        [calls("wants", what="booking")],
        [says("What is broken, and when?")],
        [calls("book", problem="brakes", day="Tuesday")],
        [says("Until Tuesday, goodbye.")],
    )
    async with begin.documented(*answers) as (call, asked):
        call.types("I want to bring my bicycle.")
        await call.hears("What is broken, and when?")
        call.types("The brakes, on Tuesday.")
        await until(lambda: call.leg.closed)
    assert call.words.endswith("Until Tuesday, goodbye.")
    assert nodes(call) == ["day", "booked"]
    first, again, day, _, booked = asked.requests
    assert list(tools(first)) == ["wants", "end_call"]
    (wants, _) = first["tools"]
    schema = wants["function"]["parameters"]
    assert schema["properties"]["what"]["enum"] == ["booking", "status", "person"]
    assert "what must be one of booking, status, person" in str(said_to(again)[-1])
    assert list(tools(day)) == ["book", "end_call"]
    assert list(tools(booked)) == ["end_call"]


async def test_the_documented_flow_looks_a_repair_up(begin: Begin) -> None:
    async def answer(request: web.Request) -> web.Response:
        known = request.path == "/repairs/7"
        return web.json_response({"status": "done"}, status=200 if known else 404)

    answers = (
        [calls("wants", what="status")],
        [calls("repair_status", number="6")],
        [says("Which one again?")],
        [calls("repair_status", number="7")],
        [says("It is ready. Anything else?")],
    )
    async with (
        shop(answer) as url,
        begin.documented(*answers, url=url) as (call, asked),
    ):
        call.types("Is my bicycle ready?")
        await call.hears("Which number does your repair have?")
        call.types("Six.")
        await call.hears("Which one again?")
        assert nodes(call) == ["status"]
        call.types("Seven.")
        await call.hears("It is ready.")
    assert nodes(call) == ["status", "anything_else"]
    assert list(tools(asked.requests[1])) == ["repair_status", "end_call"]
    assert list(tools(asked.requests[-1])) == ["more", "end_call"]
    assert "Look the repair up" in prompt(asked.requests[1])


async def test_the_documented_flow_puts_the_caller_through(begin: Begin) -> None:
    async def answers() -> None:
        pass

    leg = phone()
    leg.transfer_takes = answers
    wants = [calls("wants", what="person")]
    async with begin.documented(wants, leg=leg) as (call, asked):
        call.types("I want to speak to somebody.")
        await until(lambda: "transfer +4930555100" in call.leg.done)
    assert call.words.endswith("I put you through to the workshop.")
    assert len(asked.requests) == 1
