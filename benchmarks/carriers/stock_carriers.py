"""Stock Pipecat behind Twilio's streams as a child of a benchmark: FastAPIWebsocketTransport with
TwilioFrameSerializer on both sides of a processor that sends sound back, as its examples have them.

It does less than ours: no webhook, no signature, no marks, no jitter buffer. It logs nothing.
GET /streams says where its streams are.
"""

import argparse
import json

from fastapi import WebSocket
from loguru import logger
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.serializers.twilio import TwilioFrameSerializer
from pipecat.transports.websocket.fastapi import FastAPIWebsocketParams, FastAPIWebsocketTransport
from pipecat.workers.runner import WorkerRunner

from benchmarks.processes.process import core_argument, keep_to
from benchmarks.servers.stock_server import Echo
from benchmarks.servers.stock_streams import run_pipeline, serve_streams
from offhook.web.http.loop_io import run

RATE = 8_000


class Stock:
    """A pipeline for each stream."""

    def __init__(self) -> None:
        self.runner = WorkerRunner(handle_sigint=False)

    async def stream(self, websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.receive_text()  # connected
        start = json.loads(await websocket.receive_text())["start"]
        without_rest = TwilioFrameSerializer.InputParams(auto_hang_up=False)
        serializer = TwilioFrameSerializer(start["streamSid"], params=without_rest)
        transport = FastAPIWebsocketTransport(
            websocket,
            FastAPIWebsocketParams(
                audio_in_enabled=True, audio_out_enabled=True, serializer=serializer
            ),
        )
        worker = PipelineWorker(
            Pipeline([transport.input(), Echo(), transport.output()]),
            params=PipelineParams(audio_in_sample_rate=RATE, audio_out_sample_rate=RATE),
        )
        await run_pipeline(self.runner, transport, worker)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    core_argument(parser)
    arguments = parser.parse_args()
    keep_to(arguments.cpu)
    logger.remove()
    run(serve_streams(Stock))


if __name__ == "__main__":
    main()
