"""Runs Pipecat's eval scenarios against the agents of a configuration.

Scenarios by text need no engine; those with sound are heard and spoken by the configured ones.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pipecat.evals import client
from pipecat.evals.scenario import EvalScenarioFile, is_scenario_file
from pipecat.evals.session import EvalSession, EvalSessionParams
from pipecat.workers.runner import WorkerRunner

from offhook.media.tasks_io import TaskSet
from offhook.web.app.evals.eval_door_io import EvalDoor, eval_door
from offhook.web.app.evals.scenario_keys import check_keys
from offhook.web.config.config import Config, ConfigError
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.text.text_edge_io import TextEdge, without_doors

ANSWERS = ("llm_response", "response")
"""Events with what the agent has answered, as text or as it was heard."""
READY_S = 120.0
"""Time limit in s for workers of the configured engines to be ready."""

# The harness's own runners would take Ctrl-C, each for its conversation alone.
client.__dict__["WorkerRunner"] = partial(WorkerRunner, handle_sigint=False)


@dataclass(frozen=True)
class Outcome:
    """What has come of one run of a scenario."""

    scenario: str
    run: int
    passed: bool
    skipped: str = ""
    """Why it was not run."""
    failures: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """What has failed of the agent, such as its model."""
    heard: list[str] = field(default_factory=list)
    """What the agent has answered."""
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
                check_keys(file)
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
        self._doors: dict[bool, EvalDoor] = {}
        """By whether there is sound."""
        self._stack = AsyncExitStack()
        self._starting = asyncio.Lock()

    async def close(self) -> None:
        await self._stack.aclose()

    async def run(self, scenario: Any, run: int = 1) -> Outcome:
        """Raises ConfigError, EngineError if the agent cannot be called."""
        door = await self._door(sound=scenario.user_audio or scenario.bot_audio)
        url, faults = door.visitor(self._agent)
        result: Any = await EvalSession.from_scenario(scenario, url, params=self._params).run()
        events = result.events_seen
        heard = [str(e["text"]) for e in events if e["type"] in ANSWERS and e.get("text")]
        if hasattr(result, "succeeded"):  # a simulation
            failures = [] if result.succeeded else [result.error or result.reason]
            failures += [f"{m.name}: {m.reason}" for m in result.metrics if not m.passed]
            passed, skipped = not failures, ""
        else:
            passed, skipped = result.passed, result.skipped or ""
            failures = [str(failure) for failure in result.failures]
        return Outcome(
            *(scenario.name, run, passed, skipped, failures, faults, heard),
            *(result.duration_ms, events),
        )

    async def _door(self, *, sound: bool) -> EvalDoor:
        async with self._starting:
            if sound not in self._doors:
                edge = Edge(without_doors(self._config)) if sound else TextEdge(self._config)
                self._doors[sound] = await self._stack.enter_async_context(_opened(edge))
            return self._doors[sound]


@asynccontextmanager
async def _opened(edge: Edge) -> AsyncIterator[EvalDoor]:
    await edge.start()
    try:
        async with asyncio.timeout(READY_S):
            while not edge.ready:
                await asyncio.sleep(0.1)
        async with eval_door(edge) as door:
            yield door
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

    tasks = TaskSet()
    work = [one(scenario, run + 1) for scenario in scenarios for run in range(runs)]
    try:
        return await asyncio.gather(*(tasks.spawn(each, "scenario") for each in work))
    finally:
        await tasks.close()
        await evaluation.close()
