"""Runs Pipecat's eval scenarios against the agents of a configuration.

Scenarios by text need no engine; those with sound are heard and spoken by the configured ones.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipecat.evals.scenario import EvalScenarioFile, is_scenario_file
from pipecat.evals.session import EvalSession, EvalSessionParams

from offhook.web.config.config import Config, ConfigError
from offhook.web.edge.edge_io import Edge
from offhook.web.evals.eval_door_io import eval_door
from offhook.web.text.text_edge_io import TextEdge, without_doors

READY_S = 120.0
"""Time limit in s for workers of the configured engines to be ready."""


@dataclass(frozen=True)
class Outcome:
    """What has come of one run of a scenario."""

    scenario: str
    run: int
    passed: bool
    skipped: str = ""
    """Why it was not run."""
    failures: list[str] = field(default_factory=list)
    duration_ms: int = 0
    transcript: list[dict[str, Any]] = field(default_factory=list)
    """The events that the harness has seen."""


def scenarios_in(paths: Iterable[Path]) -> list[Any]:
    """Returns the scenarios of files, and of folders' files. Raises ConfigError."""
    found: list[Any] = []
    for path in paths:
        files = [path]
        if path.is_dir():
            yaml = sorted((*path.rglob("*.yaml"), *path.rglob("*.yml")))
            files = [file for file in yaml if is_scenario_file(file)]
            if not files:
                raise ConfigError(f"{path}: no scenario is there (YAML with turns or a persona)")
        for file in files:
            try:
                found += EvalScenarioFile.load(file).scenarios
            except OSError as error:
                raise ConfigError(f"{file}: {error.strerror}") from error
            except Exception as error:  # ValueError, YAML's
                words = str(error).removeprefix(f"{file}: ")
                raise ConfigError(f"{file}: {words}") from error
    return found


class Evaluation:
    """Runs scenarios; edges are started when the first scenario needs them."""

    def __init__(self, config: Config, agent: str, params: EvalSessionParams) -> None:
        self._config, self._agent, self._params = config, agent, params
        self._urls: dict[bool, str] = {}
        """By whether there is sound."""
        self._stack = AsyncExitStack()
        self._starting = asyncio.Lock()

    async def close(self) -> None:
        await self._stack.aclose()

    async def run(self, scenario: Any, run: int = 1) -> Outcome:
        """Raises ConfigError, EngineError if the agent cannot be called."""
        url = await self._url(sound=scenario.user_audio or scenario.bot_audio)
        result: Any = await EvalSession.from_scenario(scenario, url, params=self._params).run()
        if hasattr(result, "succeeded"):  # a simulation
            failures = [] if result.succeeded else [result.error or result.reason]
            failures += [f"{m.name}: {m.reason}" for m in result.metrics if not m.passed]
            return Outcome(
                *(scenario.name, run, not failures, "", failures, result.duration_ms),
                result.events_seen,
            )
        failures = [str(failure) for failure in result.failures]
        return Outcome(
            *(scenario.name, run, result.passed, result.skipped or "", failures),
            *(result.duration_ms, result.events_seen),
        )

    async def _url(self, *, sound: bool) -> str:
        async with self._starting:
            if sound not in self._urls:
                edge = Edge(without_doors(self._config)) if sound else TextEdge(self._config)
                base = await self._stack.enter_async_context(_opened(edge))
                self._urls[sound] = f"{base}/{self._agent}"
            return self._urls[sound]


@asynccontextmanager
async def _opened(edge: Edge) -> AsyncIterator[str]:
    try:
        await edge.start()
        async with asyncio.timeout(READY_S):
            while not edge.ready:
                await asyncio.sleep(0.1)
        async with eval_door(edge) as url:
            yield url
    finally:
        await edge.close()


async def evaluate(
    config: Config,
    agent: str,
    scenarios: Sequence[Any],
    *,
    runs: int = 1,
    at_once: int = 1,
    params: EvalSessionParams | None = None,
    done: Callable[[Outcome], object] = lambda outcome: None,
) -> list[Outcome]:
    """Runs each scenario `runs` times, `at_once` at a time, and reports each to `done`. Raises
    ConfigError if there is no such agent."""
    if agent and agent not in config.agents:
        there = ", ".join(config.agents) or "none"
        raise ConfigError(f"no agent is called {agent!r} (there: {there})")
    evaluation = Evaluation(config, agent, params or EvalSessionParams())
    room = asyncio.Semaphore(at_once)

    async def one(scenario: Any, run: int) -> Outcome:
        async with room:
            outcome = await evaluation.run(scenario, run)
            done(outcome)
            return outcome

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(one(scenario, run + 1))
                for scenario in scenarios
                for run in range(runs)
            ]
        return [task.result() for task in tasks]
    finally:
        await evaluation.close()
