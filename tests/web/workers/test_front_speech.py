"""Requests for speech are answered by the fronts of a worker as by the worker itself."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from loguru import logger

torch = pytest.importorskip("torch")

from benchmarks.speech.texts import frames_of  # noqa: E402
from offhook.pipeline.engines.shared.synthesis.messages import FRAME_SAMPLES  # noqa: E402
from offhook.web.workers.fronts_io import MAX_REQUEST_BYTES  # noqa: E402
from offhook.web.workers.worker_io import Worker  # noqa: E402
from tests.support.waiting import HANGS_S, until  # noqa: E402
from tests.web.workers.test_fronts import engine_streams, fronted, held, metrics  # noqa: E402
from tests.web.workers.workers import Client  # noqa: E402

PATH = "/v1/audio/speech"
TEXT = "The tree."
FRAMES = frames_of(3)  # two words and a mark
LONG = "The tree stands by the river. " * 3
SPOKEN = f'offhook_speech_requests_total{{endpoint="{PATH}",status="200"}}'


def wanted(text: str = TEXT, **more: Any) -> dict[str, Any]:
    return {"input": text, "response_format": "pcm", "stream": True, **more}


class Http:
    """A connection to the worker as a program writes to it that knows HTTP by heart."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def post(self, body: bytes, *headers: str) -> None:
        framed = headers if headers else (f"Content-Length: {len(body)}",)
        lines = (f"POST {PATH} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json")
        self.writer.write("\r\n".join((*lines, *framed, "", "")).encode() + body)

    def get(self, path: str) -> None:
        self.writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())

    async def head(self) -> tuple[int, dict[str, str]]:
        async with asyncio.timeout(HANGS_S):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        status, *lines = head.strip().split("\r\n")
        pairs = (line.split(": ", 1) for line in lines)
        return int(status.split()[1]), {name.lower(): value for name, value in pairs}

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Returns status, headers and body of the next response."""
        status, headers = await self.head()
        if "content-length" not in headers:
            return status, headers, await self.chunks()
        async with asyncio.timeout(HANGS_S):
            body = await self.reader.readexactly(int(headers["content-length"]))
        return status, headers, body

    async def chunks(self) -> bytes:
        """Returns the rest of a chunked body."""
        body = b""
        async with asyncio.timeout(HANGS_S):
            while size := int(await self.reader.readline(), 16):
                body += (await self.reader.readexactly(size + 2))[:-2]
            await self.reader.readline()
        return body


@asynccontextmanager
async def connected(client: Client) -> AsyncIterator[Http]:
    reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
    try:
        yield Http(reader, writer)
    finally:
        writer.close()


def is_whole(body: bytes) -> bool:
    return len(body) // 2 == pytest.approx(FRAMES * FRAME_SAMPLES, abs=2 * FRAME_SAMPLES)


def packed(text: str = TEXT, **more: Any) -> bytes:
    return json.dumps(wanted(text, **more)).encode()


async def test_a_reply_sounds_and_is_counted_as_the_workers() -> None:
    async with fronted() as (client, one):
        headers = {"X-Request-Id": "mine"}
        async with client.post(PATH, json=wanted(LONG), headers=headers) as response:
            await response.content.readany()
            assert held(one) == [0, 1]
            await client.session.close()
        await until(lambda: not one.is_used)
    async with fronted() as (client, one):
        async with client.post(PATH, json=wanted(), headers=headers) as response:
            body = await response.read()
        assert is_whole(body)
        assert (response.status, response.headers["X-Request-Id"]) == (200, "mine")
        assert (response.headers["X-Cache"], response.content_type) == ("miss", "audio/pcm")
        assert float(response.headers["X-Latency-Total-Ms"]) > 0
        await until(lambda: not one.is_used)
        assert held(one) == [0, 0]
        counted = await metrics(client)
        assert counted[SPOKEN] == 1
        assert counted['offhook_speech_audio_seconds_total{kind="speech"}'] == pytest.approx(
            len(body) / 48000
        )


async def test_in_every_form() -> None:
    begins = {"wav": (b"RIFF",), "mp3": (b"ID3", b"\xff"), "sse": (b"data:",)}
    async with fronted() as (client, _):
        for form, first in begins.items():
            more = {"response_format": form, "stream": False}
            if form == "sse":
                more = {"stream_format": "sse"}
            async with client.post(PATH, json=wanted(**more)) as response:
                body = await response.read()
            assert response.status == 200
            assert body.startswith(first)
            assert form != "sse" or b"speech.audio.done" in body


async def test_a_connection_serves_request_after_request() -> None:
    async with fronted() as (client, _), connected(client) as http:
        for _ in range(3):
            http.post(packed())
            status, _, body = await http.answer()
            assert (status, is_whole(body)) == (200, True)
            http.get("/healthz")
            status, _, body = await http.answer()
            assert (status, json.loads(body)["status"]) == (200, "ok")
        await sent_before_the_first_answer(http)
        await sent_in_chunks_once_asked_for(http)
        await told_what_is_wrong(http)
        await closed_when_wanted(http)


async def sent_before_the_first_answer(http: Http) -> None:
    """They are answered in order."""
    http.post(packed())
    http.get("/healthz")
    http.post(packed("The tree stands by the river."))
    await http.writer.drain()
    assert is_whole((await http.answer())[2])
    assert json.loads((await http.answer())[2])["status"] == "ok"
    assert len((await http.answer())[2]) > FRAMES * FRAME_SAMPLES * 2
    http.get("/healthz")
    http.post(packed())
    assert json.loads((await http.answer())[2])["status"] == "ok"
    assert is_whole((await http.answer())[2])


async def sent_in_chunks_once_asked_for(http: Http) -> None:
    http.post(b"", "Transfer-Encoding: chunked", "Expect: 100-continue")
    assert (await http.head())[0] == 100
    body = packed()
    for part in (body[:9], body[9:], b""):
        http.writer.write(b"%x\r\n%b\r\n" % (len(part), part))
        await asyncio.sleep(0.02)
    status, _, sound = await http.answer()
    assert (status, is_whole(sound)) == (200, True)


async def told_what_is_wrong(http: Http) -> None:
    for body, message in ((b"{", "JSON"), (packed(voice="nobody"), "nobody")):
        http.post(body)
        status, _, said = await http.answer()
        assert status == 400
        assert message in json.loads(said)["error"]["message"]
    http.post(packed())
    assert is_whole((await http.answer())[2])


async def closed_when_wanted(http: Http) -> None:
    body = packed()
    http.post(body, "Connection: close", f"Content-Length: {len(body)}")
    status, headers, sound = await http.answer()
    assert (status, headers["connection"], is_whole(sound)) == (200, "close", True)
    async with asyncio.timeout(HANGS_S):
        assert await http.reader.read() == b""


async def test_a_request_too_long_to_be_handed_over_is_answered_by_the_worker() -> None:
    async with fronted() as (client, one), connected(client) as http:
        http.post(packed(LONG) + b" " * MAX_REQUEST_BYTES)
        assert (await http.head())[0] == 200
        await http.reader.readline()
        assert held(one) == [0, 0]


async def test_a_repeated_reply_comes_from_the_cache_of_the_worker() -> None:
    async with fronted(cache="") as (client, _):

        async def said(**headers: str) -> tuple[str, bytes]:
            async with client.post(PATH, json=wanted(), headers=headers) as response:
                body = await response.read()
                return response.headers["X-Cache"], body

        none = {"Cache-Control": "no-store"}
        assert (await said(**none))[0] == "miss"
        first, sound = await said()
        assert first == "miss"
        assert (await said(**none))[0] == "miss"
        assert await said() == ("hit", sound)
        counted = await metrics(client)
        assert counted["offhook_speech_cache_hits_total"] == 1


async def _closes(http: Http, one: Worker[Any]) -> None:
    http.writer.close()


async def _its_front_dies(http: Http, one: Worker[Any]) -> None:
    assert one.fronts is not None
    front = next(front for front in one.fronts.running if front.connections)
    assert front._child is not None
    os.kill(front._child.pid, signal.SIGKILL)
    async with asyncio.timeout(HANGS_S):
        with pytest.raises(asyncio.IncompleteReadError):
            await http.reader.readexactly(1 << 30)


@pytest.mark.parametrize("end", [_closes, _its_front_dies])
async def test_a_reply_that_breaks_off_leaves_nothing(
    end: Callable[[Http, Worker[Any]], Awaitable[None]],
) -> None:
    async with fronted() as (client, one), connected(client) as http:
        http.post(packed(LONG))
        await http.head()
        assert one.is_used
        assert held(one) == [0, 1]
        await end(http, one)
        await until(lambda: not one.is_used)
        await until(lambda: engine_streams(one) == 0)
        async with client.post(PATH, json=wanted()) as response:
            assert is_whole(await response.read())


async def test_that_a_client_has_gone_is_logged_by_the_worker_alone(
    capfd: pytest.CaptureFixture[str],
) -> None:
    lines: list[str] = []
    logger.remove()  # what another test may have set up writes to standard error, too
    sink = logger.add(lines.append, format="{message}")
    try:
        async with fronted() as (client, one), connected(client) as http:
            http.post(packed(LONG))
            await http.head()
            http.writer.close()
            await until(lambda: not one.is_used)
            async with client.post(PATH, json=wanted()) as response:
                assert is_whole(await response.read())
    finally:
        logger.remove(sink)
    assert [sum(f"{PATH} {s}:" in line for line in lines) for s in (499, 200)] == [1, 1]
    assert PATH not in capfd.readouterr().err  # where fronts log


async def test_who_reads_nothing_holds_up_nobody_and_loses_nothing() -> None:
    async with fronted() as (client, _), connected(client) as http:
        http.post(packed(LONG))
        await http.head()
        transport = http.writer.transport
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()
        async with client.post(PATH, json=wanted()) as response:
            assert is_whole(await response.read())
        transport.resume_reading()
        await http.chunks()


async def test_a_reply_in_progress_is_finished_when_the_worker_drains() -> None:
    async with fronted() as (client, one), connected(client) as http:
        http.post(packed(LONG))
        await http.head()
        one.begin_drain()
        async with client.post(PATH, json=wanted()) as response:
            assert response.status == 503
        await http.chunks()
        await until(lambda: not one.is_used)
