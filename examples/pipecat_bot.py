"""A Pipecat bot, written as for Pipecat's own runner; offhook runs it as it is.

    offhook serve --bot examples/pipecat_bot.py

Any Pipecat services may stand in the pipeline; of those here only the chat model needs an account:
`OPENAI_API_KEY`, and `OPENAI_BASE_URL` and `OPENAI_MODEL` for another OpenAI-compatible server.
"""

import asyncio
import os
from collections.abc import AsyncGenerator

import numpy as np
from pipecat.audio.vad.silero import SileroVADAnalyzer
from pipecat.frames.frames import Frame, LLMRunFrame, TranscriptionFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import (
    LLMContextAggregatorPair,
    LLMUserAggregatorParams,
)
from pipecat.runner.types import RunnerArguments
from pipecat.runner.utils import create_transport
from pipecat.services.openai.llm import OpenAILLMService
from pipecat.services.settings import STTSettings
from pipecat.services.stt_service import SegmentedSTTService
from pipecat.transports.base_transport import BaseTransport, TransportParams
from pipecat.utils.time import time_now_iso8601
from pipecat.workers.runner import WorkerRunner

from offhook.pipeline.conversation.services_io import OffhookTTS
from offhook.pipeline.engines.embedded.flite_io import FliteSynthesizer
from offhook.pipeline.engines.embedded.pocketsphinx_io import PocketSphinxRecognizer
from offhook.pipeline.speech.recognizer import Final

INSTRUCTIONS = "You are on a phone call. Answer in one or two short spoken sentences."

transport_params = {
    "webrtc": lambda: TransportParams(audio_in_enabled=True, audio_out_enabled=True),
}


class PocketSphinxSTT(SegmentedSTTService):
    """Recognises what the voice detector cuts out: one utterance at a time."""

    wants_wav_segments = False

    def __init__(self, recognizer: PocketSphinxRecognizer) -> None:
        settings = STTSettings(model=recognizer.name, language=None)
        super().__init__(sample_rate=16_000, ttfs_p99_latency=0.5, settings=settings)
        self._recognizer = recognizer

    async def run_stt(self, audio: bytes) -> AsyncGenerator[Frame, None]:
        stream = await self._recognizer.open()
        stream.feed(np.frombuffer(audio, np.int16))
        stream.finish()
        async for event in stream.events():
            if isinstance(event, Final):
                break
        await stream.close()
        if event.text:
            yield TranscriptionFrame(event.text, self._user_id, time_now_iso8601())


engines: asyncio.Task[tuple[PocketSphinxRecognizer, FliteSynthesizer]] | None = None
"""Loaded once, for all calls of the process."""


async def load_engines() -> tuple[PocketSphinxRecognizer, FliteSynthesizer]:
    recognizer, synthesizer = PocketSphinxRecognizer(), FliteSynthesizer()
    await recognizer.start()
    await synthesizer.start()
    return recognizer, synthesizer


async def run_bot(transport: BaseTransport, runner_args: RunnerArguments) -> None:
    global engines
    engines = engines or asyncio.create_task(load_engines())
    recognizer, synthesizer = await engines

    llm = OpenAILLMService(
        api_key=os.environ["OPENAI_API_KEY"],
        base_url=os.getenv("OPENAI_BASE_URL"),
        settings=OpenAILLMService.Settings(
            model=os.getenv("OPENAI_MODEL", "gpt-4o-mini"), system_instruction=INSTRUCTIONS
        ),
    )
    context = LLMContext()
    user, assistant = LLMContextAggregatorPair(
        context, user_params=LLMUserAggregatorParams(vad_analyzer=SileroVADAnalyzer())
    )
    worker = PipelineWorker(
        Pipeline(
            [
                transport.input(),
                PocketSphinxSTT(recognizer),
                user,
                llm,
                OffhookTTS(synthesizer),
                transport.output(),
                assistant,
            ]
        ),
        params=PipelineParams(enable_metrics=True, enable_usage_metrics=True),
        idle_timeout_secs=runner_args.pipeline_idle_timeout_secs,
    )

    @transport.event_handler("on_client_connected")
    async def on_client_connected(transport: BaseTransport, client: object) -> None:
        context.add_message({"role": "developer", "content": "Greet the caller."})
        await worker.queue_frames([LLMRunFrame()])

    @transport.event_handler("on_client_disconnected")
    async def on_client_disconnected(transport: BaseTransport, client: object) -> None:
        await worker.cancel()

    runner = WorkerRunner(handle_sigint=runner_args.handle_sigint)
    await runner.add_workers(worker)
    await runner.run()


async def bot(runner_args: RunnerArguments) -> None:
    """Called once for each call."""
    transport = await create_transport(runner_args, transport_params)
    await run_bot(transport, runner_args)


if __name__ == "__main__":
    from pipecat.runner.run import main

    main()
