"""Runs Pipecat's eval scenarios against the agents of a configuration.

Scenarios by text need no engine; those with sound are heard and spoken by the configured ones.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from pipecat.evals import client
from pipecat.evals.session import EvalSession, EvalSessionParams
from pipecat.evals.simulation_judge import EvalSimulationJudge
from pipecat.workers.runner import WorkerRunner

from offhook.media.tasks_io import TaskSet
from offhook.web.app.evals.coverage import Coverage, coverage_of
from offhook.web.app.evals.criteria_io import check_criteria, unmet_criteria
from offhook.web.app.evals.eval_door_io import EvalDoor, eval_door
from offhook.web.app.evals.eval_line_io import eval_line, with_line
from offhook.web.app.evals.line_settings import LineSettings
from offhook.web.app.evals.scenarios_io import ANSWERS, Scenario
from offhook.web.app.evals.visit_io import Visit
from offhook.web.app.evals.whole import unmet
from offhook.web.config.agents import DEFAULT
from offhook.web.config.config import Config, ConfigError
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.text.text_edge_io import TextEdge, without_doors
from offhook.web.workers.local_worker_io import local_workers

READY_S = 120.0
"""Time limit in s for workers of the configured engines to be ready."""

_STOPPED = {
    "max_turns": "the caller was not done within {0.max_turns} turns (max_turns)",
    "max_duration": "the caller was not done within {0.max_duration_s:g} s (max_duration_s)",
    "silence": "nobody said anything for {0.max_silence_s:g} s (max_silence_s)",
}
"""Why the harness has ended a conversation in which a model plays the caller."""

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
    answers_ms: list[int] = field(default_factory=list)
    """How long the caller waited for each answer, from the end of the question to the first
    sound."""
    duration_ms: int = 0
    transcript: list[dict[str, Any]] = field(default_factory=list)
    """The events that the harness has seen."""
    ended_by: str = ""
    """How a conversation ended in which a model plays the caller: "end_call" if the caller hung up,
    "bot" if the agent did, else what came too late or too often."""
    used: list[dict[str, str]] = field(default_factory=list)
    """Tools, hand-overs and nodes that the conversation has used."""


class Evaluation:
    """Runs scenarios; edges are started when the first scenario needs them."""

    def __init__(
        self, config: Config, agent: str, params: EvalSessionParams, coverage: Coverage
    ) -> None:
        self._config, self._agent, self._params = config, agent, params
        self._coverage = coverage
        self._doors: dict[tuple[bool, LineSettings], EvalDoor] = {}
        """By whether there is sound, and by the line."""
        self._has_workers = False
        """Whether the engines of the configuration that run in workers can be reached."""
        self._stack = AsyncExitStack()
        self._starting = asyncio.Lock()

    async def close(self) -> None:
        await self._stack.aclose()

    async def run(self, scenario: Scenario, run: int = 1) -> Outcome:
        """Raises ConfigError, EngineError if the agent cannot be called."""
        script = scenario.script
        door = await self._door(scenario.line, sound=script.user_audio or script.bot_audio)
        visit = door.visit(self._agent, scenario)
        try:
            session = EvalSession.from_scenario(script, visit.url, params=self._params)
        except ValueError as error:  # its models cannot be had
            raise ConfigError(f"{scenario.name}: {error}") from error
        session.add_event_handler("on_progress", visit.on_progress)
        result: Any = await session.run()
        skipped = getattr(result, "skipped", None) or ""
        if not skipped:
            await visit.over.wait()
        if scenario.is_played:
            failures = await _failures_of_played(result, visit)
        else:
            failures = [_in_file(failure, scenario) for failure in result.failures]
        if not skipped:
            failures += [visit.refusal] if visit.refusal else visit.failures()
        if not skipped and not visit.refusal and scenario.criteria:
            failures += await unmet_criteria(self._config, visit)
        self._coverage.use(visit.used)
        events = result.events_seen
        heard = [str(e["text"]) for e in events if e["type"] in ANSWERS and e.get("text")]
        return Outcome(
            *(scenario.name, run, not failures and not skipped, skipped, failures),
            *(visit.faults, heard, visit.sounds.answers_ms(), result.duration_ms, events),
            ended_by=getattr(result, "ended_by", ""),
            used=sorted((asdict(one) for one in visit.used), key=str),
        )

    async def _door(self, line: LineSettings, *, sound: bool) -> EvalDoor:
        async with self._starting:
            if (sound, line) not in self._doors:
                if sound and not self._has_workers:
                    workers = local_workers(_preloading(self._config))
                    self._config = await self._stack.enter_async_context(workers)
                    self._has_workers = True
                opened = self._opened(line, sound=sound)
                self._doors[sound, line] = await self._stack.enter_async_context(opened)
            return self._doors[sound, line]

    @asynccontextmanager
    async def _opened(self, line: LineSettings, *, sound: bool) -> AsyncIterator[EvalDoor]:
        if line.over:
            edge = Edge(with_line(self._config, line.over, self._agent))
            async with (
                _started(edge),
                eval_line(edge, line, self._agent) as calls,
                eval_door(edge, calls, self._coverage) as door,
            ):
                yield door
        else:
            edge = Edge(without_doors(self._config)) if sound else TextEdge(self._config)
            async with _started(edge), eval_door(edge, None, self._coverage) as door:
                yield door


def _preloading(config: Config) -> Config:
    """Returns a configuration whose engines have loaded before the first call: nobody is to wait
    for that."""
    sections = {"asr": config.asr, "tts": config.tts}
    return config.model_copy(
        update={kind: one.model_copy(update={"preload": True}) for kind, one in sections.items()}
    )


async def _failures_of_played(result: Any, visit: Visit) -> list[str]:
    """Returns why a conversation fails in which a model has played the caller."""
    script, failures = visit.scenario.script, []
    if result.error:
        return [str(result.error)]
    if (why := _STOPPED.get(result.ended_by)) is not None:
        failures.append(why.format(script))
    if not result.succeeded:
        failures.append(f"success: {result.reason}")
    failures += [f"{m.name}: {m.reason}" for m in result.metrics if not m.passed]
    expected = visit.scenario.expected
    failures += unmet(expected, result.events_seen, visit.replies, visit.sounds)
    for one in expected:
        if one.criterion:
            judge = EvalSimulationJudge(replace(script, success=one.criterion, metrics=[]))
            verdict = (await judge.judge(result.conversation)).goal
            if verdict.verdict != "yes":
                failures.append(f"{one.where}{one.criterion!r}: {verdict.reason}")
    return failures


def _in_file(failure: Any, scenario: Scenario) -> str:
    """Returns a failure in words, with the number that its expectation has in the file."""
    turn, place = failure.turn_index, failure.expectation_index
    if turn >= 0 and place >= 0:
        failure = replace(failure, expectation_index=scenario.numbers[turn][place])
    return str(failure)


def _check_stubs(scenario: Scenario, config: Config) -> None:
    """Raises ConfigError for a stub of a tool that no agent has."""
    tools = [tool for agent in config.named_agents().values() for tool in agent.tools]
    names = {name for tool in tools for name in tool.function_names}
    if all(tool.function_names for tool in tools):  # what else MCP servers have is not known yet
        for name in scenario.stubs:
            if name not in names:
                there = ", ".join(sorted(names)) or "none"
                words = f"stubs: no agent has a tool {name} (there: {there})"
                raise ConfigError(f"{scenario.name}: {words}")


@asynccontextmanager
async def _started(edge: Edge) -> AsyncIterator[None]:
    await edge.start()
    try:
        async with asyncio.timeout(READY_S):
            while not edge.ready:
                await asyncio.sleep(0.1)
        yield
    finally:
        await edge.close()


async def evaluate(
    config: Config,
    agent: str,
    scenarios: Sequence[Scenario],
    *,
    runs: int = 1,
    at_once: int = 1,
    params: EvalSessionParams | None = None,
    coverage: Coverage | None = None,
    done: Callable[[Outcome], object] = lambda outcome: None,
) -> list[Outcome]:
    """Runs each scenario `runs` times, `at_once` at a time, and reports each to `done`, and what is
    used of the agents to `coverage`. Raises ConfigError if there is no such agent, or none that has
    a tool for which there is a stub."""
    agent = "" if agent == DEFAULT and agent not in config.agents else agent
    if agent and agent not in config.agents:
        there = ", ".join((DEFAULT, *config.agents))
        raise ConfigError(f"no agent is called {agent!r} (there: {there})")
    coverage = coverage if coverage is not None else coverage_of(config, agent)
    for scenario in scenarios:
        _check_stubs(scenario, config)
        check_criteria(scenario.name, scenario.criteria, config)
    evaluation = Evaluation(config, agent, params or EvalSessionParams(), coverage)
    room = asyncio.Semaphore(at_once)

    async def one(scenario: Scenario, run: int) -> Outcome:
        async with room:
            outcome = await evaluation.run(scenario, run)
            done(outcome)
            return outcome

    tasks = TaskSet()
    work = [
        one(scenario, run + 1) for scenario in scenarios for run in range(max(runs, scenario.runs))
    ]
    try:
        return await asyncio.gather(*(tasks.spawn(each, "scenario") for each in work))
    finally:
        await tasks.close()
        await evaluation.close()
