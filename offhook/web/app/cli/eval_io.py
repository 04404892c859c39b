"""`offhook eval`: tries an agent by scenarios."""

import asyncio
import fnmatch
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from offhook.web.app.evals.coverage import coverage_of
from offhook.web.app.evals.evaluation_io import Outcome, evaluate
from offhook.web.app.evals.junit import junit
from offhook.web.app.evals.line_settings import LineSettings
from offhook.web.app.evals.scenarios_io import NOTHING, scenarios_in
from offhook.web.config.config import Config, ConfigError

ANY_LINE = "webrtc"
SHOWN = 5
"""Answers of the agent that are shown of a scenario that has failed."""


async def run_evals(
    config: Config,
    agent: str,
    paths: Sequence[Path],
    show: Callable[[str], object],
    *,
    only: str = "*",
    runs: int = 1,
    at_once: int = 1,
    junit_file: Path | None = None,
    as_json: bool = False,
    line: Mapping[str, Any] = NOTHING,
) -> bool:
    """Runs all scenarios and shows each outcome, and how long the answers took. `line` are the keys
    of the line by which the agent is called, in place of the scenarios' own. Returns whether all
    have passed. Raises ConfigError."""
    try:
        LineSettings(**{"over": ANY_LINE, **line})
    except ValueError as error:
        raise ConfigError(f"--{error}") from error
    found = scenarios_in(paths, line)
    scenarios = [scenario for scenario in found if fnmatch.fnmatch(scenario.name, only)]
    if not scenarios:
        there = ", ".join(scenario.name for scenario in found)
        raise ConfigError(f"no scenario is called {only!r} (there: {there})")
    if junit_file is not None:
        try:
            await asyncio.to_thread(junit_file.write_text, "")
        except OSError as error:
            raise ConfigError(f"{junit_file}: {error.strerror}") from error

    def done(outcome: Outcome) -> None:
        fields = asdict(outcome)
        show(json.dumps(fields, ensure_ascii=False) if as_json else in_words(outcome))

    coverage = coverage_of(config, agent)
    outcomes = await evaluate(
        *(config, agent, scenarios), runs=runs, at_once=at_once, coverage=coverage, done=done
    )
    if junit_file is not None:
        await asyncio.to_thread(junit_file.write_text, junit(outcomes, coverage), "utf-8")
    passed = sum(outcome.passed for outcome in outcomes)
    skipped = sum(bool(outcome.skipped) for outcome in outcomes)
    counts = {"passed": passed, "failed": len(outcomes) - passed - skipped, "skipped": skipped}
    answers = answer_times(outcomes)
    if as_json:
        show(json.dumps({**counts, "answers_ms": answers, "coverage": coverage.as_json()}))
        return passed == len(outcomes)
    if runs > 1 or any(scenario.waits_matter for scenario in scenarios):
        for name, took in answers.items():
            show(f"answers  {name}  p50 {took['p50']} ms, p95 {took['p95']} ms ({took['answers']})")
    for feature in coverage.unused:
        show(f"unused  {feature}")
    if coverage.uses:
        show(str(coverage))
    show(", ".join(f"{count} {what}" for what, count in counts.items()))
    return passed == len(outcomes)


def answer_times(outcomes: Sequence[Outcome]) -> dict[str, dict[str, int]]:
    """Returns by scenario how long the caller waited for an answer, in ms over all runs: the
    median, the 95th percentile, and how many answers there were."""
    taken: dict[str, list[int]] = {}
    for outcome in outcomes:
        taken.setdefault(outcome.scenario, []).extend(outcome.answers_ms)
    return {
        name: {
            "p50": round(float(np.percentile(times, 50))),
            "p95": round(float(np.percentile(times, 95))),
            "answers": len(times),
        }
        for name, times in taken.items()
        if times
    }


def in_words(outcome: Outcome) -> str:
    """Returns an outcome as lines for a reader."""
    verdict = "skip" if outcome.skipped else "pass" if outcome.passed else "FAIL"
    run = f" ({outcome.run})" if outcome.run > 1 else ""
    lines = [f"{verdict}  {outcome.scenario}{run}  {outcome.duration_ms / 1000:.1f} s"]
    lines += [f"      {why}" for why in (outcome.failures or filter(None, [outcome.skipped]))]
    if not outcome.passed:
        lines += [f"      ! {fault}" for fault in outcome.faults]
        lines += [f"      agent: {text}" for text in outcome.heard[-SHOWN:]]
    return "\n".join(lines)
