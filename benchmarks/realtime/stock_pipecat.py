"""Stock Pipecat by WebSocket as a child of a benchmark: FastAPIWebsocketTransport with its
ProtobufFrameSerializer and Silero VAD, as its examples have them, with the dummy engines of
`offhook bench edge`.

It does less than ours: no end-of-turn model, no context, no items, no count of what was played; any
sound of voice interrupts. It greets each client with a message and logs nothing. GET /streams says
where its streams are.
"""

import argparse

from fastapi import WebSocket
from loguru import logger
from pipecat.audio.vad.silero import SileroVADAnalyzer
from pipecat.audio.vad.vad_analyzer import VADParams
from pipecat.frames.frames import (
    Frame,
    OutputTransportMessageUrgentFrame,
    VADUserStartedSpeakingFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.audio.vad_processor import VADProcessor
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.serializers.protobuf import ProtobufFrameSerializer
from pipecat.transports.websocket.fastapi import FastAPIWebsocketParams, FastAPIWebsocketTransport
from pipecat.workers.runner import WorkerRunner

from benchmarks.realtime.sessions import SILENCE_MS
from benchmarks.servers.stock_server import Llm, Stt, Tts
from benchmarks.servers.stock_streams import run_pipeline, serve_streams
from offhook.media.pcm import RATE_IN, RATE_OUT
from offhook.web.http.loop_io import run


class Interrupter(FrameProcessor):
    """Interrupts the agent where the caller begins to speak."""

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, VADUserStartedSpeakingFrame):
            await self.broadcast_interruption()
        await self.push_frame(frame, direction)


class Stock:
    """A pipeline for each stream."""

    def __init__(self, words: int) -> None:
        self.runner = WorkerRunner(handle_sigint=False)
        self._words = words

    async def stream(self, websocket: WebSocket) -> None:
        await websocket.accept()
        transport = FastAPIWebsocketTransport(
            websocket,
            FastAPIWebsocketParams(
                audio_in_enabled=True,
                audio_out_enabled=True,
                serializer=ProtobufFrameSerializer(),
            ),
        )
        vad = VADProcessor(
            vad_analyzer=SileroVADAnalyzer(params=VADParams(stop_secs=SILENCE_MS / 1000))
        )
        speech = [vad, Interrupter(), Stt(), Llm(self._words), Tts()]
        worker = PipelineWorker(
            Pipeline([transport.input(), *speech, transport.output()]),
            params=PipelineParams(audio_in_sample_rate=RATE_IN, audio_out_sample_rate=RATE_OUT),
        )

        @transport.event_handler("on_client_connected")
        async def connected(transport: FastAPIWebsocketTransport, client: WebSocket) -> None:
            await worker.queue_frame(OutputTransportMessageUrgentFrame({"type": "hello"}))

        await run_pipeline(self.runner, transport, worker)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--words", type=int, default=0)
    arguments = parser.parse_args()
    logger.remove()
    run(serve_streams(lambda: Stock(arguments.words)))


if __name__ == "__main__":
    main()
