"""Forms with files: whole, in any order and any pieces, bounded, and gone afterwards."""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import FormData, web
from hypothesis import example, given, settings
from hypothesis import strategies as st

from offhook.web.speech_api.admission import ByteBudget
from offhook.web.speech_api.errors import ApiError
from offhook.web.speech_api.http import upload_io
from offhook.web.speech_api.http.file_transcription_io import RawPcm
from offhook.web.speech_api.http.upload_io import MAX_FIELDS, receive
from offhook.web.speech_api.server_io import answer_of
from tests.support.waiting import HANGS_S, until

MOST = 1 << 20
SOUND = os.urandom(300_000)


@dataclass
class Taken:
    data: bytes
    mode: int
    suffix: str
    raw: RawPcm | None
    fields: list[tuple[str, str]]


@dataclass
class Taker:
    """A server that takes uploads, and what it took."""

    url: str
    port: int
    client: aiohttp.ClientSession
    folder: Path
    """Where uploads are kept meanwhile."""
    taken: list[Taken] = field(default_factory=list)
    room: ByteBudget = field(default_factory=lambda: ByteBudget(10 * MOST))
    breaks: bool = False
    """The handler fails while it has the file."""

    @property
    def left(self) -> list[Path]:
        return list(self.folder.iterdir())

    async def handle(self, request: web.Request) -> web.Response:
        try:
            async with receive(request, MOST, self.room) as upload:
                path, mode = upload.path, upload.path.parent.stat().st_mode & 0o777
                data = path.read_bytes()
                assert len(data) == upload.size
                fields = list(upload.fields)
                taken = Taken(data, mode, path.suffix, upload.raw, fields)
                self.taken.append(taken)
                if self.breaks:
                    raise web.HTTPInternalServerError
            return web.Response()
        except ApiError as error:
            return answer_of(error)


@asynccontextmanager
async def taking(folder: Path) -> AsyncIterator[Taker]:
    app = web.Application()
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    async with aiohttp.ClientSession() as client:
        taker = Taker("", 0, client, folder)
        app.router.add_post("/", taker.handle)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            taker.port = runner.addresses[0][1]
            taker.url = f"http://127.0.0.1:{taker.port}/"
            yield taker
        finally:
            await runner.cleanup()
            tempfile.tempdir = before


@pytest_asyncio.fixture
async def taker(tmp_path: Path) -> AsyncIterator[Taker]:
    async with taking(tmp_path) as taker:
        yield taker


def form(*parts: tuple[str, str, bytes], end: bool = True) -> bytes:
    """Each part: name, further header, content."""
    body = b""
    for name, more, content in parts:
        head = f'--cut\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'
        body += head.encode() + content + b"\r\n"
    return body + (b"--cut--\r\n" if end else b"")


FILE = '; filename="talk.wav"\r\nContent-Type: audio/wav'
HEADERS = {"Content-Type": "multipart/form-data; boundary=cut"}


async def send(taker: Taker, body: bytes) -> tuple[int, str]:
    async with taker.client.post(taker.url, data=body, headers=HEADERS) as answer:
        return answer.status, await answer.text()


async def test_fields_count_before_the_file_and_after_it(taker: Taker) -> None:
    data = FormData({"model": "whisper-1"})
    data.add_field("file", SOUND, filename="Müller's talk.MP3", content_type="audio/mpeg")
    data.add_field("language", "de")
    data.add_field("timestamp_granularities[]", "word")
    async with taker.client.post(taker.url, data=data) as answer:
        assert answer.status == 200
    (taken,) = taker.taken
    assert taken.data == SOUND
    assert (taken.suffix, taken.raw) == (".mp3", None)
    names = ["model", "language", "timestamp_granularities[]"]
    assert taken.fields == list(zip(names, ["whisper-1", "de", "word"], strict=True))


async def test_the_file_is_private_and_gone_afterwards(taker: Taker) -> None:
    assert (await send(taker, form(("file", FILE, SOUND))))[0] == 200
    assert taker.taken[0].mode == 0o700
    assert taker.left == []
    taker.breaks = True
    assert (await send(taker, form(("file", FILE, SOUND))))[0] == 500
    assert taker.left == []


async def test_a_file_of_which_the_rest_never_comes_is_gone_too(taker: Taker) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", taker.port)
    part = form(("file", FILE, SOUND), end=False)
    writer.write(head(len(part) + 1000) + part)
    await until(lambda: taker.left)
    writer.transport.abort()
    await until(lambda: not taker.left)


def head(length: int | None) -> bytes:
    size = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    of_form = "Content-Type: multipart/form-data; boundary=cut"
    return f"POST / HTTP/1.1\r\nHost: localhost\r\n{of_form}\r\n{size}\r\n\r\n".encode()


@settings(max_examples=25)
@given(cuts=st.lists(st.integers(1, 700), max_size=12), content=st.binary(max_size=400))
@example(cuts=[], content=b"t")
def test_it_does_not_matter_how_the_bytes_are_cut(cuts: list[int], content: bytes) -> None:
    sound = content + b"\r\n--cu-" + content  # nearly the boundary

    async def check() -> None:
        with tempfile.TemporaryDirectory() as folder:
            async with taking(Path(folder)) as taker:
                await post(taker, form(("a", "", b"1"), ("file", FILE, sound), ("b", "", b"2")))

    async def post(taker: Taker, body: bytes) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", taker.port)
        at = 0
        writer.write(head(len(body)))
        for size in [*cuts, len(body)]:
            writer.write(body[at : at + size])
            await writer.drain()
            await asyncio.sleep(0)
            at += size
        assert b" 200 " in await reader.readline()
        writer.close()
        (taken,) = taker.taken
        assert taken.data == sound
        assert taken.fields == [("a", "1"), ("b", "2")]

    asyncio.run(check())


async def test_what_is_too_large_is_refused_before_it_is_sent(taker: Taker) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", taker.port)
    writer.write(head(10 << 30))
    assert b" 413 " in await asyncio.wait_for(reader.readline(), HANGS_S)
    writer.close()


async def test_what_does_not_say_its_size_is_refused_when_it_is_too_large(taker: Taker) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        yield form(("file", FILE, b""), end=False)[:-2]
        while sent < 100 << 20:
            sent += 1 << 16
            yield bytes(1 << 16)

    try:
        async with taker.client.post(taker.url, data=endless(), headers=HEADERS) as answer:
            assert answer.status == 413
            assert "larger than 1 MB" in await answer.text()
    except aiohttp.ClientConnectionError:
        pass  # hung up while we sent on
    assert sent < 20 << 20
    assert taker.taken == taker.left == []


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (form(("model", "", b"x")), 400, "no file"),
        (form(("file", "", b"talk.wav")), 400, "-F file=@NAME"),
        (form(("file", FILE, b"")), 400, "the file is empty"),
        (form(("file[]", FILE, b"\xff" * 70_000)), 400, "send one, in the field file"),
        (form(("audio", FILE, b"\xff\xfe")), 400, "audio is a file: send one, in the field file"),
        (form(("file", FILE, b"1"), ("file", FILE, b"2")), 400, "more than one file"),
        (form(("file", FILE, b"1"), end=False), 400, "not complete multipart/form-data"),
        (b"", 400, "not complete multipart/form-data"),
        (b"no form at all", 400, "not complete multipart/form-data"),
        (b"\r\n" * 100_000, 400, "more than 2048 lines"),
        (b"--cut\r\nno header\r\n\r\nx\r\n--cut--\r\n", 400, "not complete multipart/form-data"),
        (form(("model", "", b"\xff\xfe")), 400, "not valid UTF-8"),
        (form(("prompt", "", b"x" * 70_000)), 400, "a field is longer"),
        (form(*[(f"f{n}", "", b"x") for n in range(MAX_FIELDS + 1)]), 400, "fields"),
        (form(*[(f"f{n}", "", b"x" * 60_000) for n in range(6)]), 400, "together"),
        (
            form(("file", "\r\nContent-Type: multipart/mixed; boundary=in", b"--in\r\n\r\n--in--")),
            400,
            "a form within the form",
        ),
        (
            b"--cut\r\nContent-Disposition: attachment\r\n\r\nx\r\n--cut--\r\n",
            400,
            "has no name",
        ),
        (form(("file", '; filename="a"\r\nContent-Type: audio/pcm', b"12")), 400, "needs its rate"),
        (form(("file", '; filename="a"\r\nContent-Type: audio/pcm;rate=9', b"1")), 400, "8000"),
        (
            form(("file", '; filename="a"\r\nContent-Type: audio/pcm;rate=8000;channels=99', b"1")),
            400,
            "channels",
        ),
    ],
)
async def test_what_is_no_form_with_a_file_is_refused_in_words(
    taker: Taker, body: bytes, status: int, says: str
) -> None:
    answered, text = await send(taker, body)
    assert (answered, says in text) == (status, True), text
    assert taker.taken == taker.left == []


async def test_another_kind_of_body_is_refused_in_words(taker: Taker) -> None:
    async with taker.client.post(taker.url, data=SOUND) as answer:
        assert answer.status == 415
        assert "multipart/form-data" in await answer.text()


async def test_raw_samples_say_their_rate(taker: Taker) -> None:
    of_pcm = '; filename="a.pcm"\r\nContent-Type: audio/pcm; Rate=24000; channels=2'
    assert (await send(taker, form(("file", of_pcm, b"1234"))))[0] == 200
    assert taker.taken[0].raw == RawPcm(24_000, 2)


async def test_a_name_is_no_path(taker: Taker) -> None:
    named = '; filename="../../etc/passwd.$(x).wAv"\r\nContent-Type: audio/wav'
    assert (await send(taker, form(("file", named, b"1"))))[0] == 200
    assert taker.taken[0].suffix == ".wav"
    assert taker.left == []


@pytest.mark.parametrize("drip", [0, 1])
async def test_an_upload_that_stalls_or_drips_is_ended(
    taker: Taker, monkeypatch: pytest.MonkeyPatch, drip: int
) -> None:
    monkeypatch.setattr(upload_io, "STALL_S", 0.3)
    reader, writer = await asyncio.open_connection("127.0.0.1", taker.port)
    writer.write(head(500_000) + form(("file", FILE, b""), end=False))
    answer = asyncio.create_task(reader.read(2000))
    async with asyncio.timeout(HANGS_S):
        while not answer.done():
            writer.write(b"x" * drip)
            await asyncio.sleep(0.02)
    assert b" 408 " in answer.result()
    writer.close()
    await until(lambda: not taker.left)


def test_any_bytes_are_a_form_or_refused(tmp_path: Path) -> None:
    part = st.sampled_from(
        [
            *(b"--cut", b"--cut--", b"\r\n", b"\r\n\r\n", b"\n", b"Content-Disposition: form-data"),
            *(b'; name="file"', b'; filename="a"', b"Content-Type: audio/pcm;rate=8000", b"\x00"),
            *(b"Content-Transfer-Encoding: base64", b"Content-Encoding: gzip", b'name="_charset_"'),
            *(b"Content-Length: 7", b"; name*=utf-8''file", b": ", b"multipart/mixed; boundary=in"),
        ]
    )

    @given(st.lists(part | st.binary(max_size=20), max_size=20))
    def check(parts: list[bytes]) -> None:
        status, text = runner.run(send(taker, b"".join(parts)))
        assert status in (200, 400), text
        assert taker.left == []

    with asyncio.Runner() as runner:
        serving = taking(tmp_path)
        taker = runner.run(serving.__aenter__())
        try:
            check()
        finally:
            runner.run(serving.__aexit__(None, None, None))


async def test_uploads_beyond_the_room_for_all_of_them_come_again(taker: Taker) -> None:
    taker.room = ByteBudget(100_000)
    status, words = await send(taker, form(("file", FILE, bytes(100_001))))
    assert status == 503
    assert "uploads_full" in words
    assert (await send(taker, form(("file", FILE, bytes(100_000)))))[0] == 200
    assert taker.room.taken == 0
    assert taker.left == []
