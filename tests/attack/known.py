"""Attacks that every server on the Internet knows: floods, halves, drips and garbage of HTTP,
WebSockets, SIP and STUN."""

import asyncio
import json
import os
import random
import re
import socket
import struct
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

import aiohttp

from tests.support.sip_messages import TORTURE, TYPICAL

PER_SECOND = 3_000
"""Datagrams: more would be a question of who has more cores."""
AT_ONCE = 30
"""Datagrams between two pauses."""
STRANGER = "127.0.0.3"
"""An address of this machine that no trunk has."""
ANSWER_S = 2.0
SOCKETS = 20
PATHS = ("/healthz", "/nothing", "/v1/audio/speech", "/api/offer", "/v1/nothing", "/")
CODINGS = ("gzip", "deflate", "br", "zstd", "gzip, deflate")
KEY = "AAAAAAAAAAAAAAAAAAAAAA=="
SOCKET_PATHS = ("/ws/transcribe", "/ws/speak", "/v1/audio/speech/ws", "/v1/realtime")
UPGRADE = (
    *("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13"),
    f"Sec-WebSocket-Key: {KEY}",
    "Sec-WebSocket-Extensions: permessage-deflate",
)


# --- what attacks are made of ---


def _told(got: "Counter[str]") -> str:
    return ", ".join(f"{count} × {what}" for what, count in got.most_common(6)) or "nothing"


@asynccontextmanager
async def _connected(
    base: str, port: int | None = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    at = urlsplit(base)
    reader, writer = await asyncio.open_connection(at.hostname, port or at.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def _head(base: str, start: str, *headers: str) -> bytes:
    lines = [f"{start} HTTP/1.1", f"Host: {urlsplit(base).netloc}", *headers, "", ""]
    return "\r\n".join(lines).encode()


async def _status(reader: asyncio.StreamReader, seconds: float = ANSWER_S) -> str:
    """Of the response, or what came instead."""
    try:
        async with asyncio.timeout(seconds):
            line = await reader.readline()
    except (TimeoutError, OSError, ValueError):
        return "no answer"
    return line.split()[1].decode() if line[:5] in (b"HTTP/", b"SIP/2") else "closed"


async def _again(seconds: float, attack: Callable[[], AsyncIterator[str]], at_once: int = 8) -> str:
    """So many at a time, one after the other, until the time is over; counts what they yield."""
    until, got = time.monotonic() + seconds, Counter[str]()

    async def one() -> None:
        while time.monotonic() < until:
            try:
                async with asyncio.timeout(seconds + 2 * ANSWER_S):
                    async for what in attack():
                        got[what] += 1
            except (OSError, TimeoutError, aiohttp.ClientError) as error:
                got[type(error).__name__] += 1
                await asyncio.sleep(0.05)

    await asyncio.gather(*(one() for _ in range(at_once)))
    return _told(got)


async def _datagrams(
    port: int, seconds: float, made: Iterator[bytes], source: str = "127.0.0.1"
) -> str:
    """Sends them to a port of this machine, and counts the answers by their first line."""
    until, got, sent = time.monotonic() + seconds, Counter[str](), 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.setblocking(False)
        udp.bind((source, 0))
        while time.monotonic() < until:
            began = time.monotonic()
            for _ in range(AT_ONCE):
                with suppress(OSError):
                    udp.sendto(next(made), ("127.0.0.1", port))
                sent += 1
            with suppress(OSError):
                while data := udp.recv(65_536):
                    line = data.partition(b"\r\n")[0]
                    what = " ".join(line.decode(errors="replace").split()[:2])
                    got[what if what.isprintable() else "answer"] += 1
            await asyncio.sleep(max(0, began + AT_ONCE / PER_SECOND - time.monotonic()))
    return f"{sent} sent: {_told(got)}"


# --- HTTP ---


async def nothing_at_all(base: str, seconds: float) -> str:
    """Computes beside the server and sends nothing: what the machine alone does to the others."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        zlib.compress(bytes(1 << 18))
        await asyncio.sleep(0)
    return "nothing asked for"


async def compressed_chunks(base: str, seconds: float) -> str:
    """Compressed bodies in chunks, to each method; 100 MB of zeros in 100 kB."""
    packed = zlib.compress(bytes(100 << 20), 1)
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(packed), packed)
    chance = random.Random(1)

    async def one() -> AsyncIterator[str]:
        method, path = chance.choice(("GET", "POST", "PUT", "HEAD")), chance.choice(PATHS)
        coding = f"Content-Encoding: {chance.choice(CODINGS)}"
        async with _connected(base) as (reader, writer):
            writer.write(_head(base, f"{method} {path}", coding, "Transfer-Encoding: chunked"))
            writer.write(chunks)
            yield await _status(reader)

    return await _again(seconds, one, 2)


async def half_requests(base: str, seconds: float) -> str:
    """Requests of which the second half never comes, in any place."""
    whole = _head(base, "POST /v1/audio/speech", "Content-Length: 90") + b'{"input": "Hello'
    chance = random.Random(2)

    async def one() -> AsyncIterator[str]:
        async with _connected(base) as (reader, writer):
            writer.write(whole[: chance.randrange(1, len(whole))])
            yield await _status(reader, min(seconds, ANSWER_S))

    return await _again(seconds, one, 100)


async def dripping_bodies(base: str, seconds: float) -> str:
    """Bodies that come byte by byte."""
    chance = random.Random(3)

    async def one() -> AsyncIterator[str]:
        async with _connected(base) as (reader, writer):
            start = f"POST {chance.choice(PATHS)}"
            writer.write(_head(base, start, "Content-Length: 9000", "Content-Type: text/plain"))
            until = time.monotonic() + seconds
            while time.monotonic() < until and not writer.is_closing() and not reader.at_eof():
                writer.write(b" ")
                await asyncio.sleep(0.05)
            yield await _status(reader, 0.1)

    return await _again(seconds, one, 60)


async def request_flood(base: str, seconds: float) -> str:
    """Requests for what there is and is not, sixteen at a time on each connection."""
    paths = (*PATHS, "/calls", "/metrics", "/%00", "/" + "a" * 4000, "/..//..//etc/passwd")
    lines = [_head(base, f"GET {path}", f"Cookie: {'a=b; ' * 200}") for path in paths]
    chance = random.Random(4)

    async def one() -> AsyncIterator[str]:
        async with _connected(base) as (reader, writer):
            for _ in range(16):
                writer.write(chance.choice(lines))
            yield await _status(reader)
            with suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    await reader.read(1 << 16)

    return await _again(seconds, one, 4)


async def json_of_many_values(base: str, seconds: float) -> str:
    """A megabyte of empty lists, which takes a tenth of a second to parse."""
    bodies = (b'{"input":[' + b"[[[[[]]]]]," * 90_000 + b"[]]}", b'{"a":0' + b',"a":[]' * 140_000)
    chance = random.Random(5)

    async def one() -> AsyncIterator[str]:
        path, body = chance.choice(PATHS), chance.choice(bodies)
        headers = "Content-Type: application/json", f"Content-Length: {len(body)}"
        async with _connected(base) as (reader, writer):
            writer.write(_head(base, f"POST {path}", *headers) + body)
            yield await _status(reader)

    return await _again(seconds, one, 2)


# --- WebSockets ---


def _frame(opcode: int, payload: bytes, *, first: int = 0x80, length: int | None = None) -> bytes:
    """Masked with zeros; `length` is what it says."""
    size = len(payload) if length is None else length
    if size < 126:
        said = bytes([0x80 | size])
    elif size < 1 << 16:
        said = bytes([0xFE]) + struct.pack("!H", size)
    else:
        said = bytes([0xFF]) + struct.pack("!Q", size)
    return bytes([first | opcode]) + said + bytes(4) + payload


FRAMES: dict[str, bytes] = {
    "pings": _frame(9, b"x" * 125) * 300,
    "empty messages": _frame(1, b"") * 2_000,
    "fragments without an end": _frame(1, b"", first=0) + _frame(0, b"a" * 60_000, first=0) * 40,
    "a frame of a terabyte": _frame(2, b"", length=1 << 40) + bytes(1 << 20),
    "audio without an end": _frame(2, bytes(32_000)) * 60,
    "a compressed bomb": _frame(2, zlib.compress(bytes(60 << 20))[2:-4], first=0xC0),
    "text that is none": _frame(1, b"\xff\xfe") * 50,
    "nested JSON": _frame(1, b'{"a":' * 12_000),
    "no frames": os.urandom(4_000),
}


async def websocket_frames(base: str, seconds: float) -> str:
    """WebSockets of every path, and on each frames of one kind."""
    chance = random.Random(6)

    async def one() -> AsyncIterator[str]:
        async with _connected(base) as (reader, writer):
            writer.write(_head(base, f"GET {chance.choice(SOCKET_PATHS)}", *UPGRADE))
            status = await _status(reader)
            if status == "101":
                writer.write(FRAMES[chance.choice(list(FRAMES))])
                with suppress(OSError, TimeoutError):
                    async with asyncio.timeout(1):
                        await writer.drain()
                        await reader.read(1 << 16)
            yield status

    return await _again(seconds, one, SOCKETS)


async def tiny_frames(base: str, seconds: float) -> str:
    """Pings, empty texts and events of no use, by the thousand and without end, on a WebSocket of
    each path; their answers are read."""
    event = b'{"type":"input_audio_buffer.clear"}'
    clear = bytes([0x81, 0x80 | len(event)]) + bytes(4) + event
    kinds = (_frame(0x9, b"x"), _frame(0x1, b""), clear)
    chance = random.Random(8)

    async def one() -> AsyncIterator[str]:
        async with _connected(base) as (reader, writer):
            writer.write(_head(base, f"GET {chance.choice(SOCKET_PATHS)}", *UPGRADE))
            status = await _status(reader)
            yield status
            if status == "101":
                answers = asyncio.create_task(_read_on(reader))
                await _write_on(writer, chance.choice(kinds) * 4_000, seconds)
                answers.cancel()

    return await _again(seconds, one, 3)


async def sip_keep_alives(base: str, seconds: float, sip_port: int) -> str:
    """SIP over TCP: line breaks without end."""

    async def one() -> AsyncIterator[str]:
        async with _connected(base, sip_port) as (reader, writer):
            answers = asyncio.create_task(_read_on(reader))
            yield await _write_on(writer, b"\r\n" * 8_000, seconds)
            answers.cancel()

    return await _again(seconds, one, 2)


async def _write_on(writer: asyncio.StreamWriter, data: bytes, seconds: float) -> str:
    """Writes the same again and again, as fast as it is read."""
    began = time.monotonic()
    with suppress(TimeoutError, OSError):
        async with asyncio.timeout(seconds):
            while True:
                writer.write(data)
                await writer.drain()
                await asyncio.sleep(0)
    return "read all the time" if time.monotonic() - began >= seconds else "closed"


async def _read_on(reader: asyncio.StreamReader) -> None:
    with suppress(OSError):
        while await reader.read(1 << 16):
            pass


async def realtime_events(base: str, seconds: float) -> str:
    """Events of megabytes, of very many values, and of none that are known."""
    events = (
        json.dumps({"type": "session.update", "session": [[{"a": {}}] * 400] * 1_000}),
        json.dumps({"type": "input_audio_buffer.append", "audio": "A" * (6 << 20)}),
        json.dumps({"type": "input_audio_buffer.append", "audio": "A" * 16_000}),
        '{"type": "response.create"}',
        '{"type": "x"}',
    )
    chance = random.Random(7)

    async def one() -> AsyncIterator[str]:
        url = f"{base}/v1/realtime?model=gpt-realtime"
        async with aiohttp.ClientSession() as http, http.ws_connect(url) as session:
            for _ in range(6):
                await session.send_str(chance.choice(events))
            with suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    while (await session.receive()).type is aiohttp.WSMsgType.TEXT:
                        pass
            yield f"closed with {session.close_code}" if session.closed else "answered"

    return await _again(seconds, one, 3)


# --- SIP ---


def _invites(sip_port: int) -> Iterator[bytes]:
    """Each another call, from another caller."""
    sdp = (
        "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\n"
        "m=audio 4000 RTP/AVP 0\r\n"
    )
    number = 0
    while True:
        number += 1
        yield (
            f"INVITE sip:100@127.0.0.1:{sip_port} SIP/2.0\r\n"
            f"Via: SIP/2.0/UDP 127.0.0.1:5999;branch=z9hG4bK{number};rport\r\n"
            f"From: <sip:{number}@stranger.example>;tag={number}\r\nTo: <sip:100@127.0.0.1>\r\n"
            f"Call-ID: {number}\r\nCSeq: 1 INVITE\r\nMax-Forwards: 70\r\n"
            f"Contact: <sip:x@127.0.0.1:5999>\r\nContent-Type: application/sdp\r\n"
            f"Content-Length: {len(sdp)}\r\n\r\n{sdp}"
        ).encode()


async def invite_flood(base: str, seconds: float, sip_port: int) -> str:
    """Calls of a stranger, which nobody acknowledges or ends."""
    return await _datagrams(sip_port, seconds, _invites(sip_port), STRANGER)


async def invite_flood_of_a_trunk(base: str, seconds: float, sip_port: int) -> str:
    """The same by a provider that lets everybody call."""
    return await _datagrams(sip_port, seconds, _invites(sip_port))


async def sip_garbage(base: str, seconds: float, sip_port: int) -> str:
    """The torture of RFC 4475, spoiled messages, and no messages."""

    def made() -> Iterator[bytes]:
        chance, known = random.Random(8), [*TYPICAL.values(), *TORTURE.values()]
        while True:
            data = bytearray(chance.choice(known))
            for _ in range(chance.randrange(4)):
                data[chance.randrange(len(data))] = chance.randrange(256)
            yield bytes(data[:60_000])
            yield chance.choice((b"", b"\r\n\r\n", b"\0" * 400, chance.randbytes(200)))

    return await _datagrams(sip_port, seconds, made(), STRANGER)


async def sip_streams(base: str, seconds: float, sip_port: int) -> str:
    """SIP over TCP: messages of which the rest never comes, or that are much longer than any."""
    chance, whole = random.Random(9), next(iter(TYPICAL.values()))

    async def one() -> AsyncIterator[str]:
        async with _connected(base, sip_port) as (reader, writer):
            match chance.randrange(3):
                case 0:
                    writer.write(whole[: chance.randrange(1, len(whole))])
                case 1:
                    writer.write(b"OPTIONS sip:x SIP/2.0\r\n" + b"X: y\r\n" * 20_000)
                case _:
                    writer.write(b"INVITE sip:x SIP/2.0\r\nContent-Length: 99999999\r\n\r\n")
                    writer.write(bytes(1 << 20))
            yield await _status(reader, 0.5)

    return await _again(seconds, one, 60)


# --- WebRTC ---


async def stun_flood(base: str, seconds: float) -> str:
    """STUN, DTLS and RTP of a stranger to the ports of a call that is being set up."""
    offer = {"sdp": "\r\n".join(_OFFER), "type": "offer"}
    async with aiohttp.ClientSession() as http, http.post(f"{base}/api/offer", json=offer) as said:
        if said.status != 200:
            return str(said.status)
        given = (await said.json())["sdp"]
    port = re.search(r" udp \d+ [\d.]+ (\d+) typ host", given)
    name = re.search(r"a=ice-ufrag:(\S+)", given)
    if port is None or name is None:
        return "no port"
    username = f"{name[1]}:abcd".encode()

    def made() -> Iterator[bytes]:
        chance = random.Random(10)
        attributes = struct.pack("!HH", 6, len(username)) + username + bytes(-len(username) % 4)
        attributes += struct.pack("!HH", 8, 20) + bytes(20)
        head = struct.pack("!HHI", 1, len(attributes), 0x2112A442)
        while True:
            yield head + chance.randbytes(12) + attributes
            yield b"\x16\xfe\xfd" + chance.randbytes(60)
            yield b"\x80\x6f" + chance.randbytes(170)
            yield chance.randbytes(40)

    return await _datagrams(int(port[1]), seconds, made())


_OFFER = (
    *("v=0", "o=- 1 1 IN IP4 127.0.0.1", "s=-", "t=0 0", "a=group:BUNDLE 0"),
    *("m=audio 9 UDP/TLS/RTP/SAVPF 111", "c=IN IP4 0.0.0.0", "a=mid:0", "a=sendrecv"),
    *("a=rtcp-mux", "a=rtpmap:111 opus/48000/2", "a=setup:actpass", "a=ice-ufrag:abcd"),
    f"a=ice-pwd:{'p' * 24}",
    f"a=fingerprint:sha-256 {':'.join(['5A'] * 32)}",
    "a=candidate:1 1 udp 2130706431 127.0.0.1 9 typ host",
    "",
)
