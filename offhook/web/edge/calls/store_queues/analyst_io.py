"""Has calls analysed that are over, as the settings of their agents want it."""

import asyncio
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from loguru import logger

from offhook.pipeline.conversation.events import TokensUsed
from offhook.web.config.agents import DEFAULT
from offhook.web.config.config import Config
from offhook.web.edge.calls.store_queues.queue_io import StoreQueues
from offhook.web.records.analyses import Found, WaitingCall
from offhook.web.records.store import CallStore

if TYPE_CHECKING:  # what asks models takes memory
    from offhook.web.tools.analysis.analyse_io import Answered, NoAnalysis

ASKS = "offhook.web.tools.analysis.analyse_io"
"""What asks models; it is loaded once an agent has an analysis."""


class Analyst:
    """Analyses the calls of one store. `server` is its name there, and `config` returns the current
    configuration; `count` is told how each attempt ends, and `spend` what a model's answers
    cost."""

    def __init__(
        self,
        store: CallStore,
        server: str,
        config: Callable[[], Config],
        count: Callable[[str], object] = lambda outcome: None,
        spend: Callable[[str, float], object] = lambda model, cost: None,
    ) -> None:
        self._store, self._server, self._config = store, server, config
        self._count, self._spend = count, spend

    def start(self, queues: StoreQueues) -> None:
        queues.serve("analyses of calls", self.claim, self.handle)

    def claim(self, now: float) -> Sequence[WaitingCall]:
        """Returns calls that are due; blocks. Raises StoreError."""
        config = self._config()
        agents = {DEFAULT, *config.agents}
        wanted = {name for name in agents if config.analysed_by((name,))}
        if wanted:
            import_module(ASKS)  # here, in a thread: it would hold up calls
        return self._store.analyses.claim(wanted, self._server, now)

    async def handle(self, waiting: WaitingCall) -> str:
        """Has a call analysed that is ours; returns the outcome. Raises StoreError."""
        from offhook.web.tools.analysis.analyse_io import NoAnalysis, analyse

        config, store = self._config(), self._store
        agent = config.agent_called(waiting.agent)
        if agent is None or agent.analysis is None:
            return await self._failed(waiting, NoAnalysis("the agent has no analysis any more"))
        timeline = await asyncio.to_thread(store.timeline, waiting.call)
        model = agent.analysis.model_beside(agent)
        where = "agent" if agent is config.agent else f"agents.{waiting.agent}"
        try:
            answered = await analyse(agent.analysis, model, timeline, f"{where}.analysis")
        except NoAnalysis as error:
            return await self._failed(waiting, error)
        tokens = {
            "model": model.model,
            "input_tokens": sum(one.input_tokens for one in answered.used),
            "output_tokens": sum(one.output_tokens for one in answered.used),
            "cost": (cost := self._cost(answered.used)),
        }
        found = answered.analysed
        verdicts = {one.name: one.verdict for one in found.criteria}
        result = {**answered.as_dict(), **tokens}
        kept = Found(found.outcome, result, verdicts, cost)
        if await asyncio.to_thread(store.analyses.finish, waiting, kept, time.time()):
            self._count(found.outcome)
            logger.info("{}: analysed: {}{}", waiting.call, found.outcome, _in_words(answered))
        return found.outcome

    async def _failed(self, waiting: WaitingCall, error: "NoAnalysis") -> str:
        given_up = await asyncio.to_thread(
            self._store.analyses.failed,
            *(waiting, str(error), time.time()),
            hopeless=error.hopeless,
            after_s=error.after_s,
            cost=self._cost(error.used),
        )
        self._count("error" if given_up else "retry")
        line = logger.bind(a_minute=f"analysis {waiting.agent}")
        if given_up:
            line.error("{}: it is not analysed: {}", waiting.call, error)
            return "error"
        line.warning("{}: its analysis is tried again: {}", waiting.call, error)
        return "waiting"

    def _cost(self, used: Sequence[TokensUsed]) -> float | None:
        """Returns what answers of one model cost, which is counted; None if it has no price, or its
        server said nothing of tokens."""
        costs = []
        for one in used:
            prices = self._config().prices.get(one.model)
            if prices is not None:
                costs.append(prices.cost(one))
                self._spend(one.model, costs[-1])
        return sum(costs) if costs else None


def _in_words(answered: "Answered") -> str:
    names = [one.name for one in answered.analysed.criteria if one.verdict == "failure"]
    return f" ({', '.join(names)})" if names else ""
