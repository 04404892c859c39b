"""Calls outside of an agent's hours, and announcements."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from offhook.media.end_reason import End
from offhook.media.leg import CallInfo
from offhook.web.app.cli.caller_io import ScriptedCall
from offhook.web.campaigns.week import DAYS
from offhook.web.config.agents import Agent
from offhook.web.config.config import Config
from offhook.web.config.hours import Hours
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.text.text_edge_io import conversation, text_edge
from tests.support.ports import free_port
from tests.support.waiting import until
from tests.web.edge.agents.test_agent import Page, called
from tests.web.edge.scripted_edge import ScriptedEdge

pytestmark = pytest.mark.asyncio(loop_scope="module")
HELLO = "Hello, this is the desk."
CLOSED = "We are closed. Please call again."
DESK = Agent(greeting=HELLO)
NIGHT: dict[str, Any] = {"kind": "announcement", "greeting": CLOSED}


def never() -> dict[str, Hours]:
    """Hours that begin and end days from now, whatever midnight does to a test."""
    day = DAYS[(datetime.now().weekday() + 3) % 7]
    return {"office": Hours(agents=("desk",), open=(f"{day} 00:00-24:00",), otherwise="night")}


def agents(**night: Any) -> dict[str, Agent]:
    return {"desk": DESK, "night": Agent.model_validate({**NIGHT, **night})}


def holidays() -> dict[str, Hours]:
    """Hours of every day, of which those around a test are holidays."""
    days = [datetime.now() + timedelta(days=more) for more in (-1, 0, 1)]
    dates = tuple(f"{day:%Y-%m-%d}" for day in days)
    always = Hours(agents=("desk",), open=("daily 00:00-24:00",), holidays=dates, otherwise="night")
    return {"office": always}


@pytest.mark.parametrize("hours", [never, holidays])
async def test_outside_of_the_hours_another_agent_answers(
    edge: Edge, hours: Callable[[], dict[str, Hours]]
) -> None:
    async with called(edge, agents(), hours=hours()) as page:
        await until(lambda: page.closed)
    assert page.words() == CLOSED
    assert page.done == [f"hang up: {End.AGENT_HUNG_UP}"]


async def test_an_announcement_may_put_the_caller_through(edge: Edge) -> None:
    night = agents(settings={"transfer": "+4930123"})

    async def taken() -> None:
        page.close(End.TRANSFERRED)

    page = Page()
    page.transfer_takes = taken
    async with called(edge, night, page, hours=never()):
        await until(lambda: page.closed)
    assert page.words() == CLOSED
    assert page.done == ["transfer +4930123"]


async def test_who_cannot_be_put_through_is_hung_up_on(edge: Edge) -> None:
    page = Page()  # a line that cannot be transferred
    async with called(edge, agents(settings={"transfer": "100"}), page, hours=never()):
        await until(lambda: page.closed)
    assert page.done == ["transfer 100", f"hang up: {End.AGENT_HUNG_UP}"]


async def test_an_announcement_is_heard_whole_whatever_the_caller_says(edge: Edge) -> None:
    page = Page()
    async with called(edge, agents(), page, hours=never()):
        page.hear(type="send-text", id="1", data={"content": "Hello?"})
        await until(lambda: page.closed)
    assert page.words() == CLOSED


async def test_calls_that_are_placed_and_chats_know_no_hours(edge: Edge) -> None:
    page = Page()
    page.info = CallInfo(edge="sip", direction="outbound", called="+4930123")
    async with called(edge, agents(), page, hours=never()):
        await until(lambda: page.words() == HELLO)
    config = Config().model_copy(update={"agents": agents(), "hours": never()})
    async with (
        text_edge(config) as offline,
        conversation(offline, "desk", CallInfo(edge="text"), print) as talk,
    ):
        assert (await talk.listen()).text == HELLO


async def test_the_record_of_a_phone_call_names_who_has_answered() -> None:
    port = free_port()
    phones = {
        "udp": port,
        "tcp": False,
        "allow_anonymous": True,
        "routes": [{"agent": "desk"}],
    }
    table = {"server": {"port": 0, "drain_seconds": 0}, "sip": phones, "agents": agents()}
    config = Config.model_validate({**table, "hours": never()})
    edge = ScriptedEdge(config)
    await edge.start()
    try:
        await ScriptedCall(f"sip:desk@127.0.0.1:{port}", []).run()
        await until(lambda: edge.records.ended)
        (ended,) = edge.records.ended.values()
    finally:
        await edge.close()
    assert edge.turns() == [CLOSED]
    assert ended.record.agent == "night"


async def test_an_announcement_needs_its_words_and_no_one_hands_over_to_it() -> None:
    with pytest.raises(ValidationError, match="needs greeting"):
        Agent(kind="announcement")
    with pytest.raises(ValidationError, match="no such key as tranfer; there is transfer"):
        Agent.model_validate({**NIGHT, "settings": {"tranfer": "+4930123"}})
    with pytest.raises(ValidationError, match="transfer must be a number or an address"):
        Agent.model_validate({**NIGHT, "settings": {"transfer": "not a number"}})
    with pytest.raises(ValidationError, match="tools"):
        Agent.model_validate({**NIGHT, "tools": [{"name": "a", "url": "http://127.0.0.1:1"}]})
    table = {"agent": {"kind": "openai", "handoffs": ["night"]}, "agents": {"night": NIGHT}}
    with pytest.raises(ValidationError, match="'night' cannot take a call over"):
        Config.model_validate(table)
