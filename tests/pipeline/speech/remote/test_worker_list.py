"""Where the workers are: a list, a name with several addresses, a URL that lists them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from offhook.pipeline.speech.remote import worker_list_io
from offhook.pipeline.speech.remote.pool import WorkerAddress
from offhook.pipeline.speech.remote.worker_client_io import WorkerClient
from offhook.pipeline.speech.remote.worker_list_io import WorkerList, is_fixed


@asynccontextmanager
async def directory(
    answer: Callable[[web.Request], Awaitable[web.Response]],
) -> AsyncIterator[tuple[str, aiohttp.ClientSession]]:
    app = web.Application()
    app.router.add_get("/workers/asr", answer)
    async with TestServer(app) as server, aiohttp.ClientSession() as http:
        yield str(server.make_url("/workers/asr")), http


@pytest.mark.parametrize(
    ("url", "fixed"),
    [
        ("http://10.0.0.5:7870", True),
        ("http://[fd00::5]:7870", True),
        ("http://localhost:7870/", True),
        ("unix:/run/asr.sock", True),
        ("http://127.0.0.1:7870/v1", True),
        ("http://asr:7870", False),
        ("http://10.0.0.5:8000/workers", False),
    ],
)
def test_an_address_that_stays_is_never_asked_for(url: str, fixed: bool) -> None:
    assert is_fixed(url) is fixed
    assert (WorkerList([url]).refresh_s is None) is fixed


async def test_a_name_is_its_addresses_and_stays_as_it_was_when_nobody_answers() -> None:
    answers: list[list[str] | OSError] = [["10.0.0.1", "10.0.0.2"], OSError("no DNS"), []]

    async def resolver(host: str, port: int) -> list[str]:
        assert (host, port) == ("asr", 7870)
        if isinstance(answer := answers.pop(0), OSError):
            raise answer
        return answer

    found = WorkerList(["http://asr:7870", "unix:/s"], resolver)
    assert found.addresses == [WorkerAddress("http://asr:7870"), WorkerAddress("unix:/s")]
    two = [WorkerAddress("http://asr:7870", ip) for ip in ("10.0.0.1", "10.0.0.2")]
    async with aiohttp.ClientSession() as http:
        await found.refresh(http)
        assert found.addresses == [*two, WorkerAddress("unix:/s")]
        await found.refresh(http)
        assert found.addresses == [*two, WorkerAddress("unix:/s")]
        await found.refresh(http)  # one machine, whatever its families
        assert found.addresses == [WorkerAddress("http://asr:7870"), WorkerAddress("unix:/s")]


async def test_a_url_lists_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_list_io, "DIRECTORY_S", 0.0)
    good = '{"workers": [{"url": "http://10.0.0.1:7870/", "gpu": 1}, {"url": "http://b:1"}]}'
    bodies = [
        (200, good),
        (500, good),
        (200, "<html>"),
        (200, '{"workers": [{"url": "ftp://b:1"}]}'),
        (200, '{"workers": ' + " " * worker_list_io.MAX_DIRECTORY_BYTES + "[]}"),
        (200, '{"workers": []}'),
    ]

    async def answer(request: web.Request) -> web.Response:
        status, text = bodies.pop(0)
        return web.Response(status=status, text=text)

    async with directory(answer) as (url, http):
        found = WorkerList([url])
        assert found.addresses == []
        for _ in range(5):
            await found.refresh(http)
            assert [a.url for a in found.addresses] == ["http://10.0.0.1:7870", "http://b:1"]
        await found.refresh(http)
        assert found.addresses == []


async def test_a_state_that_is_nested_without_end_is_none() -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text="[" * 8000)

    app = web.Application()
    app.router.add_get("/readyz", answer)
    async with TestServer(app) as server:
        client = WorkerClient("asr", str(server.make_url("")), "")
        assert await client.readiness() == (False, {})
        await client.close()


async def test_a_state_that_arrives_in_pieces_is_read_whole() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for piece in (b'{"ready": tr', b"ue}"):
            await response.write(piece)
            await asyncio.sleep(0.1)
        return response

    app = web.Application()
    app.router.add_get("/readyz", answer)
    async with TestServer(app) as server:
        client = WorkerClient("asr", str(server.make_url("")), "")
        assert await client.readiness() == (True, {"ready": True})
        await client.close()
