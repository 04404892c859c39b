"""What a worker says of itself when it opens a stream counts for the next choice."""

from aiohttp import web
from aiohttp.test_utils import TestServer

from offhook.pipeline.speech.remote.asr_connection_io import ready_of
from offhook.pipeline.speech.remote.asr_protocol import PATH, Ready, Request, server_text
from offhook.pipeline.speech.remote.pool_io import Workers


def worker(free: float, streams: list[web.WebSocketResponse]) -> web.Application:
    """One that is as good as empty by its polls, and `free` by its streams."""

    async def ready(request: web.Request) -> web.Response:
        return web.json_response({"ready": True, "free": 0.99, "streams": 0, "max_streams": 1000})

    async def stream(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        streams.append(socket)
        greeting = Ready(engine="e", model="m", rate=16000, id="of this process", free=free)
        await socket.send_str(server_text(greeting))
        await socket.receive()
        return socket

    app = web.Application()
    app.router.add_get("/readyz", ready)
    app.router.add_get(PATH, stream)
    return app


async def test_what_a_worker_says_to_a_stream_counts_before_its_next_poll() -> None:
    crowded: list[web.WebSocketResponse] = []
    empty: list[web.WebSocketResponse] = []
    async with (
        TestServer(worker(0.05, crowded), host="127.0.0.1") as one,
        TestServer(worker(0.9, empty), host="127.0.0.1") as another,
    ):
        workers = Workers("asr", [f"http://127.0.0.1:{s.port}" for s in (one, another)], "")
        try:
            for _ in range(24):
                await workers.connect(PATH, Request().query(), ready_of)
        finally:
            await workers.close()
    assert len(crowded) <= 6  # one more after each poll
    assert len(crowded) + len(empty) == 24
