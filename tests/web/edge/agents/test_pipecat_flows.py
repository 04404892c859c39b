"""A Pipecat bot with a flow runs as it is."""

import asyncio
from pathlib import Path

import pytest

from offhook.media.end_reason import End
from offhook.pipeline.conversation.bot_io import load_bot
from offhook.web.edge.edge_io import Edge
from tests.pipeline.conversation.phone import calls, model, says
from tests.support.waiting import HANGS_S, until
from tests.web.edge.agents.test_agent import Page
from tests.web.edge.agents.test_handover import prompt, tools

pytestmark = pytest.mark.asyncio(loop_scope="module")
BOT = Path(__file__).parent / "flow_bot.py"


async def test_its_nodes_follow_one_another_and_the_last_one_hangs_up(
    edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pipecat.flows")
    answers = [says("Which day?")], [calls("note_day", day="Friday")], [says("Until Friday.")]
    async with model(*answers) as endpoint:
        monkeypatch.setenv("FLOW_BOT_URL", endpoint.url)
        monkeypatch.setattr(edge, "bot", load_bot(BOT))
        page = Page()
        call = asyncio.create_task(edge.run_call(page, ""))
        page.connect()
        try:
            await until(lambda: page.words() == "Which day?")
            page.hear(type="send-text", id="1", data={"content": "On Friday."})
            await until(lambda: page.closed)
        finally:
            page.close("the test is over")
            await asyncio.wait_for(call, HANGS_S)
    assert page.words() == "Which day? I write that down. Until Friday."
    assert page.closed == End.BOT_ENDED
    first, second, last = endpoint.requests
    assert prompt(first).startswith("You are Ada.")
    assert "Ask for a day." in str(first["messages"])
    assert list(tools(second)) == ["note_day"]
    assert "Confirm Friday." in str(last["messages"])
    assert "tools" not in last
