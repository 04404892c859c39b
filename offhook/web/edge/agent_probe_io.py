"""Probes the servers of the agents' language models for /readyz."""

import asyncio

from loguru import logger

from offhook.pipeline.speech.openai.answers import model_ids
from offhook.pipeline.speech.openai.client_io import OpenAiServer
from offhook.pipeline.speech.streams.retry import AttemptFailed
from offhook.web.config.config import Agent, Config

PROBE_S = 10.0
"""Interval in s between two probes."""
ANSWER_S = 5.0
TOLERATED = 1
"""Consecutive failed probes tolerated before a model counts as unavailable."""
NO_LIST = (404, 405, 501)
"""Statuses of servers that respond but have no model list."""


class AgentProbe:
    """Probes the server of one agent's model with its model list."""

    def __init__(self, name: str, agent: Agent) -> None:
        self.name, self.agent = name, agent
        self.why = "not asked yet"
        """Why the model is unavailable; empty if it is available."""
        self._server = OpenAiServer("agent", agent.base_url, agent.api_key, agent.model)
        self._failed = 0

    async def run(self) -> None:
        """Runs until cancelled."""
        try:
            while True:
                await self._ask()
                await asyncio.sleep(PROBE_S)
        finally:
            await self._server.close()

    async def _ask(self) -> None:
        try:
            async with self._server.ask("GET", "/models", ANSWER_S) as response:
                there = model_ids(await self._server.body(response, ANSWER_S))
            # The models of a Realtime API are not all listed: another offhook's agents are not.
            listed = self.agent.kind != "realtime"
            if listed and there and self.agent.model not in there:
                raise AttemptFailed(f"it has no model {self.agent.model}", hopeless=True)
        except AttemptFailed as failed:
            if failed.status not in NO_LIST:
                return self._note(self._server.explain(failed))
        self._failed = 0
        if self.why:
            logger.info("agent {}: the language model can be asked", self.name)
        self.why = ""

    def _note(self, why: str) -> None:
        self._failed += 1
        if (self._failed > TOLERATED and not self.why) or (self._failed == 1 and self.why):
            logger.error("agent {}: not ready: {}", self.name, why)
        if self._failed > TOLERATED or self.why:
            self.why = why


class AgentProbes:
    """The probes of all agents with `ready_probe`; without any, always ready."""

    def __init__(self, config: Config) -> None:
        self._probes = _wanted(config)
        self._tasks: dict[AgentProbe, asyncio.Task[None]] = {}
        """Running probes, including removed ones that have not ended."""

    def start(self) -> None:
        for probe in self._probes:
            if probe not in self._tasks:
                self._run(probe)

    def _run(self, probe: AgentProbe) -> None:
        task = asyncio.create_task(probe.run(), name=f"probe {probe.name}")
        self._tasks[probe] = task
        task.add_done_callback(lambda task: self._tasks.pop(probe))

    def use(self, config: Config) -> None:
        """Applies a new configuration. Unchanged agents keep their state, and a new agent does not
        make a running server unready."""
        before, self._probes = self._probes, []
        for new in _wanted(config):
            same = (old for old in before if (old.name, old.agent) == (new.name, new.agent))
            if (probe := next(same, new)) is new:
                new.why = ""
            self._probes.append(probe)
        for old in before:
            if old not in self._probes and old in self._tasks:
                self._tasks[old].cancel()
        self.start()

    @property
    def gone(self) -> list[str]:
        """Returns the agents whose models are unavailable."""
        return [probe.name for probe in self._probes if probe.why]

    async def close(self) -> None:
        tasks = tuple(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _wanted(config: Config) -> list[AgentProbe]:
    agents = (("agent", config.agent), *config.agents.items())
    return [AgentProbe(name, agent) for name, agent in agents if agent.ready_probe]
