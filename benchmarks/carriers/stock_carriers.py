"""Stock Pipecat behind Twilio's streams as a child of a benchmark: FastAPIWebsocketTransport with
TwilioFrameSerializer on both sides of a processor that sends sound back, as its examples have them.

It does less than ours: no webhook, no signature, no marks, no jitter buffer. It logs nothing.
GET /streams says where its streams are.
"""

import argparse
import asyncio
import json
import os
import socket

import uvicorn
from aiohttp import web
from fastapi import FastAPI, WebSocket
from loguru import logger
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.serializers.twilio import TwilioFrameSerializer
from pipecat.transports.websocket.fastapi import FastAPIWebsocketParams, FastAPIWebsocketTransport
from pipecat.workers.runner import WorkerRunner

from offhook.bench.process import LoopLag, stats_route, stay
from offhook.bench.stock_server import Echo
from offhook.web.process.loop_io import run

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


async def serve() -> None:
    stock, lag, streams = Stock(), LoopLag(), FastAPI()
    streams.add_api_websocket_route("/stream", stock.stream)
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(streams, log_level="critical", lifespan="off"))
    app = web.Application()
    stats_route(app, lag)

    async def where(request: web.Request) -> web.Response:
        return web.json_response({"stream": f"ws://127.0.0.1:{listening.getsockname()[1]}/stream"})

    app.router.add_get("/streams", where)
    tasks = [
        asyncio.create_task(stock.runner.run(auto_end=False)),
        asyncio.create_task(lag.watch()),
        asyncio.create_task(server.serve([listening])),
    ]
    try:
        await stay(app)
    finally:
        for task in tasks:
            task.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpu", type=int, help="to run on, of those there are")
    arguments = parser.parse_args()
    if arguments.cpu is not None:
        os.sched_setaffinity(0, {arguments.cpu})
    logger.remove()
    run(serve())


if __name__ == "__main__":
    main()
