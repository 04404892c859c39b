"""Pipecat's RTVI, the protocol of callers' programs, in two points otherwise than Pipecat has it:
callers are not told what a server upstream wrote, and a long answer costs no more than its length.
"""

from typing import Any

from pipecat.frames.frames import ErrorFrame, LLMTextFrame
from pipecat.processors.frameworks.rtvi import RTVIObserver, RTVIObserverParams, RTVIProcessor
from pipecat.processors.frameworks.rtvi import models as rtvi
from pipecat.utils.string import SENTENCE_ENDING_PUNCTUATION, match_endofsentence

FAULT = "something failed here, and the call goes on; the server's log says what"
"""All that a caller's program is told of a fault of ours."""
TRANSCRIPTION_CHARACTERS = 500
"""A sentence of the agent is told of no later than this."""


class RtviObserver(RTVIObserver):
    """Pipecat's looks for the end of a sentence in all text since the last, at every token."""

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
        # Without a processor it is about what the program itself has sent.
        words = frame.error if frame.processor is None else FAULT
        data = rtvi.ErrorData(error=words, fatal=frame.fatal)
        await self.push_transport_message(rtvi.Error(data=data))


def use_for_all() -> None:
    """In every pipeline of this process, for bots that make their own."""
    for name in ("create_rtvi_observer", "_send_error_frame"):
        setattr(RTVIProcessor, name, getattr(Rtvi, name))
