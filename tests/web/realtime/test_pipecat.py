"""Pipecat's Realtime service as a client of ours, in a pipeline of its own."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from loguru import logger
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
from pipecat.services.llm_service import FunctionCallHandler, FunctionCallParams
from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService
from pipecat.workers.runner import WorkerRunner

from offhook.media.pcm import RATE_OUT, Pcm
from tests.pipeline.conversation.phone import COUNT, calls, model, says
from tests.support.waiting import HANGS_S
from tests.web.realtime.test_openai_python import question
from tests.web.realtime.test_webrtc import edge_for
from tests.web.realtime.turns import HEARD_S, SAID, TURNS, check_turns, observed

__all__ = ["question"]


class Heard(FrameProcessor):
    """What comes out of the service."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self.errors: list[str] = []
        self.audio = 0
        self._played_at = 0.0

    async def until(self, text: str) -> None:
        while text not in "".join(self.words):
            await asyncio.sleep(0.05)

    @property
    def left_s(self) -> float:
        """How long what has come still plays, if it is played as it comes."""
        return max(0.0, self._played_at - time.monotonic()) + 0.5

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, TTSAudioRawFrame):
            self.audio += len(frame.audio)
            begun = max(self._played_at, time.monotonic())
            self._played_at = begun + len(frame.audio) / 2 / RATE_OUT
        elif isinstance(frame, TTSTextFrame | LLMTextFrame):
            self.words.append(frame.text)
        elif isinstance(frame, ErrorFrame):
            self.errors.append(frame.error)
        await self.push_frame(frame, direction)


@asynccontextmanager
async def pipeline(
    url: str, greeting: str, tool: FunctionSchema, answer: FunctionCallHandler
) -> AsyncIterator[tuple[PipelineWorker, Heard]]:
    """A pipeline whose model is ours, with a tool."""
    service = OpenAIRealtimeLLMService(
        api_key="none",
        base_url=url.replace("http", "ws"),
        settings=OpenAIRealtimeLLMService.Settings(
            model="gpt-realtime", system_instruction="Sell."
        ),
    )
    service.register_function(tool.name, answer)
    pair = LLMContextAggregatorPair(LLMContext([{"role": "user", "content": greeting}], [tool]))
    heard = Heard()
    chain = Pipeline([pair.user(), service, heard, pair.assistant()])
    params = PipelineParams(audio_in_sample_rate=RATE_OUT, audio_out_sample_rate=RATE_OUT)
    worker = PipelineWorker(chain, params=params)
    runner = WorkerRunner(handle_sigint=False)
    running = asyncio.create_task(runner.run(auto_end=False))
    await runner.add_workers(worker)
    try:
        yield worker, heard
    finally:
        await worker.cancel()
        await runner.end()
        await running


async def speak(worker: PipelineWorker, pcm: Pcm) -> None:
    """As a microphone does."""
    for at in range(0, len(pcm), 960):
        piece = pcm[at : at + 960].tobytes()
        await worker.queue_frame(InputAudioRawFrame(piece, RATE_OUT, 1))
        await asyncio.sleep(0.02)


STOCK = FunctionSchema("stock", "How many are there.", {"what": {"type": "string"}}, ["what"])


async def test_a_pipeline_greets_calls_a_tool_and_hears(question: Pcm) -> None:
    asked: list[Any] = []

    async def stock(params: FunctionCallParams) -> None:
        asked.append(dict(params.arguments))
        await params.result_callback({"bells": 12})

    answers = (
        [says("Good morning.")],
        [calls("stock", what="bells")],
        [says("There are twelve.")],
    )
    async with (
        model(*answers) as there,
        edge_for(there) as (_, url),
        pipeline(url, "Hello.", STOCK, stock) as (worker, heard),
        asyncio.timeout(HANGS_S),
    ):
        await worker.queue_frame(LLMRunFrame())
        await heard.until("morning")
        await speak(worker, np.zeros(2 * RATE_OUT, np.int16))  # the greeting is over
        await speak(worker, question)
        await speak(worker, np.zeros(RATE_OUT, np.int16))
        await heard.until("twelve")
    assert asked == [{"what": "bells"}]
    assert heard.errors == []
    assert heard.audio > RATE_OUT
    assert there.requests[0]["messages"][0]["content"] == "Sell."


@pytest.mark.slow
async def test_ten_turns_of_a_pipeline(question: Pcm, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    async def stock(params: FunctionCallParams) -> None:
        asked.append(dict(params.arguments))
        await params.result_callback({"bells": 12})

    faults: list[str] = []
    sink = logger.add(faults.append, level="WARNING", filter="pipecat")
    with monkeypatch.context() as patched:
        sizes, sessions = observed(patched)
        async with (
            model(*TURNS) as there,
            edge_for(there) as (_, url),
            pipeline(url, "Hello.", STOCK, stock) as (worker, heard),
        ):
            await worker.queue_frame(LLMRunFrame())
            await heard.until("Good morning.")
            await asyncio.sleep(heard.left_s)
            for text in SAID:
                async with asyncio.timeout(HANGS_S):
                    await speak(worker, question)
                    await heard.until(text)
                await asyncio.sleep(HEARD_S if text == COUNT else heard.left_s)
                heard.words.clear()
    logger.remove(sink)
    assert asked == [{"what": "bells"}]
    assert (heard.errors, faults) == ([], [])
    check_turns(there, sizes, sessions)
