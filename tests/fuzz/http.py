"""Damaged HTTP requests and forms through the listener of a server, without sockets.

Heads go to an edge with all its routes, in pieces; forms to the parser of uploads. No answer may be
a 500, nothing may be raised or logged as an error, and of an upload nothing may be left on disk.
"""

import asyncio
import os
import random
import re
import sys
import tempfile
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from unittest import mock

from aiohttp import web

from offhook.web.config.config import Config
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.server_io import application
from offhook.web.http.listening_io import Runner
from offhook.web.speech_api.admission import ByteBudget
from offhook.web.speech_api.errors import ApiError
from offhook.web.speech_api.http.upload_io import receive
from tests.fuzz.complaints import complaints
from tests.fuzz.damage import damage
from tests.fuzz.result import Result, collecting, resident_kb
from tests.support.waiting import HANGS_S

PEER = ("192.0.2.9", 40_000)
TURNS = 12
"""Rounds of the event loop in which a server has answered what needs no thread or timer."""
MAX_GROWTH_KB = 8192.0
"""Of the resident size: connections that linger for some seconds come and go."""
MAX_FILE_BYTES = 1 << 20
TRIES = 3
"""How often a message that takes too long is sent."""
HANG_S = 20
"""Time in s after which an upload of which nothing more comes has hung."""
LINGERING = 500
"""Tasks of closed connections beyond which the run waits for them."""
CONFIG: dict[str, Any] = {
    "server": {"host": "0.0.0.0", "port": 0, "drain_seconds": 0},
    "webrtc": {"addresses": ["127.0.0.1"]},
    "agent": {"kind": "silent"},
    "tts": {"engine": "espeak"},
    "carriers": [
        {"provider": "chan_websocket", "account": "asterisk", "secret": "secret"},
        {"provider": "twilio", "account": "AC1", "secret": "s", "public_url": "https://v.example"},
    ],
}
MEANINGFUL = (
    *(bytes([byte]) for byte in b'\r\n\t\0",;:<>@?&=%\\/[]{}*-. \x7f\x80\xff'),
    b"\r\n",
    b"\r\n ",
    b"\r\n\r\n",
    b"\n\n",
    b"HTTP/1.1",
    b"HTTP/9.9",
    b"%00",
    b"%0d%0a",
    b"../",
    b"/" * 40,
    b"-1",
    b"0x10",
    b"99999999999999999999999",
    b"0\r\n\r\n",
    b"ffffffffffffffff\r\n",
    b"Content-Length: 5\r\n",
    b"Content-Length: 99999999\r\n",
    b"Content-Encoding: gzip\r\n",
    b"Content-Encoding: br, zstd\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: gzip, chunked\r\n",
    b"Transfer-Encoding: \x0bchunked\r\n",
    b"Connection: upgrade\r\n",
    b"Upgrade: h2c\r\n",
    b"Expect: 100-continue\r\n",
    b"Host: a\r\nHost: b\r\n",
    b"X-Forwarded-For: 127.0.0.1\r\n",
    b"Range: bytes=0-,-1\r\n",
    b"Cookie: " + b"a=b; " * 60 + b"\r\n",
    "ä".encode(),
    b"\xed\xa0\x80",
    b"a" * 9_000,
    b"x: y\r\n" * 150,
)
DEFLATE = "Content-Encoding: deflate"
JSON = b'{"sdp":"v=0\\r\\n","type":"offer","model":"tts-1","input":"Hi","voice":"alloy"}'


def request(start: str, *headers: str, body: bytes = b"") -> bytes:
    lines = [f"{start} HTTP/1.1", "Host: localhost:7860", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def with_body(start: str, kind: str, body: bytes, *headers: str) -> bytes:
    length = f"Content-Length: {len(body)}"
    return request(start, f"Content-Type: {kind}", length, *headers, body=body)


HEADS = (
    request("GET /"),
    request("GET /healthz", "Connection: close"),
    request("GET /v1/models", "Authorization: Bearer key", "Accept: */*", "Accept-Encoding: gzip"),
    request("GET /nothing?a=b&c=%20d#e", "Cookie: a=b", "Referer: http://x.example/"),
    request("HEAD /v1/models/whisper-1"),
    request("OPTIONS /api/offer", "Origin: https://evil.example"),
    request("GET /calls/x/events", "Accept: text/event-stream"),
    request("DELETE /calls/x"),
    request("GET /ws/transcribe?rate=16000", "Upgrade: websocket", "Connection: Upgrade"),
    request("GET /carriers/twilio/stream/x", "Upgrade: websocket", "Sec-WebSocket-Version: 13"),
    request("GET http://localhost:7860/metrics"),
    request("CONNECT localhost:443"),
    b"GET /healthz HTTP/1.0\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(60),
    with_body("POST /api/offer", "application/json", JSON),
    with_body("PATCH /api/offer", "application/json", b'{"pc_id":"x","candidates":[]}'),
    with_body(
        "POST /whip", "application/sdp", b"v=0\r\no=- 1 1 IN IP4 0.0.0.0\r\ns=-\r\nt=0 0\r\n"
    ),
    with_body("POST /v1/realtime/calls", "application/sdp", b"v=0\r\n"),
    with_body("POST /v1/realtime/client_secrets", "application/json", b'{"session":{}}'),
    with_body("POST /calls", "application/json", b'{"to":"+15551234567"}'),
    with_body("POST /carriers/twilio/voice", "application/x-www-form-urlencoded", b"CallSid=CA1"),
    with_body(
        "POST /healthz", "text/plain", zlib.compress(bytes(3000)), "Content-Encoding: deflate"
    ),
    with_body(
        "POST /v1/audio/transcriptions", "multipart/form-data; boundary=b", b"--b\r\n\r\n--b--"
    ),
    request("POST /nothing", "Transfer-Encoding: chunked", body=b"5\r\nhello\r\n0\r\nA: b\r\n\r\n"),
    request("GET /healthz") * 3,
    with_body("POST /start", "application/json", b"{}", "Expect: 100-continue"),
)
BOUNDARY = b"----offhook"


def part(name: str, value: bytes, *, file: str = "", kind: str = "", more: str = "") -> bytes:
    said = f'Content-Disposition: form-data; name="{name}"'
    said += f'; filename="{file}"' if file else ""
    lines = [said, *([f"Content-Type: {kind}"] if kind else []), *([more] if more else [])]
    return b"--" + BOUNDARY + b"\r\n" + "\r\n".join(lines).encode() + b"\r\n\r\n" + value + b"\r\n"


END = b"--" + BOUNDARY + b"--\r\n"
MODEL, FILE = part("model", b"whisper-1"), part("file", bytes(range(256)) * 8, file="a.wav")
FORMS = (
    MODEL + FILE + END,
    FILE + MODEL + part("language", b"en") + END,
    part("file", bytes(4000), file="a", kind="audio/pcm;rate=16000;channels=2") + END,
    part("file", b"t", file="ä.opus", kind="audio/ogg") + part("prompt", "ü".encode()) + END,
    part("file", b"aGk=", file="a", more="Content-Transfer-Encoding: base64") + END,
    part("file", zlib.compress(bytes(9000)), file="a", more=DEFLATE) + END,
    part("file", b"=41" * 9, file="a", more="Content-Transfer-Encoding: quoted-printable") + END,
    MODEL * 40 + FILE + END,
    b"preamble\r\n" + FILE + END + b"epilogue",
    b"--" + BOUNDARY + b"\r\nContent-Type: multipart/mixed; boundary=x\r\n\r\n--x--\r\n" + END,
    END,
)
FORM_WORDS = (
    *MEANINGFUL[:31],
    b"--",
    BOUNDARY,
    b"\r\n--" + BOUNDARY,
    END,
    MODEL,
    b'; filename="x"',
    b"; filename*=utf-8''%ff%fe",
    b'; name=""',
    b"Content-Length: -1\r\n",
    b"Content-Length: 99999999\r\n",
    b"Content-Encoding: gzip\r\n",
    b"Content-Transfer-Encoding: base64\r\n",
    b"Content-Type: multipart/form-data; boundary=----offhook\r\n",
    b"a" * 70_000,
    b"x: y\r\n" * 150,
)
KINDS = (
    "multipart/form-data; boundary=----offhook",
    'multipart/form-data; boundary="----offhook"; charset=utf-8',
    "multipart/form-data",
    "multipart/form-data; boundary=" + "b" * 200,
    "multipart/form-data; boundary=",
    "multipart/mixed; boundary=----offhook",
)
_STATUS = re.compile(rb"HTTP/[0-9]\.[0-9] (\d{3}) ")


class FarEnd(asyncio.Transport):
    """A client of a server in this process."""

    def __init__(self, handler: Any) -> None:
        super().__init__({"peername": PEER, "sockname": ("192.0.2.1", 7860)})
        self.received = bytearray()
        self.closed = False
        self._handler = handler
        handler.connection_made(self)

    def write(self, data: Any) -> None:
        self.received += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            asyncio.get_running_loop().call_soon(self._handler.connection_lost, None)

    abort = close

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    async def send(self, data: bytes, chance: random.Random) -> None:
        """In up to three pieces."""
        cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.randrange(3)))
        for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            if self.closed:
                return
            self._handler.data_received(data[start:end])
            await asyncio.sleep(0)


@asynccontextmanager
async def serving(app: web.Application) -> AsyncIterator[Any]:
    """Yields what makes a handler for each connection."""
    runner = Runner(app)
    await runner.setup()
    try:
        yield runner.server
    finally:
        await runner.cleanup()


class _Run:
    def __init__(self, part_: str, messages: int, seed: int, show: bool) -> None:
        self.chance = random.Random(seed)
        self.result = Result(part_, most_growth_kb=MAX_GROWTH_KB)
        self._messages, self._show, self._resident = messages, show, 0.0

    async def timed(self, send: Callable[[], Awaitable[None]], data: bytes) -> None:
        """Sends a message and notes its processor time, and whether it was the slowest. One that
        takes too long is sent again, and the least counts: the loop ends connections meanwhile."""
        result = self.result
        tries: list[float] = []
        while not tries or (min(tries) * 1000 > result.most_ms and len(tries) < TRIES):
            started = time.thread_time()
            await send()
            tries.append(time.thread_time() - started)
        result.spent += tries[0]
        if (took := min(tries)) * 1000 > result.slowest_ms:
            result.slowest_ms, result.slowest = round(took * 1000, 3), repr(data)

    async def numbers(self) -> AsyncIterator[int]:
        """Of the messages; meanwhile shows progress and waits for connections that linger."""
        result = self.result
        with collecting() as collect:
            for number in range(1, self._messages + 1):
                result.messages = number
                yield number
                collect(number)
                if number % 100 == 0:
                    while len(asyncio.all_tasks()) > LINGERING:
                        await asyncio.sleep(0.01)
                if number == self._messages // 10:
                    self._resident = resident_kb()
                if self._show and number % 20_000 == 0:
                    print(f"{number} messages, {resident_kb():.0f} KB resident", file=sys.stderr)

    async def finish(self, tasks: int) -> Result:
        async def ended() -> None:
            while len(asyncio.all_tasks()) > tasks:
                await asyncio.sleep(0.05)

        try:
            await asyncio.wait_for(ended(), HANGS_S)
        except TimeoutError:
            self.result.left["tasks"] = len(asyncio.all_tasks()) - tasks
        self.result.finish(self._resident)
        return self.result


async def _heads(messages: int, seed: int, show: bool) -> Result:
    run_ = _Run("http", messages, seed, show)
    chance, result = run_.chance, run_.result
    edge = Edge(Config.model_validate(CONFIG))
    await edge.start()
    try:
        async with serving(application(edge)) as handler:
            tasks = len(asyncio.all_tasks())
            with complaints(result):
                async for _ in run_.numbers():
                    data = damage(HEADS, chance, MEANINGFUL)
                    answers: list[bytes] = []
                    await run_.timed(partial(_ask, handler, data, chance, answers), data)
                    for status in _statuses(answers[0], result, data):
                        result.counts[status] += 1
                await run_.finish(tasks)
    finally:
        await edge.close()
    return result


async def _ask(handler: Any, data: bytes, chance: random.Random, answers: list[bytes]) -> None:
    far = FarEnd(handler())
    await far.send(data, chance)
    for _ in range(TURNS):
        await asyncio.sleep(0)
    far.close()
    answers.append(bytes(far.received))


def _statuses(received: bytes, result: Result, data: bytes) -> list[str]:
    """Of the responses; a 500 and what is none count as raised."""
    if not received:
        return ["no answer"]
    if not _STATUS.match(received):
        result.raised(AssertionError(f"no response: {received[:80]!r}"), data)
    found = [status.decode() for status in _STATUS.findall(received)]
    if "500" in found:
        result.raised(AssertionError("500"), data)
    return found


async def _forms(messages: int, seed: int, show: bool) -> Result:
    run_ = _Run("multipart", messages, seed, show)
    chance, result, room = run_.chance, run_.result, ByteBudget(64 << 20)
    outcome: asyncio.Future[str]

    async def upload(request: web.Request) -> web.Response:
        done, text = outcome, ""
        try:
            async with receive(request, MAX_FILE_BYTES, room) as file:
                text = "taken"
                if file.size != file.path.stat().st_size or not 0 < file.size <= MAX_FILE_BYTES:
                    raise AssertionError(f"a file of {file.size} bytes")
        except ApiError as error:
            text = str(error.status)
        except ConnectionError:
            text = "lost"
        except web.HTTPException as error:
            text = str(error.status)
        except Exception as error:
            result.raised(error, data)
        finally:
            if not done.done():
                done.set_result(text)
        return web.Response()

    async def send(data: bytes, whole: bool) -> None:
        nonlocal outcome
        outcome = asyncio.get_running_loop().create_future()
        far = FarEnd(handler())
        await far.send(data, chance)
        if not whole:
            for _ in range(TURNS):
                await asyncio.sleep(0)
            far.close()
        result.counts[await asyncio.wait_for(outcome, HANG_S) or "raised"] += 1
        far.close()

    app = web.Application()
    app.router.add_post("/", upload)
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(tempfile, "tempdir", folder):
        async with serving(app) as handler:
            tasks = len(asyncio.all_tasks())
            with complaints(result):
                async for _ in run_.numbers():
                    body = damage(FORMS, chance, FORM_WORDS)
                    kind = KINDS[0] if chance.random() < 0.9 else chance.choice(KINDS)
                    data, whole = _form(body, kind, chance)
                    await run_.timed(partial(send, data, whole), data)
                await run_.finish(tasks)
        if left := os.listdir(folder):
            result.left["files"] = len(left)
    if room.taken:
        result.left["bytes"] = room.taken
    return result


def _form(body: bytes, kind: str, chance: random.Random) -> tuple[bytes, bool]:
    """A request with the body, sometimes in chunks, sometimes not all of it; whether all is."""
    match chance.randrange(10):
        case 0 | 1:
            cut = chance.randrange(len(body) + 1)
            pieces: Sequence[bytes] = [piece for piece in (body[:cut], body[cut:]) if piece]
            chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
            more = f"Content-Type: {kind}", "Transfer-Encoding: chunked"
            return request("POST /", *more, body=chunks + b"0\r\n\r\n"), True
        case 2 if body:
            missing = chance.randrange(1, min(40, len(body) + 1))
            return with_body("POST /", kind, body)[:-missing], False
    return with_body("POST /", kind, body), True


def heads(messages: int, seed: int, show: bool = False) -> Result:
    """Push that many requests through; progress goes to standard error."""
    return asyncio.run(_heads(messages, seed, show))


def forms(messages: int, seed: int, show: bool = False) -> Result:
    """Push that many forms through; progress goes to standard error."""
    return asyncio.run(_forms(messages, seed, show))
