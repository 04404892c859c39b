"""Our hearing and speaking as ordinary Pipecat services, usable in any Pipecat bot.

`OffhookSTT` is an STT service with its own turn detection: it proposes the turns and says so in its
metadata, the way Pipecat expects of such services. `OffhookTTS` streams text into a synthesizer
token by token and puts every word behind its own sound.
"""

import asyncio
from collections.abc import AsyncGenerator
from time import monotonic
from typing import Any

from pipecat.frames.frames import (
    CancelFrame,
    EndFrame,
    Frame,
    InterimTranscriptionFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    ProposedUserStartedSpeakingFrame,
    ProposedUserStoppedSpeakingFrame,
    StartFrame,
    STTMetadataFrame,
    TranscriptionFrame,
    TTSAudioRawFrame,
    TTSStartedFrame,
    TTSStoppedFrame,
)
from pipecat.processors.frame_processor import FrameDirection
from pipecat.services.settings import STTSettings, TTSSettings
from pipecat.services.stt_service import STTService
from pipecat.services.tts_service import TextAggregationMode, TTSService
from pipecat.turns.user_turn_strategies import ExternalUserTurnStrategies
from pipecat.utils.time import time_now_iso8601

from offhook.media.pcm import RATE_OUT
from offhook.pipeline.hearing_io import Hearing
from offhook.pipeline.synthesizer import Synthesizer, SynthesizerStream

FRAME_QUEUE = 256
"""Frames waiting for a pipeline that does not take them; then partial words are left out, and if
it takes nothing still, the oldest frames."""
STARVATION_SECONDS = 60
"""How long a reply may wait for its next words before Pipecat takes it for ended."""


class OffhookSTT(STTService):
    """What `Hearing` decides, as Pipecat frames. The sound itself does not cross Pipecat: the ears
    are at the leg."""

    def __init__(self, hearing: Hearing, **kwargs: Any) -> None:
        settings = STTSettings(model="offhook", language=None)
        super().__init__(ttfs_p99_latency=0.35, settings=settings, **kwargs)
        self._hearing = hearing
        self._frames: asyncio.Queue[Frame | None] = asyncio.Queue(FRAME_QUEUE)
        self._task: asyncio.Task[None] | None = None
        self._turn_open = False
        hearing.on_words = self._words
        hearing.on_commit = self._commit
        hearing.on_interrupt = lambda: self._queue(None)

    def service_metadata_frame(self) -> STTMetadataFrame:
        frame = super().service_metadata_frame()
        frame.user_turn_strategies = ExternalUserTurnStrategies(enable_interruptions=False)
        return frame

    async def start(self, frame: StartFrame) -> None:
        await super().start(frame)
        self._task = self.create_task(self._push_frames())

    async def stop(self, frame: EndFrame) -> None:
        await super().stop(frame)
        await self._end()

    async def cancel(self, frame: CancelFrame) -> None:
        await super().cancel(frame)
        await self._end()

    async def _end(self) -> None:
        if self._task is not None:
            await self.cancel_task(self._task)
            self._task = None

    async def run_stt(self, audio: bytes) -> AsyncGenerator[Frame | None, None]:
        yield None  # the ears hear the leg itself

    def _queue(self, frame: Frame | None) -> None:
        if self._frames.full():
            self._frames.get_nowait()
        self._frames.put_nowait(frame)

    def _open_turn(self) -> None:
        if not self._turn_open:
            self._turn_open = True
            self._queue(ProposedUserStartedSpeakingFrame())

    def _words(self, text: str) -> None:
        self._open_turn()
        if self._frames.qsize() < FRAME_QUEUE // 2:
            self._queue(InterimTranscriptionFrame(text, "caller", time_now_iso8601()))

    def _commit(self, text: str) -> None:
        self._open_turn()
        self._turn_open = False
        final = TranscriptionFrame(text, "caller", time_now_iso8601(), finalized=True)
        self._queue(final)
        self._queue(ProposedUserStoppedSpeakingFrame())

    async def _push_frames(self) -> None:
        while True:
            frame = await self._frames.get()
            if frame is None:
                await self.broadcast_interruption()
            else:
                await self.push_frame(frame)


class OffhookTTS(TTSService):
    """A `Synthesizer` as a Pipecat service; one stream a reply."""

    def __init__(
        self, synthesizer: Synthesizer, hearing: Hearing | None = None, voice: str | None = None
    ) -> None:
        super().__init__(
            text_aggregation_mode=TextAggregationMode.TOKEN,
            push_text_frames=False,
            push_stop_frames=True,
            stop_frame_timeout_s=STARVATION_SECONDS,
            sample_rate=RATE_OUT,
            settings=TTSSettings(model=synthesizer.name, voice=voice, language=None),
        )
        self._synthesizer = synthesizer
        self._hearing = hearing
        self._voice = voice
        self._streams: dict[str, tuple[SynthesizerStream, asyncio.Task[None]]] = {}

    def can_generate_metrics(self) -> bool:
        return True

    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        if context_id not in self._streams:
            await self.create_audio_context(context_id)
            await self.append_to_audio_context(context_id, TTSStartedFrame(context_id=context_id))
            stream = self._synthesizer.open(self._voice)
            self._streams[context_id] = (
                stream,
                self.create_task(self._speak(stream, context_id), f"speak {context_id}"),
            )
        self._streams[context_id][0].write(text)
        yield None

    async def flush_audio(self, context_id: str | None = None) -> None:
        """The reply's text is complete."""
        if context_id in self._streams:
            self._streams[context_id][0].end()

    async def on_audio_context_interrupted(self, context_id: str) -> None:
        if context_id in self._streams:
            stream, task = self._streams.pop(context_id)
            stream.cancel()
            await self.cancel_task(task)

    async def _speak(self, stream: SynthesizerStream, context_id: str) -> None:
        samples = 0
        async for speech in stream:
            if len(speech.pcm):
                self._stamp("tts_first_audio")
                samples += len(speech.pcm)
                frame = TTSAudioRawFrame(speech.pcm.tobytes(), RATE_OUT, 1, context_id=context_id)
                await self.append_to_audio_context(context_id, frame)
            if word := speech.text.strip():
                await self.add_word_timestamps([(word, samples / RATE_OUT)], context_id)
        self._streams.pop(context_id, None)
        await self.append_to_audio_context(context_id, TTSStoppedFrame(context_id=context_id))
        await self.remove_audio_context(context_id)

    async def cleanup(self) -> None:
        for stream, task in tuple(self._streams.values()):
            stream.cancel()
            await self.cancel_task(task)
        self._streams.clear()
        await super().cleanup()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        if isinstance(frame, LLMFullResponseStartFrame) and self._hearing is not None:
            self._hearing.reply.busy = True
        elif isinstance(frame, LLMTextFrame):
            self._stamp("llm_first_token")
        await super().process_frame(frame, direction)

    def _stamp(self, name: str) -> None:
        if self._hearing is not None:
            self._hearing.watch.stamp(name, monotonic())
