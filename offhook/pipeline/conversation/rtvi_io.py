"""Pipecat's RTVI, the protocol of client programs: clients do not see upstream servers' error
messages, no word of a reply follows its interruption, long answers cost linear time, and in our own
pipelines messages go straight to the caller."""

from collections.abc import Callable
from typing import Any, Literal

from pipecat.frames.frames import (
    AggregatedTextFrame,
    AggregatedTextProgressFrame,
    AudioRawFrame,
    BotStartedSpeakingFrame,
    ErrorFrame,
    InterruptionFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
)
from pipecat.observers.base_observer import FrameProcessed, FramePushed
from pipecat.pipeline.worker_observer import WorkerObserver
from pipecat.processors.frame_processor import FrameDirection
from pipecat.processors.frameworks.rtvi import (
    RTVIFunctionCallReportLevel,
    RTVIObserver,
    RTVIObserverParams,
    RTVIProcessor,
)
from pipecat.processors.frameworks.rtvi import models as rtvi
from pipecat.transports.base_output import BaseOutputTransport
from pipecat.utils.string import SENTENCE_ENDING_PUNCTUATION, match_endofsentence
from pydantic import BaseModel

FAULT = "something failed here, and the call goes on; the server's log says what"
"""The only error message that a client program gets."""
TRANSCRIPTION_CHARACTERS = 500
"""Maximum characters of a sentence of the agent; a longer one is reported in several pieces."""


USER_INPUT_VERSION = [2, 2, 0]
"""First version of the protocol with user-input, which says what user-transcription does."""


class RtviObserver(RTVIObserver):
    """Pipecat's observer searches all text since the last sentence for an end, at every token,
    tells each client of the caller's words in the old message and the new one, and reports an
    interruption where it begins, which is before the last words that were played."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._interruption: Literal["none", "begun", "reported"] = "none"
        """Whether an interruption is on its way to the output, and has been reported already."""

    async def on_push_frame(self, data: FramePushed) -> None:
        frame = data.frame
        if isinstance(frame, InterruptionFrame):
            return await self._follow_interruption(data)
        if isinstance(frame, LLMFullResponseStartFrame | BotStartedSpeakingFrame):
            if data.first_push:  # the next reply overtakes it
                await self._report_interruption()
            if isinstance(frame, BotStartedSpeakingFrame):
                self._interruption = "none"
        elif (self._interruption == "begun" and isinstance(frame, LLMTextFrame)) or (
            self._interruption == "reported" and isinstance(frame, AggregatedTextFrame)
        ):
            return
        await super().on_push_frame(data)

    async def _follow_interruption(self, data: FramePushed) -> None:
        copied = data.frame.broadcast_sibling_id is not None
        if data.first_push and not (copied and data.direction is FrameDirection.UPSTREAM):
            self._interruption = "begun"
        if isinstance(data.source, BaseOutputTransport):
            await self._report_interruption()
            self._interruption = "none"

    async def _report_interruption(self) -> None:
        if self._interruption == "begun":
            self._interruption = "reported"
            self._bot_transcription = ""
            await self._handle_bot_interrupted()

    async def _send_user_input(self, *arguments: Any, **options: Any) -> None:
        if self._rtvi is not None and self._rtvi.client_version >= USER_INPUT_VERSION:
            await super()._send_user_input(*arguments, **options)

    async def _handle_llm_text_frame(self, frame: LLMTextFrame) -> None:
        text = rtvi.TextMessageData(text=frame.text)
        if self._params.llm_raw_text_enabled and self._client_supports_raw_text:
            await self.send_rtvi_message(rtvi.LLMRawTextMessage(data=text))
        if not self._params.bot_llm_enabled:
            return
        await self.send_rtvi_message(rtvi.BotLLMTextMessage(data=text))
        self._bot_transcription += frame.text
        said = self._bot_transcription
        ends = not SENTENCE_ENDING_PUNCTUATION.isdisjoint(frame.text) and match_endofsentence(said)
        if ends or len(said) >= TRANSCRIPTION_CHARACTERS:
            self._bot_transcription = ""
            data = rtvi.TextMessageData(text=said)
            await self.send_rtvi_message(rtvi.BotTranscriptionMessage(data=data))


def with_functions() -> RTVIObserverParams:
    """Returns what has a client told the functions that the model calls, with arguments and
    results, of which it otherwise learns only that there are some."""
    everything = RTVIFunctionCallReportLevel.FULL
    return RTVIObserverParams(function_call_report_level={"*": everything})


class PushesSeenOnce(WorkerObserver):
    """Gives an RtviObserver what it reports of. Pipecat's gives it all frames at each processor,
    twice, which costs more than the processors themselves."""

    async def on_process_frame(self, data: FrameProcessed) -> None:
        pass

    async def on_push_frame(self, data: FramePushed) -> None:
        frame = data.frame
        again = isinstance(
            frame, AggregatedTextFrame | AggregatedTextProgressFrame | InterruptionFrame
        )
        if again or not (frame.id in self._frames_pushed or isinstance(frame, AudioRawFrame)):
            await super().on_push_frame(data)


class Rtvi(RTVIProcessor):
    """Tells a client program of a call by `send`. `cut_reply` is called when the caller types over
    the agent, and returns whether that interrupts it; `on_typed` with what the caller has typed."""

    def __init__(
        self,
        send: Callable[[str], object],
        cut_reply: Callable[[], bool],
        on_typed: Callable[[str], object],
    ) -> None:
        super().__init__()
        self._send, self._cut_reply, self._on_typed = send, cut_reply, on_typed

    async def _handle_send_text(
        self, data: rtvi.SendTextData, message_id: str, user_id: str | None = None
    ) -> None:
        self._on_typed(data.content)
        await super()._handle_send_text(data, message_id, user_id)

    async def interrupt_bot(self) -> None:
        if self._cut_reply():
            await super().interrupt_bot()

    async def push_transport_message(self, model: BaseModel, exclude_none: bool = True) -> None:
        """Send a message at once; as a frame it would pass each processor up to the output."""
        self._send(model.model_dump_json(exclude_none=exclude_none))

    def create_rtvi_observer(
        self, *, params: RTVIObserverParams | None = None, **options: Any
    ) -> RTVIObserver:
        return RtviObserver(self, params=params, **options)

    async def _send_error_frame(self, frame: ErrorFrame) -> None:
        # Without a processor it concerns what the program itself sent.
        words = frame.error if frame.processor is None else FAULT
        data = rtvi.ErrorData(error=words, fatal=frame.fatal)
        await self.push_transport_message(rtvi.Error(data=data))


def use_for_all() -> None:
    """Installs it in every pipeline of this process, for bots that create their own."""
    for name in ("create_rtvi_observer", "_send_error_frame"):
        setattr(RTVIProcessor, name, getattr(Rtvi, name))
