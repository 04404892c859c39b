"""`offhook eval`: tries an agent by scenarios."""

import asyncio
import fnmatch
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from offhook.web.app.evals.evaluation_io import Outcome, evaluate
from offhook.web.app.evals.junit import junit
from offhook.web.app.evals.scenarios_io import scenarios_in
from offhook.web.config.config import Config, ConfigError

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
) -> bool:
    """Runs all scenarios and shows each outcome. Returns whether all have passed. Raises
    ConfigError."""
    found = scenarios_in(paths)
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

    outcomes = await evaluate(config, agent, scenarios, runs=runs, at_once=at_once, done=done)
    if junit_file is not None:
        await asyncio.to_thread(junit_file.write_text, junit(outcomes), "utf-8")
    passed = sum(outcome.passed for outcome in outcomes)
    skipped = sum(bool(outcome.skipped) for outcome in outcomes)
    if not as_json:
        failed = len(outcomes) - passed - skipped
        show(f"{passed} passed, {failed} failed, {skipped} skipped")
    return passed == len(outcomes)


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
