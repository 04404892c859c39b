"""What the tests of workers share."""

import asyncio
import os
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from loguru import logger

from benchmarks.processes.node import Node, missing
from offhook.pipeline.speech.recognizer import Recognizer
from offhook.pipeline.speech.synthesizer import Synthesizer
from offhook.web.workers.routes_io import application
from offhook.web.workers.worker_io import Worker
from tests.support.ports import free_port
from tests.support.waiting import HANGS_S, until

ROOT = Path(__file__).parents[3]
needs_node = pytest.mark.skipif(bool(missing()), reason=missing())
Client = TestClient[web.Request, web.Application]
Socket = aiohttp.ClientWebSocketResponse
E = TypeVar("E", bound=Recognizer | Synthesizer)


@contextmanager
def children_started() -> Iterator[list[int]]:
    """The process ids of the children, as they are started."""
    pids: list[int] = []
    sink = logger.add(
        lambda message: pids.append(message.record["extra"]["pid"]),
        filter=lambda record: "pid" in record["extra"],
    )
    yield pids
    logger.remove(sink)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@asynccontextmanager
async def command(
    folder: Path, kind: str, engine: str, listen: str, *more: str
) -> AsyncIterator[tuple[str, Process]]:
    """`offhook worker KIND`, and its address."""
    log = folder / "log"
    line = (sys.executable, "-m", "offhook", "worker", kind)
    options = ("--engine", engine, "--listen", listen)
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *line,
            *options,
            *more,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            cwd=folder,
            stderr=output,
        )
    try:
        await until(lambda: f"{engine} at " in log.read_text() or process.returncode)
        yield log.read_text().partition(f"{engine} at ")[2].split()[0], process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@asynccontextmanager
async def open_stream(client: Client, path: str, **query: str) -> AsyncIterator[Socket]:
    async with client.ws_connect(path, params=query, compress=0) as socket:
        yield socket


async def told(socket: Socket, kind: str) -> dict[str, Any]:
    async with asyncio.timeout(HANGS_S):
        while (message := await socket.receive_json())["type"] != kind:
            assert message["type"] != "error", message
    return dict(message)


def worker_app(worker: Worker[Any]) -> web.Application:
    access = worker.of_worker.access()
    return application(worker, lambda: access)


@asynccontextmanager
async def served(worker: Worker[E]) -> AsyncIterator[tuple[Client, Worker[E]]]:
    async with TestClient(TestServer(worker_app(worker))) as client:
        yield client, worker
    await worker.close()


class LosableServer:
    """A worker on a Unix socket that can be lost and come back."""

    def __init__(self, path: Path) -> None:
        self.url = f"unix:{path}"
        self._path = path
        self._runner: web.AppRunner | None = None

    async def serve(self, worker: Worker[Any], *middlewares: Any) -> None:
        self.worker = worker
        app = worker_app(worker)
        app.middlewares.extend(middlewares)
        self._runner = web.AppRunner(app, shutdown_timeout=0.05)
        await self._runner.setup()
        await web.UnixSite(self._runner, str(self._path)).start()

    async def down(self) -> None:
        """As if it were killed."""
        assert self._runner is not None
        assert self._runner.server is not None
        for connection in self._runner.server.connections:
            if connection.transport is not None:
                connection.transport.abort()
        await self._runner.cleanup()
        await self.worker.close()
        self._runner = None


@asynccontextmanager
async def number_worker(kind: str, on: Node | None = None) -> AsyncIterator[tuple[str, Process]]:
    """A process that hears or speaks numbers, here or `on` another machine, and its address."""
    address = f"{on.address if on is not None else '127.0.0.1'}:{free_port()}"
    module = "benchmarks.speech.number_words"
    within = on.within if on is not None else ()
    line = (*within, sys.executable, "-m", module, kind, "--drain-seconds", "60")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = await asyncio.create_subprocess_exec(
        *line, "--listen", address, env=environment, cwd=ROOT
    )
    try:
        yield f"http://{address}", process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@asynccontextmanager
async def number_workers(
    kind: str, count: int, on: Node | None = None
) -> AsyncIterator[dict[str, Process]]:
    """The first of them `on` another machine."""
    machines = [on, *(None for _ in range(count - 1))]
    async with AsyncExitStack() as stack:
        all_of_them = dict(
            [await stack.enter_async_context(number_worker(kind, each)) for each in machines]
        )
        async with aiohttp.ClientSession() as http, asyncio.timeout(HANGS_S):
            for url in all_of_them:
                while not await is_ready(http, url):
                    await asyncio.sleep(0.1)
        yield all_of_them


async def is_ready(http: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with http.get(f"{url}/readyz") as answer:
            return answer.status == 200
    except aiohttp.ClientError:
        return False


async def streams(http: aiohttp.ClientSession, url: str) -> int:
    """Those in use, as a worker says."""
    async with http.get(f"{url}/readyz") as answer:
        return int((await answer.json())["streams"])
