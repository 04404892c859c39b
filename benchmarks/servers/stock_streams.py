"""Serves the WebSocket streams of a stock server that is the child of a benchmark."""

import asyncio
import socket
from collections.abc import Callable
from typing import Protocol

import uvicorn
from aiohttp import web
from fastapi import FastAPI, WebSocket
from pipecat.pipeline.worker import PipelineWorker
from pipecat.transports.websocket.fastapi import FastAPIWebsocketTransport
from pipecat.workers.runner import WorkerRunner

from benchmarks.processes.process import LoopLag, stats_route, stay


class Stock(Protocol):
    """A server by Pipecat with a pipeline for each stream."""

    runner: WorkerRunner

    async def stream(self, websocket: WebSocket) -> None: ...


async def run_pipeline(
    runner: WorkerRunner, transport: FastAPIWebsocketTransport, worker: PipelineWorker
) -> None:
    """Runs the pipeline of one stream until its client has gone."""
    ended = asyncio.Event()

    @transport.event_handler("on_client_disconnected")
    async def gone(transport: FastAPIWebsocketTransport, client: WebSocket) -> None:
        await worker.cancel()
        ended.set()

    await runner.add_workers(worker)
    await ended.wait()


async def serve_streams(create: Callable[[], Stock]) -> None:
    """Serves the streams of a stock server by WebSocket until this child is told to end. It is
    created in the running loop, which Pipecat wants. GET /streams says where its streams are."""
    stock, lag, streams = create(), LoopLag(), FastAPI()
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
