"""Pipecat's RTVI, the protocol of client programs, with two changes: clients do not see upstream
servers' error messages, and long answers cost linear time."""

from typing import Any

from pipecat.frames.frames import ErrorFrame, LLMTextFrame
from pipecat.processors.frameworks.rtvi import RTVIObserver, RTVIObserverParams, RTVIProcessor
from pipecat.processors.frameworks.rtvi import models as rtvi
from pipecat.utils.string import SENTENCE_ENDING_PUNCTUATION, match_endofsentence

FAULT = "something failed here, and the call goes on; the server's log says what"
"""The only error message that a client program gets."""
TRANSCRIPTION_CHARACTERS = 500
"""Maximum characters after which a sentence of the agent is reported."""


class RtviObserver(RTVIObserver):
    """Pipecat's observer searches all text since the last sentence for an end, at every token."""

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


class Rtvi(RTVIProcessor):
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
