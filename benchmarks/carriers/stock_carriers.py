"""Stock Pipecat behind Twilio's streams as a child of a benchmark: FastAPIWebsocketTransport with
TwilioFrameSerializer on both sides of a processor that sends sound back, as its examples have them.

It does less than ours: no webhook, no signature, no marks, no jitter buffer. It logs nothing.
GET /streams says where its streams are.
"""

import argparse
import asyncio
import json
import os

from fastapi import WebSocket
from loguru import logger
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.serializers.twilio import TwilioFrameSerializer
from pipecat.transports.websocket.fastapi import FastAPIWebsocketParams, FastAPIWebsocketTransport
from pipecat.workers.runner import WorkerRunner

from benchmarks.stock_streams import serve_streams
from offhook.bench.stock_server import Echo
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
        ended = asyncio.Event()

        @transport.event_handler("on_client_disconnected")
        async def gone(transport: FastAPIWebsocketTransport, client: WebSocket) -> None:
            await worker.cancel()
            ended.set()

        await self.runner.add_workers(worker)
        await ended.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpu", type=int, help="to run on, of those there are")
    arguments = parser.parse_args()
    if arguments.cpu is not None:
        os.sched_setaffinity(0, {arguments.cpu})
    logger.remove()
    run(serve_streams(Stock))


if __name__ == "__main__":
    main()
