"""The agent `openai`: any OpenAI-compatible chat endpoint. It has its own file because the client
library takes 14 MB that no other agent needs.

Pipecat's service holds the conversation and runs the tools. Answers are read here, in the dialects
of `completion`, and supervised by `agent_faults`: every answer is monitored while it streams, and
failures are retried, answered by the fallback, or explained to the caller by a predefined sentence.
A server's error messages only go to the log.
"""

import asyncio
import json
import re
import ssl
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Sequence,
)
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
import httpx2
from loguru import logger
from openai import AsyncOpenAI, DefaultAsyncHttpxClient, NotGiven, Omit
from pipecat.frames.frames import (
    Frame,
    FunctionCallFromLLM,
    InterruptionFrame,
    LLMContextFrame,
    LLMFullResponseStartFrame,
)
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameDirection
from pipecat.services.openai.llm import OpenAILLMService
from pipecat.utils.http import connection_limits
from pipecat.utils.tracing.service_decorators import traced_llm
from pipecat.utils.types import assert_given

from offhook.media.untrusted_json import read_json
from offhook.pipeline.conversation.agents.agent_faults import (
    Action,
    AgentFailure,
    Decision,
    Fault,
    Limits,
)
from offhook.pipeline.conversation.agents.completion import (
    MAX_CONTENT_CHARACTERS,
    Completion,
    reported,
)
from offhook.pipeline.conversation.agents.completion_events import CompletionEvents
from offhook.pipeline.conversation.agents.early_answer_io import EarlyAnswer, FirstSentence
from offhook.pipeline.conversation.agents.kinds.guide import NO_GUIDE, Guide
from offhook.pipeline.conversation.agents.model_requests import CallDetails
from offhook.pipeline.conversation.agents.openai_model_io import OpenAIModel, fault_of
from offhook.pipeline.conversation.agents.prompt import in_turn
from offhook.pipeline.conversation.agents.spoken_content import Spoken
from offhook.pipeline.conversation.agents.supervision_io import Supervision
from offhook.pipeline.conversation.agents.tool_calls import ToolCall
from offhook.pipeline.conversation.agents.turn_marks import INSTRUCTIONS, SILENT, WAITS_S
from offhook.pipeline.conversation.call_info import model_instructions
from offhook.pipeline.conversation.call_io import Agent, Call
from offhook.pipeline.conversation.call_tools_io import ANYWHERE, call_tools
from offhook.pipeline.conversation.directed_io import IncompleteFrame, Inference
from offhook.pipeline.conversation.passages import FindPassages, PassagesForTurns
from offhook.pipeline.conversation.sentences import Occasion
from offhook.pipeline.speech.openai.answers import plain

_NO_KEY = "none"
"""Stands for the key if none is configured: otherwise the library would send OPENAI_API_KEY of the
environment to whatever server that is."""
MAX_CONNECTIONS, MAX_SPARE_CONNECTIONS = 1000, 100
SPARE_S = 300.0
"""Time in s for which an idle connection is kept; routers drop theirs after 350 s."""
MAX_THINKING_S = 60.0
"""Maximum time in s that a model may think before its first word; then it counts as stalled."""
DRAIN_S = 0.2
"""Maximum time in s to wait for the end of a response after `[DONE]`; after it the connection is
closed."""
MAX_SILENT_LETTERS = 100
"""Letters of an answer that a voice may pass over before its first sound; with more, the answer
counts as one that it cannot say."""
MAX_REASONING = 4
"""Maximum texts of reasoning that a call remembers, to keep them from the model; older ones are
forgotten."""
_CONNECTION_ERRORS = (httpx2.RequestError, ssl.SSLError, anyio.EndOfStream)
_PIECE = re.compile(r"(?s).{1,200}(?:(?<=\s)|\Z)|.{1,200}")
"""Splits a token, which some servers make as long as the answer."""


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
    think_ahead: bool = False
    """Whether the answer is begun in pauses of the caller that may be the end of the turn."""
    speak_ahead: bool = False
    """Whether the voice prepares the first sentence of an answer that is begun so."""
    passages: FindPassages | None = None
    """Finds what is in a request with the caller's last words."""
    judges_turns: bool = False
    """Whether the model marks its answers with whether the caller has finished."""
    guide: Guide = NO_GUIDE


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
        models = (settings, settings.fallback) if settings.fallback is not None else (settings,)
        self._supervision = Supervision(
            *(self, call, settings.limits, stands_by, settings.gives_up_to),
            secrets=[secret for model in models for secret in model.options.secrets()],
        )
        self._faults = self._supervision.faults
        self._own_client = self._client
        self._fallback_client: AsyncOpenAI | None = None
        if settings.fallback is not None:
            key, url = settings.fallback.api_key or _NO_KEY, settings.fallback.base_url
            self._fallback_client = self.create_client(api_key=key, base_url=url)
        self._answer = Completion(settings.limits.answer_characters)
        self._reasoning: list[str] = []
        """Reasoning of which the caller may have heard a part."""
        self._call_details = CallDetails()
        self._passages: PassagesForTurns | None = None
        if settings.passages is not None:
            report = partial(call.passages_found, by="prompt")
            self._passages = PassagesForTurns(settings.passages, report)
        self._early: EarlyAnswer | None = None
        self._thinking_ahead: asyncio.Task[None] | None = None
        self._making_up: asyncio.Task[None] | None = None
        """The task that has something said in place of an answer that the voice cannot say."""

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
        for task in (self._making_up, self._thinking_ahead):
            if task is not None:
                await self.cancel_task(task)
        if self._early is not None:
            await self._early.close()
        await self._supervision.close()
        await super().cleanup()

    async def infer(
        self, context: LLMContext, instructions: str, max_tokens: int | None
    ) -> Inference:
        """Answers a context once, outside the conversation: what fails is no fault of the call.
        Raises the client's exceptions."""
        params = {
            **await self._params(context, instructions or self._instructions),
            "model": self._about.model,
            "stream": False,
        }
        params.pop("stream_options", None)
        if max_tokens is not None:
            params["max_tokens"] = max_tokens
        create = self._own_client.chat.completions.with_raw_response.create
        response = await self._create(create, self._about, params)
        answer = Completion(MAX_CONTENT_CHARACTERS)
        text = answer.add(read_json(response.content)).text + answer.end().text
        calls = tuple((call.id, call.name, call.arguments or "{}") for call in answer.calls())
        usage = reported(answer.usage)
        if usage is not None:
            self._supervision.used(self._about.model, usage)
        return Inference(text, calls, usage, answer.incomplete)

    # --- before the turn is over ---

    def think_ahead(self, text: str) -> None:
        """Begins the answer to words that may be the caller's turn; without any, drops it."""
        ready = not (self._faults.fell_back or self._supervision.gave_up or self._call.is_directed)
        if self._about.think_ahead and ready:
            if self._thinking_ahead is not None:
                self._thinking_ahead.cancel()
            self._thinking_ahead = self.create_task(self._think_ahead(text), "think ahead")

    async def _think_ahead(self, text: str) -> None:
        await self._drop_early()
        if not text:
            return
        known = self._call.context
        said: Any = {"role": "user", "content": text}
        context = LLMContext([*known.messages, said], known.tools, known.tool_choice)
        params = await self._params(context)
        create = self._own_client.chat.completions.create
        self._early = EarlyAnswer(
            params, lambda params: self._begin(create, self._about, params), self._speak_ahead()
        )

    def _speak_ahead(self) -> Callable[[bytes | None], None]:
        """Returns what has the voice prepare the first sentence of an answer as it is received,
        where that is wanted."""
        sentence = FirstSentence(self._new_answer(0.0))

        def received(data: bytes | None) -> None:
            text = sentence.feed(data) if self._about.speak_ahead else ""
            if text or sentence.is_complete:
                self._call.voice.speak_ahead(text, end=sentence.is_complete)

        return received

    async def _drop_early(self) -> None:
        if self._early is not None:
            early, self._early = self._early, None
            await early.close()
            self._call.answer_dropped(await self._call.voice.drop_ahead())

    async def _claimed(self, params: dict[str, Any]) -> EarlyAnswer | None:
        """Returns the answer that was begun with these parameters; another one is dropped."""
        early = self._early
        if early is not None and self._client is self._own_client and early.claim(params):
            self._early = None
            return early
        await self._drop_early()
        return None

    async def _params(self, context: LLMContext, instructions: str | None = None) -> dict[str, Any]:
        """Returns the parameters of a request; `instructions` replace those of the agent."""
        if instructions is None:
            own = assert_given(self._settings.system_instruction)  # type: ignore[attr-defined]
            instructions = self._call.language.added_to(self._about.guide.instructions(own))
        if self._is_marked:
            instructions = f"{instructions}\n\n{INSTRUCTIONS}"
        given = await self.get_llm_adapter().get_llm_invocation_params(
            context,
            system_instruction=instructions,
            convert_developer_to_user=not self.supports_developer_role,
        )
        return self.build_chat_completion_params(given)

    def build_chat_completion_params(self, params_from_context: Any) -> dict[str, Any]:
        params: dict[str, Any] = super().build_chat_completion_params(params_from_context)
        left_out = (*self._call.excuses(), *self._reasoning)
        params["messages"] = in_turn(params["messages"], left_out, cue=self._call.cue)
        return {n: v for n, v in params.items() if not isinstance(v, NotGiven | Omit)}

    async def _begin(
        self, create: Callable[..., Awaitable[Any]], model: OpenAIModel, params: dict[str, Any]
    ) -> Any:
        """Makes a request of the conversation, with the passages that fit. Raises the client's
        exceptions."""
        if self._passages is not None:
            params = {**params, "messages": await self._passages.added(params["messages"])}
        return await self._create(create, model, params)

    async def _create(
        self, create: Callable[..., Awaitable[Any]], model: OpenAIModel, params: dict[str, Any]
    ) -> Any:
        """Makes a request. Raises the client's exceptions."""
        params = {**params, "messages": self._call_details.added(params["messages"])}
        told = self._supervision.refused
        return await model.create(create, params, told, self._call.leg.shown_to)

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
            decision = self._failed(AgentFailure(Fault.TOO_MANY_ROUNDS, f"{faults.rounds}"))
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
                    self._failed(AgentFailure(Fault.TOO_LONG, f"{len(self._answer.text)}"))
                if self._answer.text:
                    faults.answered()
                return

    async def _request(self, context: LLMContext) -> None:
        """Makes one request. Raises the client's exceptions, and AgentFailure."""
        self._client = self._own_client
        if self._faults.fell_back and self._fallback_client is not None:
            self._client = self._fallback_client
        self._settings.model = self._queried.model  # type: ignore[attr-defined]
        self._answer = self._new_answer(self._faults.first_token_by(self._now()))
        await self._ask(context)

    def _new_answer(self, first_token_by: float, functions: Collection[str] = ()) -> Completion:
        return Completion(
            self._about.limits.answer_characters,
            functions,
            thinks_first=self._queried.traits.thinks_first,
            first_token_by=first_token_by,
            aloud=self._call.is_aloud,
            marked=self._is_marked,
        )

    @property
    def _is_marked(self) -> bool:
        """Whether answers begin with a mark; a program that directs the call knows of none."""
        return self._about.judges_turns and not self._call.is_directed

    @property
    def _queried(self) -> OpenAIModel:
        """The model that is queried."""
        fallback = self._about.fallback
        return fallback if self._faults.fell_back and fallback is not None else self._about

    @property
    def _is_limited(self) -> bool:
        """Whether a program has limited the answer, as over the Realtime API."""
        return isinstance(self._settings.max_tokens, int)  # type: ignore[attr-defined]

    @traced_llm
    async def _ask(self, context: LLMContext) -> None:
        """Queries the model, speaks its answer and runs its tools. A call of functions that do not
        exist is answered to the model at once, one time. Raises the client's exceptions, and
        AgentFailure."""
        self._log_llm_response(context)
        params = await self._params(context)
        functions = _functions_of(params)
        corrected = waited = False
        by = self._faults.first_token_by(self._now())
        while True:
            answer = self._answer = self._new_answer(by, functions)
            await self._stream(params)
            await self._supervision.stop_waiting()
            calls = answer.calls()
            if answer.waits and not waited:
                waited = True
                await self._wait_for_more(answer, params)
                by = self._now() + self._about.limits.first_token_seconds
                continue
            self._call_details.keep(answer, calls)
            known = [call for call in calls if call.name in functions]
            if calls and not known and not corrected:
                corrected = True
                params["messages"] += _refusal(answer.text, calls, functions)
                by = self._now() + self._about.limits.first_token_seconds
                self._supervision.wait_for_answer()
                continue
            if len(known) < len(calls):
                names = plain(", ".join(call.name for call in calls if call not in known))
                logger.warning("{}: no such functions: {}", self._call.leg.call_id, names)
            if calls and not known:
                raise AgentFailure(Fault.EMPTY, f"calls of no function: {calls[0].name}")
            ended = answer.incomplete == "content_filter" or self._is_limited
            if not (answer.has_begun or ended or self._supervision.has_spoken):
                raise AgentFailure(Fault.EMPTY, "an empty answer")
            break
        await self._end_incomplete(answer)
        self._about.guide.answered(bool(calls))
        await self.run_function_calls(
            [
                FunctionCallFromLLM(
                    context=context,
                    tool_call_id=call.id,
                    function_name=call.name,
                    arguments=call.parsed(),
                )
                for call in known
            ]
        )

    async def _wait_for_more(self, answer: Completion, params: dict[str, Any]) -> None:
        """Waits in silence for a caller who has not finished, and ends this turn by going on; then
        the model is told that they do not."""
        assert answer.mark is not None
        await asyncio.sleep(WAITS_S[answer.mark])
        self._supervision.ask_again()
        params["messages"] = in_turn([*params["messages"], {"role": "user", "content": SILENT}])

    async def _stream(self, params: dict[str, Any]) -> None:
        """Makes a request and speaks the answer while it is timely and valid."""
        answer = self._answer
        await self.start_ttfb_metrics()
        early = await self._claimed(params)
        if early is not None:
            chunks, close = early.body(), early.close
        else:
            stream = await self._begun(params)
            chunks, close = stream.response.aiter_bytes(), stream.close
        try:
            async with aclosing(chunks) as body, aclosing(self._events(body)) as events:
                async for event in events:
                    if self._passages is not None:
                        self._passages.used()
                    await self._add(event)
                    # A server may send thousands at once: let the packets of all calls out.
                    await asyncio.sleep(0)
                    if answer.may_end():
                        answer.too_long = True
                        break
                    if self._call.voice.silent_letters > MAX_SILENT_LETTERS:
                        self._call.note_unspoken()
                        raise AgentFailure(Fault.UNSPEAKABLE, "no sound of the answer")
        finally:
            await close()
            if (usage := reported(answer.usage)) is not None:
                self._supervision.used(self._queried.model, usage)
                await self.start_llm_usage_metrics(usage)
        await self._speak(answer.end())
        self._remember(answer)

    async def _begun(self, params: dict[str, Any]) -> Any:
        """Makes a request and returns the client's stream. Raises the client's exceptions, and
        AgentFailure."""
        try:
            async with asyncio.timeout_at(self._answer.first_token_by):
                create = self._client.chat.completions.create
                return await self._begin(create, self._queried, params)
        except TimeoutError as error:
            raise AgentFailure(Fault.FIRST_TOKEN_LATE, "no answer") from error

    async def _events(self, body: AsyncIterator[bytes]) -> AsyncGenerator[Any, None]:
        """Yields the events of an answer. Raises AgentFailure."""
        answer, decoder = self._answer, CompletionEvents()
        by = answer.first_token_by
        data: bytes | None = b""
        thinks_until = self._now() + MAX_THINKING_S
        while data is not None and not decoder.done:
            data = await self._next_bytes(body, by)
            events = decoder.end() if data is None else decoder.feed(data)
            for event in events:
                yield event
            if events and (answer.has_begun or answer.is_thinking):
                between = self._now() + self._about.limits.between_tokens_seconds
                by = between if answer.has_begun else min(max(by, between), thinks_until)
        if decoder.done:  # read on to the end, so that the connection can be used again
            with suppress(TimeoutError, *_CONNECTION_ERRORS):
                async with asyncio.timeout(DRAIN_S):
                    async for _ in body:
                        pass

    async def _next_bytes(self, body: AsyncIterator[bytes], by: float) -> bytes | None:
        """Returns more of a body, None at its end. Raises AgentFailure."""
        answer = self._answer
        try:
            async with asyncio.timeout_at(by):
                return await anext(body, None)
        except TimeoutError as error:
            if answer.finish_reason is not None:  # the server does not close the stream
                return None
            begun = answer.has_begun or answer.is_thinking
            fault = Fault.STALLED if begun else Fault.FIRST_TOKEN_LATE
            raise AgentFailure(fault, "no token") from error
        except _CONNECTION_ERRORS as error:
            if answer.finish_reason is not None:
                return None
            raise AgentFailure(Fault.UNREACHABLE, plain(error)) from error

    async def _add(self, event: Any) -> None:
        """Adds an event of the answer, and speaks what it brings."""
        answer, before = self._answer, self._answer.text
        spoken = answer.add(event)
        if answer.has_begun or answer.is_thinking:
            await self.stop_ttfb_metrics()
        if answer.tools:
            await self.stop_ttfat_metrics()
        if answer.model and answer.model != self.get_full_model_name():
            self.set_full_model_name(answer.model)
        if spoken.anew:
            self._remember(answer)
            if before:
                await self._retract(before)
        await self._speak(spoken)
        if answer.is_thinking:
            self._supervision.wait_for_answer()

    async def _speak(self, spoken: Spoken) -> None:
        if spoken.text:
            await self._push_llm_text(spoken.text)

    async def _retract(self, reasoning: str) -> None:
        """Drops what is not yet played of a reasoning that was taken for the answer. What was heard
        of it stays out of the prompt."""
        self._reasoning = [*self._reasoning[-MAX_REASONING + 1 :], reasoning]
        await self.push_frame(InterruptionFrame())
        await self._call.wait_until_heard()  # until the frame has passed the output
        await self.push_frame(LLMFullResponseStartFrame())

    def _remember(self, answer: Completion) -> None:
        """Notes whether the model's content begins inside the reasoning."""
        self._queried.traits.thinks_first = answer.content.thinks_first

    async def _end_incomplete(self, answer: Completion) -> None:
        """Ends an answer that the server has cut off: the caller hears that it is, unless it was
        asked for so much only."""
        if answer.incomplete is None:
            return
        occasion: Occasion | None = Occasion.CUT_SHORT
        if answer.incomplete == "content_filter":
            occasion = Occasion.FILTERED
        elif answer.ends_sentence or self._is_limited:
            occasion = None
        if occasion is not None:
            await self._push_llm_text(self._after_answer(self._call.sentence(occasion)))
        await self.push_frame(IncompleteFrame(answer.incomplete))

    async def _push_llm_text(self, text: str) -> None:
        if text.strip():
            await self._supervision.spoke()
        for piece in _PIECE.findall(text):
            await super()._push_llm_text(piece)

    # --- faults ---

    def _failed(self, error: Exception, *, begun: bool | None = None) -> Decision:
        """Returns what to do about a fault. `begun`: whether the caller has heard some of the
        answer; None: as much as the voice has spoken, or will."""
        fault, after_s = fault_of(error)
        if begun is None:
            begun = bool(self._answer.text)
            begun &= fault is not Fault.UNSPEAKABLE or self._call.voice.has_begun
        return self._supervision.failed(
            *(error, fault, after_s),
            speaking=begun,
            model=self._queried.model,
            base_url=self._queried.base_url,
        )

    def unspoken(self, begun: bool) -> None:
        """The voice has made no sound of an answer that was complete, or of its end."""
        error = AgentFailure(Fault.UNSPEAKABLE, "no sound of the answer")
        decision = self._failed(error, begun=begun)
        if not self._call.is_directed:  # a program is told, and decides
            self._making_up = self.create_task(self._make_up(decision), "make up")

    async def _make_up(self, decision: Decision) -> None:
        """Has something else said in place of an answer that the voice cannot say."""
        if decision.action is Action.FALL_BACK:
            await self.queue_frame(LLMContextFrame(self._call.context))
        elif decision.occasion in (Occasion.TRANSFER, Occasion.GOODBYE):
            self._supervision.part(decision.occasion)
        elif decision.occasion is not None:
            await self._call.say(self._call.sentence(decision.occasion))

    async def _explain(self, decision: Decision) -> None:
        """Tells the caller."""
        await self._supervision.stop_waiting()
        match decision:
            case Decision(Action.SAY, Occasion() as occasion):
                await self._push_llm_text(self._after_answer(self._call.sentence(occasion)))
            case Decision(Action.TRANSFER | Action.GOODBYE, Occasion() as occasion):
                self._supervision.part(occasion)

    def _after_answer(self, sentence: str) -> str:
        """Returns a sentence to speak after the answer, which may have been broken off."""
        if not self._answer.text:
            return sentence
        return f" {sentence}" if self._answer.ends_sentence else f". {sentence}"

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def _functions_of(params: dict[str, Any]) -> frozenset[str]:
    """Returns the names of the functions that a request allows to call."""
    tools = params.get("tools")
    if not isinstance(tools, list):
        return frozenset()
    return frozenset(tool["function"]["name"] for tool in tools if "function" in tool)


def _refusal(text: str, calls: list[ToolCall], functions: Collection[str]) -> list[dict[str, Any]]:
    """Returns the messages that tell a model that the functions it calls do not exist."""
    error = json.dumps({"error": "there is no such function", "functions": sorted(functions)})
    made = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments or "{}"},
        }
        for call in calls
    ]
    results = [{"role": "tool", "tool_call_id": call.id, "content": error} for call in calls]
    return [{"role": "assistant", "content": text, "tool_calls": made}, *results]


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
    agent = Agent(
        *("openai", llm, tools),
        infer=llm.infer,
        on_unspoken=llm.unspoken,
        think_ahead=llm.think_ahead,
    )
    if standby is not None:
        agent.on_cut, agent.standby = standby.on_cut, standby.processor
    return agent
