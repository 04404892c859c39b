"""The agent `openai`: any OpenAI-compatible chat endpoint. It has its own file because the client
library takes 14 MB that no other agent needs.

Pipecat's service queries the model and runs its tools, supervised by `agent_faults`: every answer
is monitored while it streams, and failures are retried, answered by the fallback, or explained to
the caller by a predefined sentence. A server's error messages only go to the log.
"""

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import openai
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from pipecat.frames.frames import Frame, InterruptionFrame, LLMContextFrame
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameDirection
from pipecat.services.openai.llm import OpenAILLMService
from pipecat.utils.http import connection_limits

from offhook.pipeline.conversation.agents.agent_faults import (
    Action,
    Decision,
    Fault,
    Limits,
)
from offhook.pipeline.conversation.agents.supervision_io import Supervision
from offhook.pipeline.conversation.call_info import model_instructions
from offhook.pipeline.conversation.call_io import Agent, Call
from offhook.pipeline.conversation.call_tools_io import ANYWHERE, call_tools
from offhook.pipeline.conversation.directed_io import Inference
from offhook.pipeline.conversation.sentences import Occasion
from offhook.pipeline.speech.openai.answers import plain, retry_after_s

_NO_KEY = "none"
"""Sent if no key is configured: otherwise the library would send OPENAI_API_KEY of the environment
to whatever server that is."""
SENTENCE_ENDS = (".", "!", "?", "…", "。", "！", "？")
MAX_CONNECTIONS, MAX_SPARE_CONNECTIONS = 1000, 100
SPARE_S = 300.0
"""Time in s for which an idle connection is kept; routers drop theirs after 350 s."""
CUT_CHARACTERS = 200
"""Characters by which an answer that is too long may continue to the end of its sentence."""
_PIECE = re.compile(r"(?s).{1,200}(?:(?<=\s)|\Z)|.{1,200}")
"""Splits a token, which some servers make as long as the answer."""


@dataclass(frozen=True)
class OpenAIModel:
    """An OpenAI-compatible chat endpoint."""

    model: str
    base_url: str
    api_key: str = field(repr=False)


@dataclass(frozen=True)
class OpenAIAgentSettings(OpenAIModel):
    instructions: str
    transfers: Sequence[str] = ANYWHERE
    """Targets to which it may transfer: numbers, addresses or patterns; empty: none."""
    limits: Limits = field(default_factory=Limits)
    fallback: OpenAIModel | None = None
    """Queried when the model fails."""
    gives_up_to: str = ""
    """Target to which the caller is transferred when the agent gives up; empty: the call ends."""


class _Failure(Exception):
    """A fault in an answer being monitored."""

    def __init__(self, fault: Fault, words: str) -> None:
        super().__init__(words)
        self.fault = fault


def fault_of(error: Exception) -> tuple[Fault, float]:
    """Returns the fault of a client exception, and the server's Retry-After in s."""
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
    if isinstance(error, ValueError):  # JSON or UTF-8 errors
        return Fault.BAD_ANSWER, 0.0
    return Fault.UNEXPECTED, 0.0


@dataclass
class _Answer:
    """One answer of the model while it streams."""

    first_token_by: float
    limit: int
    """Maximum characters of its text and tool arguments together."""
    characters: int = 0
    tools: dict[int, str] = field(default_factory=dict)
    """Tool arguments so far."""
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
        """Adds a chunk. Raises _Failure if it does not conform to the API."""
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
        """Checks the complete answer. Raises _Failure if it is invalid."""
        for arguments in self.tools.values():
            try:
                if not isinstance(json.loads(arguments or "{}"), dict):
                    raise ValueError("no object")
            except (ValueError, RecursionError) as error:
                words = f"arguments of a tool: {plain(error)}"
                raise _Failure(Fault.BAD_TOOL_CALL, words) from error

    def may_end(self) -> bool:
        """Whether it is long enough and a sentence ends here, or never does."""
        over = self.characters + sum(map(len, self.tools.values())) - self.limit
        return over >= CUT_CHARACTERS or (over >= 0 and self.ends_sentence)


class _OpenAI(OpenAILLMService):
    """Pipecat's service, extended so that the caller always hears something."""

    def __init__(
        self,
        settings: OpenAIAgentSettings,
        instructions: str,
        call: Call,
        standby: bool,
        connections: DefaultAsyncHttpxClient,
    ) -> None:
        self._connections = connections  # needed by create_client
        super().__init__(
            api_key=settings.api_key or _NO_KEY,
            base_url=settings.base_url,
            settings=OpenAILLMService.Settings(
                model=settings.model, system_instruction=instructions
            ),
        )
        self._instructions = instructions
        stands_by = standby or settings.fallback is not None
        self._about = settings
        self._call = call
        self._standby = standby
        self._supervision = Supervision(
            self, call, settings.limits, stands_by, settings.gives_up_to
        )
        self._faults = self._supervision.faults
        self._own_client = self._client
        self._fallback_client: AsyncOpenAI | None = None
        if settings.fallback is not None:
            key, url = settings.fallback.api_key or _NO_KEY, settings.fallback.base_url
            self._fallback_client = self.create_client(api_key=key, base_url=url)
        self._answer = self._new_answer(0.0)

    def create_client(
        self, api_key: Any = None, base_url: Any = None, *_: Any, **others: Any
    ) -> AsyncOpenAI:
        # Retries and timeouts are our own.
        return AsyncOpenAI(
            api_key=api_key,
            base_url=base_url,
            http_client=self._connections,
            max_retries=0,
            timeout=None,
        )

    async def cleanup(self) -> None:
        await self._supervision.close()
        await super().cleanup()

    async def infer(
        self, context: LLMContext, instructions: str, max_tokens: int | None
    ) -> Inference:
        """Answers a context once, outside the conversation: what fails is no fault of the call.
        Raises the client's exceptions."""
        adapter = self.get_llm_adapter()
        given = await adapter.get_llm_invocation_params(
            context,
            system_instruction=instructions or self._instructions,
            convert_developer_to_user=not self.supports_developer_role,
        )
        params = {**self.build_chat_completion_params(given), "stream": False}
        params.pop("stream_options", None)
        if max_tokens is not None:
            params["max_tokens"] = max_tokens
        completion = await self._own_client.chat.completions.create(**params)
        message = completion.choices[0].message
        calls: list[Any] = message.tool_calls or []
        return Inference(
            message.content or "",
            tuple((call.id, call.function.name, call.function.arguments) for call in calls),
            None if completion.usage is None else self._token_usage(completion.usage),
        )

    # --- one turn ---

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        if isinstance(frame, LLMContextFrame) and self._supervision.gave_up:
            return  # the agent has given up
        if isinstance(frame, InterruptionFrame):
            await self._supervision.stop_waiting()
        await super().process_frame(frame, direction)
        if isinstance(frame, LLMContextFrame) and self._standby and self._faults.fell_back:
            await self.push_frame(frame)

    async def _process_context(self, context: LLMContext) -> None:
        await self._supervision.begin(context)
        self._answer = self._new_answer(self._now())
        faults = self._faults
        if faults.over:
            decision = self._failed(_Failure(Fault.TOO_MANY_ROUNDS, f"{faults.rounds}"))
            return await self._explain(decision)
        while not (faults.fell_back and self._standby):
            try:
                await self._request(context)
            except Exception as error:
                decision = self._failed(error)
                if decision.action not in (Action.RETRY, Action.FALL_BACK):
                    return await self._explain(decision)
                await asyncio.sleep(decision.pause_s)
            else:
                if self._answer.too_long:
                    self._failed(_Failure(Fault.TOO_LONG, f"{self._answer.characters}"))
                if self._answer.characters:
                    faults.answered()
                return

    async def _request(self, context: LLMContext) -> None:
        """Makes one request. Raises the client's exceptions, and _Failure."""
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
        """Yields the chunks of an answer while they are timely and valid."""
        answer = self._answer
        try:
            while (chunk := await self._next_chunk(chunks)) is not None:
                answer.add_chunk(chunk)
                yield chunk
                # A server may send thousands at once; let the packets of all calls out in between.
                await asyncio.sleep(0)
                if answer.may_end():
                    answer.too_long = True
                    break
            if answer.too_long and answer.tools:
                raise _Failure(Fault.TOO_LONG, "arguments of a tool")
            answer.check()
            if not answer.has_begun and not self._supervision.has_spoken:
                raise _Failure(Fault.EMPTY, "an empty answer")
        finally:
            await chunks.close()

    async def _next_chunk(self, chunks: Any) -> Any:
        """Returns the next chunk, None at the end. Raises the client's exceptions, and _Failure."""
        answer = self._answer
        between = self._about.limits.between_tokens_seconds
        by = self._now() + between if answer.has_begun else answer.first_token_by
        try:
            async with asyncio.timeout_at(by):
                return await anext(chunks, None)
        except TimeoutError as error:
            if answer.finished:  # the server does not close the stream
                return None
            fault = Fault.STALLED if answer.has_begun else Fault.FIRST_TOKEN_LATE
            raise _Failure(fault, "no token") from error
        except openai.APIConnectionError:
            if answer.finished:
                return None
            raise

    async def _push_llm_text(self, text: str) -> None:
        if text.strip():
            await self._supervision.spoke()
        for piece in _PIECE.findall(text):
            await super()._push_llm_text(piece)

    # --- faults ---

    def _failed(self, error: Exception) -> Decision:
        fault, after_s = fault_of(error)
        about: OpenAIModel = self._about
        if self._faults.fell_back and self._about.fallback is not None:
            about = self._about.fallback
        return self._supervision.failed(
            *(error, fault, after_s),
            speaking=bool(self._answer.characters),
            model=about.model,
            base_url=about.base_url,
        )

    async def _explain(self, decision: Decision) -> None:
        """Tells the caller."""
        match decision:
            case Decision(Action.SAY, Occasion() as occasion):
                text = self._call.sentence(occasion)
                if self._answer.characters:  # the broken-off text is a sentence of its own
                    text = f" {text}" if self._answer.ends_sentence else f". {text}"
                await self._push_llm_text(text)
            case Decision(Action.TRANSFER | Action.GOODBYE, Occasion() as occasion):
                self._supervision.part(occasion)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def model_connections() -> DefaultAsyncHttpxClient:
    """Creates the connection pool to language models of a process; the owner closes it. After the
    first call no answer waits for a handshake."""
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
    """Creates an agent with Pipecat's OpenAI service, informed about the caller, with tools for
    controlling the call. `connections` comes from `model_connections`; `standby` answers when it
    fails."""
    instructions = model_instructions(settings.instructions, call.leg.info)
    llm = _OpenAI(settings, instructions, call, standby is not None, connections)
    tools = call_tools(call, settings.transfers, settings.limits.tool_seconds)
    if standby is None:
        return Agent("openai", llm, tools, infer=llm.infer)
    on_cut, processor = standby.on_cut, standby.processor
    return Agent("openai", llm, tools, on_cut, standby=processor, infer=llm.infer)
