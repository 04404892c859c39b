"""What an agent with a model does about the model's failures, whatever the model's protocol: it
reports them, asks callers to wait for slow tools, and ends the call when it gives up."""

import asyncio
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from loguru import logger
from pipecat.frames.frames import TTSSpeakFrame
from pipecat.metrics.metrics import LLMTokenUsage
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.services.llm_service import LLMService

from offhook.media.end_reason import End
from offhook.media.leg import LegError
from offhook.pipeline.conversation.agents.agent_faults import (
    AgentFaults,
    Decision,
    Fault,
    Limits,
    Place,
)
from offhook.pipeline.conversation.call_io import Call
from offhook.pipeline.conversation.events import TokensUsed
from offhook.pipeline.conversation.sentences import Occasion
from offhook.pipeline.speech.openai.answers import plain
from offhook.pipeline.speech.redact import MASK

GAVE_UP = End.MODEL_FAILED
"""End reason of a call whose model failed."""
MIN_SECRET_CHARACTERS = 8
"""Characters from which the value of a header or of the query is masked in the log."""
WAIT_AGAIN_S = 6.0
"""Time in s after which a caller who was asked to wait is asked again."""


class Supervision:
    """Supervises the turns of one call's model, which `service` queries."""

    def __init__(
        self,
        service: LLMService[Any],
        call: Call,
        limits: Limits,
        stands_by: bool,
        gives_up_to: str,
        secrets: Iterable[str] = (),
    ) -> None:
        """`stands_by`: whether there is a fallback. `gives_up_to`: where the caller is transferred
        when the agent gives up; empty: the call ends. `secrets`: what may be in a server's errors
        and is not logged."""
        self.faults = AgentFaults(limits, stands_by=stands_by, transfers=bool(gives_up_to))
        self.has_spoken = False
        """Whether the model has said something in this turn."""
        self._service = service
        self._call = call
        self._limits = limits
        self._gives_up_to = gives_up_to
        self._secrets = [secret for secret in secrets if len(secret) >= MIN_SECRET_CHARACTERS]
        self._waited = False
        """Whether the caller was asked to wait in this turn."""
        self._waiting: asyncio.Task[None] | None = None
        """The task that asks the caller to wait for a slow tool."""
        self._parting: asyncio.Task[None] | None = None
        """The task that ends the call after the agent has given up."""
        self._asked_at = 0.0
        """When the caller's turn arrived."""
        self._begun_at = 0.0
        """When the model was queried."""
        service.add_event_handler("on_function_calls_started", self._wait_for_tools)

    @property
    def gave_up(self) -> bool:
        """Whether the agent has given up: nothing is answered any more."""
        return self._parting is not None

    async def close(self) -> None:
        for task in (self._waiting, self._parting):
            if task is not None:
                await self._service.cancel_task(task)

    async def begin(self, context: LLMContext) -> None:
        """Starts a query about a context that ends with the caller's turn or a tool's result."""
        last: Any = context.messages[-1] if context.messages else {}
        tool_round = isinstance(last, dict) and last.get("role", "") == "tool"
        now = self._now()
        if not tool_round:
            self.has_spoken, self._waited, self._asked_at = False, False, now
        self._begun_at = now
        await self.stop_waiting()
        self.faults.begin(now, tool_round=tool_round, greeting=not context.messages)

    def ask_again(self) -> None:
        """The model is queried again in the same turn, after a pause."""
        self._begun_at = self._now()

    def used(self, model: str, usage: LLMTokenUsage) -> None:
        """Reports what an answer of the model took."""
        event = TokensUsed(
            self._call.leg.heard_ms,
            model,
            usage.prompt_tokens,
            usage.cache_read_input_tokens or 0,
            usage.completion_tokens,
            usage.input_audio_tokens or 0,
            usage.cache_read_input_audio_tokens or 0,
            usage.output_audio_tokens or 0,
        )
        self._call.emit(event)

    async def spoke(self) -> None:
        """The model says something."""
        self.has_spoken = True
        await self.stop_waiting()

    def failed(
        self,
        error: Exception,
        fault: Fault,
        after_s: float,
        *,
        speaking: bool,
        model: str,
        base_url: str,
    ) -> Decision:
        """Logs and reports a fault and returns what to do about it. `after_s` is the server's
        Retry-After in s; `speaking`: part of the answer has been spoken."""
        place = Place.TOOL if self.faults.rounds else Place.START
        if speaking:
            place = Place.SPEAKING
        decision = self.faults.failed(fault, place, self._now(), after_s)
        logger.opt(exception=error if fault is Fault.UNEXPECTED else None).warning(
            "{}: the language model {} at {}, {}: {} ({}): {}",
            *(self._call.leg.call_id, model, _host(base_url)),
            *(place, fault, self._plain(error), decision.action),
        )
        cause = f"{model} at {_host(base_url)}: {self._plain(error)}"
        self._call.agent_failed(fault, place, decision.action, cause)
        return decision

    def refused(self, name: str, error: Exception, model: str, base_url: str) -> None:
        """Logs that a server refuses a parameter, which is not sent any more."""
        logger.warning(
            "{}: the language model {} at {} refuses {}, which is left out or renamed from now "
            "on: {}",
            *(self._call.leg.call_id, model, _host(base_url), name, self._plain(error)),
        )

    def _plain(self, error: Exception) -> str:
        """Returns an exception's words for the log, without keys; servers may repeat them."""
        words = str(error)
        for secret in self._secrets:
            words = words.replace(secret, MASK)
        return plain(words)

    def part(self, occasion: Occasion) -> None:
        """Ends the call: the agent has given up."""
        self._parting = self._service.create_task(self._part(occasion), "part")

    async def _part(self, occasion: Occasion) -> None:
        call = self._call
        await call.say(call.sentence(occasion))
        if occasion is Occasion.TRANSFER:
            try:
                return await call.transfer(self._gives_up_to)
            except LegError as error:
                logger.warning("{}: not transferred: {}", call.leg.call_id, error)
                await call.say(call.sentence(Occasion.GOODBYE))
        await call.hang_up(GAVE_UP)

    # --- slow models and tools ---

    def wait_for_answer(self) -> None:
        """The model is thinking: the caller is asked to wait after `first_token_seconds`, and from
        then on every WAIT_AGAIN_S."""
        if self._waiting is None:
            self._waiting = self._service.create_task(self._wait_for_answer(), "wait")

    async def _wait_for_answer(self) -> None:
        await asyncio.sleep(self._begun_at + self._limits.first_token_seconds - self._now())
        while True:
            if not self._call.away:
                await self._call.say(self._call.sentence(Occasion.WAIT))
                self._call.hearing.reply.busy = True  # the sentence was not the answer
            await asyncio.sleep(WAIT_AGAIN_S)

    async def _wait_for_tools(self, service: Any, calls: Any) -> None:
        await self.stop_waiting()
        if not (self.has_spoken or self._waited):
            self._waiting = self._service.create_task(self._wait(), "wait")

    async def _wait(self) -> None:
        """Asks the caller to wait if nothing else is said in time."""
        await asyncio.sleep(self._asked_at + self._limits.first_token_seconds - self._now())
        self._waited = True
        if not self._call.away:
            sentence = self._call.sentence(Occasion.WAIT)
            await self._service.push_frame(TTSSpeakFrame(sentence))

    async def stop_waiting(self) -> None:
        """The caller need not be asked to wait any more."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            await self._service.cancel_task(waiting)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def _host(base_url: str) -> str:
    return urlsplit(base_url).netloc.rpartition("@")[2]
