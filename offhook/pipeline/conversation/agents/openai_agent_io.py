"""The agent `openai`: any OpenAI-compatible chat endpoint. In a file of its own, because the client
library takes 14 MB that no other agent needs.

Pipecat's own service asks the model and runs its tools. Around it stands `agent_faults`: every
answer is watched as it comes, and what fails is retried, answered by whatever stands by, or told to
the caller in a sentence of ours. Nothing that a server writes into an error leaves the log.
"""

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import openai
from loguru import logger
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from pipecat.frames.frames import Frame, InterruptionFrame, LLMContextFrame, TTSSpeakFrame
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameDirection
from pipecat.services.openai.llm import OpenAILLMService
from pipecat.utils.http import connection_limits

from offhook.media.end_reason import End
from offhook.media.leg import LegError
from offhook.pipeline.conversation.agents.agent_faults import (
    Action,
    AgentFaults,
    Decision,
    Fault,
    Limits,
    Place,
)
from offhook.pipeline.conversation.call_info import for_a_model
from offhook.pipeline.conversation.call_io import Agent, Call
from offhook.pipeline.conversation.call_tools_io import ANYWHERE, call_tools
from offhook.pipeline.conversation.sentences import Occasion
from offhook.pipeline.speech.openai.answers import plain, retry_after_s

_KEYS = "Keys that the caller presses come as [pressed 12#]; that is not speech."
_NO_KEY = "none"
"""Sent where no key is configured: the library would take OPENAI_API_KEY of the environment, and
give it to whatever server that is."""
GAVE_UP = End.MODEL_FAILED
"""Why a call ended."""
SENTENCE_ENDS = (".", "!", "?", "…", "。", "！", "？")
MAX_CONNECTIONS, MAX_SPARE_CONNECTIONS = 1000, 100
SPARE_S = 300.0
"""A connection that nobody uses is kept for so long: routers forget theirs after 350 s."""
CUT_CHARACTERS = 200
"""An answer that is too long may go on this much to the end of its sentence."""
_PIECE = re.compile(r"(?s).{1,200}(?:(?<=\s)|\Z)|.{1,200}")
"""Of a token, which some servers make as long as the answer."""


@dataclass(frozen=True)
class OpenAIModel:
    """Any OpenAI-compatible chat endpoint."""

    model: str
    base_url: str
    api_key: str = field(repr=False)


@dataclass(frozen=True)
class OpenAIAgentSettings(OpenAIModel):
    instructions: str
    transfers: Sequence[str] = ANYWHERE
    """Where to it may transfer: numbers, addresses, patterns of them; none: nowhere."""
    limits: Limits = field(default_factory=Limits)
    fallback: OpenAIModel | None = None
    """Asked when the model fails."""
    gives_up_to: str = ""
    """Whom the caller is transferred to when the agent gives up; empty: the call ends."""


class _Failure(Exception):
    """What `fault_of` says of an answer that is watched."""

    def __init__(self, fault: Fault, words: str) -> None:
        super().__init__(words)
        self.fault = fault


def fault_of(error: Exception) -> tuple[Fault, float]:
    """Which fault an exception of the client is, and how long the server asks us to wait."""
    if isinstance(error, _Failure):
        return error.fault, 0.0
    if isinstance(error, openai.APIStatusError):
        status, headers = error.status_code, error.response.headers
        if status == 429:
            return Fault.RATE_LIMITED, retry_after_s(headers, datetime.now(UTC))
        if status in (401, 403):
            return Fault.UNAUTHORIZED, 0.0
        if status == 404:
            return Fault.NO_MODEL, 0.0
        return (Fault.SERVER_ERROR if status >= 500 else Fault.REFUSED), 0.0
    if isinstance(error, openai.APIConnectionError):
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, socket.gaierror):
                return Fault.NO_NAME, 0.0
            cause = cause.__cause__ or cause.__context__
        return Fault.UNREACHABLE, 0.0
    if isinstance(error, openai.APIError):
        return Fault.SERVER_ERROR, 0.0
    if isinstance(error, ValueError):  # of JSON or of UTF-8
        return Fault.BAD_ANSWER, 0.0
    return Fault.UNEXPECTED, 0.0


@dataclass
class _Answer:
    """One answer of the model as it comes."""

    first_token_by: float
    limit: int
    """Characters, of its text and of what it gives to tools together."""
    characters: int = 0
    tools: dict[int, str] = field(default_factory=dict)
    """Their arguments so far."""
    finished: bool = False
    too_long: bool = False
    last: str = ""
    """Its last text."""

    @property
    def has_begun(self) -> bool:
        return bool(self.characters or self.tools)

    @property
    def ends_sentence(self) -> bool:
        return self.last.rstrip().endswith(SENTENCE_ENDS)

    def add_chunk(self, chunk: Any) -> None:
        """Raises _Failure when the chunk is not what the API has."""
        choices = getattr(chunk, "choices", None)
        if not isinstance(choices, list):
            if choices is not None or not hasattr(chunk, "choices"):
                raise _Failure(Fault.BAD_ANSWER, "a chunk without choices")
            return
        for choice in choices[:1]:
            delta = getattr(choice, "delta", None)
            text, tools = getattr(delta, "content", None), getattr(delta, "tool_calls", None)
            if not isinstance(text, str | None) or not isinstance(tools, list | None):
                raise _Failure(Fault.BAD_ANSWER, "a delta of another shape")
            self.finished |= getattr(choice, "finish_reason", None) is not None
            if text and (text.strip() or self.characters):
                room = self.limit + CUT_CHARACTERS - self.characters
                choice.delta.content = text = text[:room]
                self.characters += len(text)
                self.last = text
            for tool in tools or ():
                self._add_tool_call(tool)

    def _add_tool_call(self, tool: Any) -> None:
        index, function = getattr(tool, "index", None), getattr(tool, "function", None)
        more = getattr(function, "arguments", None) or ""
        name = getattr(function, "name", None) or ""
        if not (isinstance(index, int) and isinstance(more, str) and isinstance(name, str)):
            raise _Failure(Fault.BAD_TOOL_CALL, "a tool call of another shape")
        self.tools[index] = self.tools.get(index, "") + more

    def check(self) -> None:
        """It has ended. Raises _Failure when it is no answer."""
        for arguments in self.tools.values():
            try:
                if not isinstance(json.loads(arguments or "{}"), dict):
                    raise ValueError("no object")
            except (ValueError, RecursionError) as error:
                words = f"arguments of a tool: {plain(error)}"
                raise _Failure(Fault.BAD_TOOL_CALL, words) from error

    def may_end(self) -> bool:
        """It is long enough, and here a sentence ends, or never does."""
        over = self.characters + sum(map(len, self.tools.values())) - self.limit
        return over >= CUT_CHARACTERS or (over >= 0 and self.ends_sentence)


class _OpenAI(OpenAILLMService):
    """Pipecat's own service, whose caller always hears something."""

    def __init__(
        self,
        settings: OpenAIAgentSettings,
        instructions: str,
        call: Call,
        standby: bool,
        connections: DefaultAsyncHttpxClient,
    ) -> None:
        self._connections = connections  # which create_client needs
        super().__init__(
            api_key=settings.api_key or _NO_KEY,
            base_url=settings.base_url,
            settings=OpenAILLMService.Settings(
                model=settings.model, system_instruction=instructions
            ),
        )
        stands_by = standby or settings.fallback is not None
        self._about = settings
        self._call = call
        self._standby = standby
        self._faults = AgentFaults(
            settings.limits, stands_by=stands_by, transfers=bool(settings.gives_up_to)
        )
        self._own_client = self._client
        self._fallback_client: AsyncOpenAI | None = None
        if settings.fallback is not None:
            key, url = settings.fallback.api_key or _NO_KEY, settings.fallback.base_url
            self._fallback_client = self.create_client(api_key=key, base_url=url)
        self._answer = self._new_answer(0.0)
        self._said = False
        """The model has said something in this turn of the caller."""
        self._waited = False
        """So has the call: that it takes a moment."""
        self._waiting: asyncio.Task[None] | None = None
        """For a tool that takes its time."""
        self._parting: asyncio.Task[None] | None = None
        """The agent has given up."""
        self._asked_at = 0.0
        """When the caller's turn came."""
        self.add_event_handler("on_function_calls_started", self._tools_started)

    def create_client(
        self, api_key: Any = None, base_url: Any = None, *_: Any, **others: Any
    ) -> AsyncOpenAI:
        # Retries and time limits are ours.
        return AsyncOpenAI(
            api_key=api_key,
            base_url=base_url,
            http_client=self._connections,
            max_retries=0,
            timeout=None,
        )

    async def cleanup(self) -> None:
        for task in (self._waiting, self._parting):
            if task is not None:
                await self.cancel_task(task)
        await super().cleanup()

    # --- one turn ---

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        if isinstance(frame, LLMContextFrame) and self._parting is not None:
            return  # the agent has given up
        if isinstance(frame, InterruptionFrame):
            await self._stop_waiting()
        await super().process_frame(frame, direction)
        if isinstance(frame, LLMContextFrame) and self._standby and self._faults.fell_back:
            await self.push_frame(frame)

    async def _process_context(self, context: LLMContext) -> None:
        last: Any = context.messages[-1] if context.messages else {}
        role = last.get("role", "") if isinstance(last, dict) else ""
        tool_round, now = role == "tool", self._now()
        if not tool_round:
            self._said, self._waited, self._asked_at = False, False, now
        await self._stop_waiting()
        self._answer = self._new_answer(now)
        faults = self._faults
        faults.begin(now, tool_round=tool_round, greeting=not context.messages)
        if faults.over:
            decision = await self._failed(_Failure(Fault.TOO_MANY_ROUNDS, f"{faults.rounds}"))
            return await self._explain(decision)
        while not (faults.fell_back and self._standby):
            try:
                await self._request(context)
            except Exception as error:
                decision = await self._failed(error)
                if decision.action not in (Action.RETRY, Action.FALL_BACK):
                    return await self._explain(decision)
                await asyncio.sleep(decision.pause_s)
            else:
                if self._answer.too_long:
                    await self._failed(_Failure(Fault.TOO_LONG, f"{self._answer.characters}"))
                if self._answer.characters:
                    faults.answered()
                return

    async def _request(self, context: LLMContext) -> None:
        """Once. Raises what the client raises, and _Failure."""
        about: OpenAIModel = self._about
        self._client = self._own_client
        if self._faults.fell_back and self._about.fallback is not None:
            assert self._fallback_client is not None
            about, self._client = self._about.fallback, self._fallback_client
        self._settings.model = about.model  # type: ignore[attr-defined]
        self._answer = self._new_answer(self._faults.first_token_by(self._now()))
        await super()._process_context(context)

    def _new_answer(self, first_token_by: float) -> _Answer:
        return _Answer(first_token_by, self._about.limits.answer_characters)

    async def get_chat_completions(self, context: LLMContext) -> Any:
        try:
            async with asyncio.timeout_at(self._answer.first_token_by):
                chunks = await super().get_chat_completions(context)
        except TimeoutError as error:
            raise _Failure(Fault.FIRST_TOKEN_LATE, "no answer") from error
        return self._watched(chunks)

    async def _watched(self, chunks: Any) -> AsyncIterator[Any]:
        """The chunks of an answer while they come in time and are of its shape."""
        answer = self._answer
        try:
            while (chunk := await self._next_chunk(chunks)) is not None:
                answer.add_chunk(chunk)
                yield chunk
                # A server may send thousands at once; the packets of all calls go out in between.
                await asyncio.sleep(0)
                if answer.may_end():
                    answer.too_long = True
                    break
            if answer.too_long and answer.tools:
                raise _Failure(Fault.TOO_LONG, "arguments of a tool")
            answer.check()
            if not answer.has_begun and not self._said:
                raise _Failure(Fault.EMPTY, "an empty answer")
        finally:
            await chunks.close()

    async def _next_chunk(self, chunks: Any) -> Any:
        """None at the end. Raises what the client raises, and _Failure."""
        answer = self._answer
        between = self._about.limits.between_tokens_seconds
        by = self._now() + between if answer.has_begun else answer.first_token_by
        try:
            async with asyncio.timeout_at(by):
                return await anext(chunks, None)
        except TimeoutError as error:
            if answer.finished:  # the server forgets to hang up
                return None
            fault = Fault.STALLED if answer.has_begun else Fault.FIRST_TOKEN_LATE
            raise _Failure(fault, "no token") from error
        except openai.APIConnectionError:
            if answer.finished:
                return None
            raise

    async def _push_llm_text(self, text: str) -> None:
        if not self._said and text.strip():
            self._said = True
            await self._stop_waiting()
        for piece in _PIECE.findall(text):
            await super()._push_llm_text(piece)

    # --- faults ---

    async def _failed(self, error: Exception) -> Decision:
        fault, after_s = fault_of(error)
        place = Place.TOOL if self._faults.rounds else Place.START
        if self._answer.characters:
            place = Place.SPEAKING
        about: OpenAIModel = self._about
        if self._faults.fell_back and self._about.fallback is not None:
            about = self._about.fallback
        decision = self._faults.failed(fault, place, self._now(), after_s)
        call_id = self._call.leg.call_id
        logger.opt(exception=error if fault is Fault.UNEXPECTED else None).warning(
            "{}: x the language model {} at {}, {}: {} ({}): {}",
            *(call_id, about.model, urlsplit(about.base_url).netloc.rpartition("@")[2]),
            *(place, fault, plain(error), decision.action),
        )
        self._call.agent_failed(fault, place, decision.action)
        return decision

    async def _explain(self, decision: Decision) -> None:
        """The caller hears it."""
        match decision:
            case Decision(Action.SAY, Occasion() as occasion):
                text = self._call.sentence(occasion)
                if self._answer.characters:  # what broke off is a sentence of its own
                    text = f" {text}" if self._answer.ends_sentence else f". {text}"
                await self._push_llm_text(text)
            case Decision(Action.TRANSFER | Action.GOODBYE, Occasion() as occasion):
                self._parting = self.create_task(self._part(occasion), "part")

    async def _part(self, occasion: Occasion) -> None:
        """The agent gives up."""
        call = self._call
        await call.say(call.sentence(occasion))
        if occasion is Occasion.TRANSFER:
            try:
                return await call.transfer(self._about.gives_up_to)
            except LegError as error:
                logger.warning("{}: x not transferred: {}", call.leg.call_id, error)
                await call.say(call.sentence(Occasion.GOODBYE))
        await call.hang_up(GAVE_UP)

    # --- tools that take their time ---

    async def _tools_started(self, service: Any, calls: Any) -> None:
        await self._stop_waiting()
        if not (self._said or self._waited):
            self._waiting = self.create_task(self._wait(), "wait")

    async def _wait(self) -> None:
        """Says that it takes a moment, when nothing else is said in time."""
        await asyncio.sleep(self._asked_at + self._about.limits.first_token_seconds - self._now())
        self._waited = True
        if not self._call.away:
            await self.push_frame(TTSSpeakFrame(self._call.sentence(Occasion.WAIT)))

    async def _stop_waiting(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            await self.cancel_task(waiting)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def model_connections() -> DefaultAsyncHttpxClient:
    """The connections to language models of one process, for its owner to close: a call's first
    answer waits for no handshake when there was one before."""
    limits = connection_limits(
        max_connections=MAX_CONNECTIONS,
        max_keepalive_connections=MAX_SPARE_CONNECTIONS,
        keepalive_expiry=SPARE_S,
    )
    return DefaultAsyncHttpxClient(limits=limits)


def openai_agent(
    settings: OpenAIAgentSettings,
    call: Call,
    connections: DefaultAsyncHttpxClient,
    standby: Agent | None = None,
) -> Agent:
    """Pipecat's own OpenAI service, told who calls, with tools for what can be done with a call.
    `connections`: as of `model_connections`; `standby`: an agent that answers in its place when it
    fails."""
    known = for_a_model(call.leg.info)
    instructions = "\n\n".join(text for text in (settings.instructions, _KEYS, known) if text)
    llm = _OpenAI(settings, instructions, call, standby is not None, connections)
    tools = call_tools(call, settings.transfers, settings.limits.tool_seconds)
    agent = Agent("openai", llm, tools)
    if standby is not None:
        agent.standby, agent.on_cut = standby.processor, standby.on_cut
    return agent
