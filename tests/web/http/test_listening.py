"""Clients that keep a connection open and do nothing with it."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web

from offhook.web.config.config import Config
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.server_io import application
from offhook.web.http import listening_io
from offhook.web.http.listening_io import BodyTimeoutError, Runner
from tests.support.waiting import HANGS_S

LIMIT = 0.4
HEAD = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    names = "HEAD", "IDLE", "BODY_STALL", "UNREAD", "LOOK"
    for name in names:
        monkeypatch.setattr(listening_io, f"{name}_S", LIMIT / 4 if name == "LOOK" else LIMIT)


async def read(request: web.Request) -> web.Response:
    try:
        data = await request.read()
    except BodyTimeoutError as error:
        return web.Response(status=408, text=str(error))
    return web.Response(text=str(len(data)))


async def slow(request: web.Request) -> web.Response:
    await asyncio.sleep(4 * LIMIT)
    return web.Response(text="done")


async def endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(bytes(1 << 16))


async def talk(request: web.Request) -> web.WebSocketResponse:
    ws = web.WebSocketResponse()
    await ws.prepare(request)
    async for message in ws:
        await ws.send_str(message.data)
    return ws


@asynccontextmanager
async def listening(app: web.Application) -> AsyncIterator[tuple[Runner, int]]:
    runner = Runner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await runner.listen("127.0.0.1", 0)
        yield runner, runner.addresses[0][1]
    finally:
        await runner.cleanup()


@pytest_asyncio.fixture
async def port() -> AsyncIterator[int]:
    app = web.Application()
    app.router.add_post("/", read)
    app.router.add_get("/slow", slow)
    app.router.add_get("/endless", endless)
    app.router.add_get("/ws", talk)
    async with listening(app) as (_, port):
        yield port


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def drip(writer: asyncio.StreamWriter, byte: bytes = b"x") -> None:
    while True:
        writer.write(byte)
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("sent", [b"", b"POST / HT", HEAD])
async def test_a_head_that_does_not_come_to_its_end_is_not_waited_for(port: int, sent: bytes):
    async with connected(port) as (reader, writer), asyncio.timeout(HANGS_S):
        writer.write(sent)
        assert await reader.read() == b""


async def test_a_head_that_drips_is_not_waited_for(port: int):
    async with connected(port) as (reader, writer), asyncio.timeout(HANGS_S):
        writer.write(HEAD + b"X: ")
        dripping = asyncio.create_task(drip(writer))
        with suppress(ConnectionResetError):  # of a byte that came just before
            assert await reader.read() == b""
        dripping.cancel()


@pytest.mark.parametrize("more", [b"", b"POST / HTTP/1.1\r\nHost: "])
async def test_an_idle_connection_is_closed_with_half_a_head_or_without(port: int, more: bytes):
    async with connected(port) as (reader, writer), asyncio.timeout(HANGS_S):
        writer.write(HEAD + b"Content-Length: 2\r\n\r\nhi" + more)
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 200")
        assert answer.endswith(b"2")


@pytest.mark.parametrize("byte", [b"", b"x"])
async def test_a_body_that_stalls_or_drips_is_408(port: int, byte: bytes):
    async with connected(port) as (reader, writer), asyncio.timeout(HANGS_S):
        writer.write(HEAD + b"Content-Length: 100000\r\n\r\nhi")
        dripping = asyncio.create_task(drip(writer, byte))
        answer = await reader.read()
        dripping.cancel()
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"did not come in time" in answer


async def test_an_answer_that_nobody_takes_is_given_up(port: int):
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, ("127.0.0.1", port))
        await loop.sock_sendall(client, b"GET /endless HTTP/1.1\r\nHost: localhost\r\n\r\n")
        before = _serving()
        async with asyncio.timeout(HANGS_S):
            while not (serving := _serving() - before):
                await asyncio.sleep(0.01)
            while not all(task.done() for task in serving):
                await asyncio.sleep(0.01)


def _serving() -> set[asyncio.Task[object]]:
    return {t for t in asyncio.all_tasks() if "_handle_request" in str(t.get_coro())}


async def test_who_waits_for_an_answer_or_talks_is_left_alone(port: int):
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
        async with http.ws_connect("/ws") as ws:
            async with http.get("/slow") as answer:
                assert await answer.text() == "done"
            await ws.send_str("still here")
            assert (await ws.receive()).data == "still here"
        body = bytes(300_000)
        async with http.post("/", data=body) as answer:
            assert await answer.text() == str(len(body))


async def test_the_edge_listens_with_these_limits():
    async with (
        listening(application(Edge(Config()))) as (_, port),
        connected(port) as (reader, writer),
        asyncio.timeout(HANGS_S),
    ):
        writer.write(b"POST /api/offer HTTP/1.1\r\nHost: localhost\r\n")
        assert await reader.read() == b""


def test_nothing_listens_for_http_without_them():
    package = Path(listening_io.__file__).parent.parent.parent
    for path in package.rglob("*.py"):
        if path.name != "listening_io.py":
            found = re.findall(r"web\.(?:AppRunner|TCPSite|UnixSite)\(", path.read_text())
            assert not found, f"{path.name}: {found}"
