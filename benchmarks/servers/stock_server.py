"""Stock Pipecat as a child of a benchmark: SmallWebRTCTransport and Silero VAD, as its examples
have them, with the dummy engines of `scripted`.

    scripted   SmallWebRTCTransport, VADProcessor(Silero), STT, LLM, TTS, SmallWebRTCTransport
    echo       SmallWebRTCTransport on both sides of a processor that sends sound back
    numbers    a whole bot, with the number words of `offhook bench calls`: its own context, turns
               (Silero and half a second of silence) and interruptions, a language model over HTTP;
               speech engines in its process

The first two do less than ours: no end-of-turn model, no context, no interruption. It logs nothing.
"""

import argparse
import asyncio
import json
from collections.abc import AsyncGenerator

import aioice.ice
import numpy as np
from aiohttp import web
from loguru import logger
from pipecat.audio.vad.silero import SileroVADAnalyzer
from pipecat.audio.vad.vad_analyzer import VADParams
from pipecat.frames.frames import (
    Frame,
    InputAudioRawFrame,
    InterimTranscriptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMRunFrame,
    LLMTextFrame,
    OutputAudioRawFrame,
    TranscriptionFrame,
    TTSAudioRawFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import (
    LLMContextAggregatorPair,
    LLMUserAggregatorParams,
)
from pipecat.processors.audio.vad_processor import VADProcessor
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.openai.llm import OpenAILLMService
from pipecat.services.settings import STTSettings, TTSSettings
from pipecat.services.stt_service import STTService
from pipecat.services.tts_service import TTSService
from pipecat.transports.base_transport import TransportParams
from pipecat.transports.smallwebrtc.connection import SmallWebRTCConnection
from pipecat.transports.smallwebrtc.transport import SmallWebRTCTransport
from pipecat.turns.user_stop import SpeechTimeoutUserTurnStopStrategy
from pipecat.turns.user_turn_strategies import UserTurnStrategies
from pipecat.utils.time import time_now_iso8601
from pipecat.workers.runner import WorkerRunner

from benchmarks.processes.process import LoopLag, stats_route, stay
from benchmarks.servers.scripted import PARTIAL_MS, TEXT, reply_text, word_sound
from benchmarks.speech.number_words import NumberSynthesizer, WordCounter
from offhook.media.pcm import PACKET_MS, RATE_IN, RATE_OUT
from offhook.web.http.loop_io import run

SILENCE_S = 0.5
"""Silence in s that ends a turn of number words."""


class Stt(STTService):
    def __init__(self) -> None:
        super().__init__(ttfs_p99_latency=0.35, settings=STTSettings(model="dummy", language=None))
        self._speech = False
        self._frames = 0

    async def run_stt(self, audio: bytes) -> AsyncGenerator[Frame | None, None]:
        self._frames += 1
        if self._speech and self._frames % (PARTIAL_MS // PACKET_MS) == 0:
            yield InterimTranscriptionFrame(TEXT, "caller", time_now_iso8601())
        else:
            yield None

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, VADUserStartedSpeakingFrame):
            self._speech = True
        elif isinstance(frame, VADUserStoppedSpeakingFrame):
            self._speech = False
            final = TranscriptionFrame(TEXT, "caller", time_now_iso8601(), finalized=True)
            await self.push_frame(final)


class Llm(FrameProcessor):
    def __init__(self, words: int) -> None:
        super().__init__()
        self._words = words

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, TranscriptionFrame):
            if self._words:
                await self.push_frame(LLMFullResponseStartFrame())
                for token in reply_text(self._words).split():
                    await self.push_frame(LLMTextFrame(f"{token} "))
                await self.push_frame(LLMFullResponseEndFrame())
        elif not isinstance(frame, InterimTranscriptionFrame):
            await self.push_frame(frame, direction)


class Tts(TTSService):
    def __init__(self) -> None:
        settings = TTSSettings(model="dummy", voice="dummy", language=None)
        super().__init__(
            sample_rate=RATE_OUT, push_start_frame=True, push_stop_frames=True, settings=settings
        )

    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        for _ in text.split():
            yield TTSAudioRawFrame(word_sound().tobytes(), RATE_OUT, 1, context_id=context_id)


class NumberStt(STTService):
    """Hears all the time; what it has heard is final when the caller falls silent."""

    def __init__(self) -> None:
        super().__init__(ttfs_p99_latency=0.35, settings=STTSettings(model="dummy", language=None))
        self._heard = WordCounter(RATE_IN)

    async def run_stt(self, audio: bytes) -> AsyncGenerator[Frame | None, None]:
        self._heard.feed(np.frombuffer(audio, np.int16))
        yield None

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, VADUserStoppedSpeakingFrame) and (text := self._heard.text()):
            self._heard = WordCounter(RATE_IN)
            await self.push_frame(
                TranscriptionFrame(text, "caller", time_now_iso8601(), finalized=True)
            )


class NumberTts(TTSService):
    def __init__(self) -> None:
        settings = TTSSettings(model="dummy", voice="dummy", language=None)
        super().__init__(
            sample_rate=RATE_OUT, push_start_frame=True, push_stop_frames=True, settings=settings
        )
        self._engine = NumberSynthesizer()

    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        stream = self._engine.open()
        stream.write(text)
        stream.end()
        async for speech in stream:
            # aiortc sends mono as stereo, at 3 dB less.
            pcm = (speech.pcm * np.sqrt(2)).clip(-32768, 32767).astype(np.int16)
            yield TTSAudioRawFrame(pcm.tobytes(), RATE_OUT, 1, context_id=context_id)


class Echo(FrameProcessor):
    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, InputAudioRawFrame):
            await self.push_frame(OutputAudioRawFrame(frame.audio, frame.sample_rate, 1))
        else:
            await self.push_frame(frame, direction)


class Stock:
    """The signalling endpoint, with one pipeline per call."""

    def __init__(self, engines: str, words: int, model: str) -> None:
        self._echo = engines == "echo"
        self._numbers = engines == "numbers"
        self._words = words
        self._model = model
        self.runner = WorkerRunner(handle_sigint=False)

    def _pipeline(self, transport: SmallWebRTCTransport) -> Pipeline:
        if self._echo:
            return Pipeline([transport.input(), Echo(), transport.output()])
        if self._numbers:
            instructions = {"role": "system", "content": "You are on a phone call."}
            aggregators = LLMContextAggregatorPair(
                LLMContext([instructions]),  # type: ignore[list-item]
                # Smart Turn, the default, waits for three seconds where it takes a line of number
                # words for unfinished. Ours answers such lines after half a second.
                user_params=LLMUserAggregatorParams(
                    user_turn_strategies=UserTurnStrategies(
                        stop=[SpeechTimeoutUserTurnStopStrategy(user_speech_timeout=SILENCE_S)]
                    ),
                    vad_analyzer=SileroVADAnalyzer(),
                ),
            )
            llm = OpenAILLMService(
                api_key="none",
                base_url=self._model,
                settings=OpenAILLMService.Settings(model="number-words"),
            )
            bot = [NumberStt(), aggregators.user(), llm, NumberTts()]
            return Pipeline([transport.input(), *bot, transport.output(), aggregators.assistant()])
        # Its default of 0.2 s would answer in the middle of a caller's line.
        vad = VADProcessor(vad_analyzer=SileroVADAnalyzer(params=VADParams(stop_secs=0.8)))
        speech = [vad, Stt(), Llm(self._words), Tts()]
        return Pipeline([transport.input(), *speech, transport.output()])

    async def offer(self, request: web.Request) -> web.Response:
        offer = json.loads(await request.read())
        connection = SmallWebRTCConnection()
        await connection.initialize(sdp=offer["sdp"], type=offer["type"])
        transport = SmallWebRTCTransport(
            connection, TransportParams(audio_in_enabled=True, audio_out_enabled=True)
        )
        rate = RATE_IN if self._echo else RATE_OUT
        worker = PipelineWorker(
            self._pipeline(transport), params=PipelineParams(audio_out_sample_rate=rate)
        )

        @transport.event_handler("on_client_connected")
        async def come(transport: SmallWebRTCTransport, connection: SmallWebRTCConnection) -> None:
            if self._numbers:
                await worker.queue_frames([LLMRunFrame()])

        @transport.event_handler("on_client_disconnected")
        async def gone(transport: SmallWebRTCTransport, connection: SmallWebRTCConnection) -> None:
            await worker.cancel()

        await self.runner.add_workers(worker)
        return web.json_response(connection.get_answer())


async def serve(engines: str, words: int, model: str) -> None:
    aioice.ice.get_host_addresses = lambda use_ipv4, use_ipv6: ["127.0.0.1"]
    stock, lag = Stock(engines, words, model), LoopLag()
    app = web.Application()
    app.router.add_post("/api/offer", stock.offer)
    stats_route(app, lag)
    tasks = [
        asyncio.create_task(stock.runner.run(auto_end=False)),
        asyncio.create_task(lag.watch()),
    ]
    try:
        await stay(app)
    finally:
        for task in tasks:
            task.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engines", choices=("scripted", "echo", "numbers"))
    parser.add_argument("--words", type=int, default=0)
    parser.add_argument("--model", default="", help="URL of the language model for numbers")
    arguments = parser.parse_args()
    logger.remove()
    run(serve(arguments.engines, arguments.words, arguments.model))


if __name__ == "__main__":
    main()
