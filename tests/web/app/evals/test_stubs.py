"""Stubs answer tools in their place: also those of a server that is not there."""

from pathlib import Path

import pytest

from offhook.web.app.evals.coverage import coverage_of
from offhook.web.app.evals.evaluation_io import evaluate
from offhook.web.app.evals.scenarios_io import scenarios_in
from offhook.web.config.config import Config, ConfigError
from tests.pipeline.conversation.phone import calls, model, says
from tests.web.app.evals.test_evaluation import cache as cache

LOOK_UP = """
name: shop
scenarios:
  - name: one
    stubs:
      look_up:
        result: {comes: "tomorrow"}
        description: "Looks up an order."
        parameters: {number: "its number"}
    turns:
      - user: "Where is order seven?"
        expect:
          - {event: function_call, calls: [{name: look_up, args: {number: "7"}}]}
          - {event: response, text_contains: "tomorrow"}
"""


async def test_a_tool_of_an_mcp_server_that_is_not_there_is_played(tmp_path: Path) -> None:
    path = tmp_path / "shop.yaml"
    path.write_text(LOOK_UP)
    async with model([calls("look_up", number="7")], [says("It comes tomorrow.")]) as scripted:
        own = {"kind": "openai", "base_url": scripted.url, "model": "m", "think_ahead": False}
        agent = {**own, "greeting": "Hello.", "tools": [{"mcp": "shop"}]}
        config = Config.model_validate(
            {"agents": {"shop": agent}, "mcp": {"shop": {"url": "http://127.0.0.1:9/mcp"}}}
        )
        coverage = coverage_of(config, "shop")
        assert coverage.uses == {}
        [outcome] = await evaluate(config, "shop", scenarios_in([path]), coverage=coverage)
        [tool] = [
            one["function"]
            for one in scripted.requests[0]["tools"]
            if one["function"]["name"] == "look_up"
        ]
        assert scripted.results() == [{"comes": "tomorrow"}]
    assert outcome.passed, outcome.failures
    assert (tool["description"], tool["parameters"]["required"]) == (
        "Looks up an order.",
        ["number"],
    )
    assert [str(feature) for feature in coverage.uses] == ["tool look_up of shop"]
    assert coverage.unused == []


async def test_a_stub_of_a_tool_that_no_agent_has_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "shop.yaml"
    path.write_text(LOOK_UP)
    with pytest.raises(ConfigError, match="shop/one: stubs: no agent has a tool look_up"):
        await evaluate(Config(), "", scenarios_in([path]))


@pytest.mark.parametrize(
    ("stub", "says_so"),
    [
        ("sent", "stubs: look_up: has to be a table, as {result: sent}"),
        ("{results: sent}", "stubs: look_up: there is no key results (did you mean result?)"),
        ("{result: a, failure: b}", "stubs: look_up: result and failure exclude each other"),
        ("{failure: ''}", "stubs: look_up: failure: says why"),
        ("{delay_ms: 1.5}", "stubs: look_up: delay_ms: 1.5 is not from 0 to 60000"),
        ("{answers: []}", "stubs: look_up: answers has to be a list"),
        ("{answers: [{result: a}], delay_ms: 5}", "answers has result, failure and delay_ms"),
        ("{answers: [{resul: a}]}", "look_up: answers: there is no key resul"),
    ],
)
def test_misuse_is_said(tmp_path: Path, stub: str, says_so: str) -> None:
    path = tmp_path / "shop.yaml"
    turns = "turns: [{user: hi}]"
    path.write_text(
        f"name: shop\nscenarios:\n  - name: one\n    stubs: {{look_up: {stub}}}\n    {turns}\n"
    )
    with pytest.raises(ConfigError) as fault:
        scenarios_in([path])
    assert says_so in str(fault.value)
