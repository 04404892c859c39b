"""Bodies, heads and connections of strangers who want to occupy the server."""

import asyncio
import gc
import json
import resource
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web

from offhook.web.edge.edge_io import Edge
from offhook.web.edge.server_io import application
from offhook.web.http import connection_io, listening_io, server_io
from offhook.web.http.connection_io import DRAIN_BYTES, MAX_HEAD_BYTES, allow_body
from offhook.web.http.listening_io import Runner
from offhook.web.http.server_io import HttpServer
from offhook.web.http.shares import peer_name
from tests.attack import http as attack
from tests.support.waiting import HANGS_S

pytestmark = pytest.mark.asyncio(loop_scope="module")

SMALL = 16 << 20
"""Bytes of a bomb that costs a test little if it goes off."""
MOST = 100_000


async def read(request: web.Request) -> web.Response:
    data = await request.read()
    return web.Response(text=str(len(data)))


async def read_much(request: web.Request) -> web.Response:
    allow_body(request, 10 * MOST)
    return await read(request)


async def ignore(request: web.Request) -> web.Response:
    return web.Response(text="not read")


async def form(request: web.Request) -> web.Response:
    reader = await request.multipart()
    while (part := await reader.next()) is not None:
        assert isinstance(part, aiohttp.BodyPartReader)
        await part.read()
    return web.Response(text="read")


async def talk(request: web.Request) -> web.WebSocketResponse:
    ws = web.WebSocketResponse()
    await ws.prepare(request)
    async for message in ws:
        await ws.send_str(message.data)
    return ws


async def fail(request: web.Request) -> web.Response:
    raise RuntimeError("as a bug would")


@asynccontextmanager
async def listening(app: web.Application) -> AsyncIterator[str]:
    runner = Runner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await runner.listen("127.0.0.1", 0)
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest_asyncio.fixture(loop_scope="module")
async def base() -> AsyncIterator[str]:
    app = web.Application(client_max_size=MOST)
    for path, handler in (("/", read), ("/much", read_much), ("/ignore", ignore), ("/form", form)):
        app.router.add_post(path, handler)
    app.router.add_get("/ws", talk)
    app.router.add_get("/fail", fail)
    async with listening(app) as base:
        yield base


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def door(edge: Edge) -> AsyncIterator[str]:
    async with listening(application(edge)) as base:
        yield base


async def answered(base: str, *sent: bytes) -> tuple[str, str]:
    """Returns the head and the body of the response, up to the end of the connection."""
    async with attack.connected(base) as (reader, writer), asyncio.timeout(HANGS_S):
        for data in sent:
            writer.write(data)
        got = await reader.read()
    before, _, after = got.decode().partition("\r\n\r\n")
    return before, after


# --- compressed bodies ---


@pytest.fixture
def nothing_inflated(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails a test in which aiohttp decompresses anything."""
    used: list[object] = []
    real = zlib.decompressobj

    def noted(*arguments: object, **named: object) -> object:
        used.append(arguments)
        return real(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(zlib, "decompressobj", noted)
    yield
    assert not used


@pytest.mark.parametrize("coding", attack.CODINGS)
@pytest.mark.parametrize(
    "path", ["/healthz", "/nothing", "/v1/audio/speech", "/v1/x", "/api/offer"]
)
async def test_a_compressed_body_is_refused_unread(
    door: str, path: str, coding: str, nothing_inflated: None
):
    packed = attack.bomb(SMALL)
    coded = f"Content-Encoding: {coding}"
    for length in (f"Content-Length: {len(packed)}", "Transfer-Encoding: chunked"):
        chunk = b"%x\r\n%s\r\n" % (len(packed), packed) if "chunked" in length else packed
        head, body = await answered(door, attack.head(door, "POST", path, coded, length), chunk)
        assert head.startswith("HTTP/1.1 415 ")
        assert "Accept-Encoding: identity" in head
        assert "Connection: close" in head
        fault = json.loads(body)["error"]
        words = fault["message"] if path.startswith("/v1/") else fault
        assert words.endswith("is not supported: send the body uncompressed")


async def test_what_is_not_compressed_may_say_so(base: str):
    async with aiohttp.ClientSession(base) as http:
        for coding in ("identity", "Identity", ""):
            async with http.post("/", data=b"hi", headers={"Content-Encoding": coding}) as answer:
                assert (answer.status, await answer.text()) == (200, "2")


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_a_compressed_part_of_a_form_is_not_inflated(
    door: str, coding: str, nothing_inflated: None
):
    packed = attack.bomb(SMALL, 31 if coding == "gzip" else 15)
    named = b'Content-Disposition: form-data; name="sdp"; filename="x"\r\n'
    part = b"--b\r\n" + named + b"Content-Encoding: " + coding.encode() + b"\r\n\r\n" + packed
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    async with aiohttp.ClientSession(door) as http:
        url = "/v1/realtime/calls"
        async with http.post(url, data=part + b"\r\n--b--\r\n", headers=headers) as answer:
            assert answer.status == 400
            assert "sdp" in await answer.text()


@pytest.mark.parametrize("path", ["/ws/transcribe", "/ws/speak", "/v1/realtime?model=default"])
async def test_websockets_are_not_compressed(door: str, path: str):
    async with aiohttp.ClientSession(door) as http, http.ws_connect(path, compress=15) as ws:
        assert ws.compress == 0


# --- bodies without an end ---


@pytest.mark.parametrize(("path", "most"), [("/", MOST), ("/much", 10 * MOST)])
async def test_a_body_may_be_as_long_as_its_route_allows(base: str, path: str, most: int):
    async with aiohttp.ClientSession(base) as http:
        async with http.post(path, data=bytes(most)) as answer:
            assert (answer.status, await answer.text()) == (200, str(most))
        async with http.post(path, data=_chunks(most + 1)) as answer:
            assert answer.status == 413


async def _chunks(size: int) -> AsyncIterator[bytes]:
    for at in range(0, size, 10_000):
        yield bytes(min(10_000, size - at))


PREAMBLE = b"x" * 65536
PARTS = b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\n\r\n' * 1000
HEADERS = b"--b\r\nContent-Disposition: form-data; name=x\r\nX: " + b"y" * 65536


@pytest.mark.parametrize("block", [PREAMBLE, b"\r\n" * 4096, PARTS, HEADERS])
async def test_bytes_of_a_form_are_counted_not_its_parts(base: str, block: bytes):
    status, sent = await _endless(base, "/form", b"%x\r\n%s\r\n" % (len(block), block))
    assert status in ("413", "500", "400")
    assert sent < 64 << 20


async def test_chunks_that_are_all_framing_are_counted(base: str):
    status, sent = await _endless(base, "/", b"1;" + b"e" * 4000 + b"\r\nx\r\n")
    assert status == "413"
    assert sent < 64 << 20


async def _endless(base: str, path: str, piece: bytes) -> tuple[str, int]:
    """Sends pieces until the response comes. Returns its status and the bytes sent, most of which
    the system holds."""
    sent = 0
    form = "Content-Type: multipart/form-data; boundary=b"
    async with attack.connected(base) as (reader, writer), asyncio.timeout(HANGS_S):
        writer.write(attack.head(base, "POST", path, form, "Transfer-Encoding: chunked"))
        answer = asyncio.create_task(attack.status_of(reader, HANGS_S))
        while not answer.done():
            writer.write(piece)
            sent += len(piece)
            try:
                async with asyncio.timeout(0.1):
                    await writer.drain()
            except TimeoutError:
                pass
            except ConnectionError:
                break
            await asyncio.sleep(0)
        return await answer, sent


@pytest.mark.parametrize("path", ["/ignore", "/nothing", "/fail"])
async def test_a_long_body_that_nobody_wants_is_not_read(base: str, path: str):
    received = 0
    real = connection_io.Connection.data_received

    def counted(self: connection_io.Connection, data: bytes) -> None:
        nonlocal received
        received += len(data)
        real(self, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection_io.Connection, "data_received", counted)
        patch.setattr(connection_io, "LINGER_S", 0.3)
        async with attack.connected(base) as (reader, writer), asyncio.timeout(HANGS_S):
            writer.write(attack.head(base, "POST", path, f"Content-Length: {1 << 40}"))
            writing = asyncio.create_task(_write_on(writer))
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"Connection: close" in head
            await writing
        assert received < 2 << 20


@pytest.mark.parametrize("sent", [2, 1], ids=["whole", "half"])
async def test_what_nobody_read_is_freed_without_a_collection(base: str, sent: int):
    gc.collect()
    gc.disable()
    try:
        for path in ("/ignore", "/nothing", "/"):
            async with attack.connected(base) as (reader, writer), asyncio.timeout(HANGS_S):
                writer.write(attack.head(base, "POST", path, f"Content-Length: {2 * MOST}"))
                writer.write(bytes(sent * MOST))
                if path != "/":
                    await attack.status_of(reader)
                await asyncio.sleep(0.05)
        kept = 1
        async with asyncio.timeout(HANGS_S):
            while kept:
                await asyncio.sleep(0.01)
                bodies = [body for body in gc.get_objects() if type(body) is aiohttp.StreamReader]
                kept = sum(len(part) for body in bodies for part in body._buffer)
    finally:
        gc.enable()


async def _write_on(writer: asyncio.StreamWriter) -> None:
    """Writes until the connection is gone."""
    while True:
        writer.write(attack.CHUNK)
        try:
            await writer.drain()
        except ConnectionError:
            return
        await asyncio.sleep(0)


async def test_the_short_rest_of_a_body_is_read_and_the_connection_goes_on(base: str):
    async with attack.connected(base) as (reader, writer), asyncio.timeout(HANGS_S):
        for _ in range(2):
            writer.write(attack.head(base, "POST", "/ignore", f"Content-Length: {DRAIN_BYTES}"))
            assert await attack.status_of(reader) == "200"
            await reader.readuntil(b"not read")
            writer.write(bytes(DRAIN_BYTES))
        writer.write(attack.head(base, "POST", "/", "Content-Length: 2") + b"hi")
        assert await attack.status_of(reader) == "200"


# --- heads ---


async def test_a_head_has_a_most_size(base: str):
    async with attack.connected(base) as (reader, writer), asyncio.timeout(HANGS_S):
        writer.write(attack.head(base, "POST", "/")[:-2])
        for n in range(30):
            writer.write(b"X-%d: %s\r\n" % (n, b"y" * 8000))
            await asyncio.sleep(0)
        assert await attack.status_of(reader) in ("431", "ConnectionResetError")


async def test_a_body_in_another_transfer_coding_is_refused_unread(base: str):
    async with attack.connected(base) as (reader, writer), asyncio.timeout(HANGS_S):
        writer.write(attack.head(base, "POST", "/", "Transfer-Encoding: gzip, chunked"))
        assert await attack.status_of(reader) in ("501", "400")


async def test_a_head_that_comes_at_once_has_it_too(base: str):
    fields = [f"X-{n}: {'y' * 8000}" for n in range(MAX_HEAD_BYTES // 8000 + 1)]
    async with attack.connected(base) as (reader, writer), asyncio.timeout(HANGS_S):
        writer.write(attack.head(base, "GET", "/nothing", *fields))
        assert await attack.status_of(reader) in ("431", "ConnectionResetError")


async def test_a_long_head_within_the_limit_is_served(base: str):
    fields = [f"X-{n}: {'y' * 8000}" for n in range(MAX_HEAD_BYTES // 8100)]
    async with attack.connected(base) as (reader, writer):
        writer.write(attack.head(base, "POST", "/", *fields, "Content-Length: 2") + b"hi")
        assert await attack.status_of(reader) == "200"


@pytest.mark.parametrize(
    "sent", [b"\x16\x03\x01\x02\x00\x01\x00", b"hello\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"]
)
async def test_what_is_not_http_is_400_without_a_traceback(
    base: str, sent: bytes, caplog: pytest.LogCaptureFixture
):
    head, _ = await answered(base, sent)
    assert head.startswith("HTTP/1.")
    assert " 400 " in head.splitlines()[0]
    assert not [r for r in caplog.records if r.levelname in ("WARNING", "ERROR")]


@pytest.mark.parametrize("path", ["/", "/nothing", "/fail", "/ws", "bad"])
async def test_no_response_says_which_server_sent_it(base: str, path: str):
    head, body = await answered(base, attack.head(base, "GET", path, "Connection: close"))
    assert head.startswith("HTTP/1.")
    assert "aiohttp" not in head + body
    assert "Python" not in head + body
    assert "Server:" not in head


# --- connections ---


@pytest.fixture
def few_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with `ulimit -n 256`."""
    monkeypatch.setattr(server_io, "max_connections", lambda: 128)


async def test_idle_connections_of_a_peer_make_room(few_descriptors: None):
    app = web.Application()
    app.router.add_get("/ws", talk)
    app.router.add_post("/", read)
    async with (
        listening(app) as base,
        aiohttp.ClientSession(base) as http,
        http.ws_connect("/ws") as ws,
    ):
        opened = asyncio.create_task(attack.idle_connections(base, 0.5, 400))
        await asyncio.sleep(0.2)
        async with http.post("/", data=b"hi") as answer:
            assert await answer.text() == "2"
        await opened
        await ws.send_str("still here")
        assert (await ws.receive()).data == "still here"


async def test_connections_in_use_are_at_most_a_share(few_descriptors: None):
    app = web.Application()
    app.router.add_get("/ws", talk)
    async with listening(app) as base, aiohttp.ClientSession(base) as http:
        open_sockets = [await http.ws_connect("/ws") for _ in range(64)]
        with pytest.raises(aiohttp.ClientError):
            await http.ws_connect("/ws")
        for ws in open_sockets:
            await ws.send_str("still here")
            assert (await ws.receive()).data == "still here"
            await ws.close()
        await (await http.ws_connect("/ws")).close()


async def test_a_server_counts_no_connection_that_is_gone(few_descriptors: None):
    app = web.Application()
    app.router.add_post("/", read)
    runner = Runner(app, shutdown_timeout=0.1)
    await runner.setup()
    await runner.listen("127.0.0.1", 0)
    base = f"http://127.0.0.1:{runner.addresses[0][1]}"
    await attack.idle_connections(base, 0.1, 200)
    server = runner.server
    assert isinstance(server, HttpServer)
    async with asyncio.timeout(HANGS_S):
        while server._peers or server._peer_of:
            await asyncio.sleep(0.01)
    await runner.cleanup()


@pytest.mark.parametrize(
    ("address", "group"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_peers_are_addresses_and_networks_of_ipv6(address: str, group: str):
    assert peer_name(address) == group


def test_a_listener_leaves_descriptors_for_calls():
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert server_io.max_connections() <= soft // 2
    assert server_io.max_connections() > listening_io.ACCEPTED_AT_ONCE


@pytest.mark.parametrize("parameters", [";" * 8000, "; b/f" * 1500, "; a*=utf-8''%41" * 500])
async def test_a_long_content_type_is_refused_unread(
    base: str, monkeypatch: pytest.MonkeyPatch, parameters: str
):
    """The parser would hold the loop for half a second."""
    parsed: list[str] = []

    def parse(value: str) -> tuple[str, dict[str, str]]:
        parsed.append(value)
        return "text/plain", {}

    monkeypatch.setattr("aiohttp.helpers.parse_content_type", parse)
    kind = f"Content-Type: multipart/form-data{parameters}"
    head, body = await answered(base, attack.head(base, "POST", "/form", kind, "Content-Length: 0"))
    assert head.startswith("HTTP/1.1 400 ")
    assert json.loads(body)["error"] == "the Content-Type has more than 256 bytes"
    assert parsed == []


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\xff\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: \xa0websocket\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX-Name: J\xf6rg\r\n\r\n",
    ],
)
async def test_headers_that_are_not_utf_8_are_refused(head: bytes):
    app = web.Application()
    app.router.add_get("/", talk)
    async with listening(app) as base, attack.connected(base) as (reader, writer):
        writer.write(head)
        assert await attack.status_of(reader) == "400"


async def test_a_header_in_utf_8_is_taken():
    app = web.Application()
    app.router.add_post("/", read)
    async with listening(app) as base, attack.connected(base) as (reader, writer):
        writer.write("POST / HTTP/1.1\r\nHost: x\r\nX-Name: Jörg\r\n\r\n".encode())
        assert await attack.status_of(reader) == "200"


async def test_a_request_without_a_target_is_answered_and_leaves_no_connection():
    app = web.Application()
    app.router.add_post("/", read)
    async with listening(app) as base, attack.connected(base) as (reader, writer):
        writer.write(b"CONNECT \r\n\r\n")
        async with asyncio.timeout(HANGS_S):
            assert b" 405 " in await reader.read()  # until it is closed
