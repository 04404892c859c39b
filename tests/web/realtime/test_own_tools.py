"""Tools of the agent's own configuration in conversations of the unmodified openai-python: the
server runs them, and the client sees them as calls of a server "agent"."""

import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from offhook.web.config.tools import PythonFunction
from offhook.web.realtime.conversation.responses import MAX_TOOL_ROUNDS
from tests.pipeline.conversation.phone import calls, model, says
from tests.support.waiting import until
from tests.web.realtime.test_openai_python import Conversation, conversation

SHOP = '''
import asyncio

looked_up, cancelled = [], []


async def order_status(number: int) -> dict:
    """Looks up where an order is."""
    looked_up.append(number)
    return {"comes": "tomorrow"}


async def slow(number: int) -> dict:
    """Looks up where an order is, and takes its time."""
    looked_up.append(number)
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        cancelled.append(number)
        raise


async def note(number: int) -> dict:
    """Notes the number."""
    looked_up.append(number)
    return {}
'''
NAME = "shop_of_own_tools"
ASKED = {"output_modalities": ["text"]}


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module with the functions."""
    (tmp_path / f"{NAME}.py").write_text(SHOP)
    monkeypatch.syspath_prepend(tmp_path)
    __import__(NAME)
    yield sys.modules[NAME]
    del sys.modules[NAME]


@asynccontextmanager
async def talking(
    *answers: Sequence[Any], **options: Any
) -> AsyncIterator[tuple[Conversation, Any]]:
    tools = [
        PythonFunction.model_validate({"name": name, "function": f"{NAME}:{name}", **options})
        for name in ("order_status", "slow", "note")
    ]
    async with model(*answers) as there, conversation(there, tools=tools) as talk:
        await talk.update(**ASKED)
        yield talk, there


async def asks(talk: Conversation) -> None:
    await talk.say("Where is my order?")
    await talk.send(type="response.create")


def offered(request: dict[str, Any]) -> list[str]:
    return [tool["function"]["name"] for tool in request.get("tools", [])]


async def test_the_answer_to_its_result_comes_without_the_client(shop: Any) -> None:
    answers = [calls("order_status", number=7)], [says("It comes tomorrow.")]
    async with talking(*answers) as (talk, there):
        await asks(talk)
        first = (await talk.until("response.done")).response
        answer = (await talk.until("response.done")).response
    [call] = first.output
    assert (call.type, call.server_label, call.name) == ("mcp_call", "agent", "order_status")
    assert (call.arguments, call.output) == ('{"number": 7}', '{"comes": "tomorrow"}')
    assert answer.output[0].content[0].text == "It comes tomorrow."
    assert offered(there.requests[0]) == ["order_status", "slow", "note"]
    assert there.requests[1]["messages"][-1]["content"] == '{"comes": "tomorrow"}'
    assert shop.looked_up == [7]


async def test_a_client_that_asks_for_the_answer_gets_one(shop: Any) -> None:
    """As clients do after calls of MCP servers."""
    answers = [calls("order_status", number=7)], [says("It comes tomorrow.")]
    async with talking(*answers) as (talk, there):
        await asks(talk)
        await talk.until("response.mcp_call.completed")
        await talk.send(type="response.create")
        await talk.until("response.output_text.done")
        await talk.until("response.done")
        assert len(there.requests) == 2


async def test_a_function_that_ends_the_turn_is_not_answered(shop: Any) -> None:
    answers = [calls("note", number=7)], [says("What else?")]
    async with talking(*answers, end_turn=True) as (talk, there):
        await asks(talk)
        await talk.until("response.done")
        await talk.update(**ASKED)
        assert len(there.requests) == 1
        await asks(talk)
        assert (await talk.until("response.output_text.done")).text == "What else?"


async def test_words_for_the_wait_do_not_disturb_the_answer(shop: Any) -> None:
    """They are no response: who listens by WebSocket does not get them."""
    answers = [calls("order_status", number=7)], [says("It comes tomorrow.")]
    async with talking(*answers, say="One moment.", say_after=0) as (talk, _):
        await talk.update(output_modalities=["audio"])
        await asks(talk)
        await talk.until("response.done")
        answer = (await talk.until("response.done")).response
    assert answer.output[0].content[0].transcript == "It comes tomorrow."
    assert "One moment" not in str(talk.events)


async def test_a_cancelled_response_cancels_it(shop: Any) -> None:
    answers = [calls("slow", number=7)], [says("Which one?")]
    async with talking(*answers) as (talk, _):
        await asks(talk)
        await until(lambda: shop.looked_up)
        await talk.send(type="response.cancel")
        done = (await talk.until("response.done")).response
        await until(lambda: shop.cancelled)
        assert done.status == "cancelled"
        await asks(talk)
        assert (await talk.until("response.output_text.done")).text == "Which one?"


async def test_a_model_that_only_calls_functions_is_stopped(shop: Any) -> None:
    answers = [[calls("note", number=number)] for number in range(MAX_TOOL_ROUNDS + 5)]
    async with talking(*answers) as (talk, _):
        await asks(talk)
        for _ in range(MAX_TOOL_ROUNDS + 1):
            await talk.until("response.done")
        await talk.update(**ASKED)
        assert shop.looked_up == list(range(MAX_TOOL_ROUNDS + 1))


async def test_tools_of_a_response_and_of_the_client_come_first(shop: Any) -> None:
    """A response with tools of its own has no others, and the client keeps its names."""
    own = {"type": "function", "name": "order_status", "description": "", "parameters": {}}
    answers = [says("Yes.")], [calls("order_status", number=1)]
    async with talking(*answers) as (talk, there):
        await talk.say("Hello.")
        await talk.send(type="response.create", response={"tools": [own]})
        await talk.until("response.done")
        await talk.update(tools=[own])
        await asks(talk)
        [call] = (await talk.until("response.done")).response.output
    assert offered(there.requests[0]) == ["order_status"]
    assert offered(there.requests[1]) == ["order_status", "agent_order_status", "slow", "note"]
    assert call.type == "function_call"
    assert shop.looked_up == []
