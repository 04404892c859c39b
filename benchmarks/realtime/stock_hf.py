"""Hugging Face's speech-to-speech as a child of a benchmark: its server, its conversation and its
chain of threads for each session, with the dummy engines of `offhook bench edge`.

It is run from a copy of its source (github.com/huggingface/speech-to-speech), which needs torch,
fastapi and openai. Its VAD gets the same Silero model as Pipecat has, instead of a download. A
session occupies one of a fixed number of pipelines, so their number is given.
"""

import argparse
import asyncio
import logging
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import soxr
import torch
import uvicorn
from aiohttp import web
from loguru import logger
from pipecat.audio.vad.silero import SileroVADAnalyzer

from benchmarks.processes.process import LoopLag, stats_route, stay
from benchmarks.servers.scripted import TEXT, reply_text, word_sound
from offhook.media.pcm import RATE_IN, RATE_OUT
from offhook.web.http.loop_io import run

BLOCK = 512
"""Samples of 16 kHz in one piece of its voice."""


class SileroModel:
    """The model as its VAD calls it: 32 ms of samples give the probability of speech."""

    def __init__(self) -> None:
        analyzer = SileroVADAnalyzer(sample_rate=RATE_IN)
        self._model: Any = analyzer._model

    def __call__(self, sound: torch.Tensor, rate: int) -> torch.Tensor:
        probability = self._model(np.asarray(sound, np.float32), rate)
        return torch.from_numpy(np.asarray(probability, np.float32).reshape(-1)[:1])

    def reset_states(self) -> None:
        self._model.reset_states()


def pipelines(number: int, words: int) -> tuple[list[Any], threading.Event]:
    """Its pipelines, each with its threads running."""
    from speech_to_speech.api.openai_realtime.pipeline_unit import PipelineUnit
    from speech_to_speech.api.openai_realtime.service import RealtimeService
    from speech_to_speech.baseHandler import BaseHandler
    from speech_to_speech.LLM.lm_output_processor import LMOutputProcessor
    from speech_to_speech.pipeline.cancel_scope import CancelScope
    from speech_to_speech.pipeline.messages import (
        AUDIO_RESPONSE_DONE,
        EndOfResponse,
        LLMResponseChunk,
        Transcription,
    )
    from speech_to_speech.pipeline.speculative_turns import SpeculativeTurnTracker
    from speech_to_speech.STT.base_stt_handler import BaseSTTHandler
    from speech_to_speech.STT.transcription_notifier import TranscriptionNotifier
    from speech_to_speech.VAD.vad_handler import VADHandler

    voice = soxr.resample(word_sound(), RATE_OUT, RATE_IN).astype(np.int16)
    blocks = np.split(voice[: len(voice) // BLOCK * BLOCK], len(voice) // BLOCK)

    class Stt(BaseSTTHandler):  # type: ignore[misc]
        def process(self, heard: Any) -> Iterator[Any]:
            if heard.mode != "progressive":
                turn = {"turn_id": heard.turn_id, "turn_revision": heard.turn_revision}
                yield Transcription(text=TEXT, **turn)

    class Llm(BaseHandler):  # type: ignore[misc]
        def setup(self, cancel_scope: Any) -> None:
            self.cancel_scope = cancel_scope

        def process(self, request: Any) -> Iterator[Any]:
            about = {
                "turn_id": request.turn_id,
                "turn_revision": request.turn_revision,
                "cancel_generation": self.cancel_scope.generation,
                "response_key": request.response_key,
            }
            sent = {"runtime_config": request.runtime_config, "response": request.response}
            yield LLMResponseChunk(text=reply_text(words), **about, **sent)
            yield EndOfResponse(**about)

    class Tts(BaseHandler):  # type: ignore[misc]
        def setup(self, cancel_scope: Any, turns: Any) -> None:
            self.cancel_scope, self.turns = cancel_scope, turns

        def process(self, text: Any) -> Iterator[Any]:
            if isinstance(text, EndOfResponse):
                yield AUDIO_RESPONSE_DONE
                return
            self.turns.commit(text.turn_id, text.turn_revision)
            generation = self.cancel_scope.generation
            for _ in text.text.split():
                for block in blocks:
                    if self.cancel_scope.is_stale(generation):
                        return
                    yield block

    torch.hub.load = lambda *_, **__: (SileroModel(), None)
    torch.set_num_threads(1)
    stop, pool = threading.Event(), []
    for index in range(number):
        listening, scope, turns = threading.Event(), CancelScope(), SpeculativeTurnTracker()
        queues: list[Queue[Any]] = [Queue() for _ in range(8)]
        sound, prompts, heard, asked, written, to_say, said, events = queues
        service = RealtimeService(
            text_prompt_queue=asked, should_listen=listening, chat_size=10, speculative_turns=turns
        )
        notified = {"text_output_queue": events}
        hears = {**notified, "should_listen": listening}
        cuts = {**notified, "speculative_turns": turns}
        turned = {**cuts, "smart_turn": False}
        stt = Stt(stop, queue_in=prompts, queue_out=heard)
        stt.speculative_turns = turns
        handlers = [
            VADHandler(stop, sound, prompts, setup_args=(listening,), setup_kwargs=turned),
            stt,
            TranscriptionNotifier(stop, heard, asked, setup_kwargs=hears),
            Llm(stop, asked, written, setup_kwargs={"cancel_scope": scope}),
            LMOutputProcessor(stop, written, to_say, setup_kwargs=cuts),
            Tts(stop, to_say, said, setup_kwargs={"cancel_scope": scope, "turns": turns}),
        ]
        for handler in handlers:
            handler.pipeline_index = index
            threading.Thread(target=handler.run, daemon=True).start()
        pool.append(
            PipelineUnit(
                index=index,
                service=service,
                cancel_scope=scope,
                should_listen=listening,
                response_playing=threading.Event(),
                input_queue=sound,
                output_queue=said,
                text_output_queue=events,
                text_prompt_queue=asked,
                handlers=handlers,
            )
        )
    return pool, stop


async def serve(number: int, words: int) -> None:
    from speech_to_speech.api.openai_realtime.websocket_router import create_app

    pool, stop = pipelines(number, words)
    listening = socket.create_server(("127.0.0.1", 0))
    application = create_app(pool=pool, stop_event=stop)
    server = uvicorn.Server(uvicorn.Config(application, log_level="critical"))
    app, lag = web.Application(), LoopLag()
    stats_route(app, lag)

    async def where(request: web.Request) -> web.Response:
        port = listening.getsockname()[1]
        return web.json_response({"stream": f"ws://127.0.0.1:{port}/v1/realtime"})

    app.router.add_get("/streams", where)
    tasks = [asyncio.create_task(lag.watch()), asyncio.create_task(server.serve([listening]))]
    try:
        await stay(app)
    finally:
        stop.set()
        for task in tasks:
            task.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path, help="the folder src of its repository")
    parser.add_argument("--pipelines", type=int, default=1)
    parser.add_argument("--words", type=int, default=0)
    arguments = parser.parse_args()
    sys.path.insert(0, str(arguments.source))
    logger.remove()
    logging.disable()
    run(serve(arguments.pipelines, arguments.words))


if __name__ == "__main__":
    main()
