"""A suite of scenarios passes on a sound agent. Each fault that is planted is caught by the
scenario that is meant for it, and by no other, every time."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from offhook.web.app.cli.eval_io import run_evals
from offhook.web.app.evals.coverage import coverage_of
from offhook.web.app.evals.evaluation_io import Outcome, evaluate
from offhook.web.app.evals.line_settings import NO_LINE, LineSettings
from offhook.web.app.evals.scenarios_io import Scenario
from offhook.web.config.engines import Asr
from tests.web.app.evals import workshop as planted
from tests.web.app.evals.spoken import EARS, VOICE
from tests.web.app.evals.test_evaluation import cache as cache
from tests.web.app.evals.workshop import workshop

CAUGHT_BY = {
    planted.WRONG_ARGUMENT: "orders/asks for the number",
    planted.TALKS_OVER: "announcer/may be interrupted",
    planted.FORGETS: "talk/remembers what was interrupted",
    planted.TWICE: "talk/hours",
    planted.NEVER_ASKS: "talk/asks for the day",
    planted.SLOW: "talk/answers soon",
    planted.LANGUAGE: "talk/speaks German",
    planted.MARKDOWN: "talk/plain words",
    planted.LOSES_KEY: "talk/keys",
    planted.HANGS_UP: "talk/stays",
}
LINES = [LineSettings("webrtc"), LineSettings("sip", loss=2), LineSettings("twilio")]
AT_ONCE = 6
SHORT_MS, SPOKEN_MS = 3000, 20_000
"""Time in which the scenario that is meant for a fault gives up, by text and by a line."""


def give_up_soon(scenarios: list[Scenario], name: str, within_ms: int) -> None:
    for scenario in scenarios:
        if scenario.name == name:
            for turn in scenario.script.turns:
                for expectation in turn.expect:
                    expectation.within_ms = within_ms


async def outcomes_with(
    fault: str, runs: int = 1, line: LineSettings = NO_LINE, only: Sequence[str] = ()
) -> list[Outcome]:
    """Tries the workshop with a fault; `only` are names of scenarios, by default all."""
    async with workshop(fault) as (config, *suite):
        found: list[Outcome] = []
        for agent, scenarios in zip(("workshop", "announcer"), suite, strict=True):
            chosen = [one for one in scenarios if not only or one.name in only]
            within_ms = SHORT_MS
            if line.over:
                within_ms = SPOKEN_MS
                config = config.model_copy(update={"asr": Asr(**EARS)})
                chosen = [spoken_by(one, line) for one in chosen]
            give_up_soon(chosen, CAUGHT_BY.get(fault, ""), within_ms)
            found += await evaluate(config, agent, chosen, runs=runs, at_once=AT_ONCE)
        return found


def spoken_by(scenario: Scenario, line: LineSettings) -> Scenario:
    scenario.script.user_audio, scenario.script.user_speech = True, VOICE
    return replace(scenario, line=line)


async def test_all_scenarios_pass_on_a_sound_agent() -> None:
    outcomes = await outcomes_with("")
    assert len(outcomes) >= 30
    assert {o.scenario: o.failures for o in outcomes if not o.passed} == {}


@pytest.mark.parametrize("fault", ["says it twice", "wrong tool argument"])  # the others: below
async def test_a_fault_is_caught_by_the_scenario_meant_for_it_alone(fault: str) -> None:
    outcomes = await outcomes_with(fault)
    failed = {o.scenario: o.failures for o in outcomes if not o.passed}
    assert list(failed) == [CAUGHT_BY[fault]], failed


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["", *CAUGHT_BY])
async def test_every_run_gives_the_same_verdicts(fault: str) -> None:
    verdicts: dict[int, dict[str, bool]] = {}
    for outcome in await outcomes_with(fault, runs=3):
        verdicts.setdefault(outcome.run, {})[outcome.scenario] = outcome.passed
    first, *others = verdicts.values()
    caught_by = [CAUGHT_BY[fault]] if fault else []
    assert [name for name, passed in first.items() if not passed] == caught_by
    assert others == [first, first]


@pytest.mark.slow
@pytest.mark.parametrize("line", LINES, ids=[line.over for line in LINES])
async def test_by_every_line_all_pass_every_time(line: LineSettings) -> None:
    outcomes = await outcomes_with("", runs=2, line=line)
    assert len(outcomes) >= 60
    assert {o.scenario: o.failures for o in outcomes if not o.passed} == {}


@pytest.mark.slow
@pytest.mark.parametrize("fault", CAUGHT_BY)
@pytest.mark.parametrize("line", LINES, ids=[line.over for line in LINES])
async def test_a_fault_is_caught_by_lines_too(line: LineSettings, fault: str) -> None:
    outcomes = await outcomes_with(fault, line=line, only=("talk/greets", CAUGHT_BY[fault]))
    assert [o.scenario for o in outcomes if not o.passed] == [CAUGHT_BY[fault]]


async def test_what_no_scenario_has_used_is_told() -> None:
    async with workshop() as (config, scenarios, _):
        coverage = coverage_of(config, "workshop")
        some = [one for one in scenarios if one.name.startswith("others/")]
        await evaluate(config, "workshop", some, at_once=AT_ONCE, coverage=coverage)
    assert [str(feature) for feature in coverage.unused] == [
        "tool order_status of workshop",
        "tool cancel_order of workshop",
        "tool price of workshop",
        "tool book of workshop",
        "tool call_back of workshop",
    ]
    assert str(coverage) == "7 of 12 tools, hand-overs and nodes used"
    used = {f"{one['kind']} {one['name']}": one["in"] for one in coverage.as_json()["used"]}
    assert used["hand-over sales"] == 3
    assert used["node name"] == 2
    assert used["node later"] == 1


async def test_the_command_shows_what_is_unused(tmp_path: Path) -> None:
    shown: list[str] = []
    file = tmp_path / "out.xml"
    async with workshop() as (config, _, _):
        asked = (config, "workshop", [planted.SUITE / "others.yaml"], shown.append)
        assert await run_evals(*asked, at_once=AT_ONCE, junit_file=file)
    assert shown[-4:] == [
        "unused  tool book of workshop",
        "unused  tool call_back of workshop",
        "7 of 12 tools, hand-overs and nodes used",
        "5 passed, 0 failed, 0 skipped",
    ]
    properties = ElementTree.parse(file).getroot().iter("property")
    assert [p.get("value") for p in properties if p.get("name") == "unused"] == [
        line.removeprefix("unused  ") for line in shown if line.startswith("unused  ")
    ]
