"""Details of a caller, from the model's request to the record of the call."""

import json
from typing import Any

import pytest

from offhook.pipeline.conversation.events import DetailNoted, Event
from offhook.telephony.call_record import CallRecord
from offhook.web.config.agents import Agent
from offhook.web.edge.edge_io import Edge
from offhook.web.http.logs import for_log
from offhook.web.tools.collected import ASK
from tests.pipeline.conversation.phone import calls, model, says
from tests.support.waiting import until
from tests.web.edge.agents.test_agent import Page, called

pytestmark = pytest.mark.asyncio(loop_scope="module")
COLLECT = {
    "full_name": {"ask": "first and last name", "required": True},
    "phone": {"type": "phone", "required": True},
}


def desk(url: str, **more: Any) -> Agent:
    table = {"kind": "openai", "base_url": url, "model": "scripted", "greeting": "Hello."}
    return Agent.model_validate({**table, "collect": COLLECT, **more})


async def test_details_are_noted_once_the_caller_has_agreed(edge: Edge) -> None:
    number, events, page = "+49 30 123456", list[Event](), Page()
    async with model() as endpoint:
        endpoint.answers = [
            [calls("note_details", full_name="Anna Lindqvist", phone=number)],
            [says("Your number is 030 12 34 56?")],
            [calls("note_details", phone=number)],
            [says("I have noted it.")],
        ]
        async with called(edge, {"desk": desk(endpoint.url)}, page):
            await until(lambda: page.words() == "Hello.")
            edge.conversations[page.call_id].listeners.append(events.append)
            page.hear(type="send-text", id="1", data={"content": f"Anna Lindqvist, {number}"})
            await until(lambda: page.words().endswith("56?"))
            assert page.collected == {"full_name": "Anna Lindqvist"}
            page.hear(type="send-text", id="2", data={"content": "Yes."})
            await until(lambda: page.words().endswith("noted it."))
        first, second = endpoint.results()
        system = endpoint.requests[0]["messages"][0]["content"]
        tool = endpoint.requests[0]["tools"][-1]["function"]
    assert page.collected == {"full_name": "Anna Lindqvist", "phone": "+4930123456"}
    assert first == {
        "noted": {"full_name": "Anna Lindqvist"},
        "repeat": {"phone": f"+4930123456: {ASK}"},
        "missing": {"phone": ""},
    }
    assert second == {"noted": {"phone": "+4930123456"}}
    assert "- full_name (required): first and last name\n- phone (required)" in system
    assert tool["name"] == "note_details"
    assert tool["parameters"]["properties"]["phone"]["type"] == "string"
    noted = [event for event in events if isinstance(event, DetailNoted)]
    assert [(event.name, event.text) for event in noted] == list(page.collected.items())


async def test_the_next_agent_knows_what_is_noted(edge: Edge) -> None:
    page = Page()
    async with model() as front, model() as billing:
        front.answers = [
            [calls("note_details", full_name="Anna")],
            [calls("hand_over_to_billing", reason="an invoice")],
        ]
        agents = {
            "desk": desk(front.url, handoffs=["billing"]),
            "billing": desk(billing.url, greeting="Billing."),
        }
        async with called(edge, agents, page):
            await until(lambda: page.words() == "Hello.")
            page.hear(type="send-text", id="1", data={"content": "Anna here, about an invoice."})
            await until(lambda: page.words().endswith("Billing."))
            page.hear(type="send-text", id="2", data={"content": "So?"})
            await until(lambda: page.words().endswith("And now?"))
        assert "- full_name: known already, Anna" in billing.requests[0]["messages"][0]["content"]


async def test_the_record_has_them_and_the_log_masks_them() -> None:
    of_call: dict[str, Any] = {
        **{name: "" for name in ("call_id", "edge", "remote_call_id", "started", "ended")},
        "direction": "inbound",
        "end_reason": "",
        "ended_by": "local",
        "status": 200,
    }
    collected: dict[str, str | float | bool] = {"phone": "+4930123456", "pets": 2.0, "new": True}
    record = CallRecord(**of_call, collected=collected)
    assert json.loads(record.line())["collected"] == collected
    event = {"name": "phone", "text": "+4930123456"}
    assert for_log(event, has_words=False)["text"] == "(1 words)"
    assert "123456" not in for_log(event, has_words=True)["text"]
