"""Asks the agents whether they can answer, for /readyz."""

import asyncio

from loguru import logger

from offhook.web.config.config import Agent, Config

PROBE_S = 60.0
"""Interval in s between two probes of a model that answers: each costs a token."""
RETRY_S = 10.0
"""Interval in s between two probes of a model that does not answer."""
TOLERATED = 1
"""Consecutive failed probes tolerated before a model counts as unavailable."""


class AgentProbe:
    """Probes one agent's model, as its kind does."""

    def __init__(self, where: str, agent: Agent) -> None:
        """`where` is the name of its table."""
        self.where, self.agent = where, agent
        self.why = "not asked yet"
        """Why the model is unavailable; empty if it is available."""
        self._failed = 0

    @property
    def name(self) -> str:
        return self.where.removeprefix("agents.")

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            await self._ask()
            await asyncio.sleep(RETRY_S if self._failed else PROBE_S)

    async def _ask(self) -> None:
        agent = self.agent
        try:
            await agent.of_kind.ask(self.where, agent, agent.own_settings)
        except Exception as error:  # EngineError, or whatever another package raises
            return self._note(str(error) or type(error).__name__)
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
            same = (old for old in before if (old.where, old.agent) == (new.where, new.agent))
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
    agents = config.named_agents().items()
    wanted = (one for one in agents if one[1].ready_probe and one[1].of_kind.asks)
    return [AgentProbe(where, agent) for where, agent in wanted]
