"""Serves the WebSocket streams of a stock server that is the child of a benchmark."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import uvicorn
from aiohttp import web
from fastapi import FastAPI, WebSocket

from offhook.bench.process import LoopLag, stats_route, stay


async def serve_streams(
    stream: Callable[[WebSocket], Awaitable[None]], running: Coroutine[Any, Any, Any]
) -> None:
    """Serves a stock server's streams by WebSocket beside `running` until this child is told to
    end. GET /streams says where they are."""
    lag, streams = LoopLag(), FastAPI()
    streams.add_api_websocket_route("/stream", stream)
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(streams, log_level="critical", lifespan="off"))
    app = web.Application()
    stats_route(app, lag)

    async def where(request: web.Request) -> web.Response:
        return web.json_response({"stream": f"ws://127.0.0.1:{listening.getsockname()[1]}/stream"})

    app.router.add_get("/streams", where)
    tasks = [
        asyncio.create_task(running),
        asyncio.create_task(lag.watch()),
        asyncio.create_task(server.serve([listening])),
    ]
    try:
        await stay(app)
    finally:
        for task in tasks:
            task.cancel()
