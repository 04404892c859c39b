"""Whether the servers of the agents' language models answer, for /readyz."""

import asyncio
from collections.abc import Mapping

from loguru import logger

from offhook.pipeline.openai_answers import model_ids
from offhook.pipeline.openai_client_io import OpenAiServer
from offhook.pipeline.retry import Failed
from offhook.web.config import Agent

PROBE_SECONDS = 10.0
"""Between two probes."""
ANSWER_SECONDS = 5.0
TOLERATED = 1
"""Probes in a row that may fail before a model counts as gone."""
NO_LIST = (404, 405, 501)
"""Statuses of servers that answer, and have no list of models."""


class AgentProbe:
    """Asks the server of one agent's model for its list of models, again and again."""

    def __init__(self, name: str, agent: Agent) -> None:
        self.name = name
        self.why = "not asked yet"
        """Why the model cannot be asked; empty: it can."""
        self._model = agent.model
        self._server = OpenAiServer("agent", agent.base_url, agent.api_key, agent.model)
        self._failed = 0

    async def run(self) -> None:
        """Until it is cancelled."""
        try:
            while True:
                await self._ask()
                await asyncio.sleep(PROBE_SECONDS)
        finally:
            await self._server.close()

    async def _ask(self) -> None:
        try:
            async with self._server.ask("GET", "/models", ANSWER_SECONDS) as response:
                there = model_ids(await self._server.body(response, ANSWER_SECONDS))
            if there and self._model not in there:
                raise Failed(f"it has no model {self._model}", hopeless=True)
        except Failed as failed:
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
    """Of all agents that want to be probed; for nobody it is always ready."""

    def __init__(self, agents: Mapping[str, Agent]) -> None:
        self._probes = [AgentProbe(name, agent) for name, agent in agents.items()]
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        for probe in self._probes:
            self._tasks.append(asyncio.create_task(probe.run(), name=f"probe {probe.name}"))

    @property
    def gone(self) -> list[str]:
        """The agents whose models cannot be asked."""
        return [probe.name for probe in self._probes if probe.why]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
