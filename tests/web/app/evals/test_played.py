"""Callers whom a model plays: by text and by a line, to their goal or to the end of their turns."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from offhook.web.app.evals.evaluation_io import Outcome, evaluate
from offhook.web.app.evals.line_settings import LineSettings
from offhook.web.app.evals.scenarios_io import VOICE, Scenario, scenarios_in
from offhook.web.config.config import Config, ConfigError
from tests.pipeline.conversation.phone import says
from tests.web.app.evals.test_evaluation import cache as cache
from tests.web.app.evals.workshop import judge_says, serving, workshop

PLAYED = """
name: shop
judge: {eval: {service: openai, endpoint: "MODEL", model: judge}}
simulator: {service: openai, endpoint: "MODEL", model: caller}
scenarios:
  - name: one
    persona: "Kim, who is patient."
    goal: "Hear that the order comes."
    success: "the agent has said when the order comes"
"""


async def outcome_of(scenario: Scenario, config: Config) -> Outcome:
    [outcome] = await evaluate(config, "workshop", [scenario])
    return outcome


@pytest.mark.parametrize("over", ["sip", pytest.param("webrtc", marks=pytest.mark.slow)])
async def test_a_played_caller_finds_out_by_a_line(over: str) -> None:
    async with workshop() as (config, scenarios, _):
        scripts = {one.name: one for one in scenarios}
        scenario = over_a_line(scripts["played/finds out"], over)
        outcome = await outcome_of(scenario, config)
    assert outcome.passed, (outcome.failures, outcome.heard)
    assert outcome.ended_by == "end_call"
    assert len(outcome.answers_ms) >= 3
    assert {"kind": "tool", "agent": "workshop", "name": "order_status"} in outcome.used


def over_a_line(scenario: Scenario, over: str) -> Scenario:
    scenario.script.user_audio, scenario.script.user_speech = True, VOICE
    return replace(scenario, line=LineSettings(over))


@asynccontextmanager
async def shop(
    tmp_path: Path, caller: Callable[[list[str]], str], more: str = "", **agent: Any
) -> AsyncIterator[Outcome]:
    """What comes of a conversation of the scenario above with a shop that says "Pardon?". `caller`
    returns what the caller says who has heard this."""

    async def says_to(asked: dict[str, Any]) -> list[dict[str, Any]]:
        match asked["model"]:
            case "judge":
                return judge_says(asked)
            case "caller":
                heard = [str(m["content"]) for m in asked["messages"] if m["role"] == "user"]
                return [says(caller(heard))]
        return [says("Pardon?")]

    async with serving(says_to) as url:
        path = tmp_path / "shop.yaml"
        path.write_text(PLAYED.replace("MODEL", url) + more)
        own = {"kind": "openai", "base_url": url, "model": "m", "think_ahead": False}
        shop = agent if "kind" in agent else own | agent
        config = Config.model_validate({"agents": {"workshop": shop}})
        yield await outcome_of(scenarios_in([path])[0], config)


async def test_a_caller_who_is_never_done_is_stopped(tmp_path: Path) -> None:
    more = "    max_turns: 2\n"
    async with shop(tmp_path, lambda heard: "And now?", more, greeting="Hello.") as outcome:
        stopped, judged = outcome.failures
        assert stopped == "the caller was not done within 2 turns (max_turns)"
        assert judged.startswith("success: ")
        assert outcome.heard[:2] == ["Hello.", "Pardon?"]


async def test_what_is_expected_of_the_whole_conversation_is_told_by_its_number(
    tmp_path: Path,
) -> None:
    more = """
    max_turns: 1
    expect:
      - {event: response, text_contains: "Pardon?"}
      - {event: response, text_excludes: "Pardon?"}
      - {event: function_call, calls: [{name: order_status, args: {number: "7"}}]}
      - {event: response, heard: true, text_contains: "Goodbye."}
      - {event: response, text_contains: "Hello.", absent: true}
      - {event: response, eval: "it does refuse"}
"""
    async with shop(tmp_path, lambda heard: "Hm?", more, greeting="Hello. Pardon?") as outcome:
        found = [why for why in outcome.failures if why.startswith("expectation")]
        assert [why.partition(":")[0] for why in found] == [
            "expectation 1 (response)",
            "expectation 2 (function_call)",
            "expectation 3 (response)",
            "expectation 4 (response)",
            "expectation 5 (response)",
        ]
        assert "order_status(number='7') was not called" in found[1]


async def test_a_caller_begins_if_the_agent_does_not(tmp_path: Path) -> None:
    told: list[str] = []

    def caller(heard: list[str]) -> str:
        told.extend(heard)
        return "Hello?"

    async with shop(tmp_path, caller, "    max_turns: 1\n", kind="silent") as outcome:
        assert told == ["(silence)"]
        assert outcome.failures[0] == "the caller was not done within 1 turns (max_turns)"


@pytest.mark.parametrize(
    ("more", "says_so"),
    [
        ("    expect: [{event: response, within_ms: 5}]", "there is no key within_ms"),
        ("    expect: [{event: respnse}]", "there is no event respnse (did you mean response?)"),
        ("    expect: [{text_contains: a}]", "has no event"),
        ("    expect: [{event: response, eval: a, absent: true}]", "absent is not for eval"),
        ("    expect: [{event: llm_started, heard: true}]", "is only for an expectation of event"),
    ],
)
def test_misuse_is_said(tmp_path: Path, more: str, says_so: str) -> None:
    path = tmp_path / "shop.yaml"
    path.write_text(PLAYED + more)
    with pytest.raises(ConfigError) as fault:
        scenarios_in([path])
    assert says_so in str(fault.value)


@pytest.mark.parametrize(
    ("model_of", "says_so"),
    [
        ("{service: openai, endpoint: 'http://x/v1'}", "the model at http://x/v1 needs model"),
        ("{service: openai, model: m, key_env: NOT_THERE}", "no variable NOT_THERE"),
    ],
)
async def test_a_model_that_cannot_be_asked_is_said(
    tmp_path: Path, model_of: str, says_so: str
) -> None:
    path = tmp_path / "shop.yaml"
    path.write_text(PLAYED.replace("simulator: {", f"simulator: {model_of}\nmetrics: []\n#"))
    with pytest.raises(ConfigError, match=says_so) as fault:
        await evaluate(Config(), "", scenarios_in([path]))
    assert str(fault.value).startswith("shop/one: ")
