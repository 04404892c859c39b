"""Responses on request, for a program that directs the conversation, as over the OpenAI Realtime
API.

In an ordinary call the agent answers every user turn. Here it answers only what it is asked for,
and what it writes and says is reported as it is made. Three processors stand around the agent and
its voice:

    user aggregator → RequestGate → agent → TextMonitor → OffhookTTS → AudioMonitor → output

The request itself follows the same way, before its context: behind the agent it marks where what
is made of an earlier one ends.
"""

import json
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.frames.frames import (
    BotStartedSpeakingFrame,
    BotStoppedSpeakingFrame,
    DataFrame,
    Frame,
    FunctionCallResultProperties,
    FunctionCallsStartedFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    LLMUpdateSettingsFrame,
    MetricsFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
    TTSStartedFrame,
    TTSStoppedFrame,
    TTSTextFrame,
)
from pipecat.metrics.metrics import LLMTokenUsage, LLMUsageMetricsData
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.llm_service import FunctionCallHandler, FunctionCallParams, LLMService
from pipecat.services.settings import LLMSettings
from pipecat.utils.types import assert_given

from offhook.media.pcm import RATE_OUT, Pcm

SAMPLES_PER_MS = RATE_OUT // 1000

Incomplete = Literal["max_output_tokens", "content_filter"]
"""Why a response is incomplete, by OpenAI's names."""


@dataclass
class ResponseRequest(DataFrame):
    """Asks the agent for one response."""

    interruptible: bool = field(default=False, init=False)
    """An interruption before it must not drop it."""
    response_id: str = ""
    context: LLMContext = field(default_factory=LLMContext)
    instructions: str = ""
    """System prompt, in place of the agent's own; empty: the agent's own."""
    max_tokens: int | None = None
    spoken: bool = True
    """Whether it is spoken; otherwise it is text only."""
    words: str = ""
    """Text of the response, which the agent is then not asked for; "": it is asked."""


@dataclass(frozen=True)
class Inference:
    """What a language model answers outside the call's conversation."""

    text: str
    calls: tuple[tuple[str, str, str], ...]
    """Functions that it calls: id, name, and arguments in JSON."""
    usage: LLMTokenUsage | None
    incomplete: Incomplete | None = None
    """Why it is incomplete; None: it is not."""


@dataclass
class IncompleteFrame(DataFrame):
    """What the agent writes just now is incomplete, and why."""

    reason: Incomplete = "max_output_tokens"


class Infer(Protocol):
    """Answers a context once, with these instructions (empty: the agent's own). Raises what the
    model's client raises."""

    def __call__(
        self, context: LLMContext, instructions: str, max_tokens: int | None
    ) -> Awaitable[Inference]: ...


class ResponseListener:
    """Receives what the agent makes of a request. Each method does nothing unless overridden."""

    def on_text(self, response_id: str, delta: str) -> None:
        """The agent wrote more text."""

    def on_audio(self, response_id: str, pcm: Pcm) -> None:
        """More of the response was synthesized: int16 at 24 kHz, ahead of being played."""

    def on_word(self, response_id: str, text: str, end_ms: int) -> None:
        """A word ends at `end_ms` of the response's audio."""

    def on_function_call(self, response_id: str, call_id: str, name: str, arguments: str) -> None:
        """The agent wants a function called; `arguments` is a JSON object."""

    def on_done(
        self, response_id: str, usage: LLMTokenUsage | None, incomplete: Incomplete | None
    ) -> None:
        """The response is generated, though perhaps not yet played; `incomplete`: up to a limit."""

    def on_interrupted(self, response_id: str) -> None:
        """The caller has the floor: nothing more comes of the response, and nothing of it was
        heard but what the call's events tell."""

    def on_playout_started(self) -> None:
        """The first packet of audio was sent to the caller."""

    def on_playout_stopped(self) -> None:
        """All audio was sent, or dropped by an interruption."""


def function_tool(name: str, description: str, parameters: dict[str, Any]) -> FunctionSchema:
    """Returns a tool that the program runs: a call of it is only reported. `parameters` is a JSON
    schema of an object."""

    async def reported(params: FunctionCallParams) -> None:
        properties = FunctionCallResultProperties(run_llm=False)
        await params.result_callback({}, properties=properties)

    return FunctionTool(name, description, parameters, reported)


class FunctionTool(FunctionSchema):
    """A function whose schema may have more than properties: definitions, for one."""

    def __init__(
        self, name: str, description: str, parameters: dict[str, Any], handler: FunctionCallHandler
    ) -> None:
        properties, required = parameters.get("properties", {}), parameters.get("required", [])
        super().__init__(name, description, properties, required, handler)
        self._parameters = {"type": "object", "properties": {}, **parameters}

    def to_default_dict(self) -> dict[str, Any]:
        return {**super().to_default_dict(), "parameters": self._parameters}


class Direction:
    """The request in progress of one call, and the processors that report on it."""

    def __init__(self, listener: ResponseListener) -> None:
        self.listener = listener
        self.wanted: str | None = None
        """Id of the response that was requested and neither completed nor cancelled."""
        self.request: ResponseRequest | None = None
        """The request that the agent is answering."""
        self.usage: LLMTokenUsage | None = None
        self.incomplete: Incomplete | None = None
        self.gate = RequestGate(self)
        self.text = TextMonitor(self)
        self.audio = AudioMonitor(self)

    def cancel(self, response_id: str) -> None:
        """Stops reporting on a response; the caller of this interrupts the agent."""
        if self.wanted == response_id:
            self.wanted = self.request = None

    def interrupted(self) -> None:
        """Reports the response that an interruption has ended, unless it was cancelled before."""
        response_id, self.wanted, self.request = self.wanted, None, None
        if response_id is not None:
            self.listener.on_interrupted(response_id)

    def done(self) -> None:
        request, self.request = self.request, None
        if request is not None and request.response_id == self.wanted:
            self.wanted = None
            self.listener.on_done(request.response_id, self.usage, self.incomplete)


class RequestGate(FrameProcessor):
    """Before the agent: passes requests on, and nothing else that would have it answer."""

    def __init__(self, direction: Direction) -> None:
        super().__init__()
        self._direction = direction
        self._usual = ""
        """The agent's own instructions."""

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, ResponseRequest):
            await self._begin(frame)
        elif not isinstance(frame, LLMContextFrame):
            await self.push_frame(frame, direction)

    async def _begin(self, request: ResponseRequest) -> None:
        if request.response_id != self._direction.wanted:
            return  # cancelled meanwhile
        if request.words:
            await self.push_frame(request)
            await self.push_frame(LLMFullResponseStartFrame())
            await self.push_frame(LLMTextFrame(request.words))
            await self.push_frame(LLMFullResponseEndFrame())
            return
        agent = self._next
        if isinstance(agent, LLMService):
            given = LLMSettings()
            self._usual = self._usual or assert_given(agent._settings.system_instruction) or ""
            given.system_instruction = request.instructions or self._usual
            given.max_tokens = request.max_tokens
            await self.push_frame(LLMUpdateSettingsFrame(delta=given))
        await self.push_frame(request)
        await self.push_frame(LLMContextFrame(request.context))


class TextMonitor(FrameProcessor):
    """Behind the agent: reports text, keeps what is not to be spoken from the voice, and drops the
    rest of a cancelled response."""

    def __init__(self, direction: Direction) -> None:
        super().__init__()
        self._direction = direction

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        current, request = self._direction, self._direction.request
        written = LLMFullResponseStartFrame, LLMTextFrame, LLMFullResponseEndFrame
        if isinstance(frame, ResponseRequest):
            if frame.response_id == current.wanted:
                current.request, current.usage, current.incomplete = frame, None, None
            return
        if isinstance(frame, IncompleteFrame):
            current.incomplete = frame.reason
            return
        if isinstance(frame, TTSSpeakFrame) and request is not None and not request.spoken:
            return
        if isinstance(frame, MetricsFrame):
            for data in frame.data:
                if isinstance(data, LLMUsageMetricsData):
                    current.usage = data.value
        elif isinstance(frame, FunctionCallsStartedFrame):
            if request is not None and direction is FrameDirection.DOWNSTREAM:
                for call in frame.function_calls:
                    current.listener.on_function_call(
                        request.response_id,
                        call.tool_call_id,
                        call.function_name,
                        json.dumps(dict(call.arguments)),
                    )
        elif isinstance(frame, written):
            if request is None:
                return
            if isinstance(frame, LLMTextFrame):
                current.listener.on_text(request.response_id, frame.text)
            if not request.spoken:
                if isinstance(frame, LLMFullResponseEndFrame):
                    current.done()
                return
        await self.push_frame(frame, direction)


class AudioMonitor(FrameProcessor):
    """Behind the voice: reports audio and words as they are synthesized."""

    def __init__(self, direction: Direction) -> None:
        super().__init__()
        self._direction = direction
        self._samples = 0
        """Samples of the response so far."""
        self._speaking = False
        """The voice has begun and not finished."""
        self._written = False
        """The agent has written the whole response."""

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        current, request = self._direction, self._direction.request
        match frame:
            case BotStartedSpeakingFrame() if direction is FrameDirection.UPSTREAM:
                current.listener.on_playout_started()
            case BotStoppedSpeakingFrame() if direction is FrameDirection.UPSTREAM:
                current.listener.on_playout_stopped()
            case LLMFullResponseStartFrame():
                self._samples, self._written, self._speaking = 0, False, False
            case TTSStartedFrame():
                self._speaking = True
            case TTSAudioRawFrame() if request is not None:
                pcm = np.frombuffer(frame.audio, np.int16)
                self._samples += len(pcm)
                current.listener.on_audio(request.response_id, pcm)
            case TTSTextFrame() if request is not None:
                end_ms = self._samples // SAMPLES_PER_MS
                current.listener.on_word(request.response_id, frame.text, end_ms)
        await self.push_frame(frame, direction)
        match frame:
            case LLMFullResponseEndFrame():
                self._written = True
            case TTSStoppedFrame():
                self._speaking = False
            case _:
                return
        if self._written and not self._speaking:
            current.done()
