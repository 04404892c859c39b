"""`offhook chat`: what is shown in the terminal."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from offhook.web.app.cli.chat_io import chat
from offhook.web.config.config import Config
from offhook.web.tools import mcp_servers_io
from tests.pipeline.conversation.phone import calls, model, says
from tests.support.waiting import HANGS_S

pytestmark = pytest.mark.asyncio(loop_scope="module")
USED = {"prompt_tokens": 1000, "completion_tokens": 20}


async def shown(
    table: dict[str, Any], *lines: str, as_json: bool = False
) -> tuple[bool, list[str]]:
    """Returns whether nothing has failed, and what is shown."""
    seen: list[str] = []
    well = await chat(Config.model_validate(table), "", lines, seen.append, as_json=as_json)
    return well, seen


def agent(url: str, **more: Any) -> dict[str, Any]:
    return {"kind": "openai", "base_url": url, "greeting": "Hello.", **more}


async def test_what_a_call_costs_is_shown_at_its_end() -> None:
    prices = {"scripted": {"input": 2, "output": 8}}
    async with model([says("At nine.")]) as endpoint:
        endpoint.usage = USED
        table = {"agent": agent(endpoint.url, model="scripted"), "prices": prices}
        well, seen = await shown(table, "When do you open?")
    assert well
    assert seen[-1] == "1,000 tokens in, 20 out, which cost 0.002160"


async def test_a_model_without_a_price_makes_the_cost_a_lower_limit() -> None:
    prices = {"scripted": {"input": 2, "output": 8}}
    hand_over = [calls("hand_over_to_billing", reason="a bill")]
    async with model(hand_over) as front, model([says("Billing.")]) as billing:
        front.usage = billing.usage = USED
        front.model, billing.model = "scripted", "other"
        table = {
            "agent": agent(front.url, model="scripted", handoffs=["billing"]),
            "agents": {"billing": {**agent(billing.url, model="other"), "greeting": ""}},
            "prices": prices,
        }
        _, seen = await shown(table, "It is about my bill.")
    assert seen[-1] == ("2,000 tokens in, 40 out, which cost at least 0.002160 (no price of other)")


async def test_an_mcp_server_that_fails_is_told_before_anything_is_asked(tmp_path: Path) -> None:
    pytest.importorskip("mcp")
    tools = [{"mcp": "shop"}]
    command = [sys.executable, "-c", "raise SystemExit('no database here')"]
    async with model([says("Hello there.")]) as endpoint:
        table = {
            "agent": agent(endpoint.url, model="m", tools=tools),
            "mcp": {"shop": {"command": command}},
        }
        well, seen = await shown(table, "Where is my order?")
        assert not well
        assert seen[0].startswith("agent: Hello.")
        assert seen[1].startswith("  ! the MCP server shop: ")
        assert seen[1].endswith("(no database here); agents are without its tools")
        _, as_json = await shown(table, "Where is my order?", as_json=True)
    assert "no database here" in json.loads(as_json[0])["faults"][0]


async def test_python_is_the_one_that_runs_offhook(monkeypatch: pytest.MonkeyPatch) -> None:
    """As without an activated environment, whose `python` none would be."""
    pytest.importorskip("mcp")
    monkeypatch.chdir(Path(__file__).parents[4] / "examples" / "orders")
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(mcp_servers_io, "START_S", HANGS_S)  # however long Python takes to start
    answers = [[calls("order_status", number=4711)], [says("It is in the workshop.")]]
    async with model() as endpoint:
        endpoint.answers = answers
        table = {
            "agent": agent(endpoint.url, model="m", tools=[{"mcp": "orders"}]),
            "mcp": {"orders": {"command": ["python", "order_server.py"]}},
        }
        well, seen = await shown(table, "Where is 4711?")
    assert well, seen
    assert '  -> order_status {"number": 4711}' in seen
    assert any(line.startswith("  <- ") and "in the workshop" in line for line in seen)
