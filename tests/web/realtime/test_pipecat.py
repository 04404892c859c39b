"""Pipecat's Realtime service as a client of ours, in a pipeline of its own."""

import asyncio
from typing import Any

import numpy as np
from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.frames.frames import (
    ErrorFrame,
    Frame,
    InputAudioRawFrame,
    LLMRunFrame,
    LLMTextFrame,
    TTSAudioRawFrame,
    TTSTextFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.llm_service import FunctionCallParams
from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService
from pipecat.workers.runner import WorkerRunner

from offhook.media.pcm import RATE_OUT, Pcm
from tests.pipeline.conversation.phone import calls, model, says
from tests.web.realtime.test_openai_python import SOON_S, question
from tests.web.realtime.test_webrtc import edge_for

__all__ = ["question"]


class Heard(FrameProcessor):
    """What comes out of the service."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self.errors: list[str] = []
        self.audio = 0

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, TTSAudioRawFrame):
            self.audio += len(frame.audio)
        elif isinstance(frame, TTSTextFrame | LLMTextFrame):
            self.words.append(frame.text)
        elif isinstance(frame, ErrorFrame):
            self.errors.append(frame.error)
        await self.push_frame(frame, direction)


async def test_a_pipeline_greets_calls_a_tool_and_hears(question: Pcm) -> None:
    asked: list[Any] = []

    async def stock(params: FunctionCallParams) -> None:
        asked.append(dict(params.arguments))
        await params.result_callback({"bells": 12})

    tool = FunctionSchema("stock", "How many are there.", {"what": {"type": "string"}}, ["what"])
    answers = (
        [says("Good morning.")],
        [calls("stock", what="bells")],
        [says("There are twelve.")],
    )
    async with model(*answers) as there, edge_for(there) as (_, url):
        service = OpenAIRealtimeLLMService(
            api_key="none",
            base_url=url.replace("http", "ws"),
            settings=OpenAIRealtimeLLMService.Settings(
                model="gpt-realtime", system_instruction="Sell."
            ),
        )
        service.register_function("stock", stock)
        context = LLMContext([{"role": "user", "content": "Hello."}], tools=[tool])
        pair = LLMContextAggregatorPair(context)
        heard = Heard()
        chain = Pipeline([pair.user(), service, heard, pair.assistant()])
        params = PipelineParams(audio_in_sample_rate=RATE_OUT, audio_out_sample_rate=RATE_OUT)
        worker = PipelineWorker(chain, params=params)
        runner = WorkerRunner(handle_sigint=False)
        running = asyncio.create_task(runner.run(auto_end=False))
        await runner.add_workers(worker)
        try:
            async with asyncio.timeout(SOON_S):
                await worker.queue_frame(LLMRunFrame())
                while "morning" not in "".join(heard.words):
                    await asyncio.sleep(0.05)
                before, after = np.zeros(2 * RATE_OUT, np.int16), np.zeros(RATE_OUT, np.int16)
                sound = np.concatenate((before, question, after))  # once the greeting is over
                for at in range(0, len(sound), 960):
                    piece = sound[at : at + 960].tobytes()
                    await worker.queue_frame(InputAudioRawFrame(piece, RATE_OUT, 1))
                    await asyncio.sleep(0.02)
                while "twelve" not in "".join(heard.words):
                    await asyncio.sleep(0.05)
        finally:
            await worker.cancel()
            await runner.end()
            await running
    assert asked == [{"what": "bells"}]
    assert heard.errors == []
    assert heard.audio > RATE_OUT
    assert there.requests[0]["messages"][0]["content"] == "Sell."
