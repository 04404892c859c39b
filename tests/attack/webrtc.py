"""What is tried at WebRTC: forged DTLS, SCTP without bounds, offers that are none."""

import asyncio
import contextlib
import os
import re
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from aiohttp import ClientSession, ClientTimeout
from aiortc.rtcsctptransport import (
    SCTP_DATA_FIRST_FRAG,
    SCTP_DATA_LAST_FRAG,
    DataChunk,
    SackChunk,
)
from google_crc32c import value as crc32c

from offhook.media.clock_io import PacketClock
from offhook.signaling.peer_io import PeerLeg

CONNECT_S = 15.0
"""How long a call may take to connect before it counts as killed."""
SPRAY_S = 0.002
"""Between the forged packets of a stranger."""
BURST = 8
"""SCTP packets sent at a time..."""
BURST_S = 0.004
"""...and the pause after them: 2000 packets in a second."""

# --- calls ---


async def _offer(http: ClientSession, base: str, sdp: str) -> tuple[int, str]:
    """Returns the status and the SDP, or the text of a refusal."""
    body = {"sdp": sdp, "type": "offer"}
    async with http.post(f"{base}/api/offer", json=body) as response:
        if response.status != 200:
            return response.status, await response.text()
        return response.status, (await response.json())["sdp"]


async def _until(condition: Callable[[], object], seconds: float) -> bool:
    for _ in range(round(seconds / 0.02)):
        if condition():
            break
        await asyncio.sleep(0.02)
    return bool(condition())


@asynccontextmanager
async def _call(base: str) -> AsyncIterator[PeerLeg]:
    """A connected caller, whose data channel is open."""
    leg, clock = PeerLeg("attacker"), PacketClock()
    try:
        async with ClientSession() as http:
            status, answer = await _offer(http, base, await leg.offer())
        if status != 200:
            raise RuntimeError(f"no call: {status} {answer}")
        await leg.accept(answer)
        if not await _until(lambda: leg.connected, CONNECT_S):
            raise RuntimeError("no call: it did not connect")
        clock.add(leg)
        await _until(
            lambda: leg.messages.channel is not None and leg.messages.channel.readyState == "open",
            5,
        )
        yield leg
    finally:
        clock.remove(leg)
        await leg.hang_up("attack over")


# --- a stranger's DTLS ---


def _handshake(kind: int, body: bytes) -> bytes:
    message = bytes([kind]) + len(body).to_bytes(3, "big") + bytes(5)
    message += len(body).to_bytes(3, "big") + body
    return b"\x16\xfe\xfd" + bytes(8) + len(message).to_bytes(2, "big") + message


def _alert(level: int, description: int) -> bytes:
    return b"\x15\xfe\xfd" + bytes(8) + b"\0\2" + bytes([level, description])


FORGERIES: dict[str, Callable[[], bytes]] = {
    "ClientHello": lambda: _handshake(
        1, b"\xfe\xfd" + os.urandom(32) + b"\0\0\0\4\xc0\x2b\xc0\x2f\1\0\0\0"
    ),
    "ServerHello": lambda: _handshake(2, b"\xfe\xfd" + os.urandom(32) + b"\0\xc0\x2b\0"),
    "HelloVerifyRequest": lambda: _handshake(3, b"\xfe\xff\x10" + os.urandom(16)),
    "fatal alert": lambda: _alert(2, 40),
    "close_notify": lambda: _alert(1, 0),
    "garbage": lambda: b"\x16\xfe\xfd" + bytes(8) + b"\0\x40" + os.urandom(64),
    "cut off": lambda: b"\x16\xfe\xfd" + bytes(8) + b"\4\0" + os.urandom(64),
    "nothing": lambda: b"",
    "SRTP": lambda: b"\x80\x60" + os.urandom(60),
}
"""What a stranger sends, by what it looks like."""


@contextmanager
def _sprayed(forge: Callable[[], bytes], ports: list[int]) -> Any:
    """Meanwhile a stranger on this machine sends to these ports."""
    stranger = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    loop = asyncio.get_running_loop()

    async def spray() -> None:
        while True:
            for port in ports:
                stranger.sendto(forge(), ("127.0.0.1", port))
            await asyncio.sleep(SPRAY_S)

    task = loop.create_task(spray())
    try:
        yield
    finally:
        task.cancel()
        stranger.close()


async def forged_dtls(base: str, seconds: float) -> str:
    """A stranger sends DTLS records to the ports of calls that are being set up."""
    connected, made, loop = 0, 0, asyncio.get_running_loop()
    end = loop.time() + seconds
    killed: list[str] = []
    async with ClientSession() as http:
        while loop.time() < end or made < len(FORGERIES):
            kind = list(FORGERIES)[made % len(FORGERIES)]
            made += 1
            leg = PeerLeg("victim")
            status, answer = await _offer(http, base, await leg.offer())
            if status != 200:
                return f"no call: {status} {answer}"
            ports = [int(p) for p in re.findall(r" udp \d+ 127\.0\.0\.1 (\d+) typ host", answer)]
            with _sprayed(FORGERIES[kind], ports):
                await asyncio.sleep(0.03)
                await leg.accept(answer)
                await _until(lambda leg=leg: leg.connected or leg.closed, CONNECT_S)  # type: ignore[misc]
                if leg.connected and await _until(lambda leg=leg: _open(leg), 5):  # type: ignore[misc]
                    connected += 1
                else:
                    killed.append(kind)
            await leg.hang_up("attack over")
    return f"{connected} of {made} connected" + (f", killed: {', '.join(killed)}" if killed else "")


def _open(leg: PeerLeg) -> bool:
    return leg.messages.channel is not None and leg.messages.channel.readyState == "open"


async def held_handshakes(base: str, seconds: float) -> str:
    """Callers who complete ICE, and send no DTLS or one ClientHello after the other."""
    loop, legs, status = asyncio.get_running_loop(), [], 200
    end, sent, most = loop.time() + seconds, 0, 0
    try:
        async with ClientSession() as http:
            while loop.time() < end:
                if status == 200:
                    leg = PeerLeg("attacker")
                    legs.append(leg)
                    status, answer = await _offer(http, base, await leg.offer())
                    dtls: Any = leg._pc.getTransceivers()[0].receiver.transport
                    dtls.start = _never
                    if status == 200:
                        await leg.accept(answer)
                for held in legs[1::2]:
                    for pair in _pairs(held):
                        pair.protocol.transport.sendto(FORGERIES["ClientHello"](), pair.remote_addr)
                        sent += 1
                most = max(most, sum(bool(_pairs(held)) for held in legs))
                await asyncio.sleep(BURST_S)
    finally:
        await asyncio.gather(*(leg.hang_up("attack over") for leg in legs))
    return f"{most} calls without DTLS, {sent} ClientHellos, then {status}"


async def _never(parameters: Any) -> None:
    await asyncio.Event().wait()


def _pairs(leg: PeerLeg) -> list[Any]:
    """The nominated pairs of candidates."""
    return [pair for agent in leg._agents for pair in agent._nominated.values()]


# --- a caller's SCTP ---


class _Sctp:
    """A caller's association, with which anything can be sent."""

    def __init__(self, leg: PeerLeg) -> None:
        sctp: Any = leg._pc.sctp
        self.leg = leg
        self.transport = sctp
        self.tsn: int = sctp._local_tsn
        self.acknowledged = 0
        """TSNs that the last acknowledgement named, beyond the cumulative one."""
        self.window = 0
        """As it said."""
        self.packets = 0
        """Sent so far."""
        self.was_closed = False
        """Whether the server has closed the channel."""

        async def receive_sack(sack: SackChunk) -> None:
            self.acknowledged = sum(last - first + 1 for first, last in sack.gaps)
            self.window = sack.advertised_rwnd

        async def ignore(stream: int, protocol: int, data: bytes) -> None:
            """What the server says of channels that this end has not opened."""

        sctp._receive_sack_chunk = receive_sack
        sctp._data_channel_receive = ignore

    @property
    def closed(self) -> bool:
        return self.leg.closed is not None or not _open(self.leg)

    async def send(self, *chunks: bytes, tag: int | None = None) -> None:
        """Sends a packet."""
        sctp = self.transport
        tag = sctp._remote_verification_tag if tag is None else tag
        head = struct.pack("!HHL", sctp._local_port, sctp._remote_port, tag)
        body = b"".join(chunk + bytes(-len(chunk) % 4) for chunk in chunks)
        checksum = struct.pack("<L", crc32c(head + bytes(4) + body))
        await sctp.transport._send_data(head + checksum + body)

    def data(self, tsn: int, flags: int, stream: int = 0, payload: bytes = b"x" * 1100) -> bytes:
        """A DATA chunk; `tsn` counts from the next one."""
        chunk = DataChunk(flags=flags)
        chunk.tsn, chunk.stream_id = (self.tsn + tsn) & 0xFFFFFFFF, stream
        chunk.protocol, chunk.user_data = 51, payload
        return bytes(chunk)


Send = Callable[[_Sctp, int], Awaitable[None]]
"""Sends the packet of a number."""


async def _flood(base: str, seconds: float, send: Send) -> _Sctp:
    """Sends packets until the server closes the channel or the time is over."""
    async with _call(base) as leg:
        sctp, loop = _Sctp(leg), asyncio.get_running_loop()
        end = loop.time() + seconds
        with contextlib.suppress(ConnectionError):
            while not sctp.closed and loop.time() < end:
                await send(sctp, sctp.packets)
                sctp.packets += 1
                if sctp.packets % BURST == 0:
                    await asyncio.sleep(BURST_S)
        await asyncio.sleep(0.1)
        sctp.was_closed = sctp.closed
        return sctp


def _outcome(sctp: _Sctp) -> str:
    if sctp.was_closed:
        return f"channel closed after {sctp.packets} packets"
    kept = f"{sctp.acknowledged} TSNs after a gap acknowledged, window {sctp.window}"
    return f"{sctp.packets} packets taken, {kept}"


async def endless_message(base: str, seconds: float) -> str:
    """One message of fragments without an end."""

    async def send(sctp: _Sctp, number: int) -> None:
        await sctp.send(sctp.data(number, 0 if number else SCTP_DATA_FIRST_FRAG))

    return _outcome(await _flood(base, seconds, send))


async def holes(base: str, seconds: float) -> str:
    """Messages of which every second is missing."""

    async def send(sctp: _Sctp, number: int) -> None:
        whole = SCTP_DATA_FIRST_FRAG | SCTP_DATA_LAST_FRAG
        await sctp.send(sctp.data(2 * number + 5, whole))

    return _outcome(await _flood(base, seconds, send))


async def streams(base: str, seconds: float) -> str:
    """The middle of a message on each of 60,000 streams."""

    async def send(sctp: _Sctp, number: int) -> None:
        await sctp.send(sctp.data(2 * number + 5, 0, stream=number % 60_000))

    return _outcome(await _flood(base, seconds, send))


async def crumbs(base: str, seconds: float) -> str:
    """Fragments of one byte, sixty in a packet, of which every second is missing."""

    async def send(sctp: _Sctp, number: int) -> None:
        first = 120 * number + 1
        await sctp.send(*(sctp.data(first + 2 * n, 0, 0, b"x") for n in range(50)))

    return _outcome(await _flood(base, seconds, send))


async def channels(base: str, seconds: float) -> str:
    """A channel on each stream, with a label of 1000 bytes."""
    label = b"l" * 1000

    async def send(sctp: _Sctp, number: int) -> None:
        chunk = DataChunk(flags=SCTP_DATA_FIRST_FRAG | SCTP_DATA_LAST_FRAG)
        chunk.tsn, chunk.stream_id = (sctp.tsn + number) & 0xFFFFFFFF, 2 * number + 100
        chunk.protocol = 50
        chunk.user_data = struct.pack("!BBHLHH", 3, 0, 0, 0, len(label), 0) + label
        await sctp.send(bytes(chunk))

    return _outcome(await _flood(base, seconds, send))


def _chunk(kind: int, body: bytes, flags: int = 0) -> bytes:
    return struct.pack("!BBH", kind, flags, len(body) + 4) + body


PACKETS: dict[str, Callable[[_Sctp], list[bytes]]] = {
    "INIT": lambda sctp: [
        _chunk(1, struct.pack("!LLHHL", 7, 1 << 20, 65535, 65535, sctp.tsn)),
    ],
    "a parameter without length": lambda sctp: [_chunk(4, struct.pack("!HH", 1, 0) * 4)],
    "a parameter that is cut off": lambda sctp: [_chunk(130, struct.pack("!HH", 13, 400))],
    "heartbeats": lambda sctp: [_chunk(4, struct.pack("!HH", 1, 4))] * 100,
    "gap blocks of everything": lambda sctp: [
        _chunk(
            3,
            struct.pack("!LLHH", (sctp.transport._last_received_tsn or 0), 1 << 20, 300, 0)
            + struct.pack("!HH", 1, 65535) * 300,
        )
    ],
    "gap blocks that are not there": lambda sctp: [_chunk(3, struct.pack("!LLHH", 0, 0, 9, 9))],
    "an acknowledgement of the future": lambda sctp: [
        _chunk(3, struct.pack("!LLHH", (sctp.tsn + 1_000_000) & 0xFFFFFFFF, 0, 0, 0))
    ],
    "FORWARD TSN far ahead": lambda sctp: [
        _chunk(192, struct.pack("!L", (sctp.tsn + (1 << 30)) & 0xFFFFFFFF))
    ],
    "FORWARD TSN of many streams": lambda sctp: [
        _chunk(
            192,
            struct.pack("!L", sctp.tsn)
            + b"".join(struct.pack("!HH", n, 9) for n in os.urandom(250)),
        )
    ],
    "resets of every stream": lambda sctp: [
        _chunk(
            130,
            struct.pack("!HHLLL", 13, 16 + 2 * 500, 1, 1, 1)
            + b"".join(struct.pack("!H", n) for n in range(500)),
        )
    ],
    "many resets": lambda sctp: [
        _chunk(130, struct.pack("!HHLLL", 13, 16, n, 1, 1)) for n in range(60)
    ],
    "a cookie that was not given": lambda sctp: [_chunk(10, bytes(24))],
    "data without data": lambda sctp: [_chunk(0, struct.pack("!LHHL", sctp.tsn, 0, 0, 51), 3)],
    "a channel twice": lambda sctp: [
        _chunk(
            0,
            struct.pack("!LHHLBBHLHH", (sctp.tsn + n) & 0xFFFFFFFF, 90, 0, 50, 3, 0, 0, 0, 0, 0),
            3,
        )
        for n in range(2)
    ],
    "an open that is acknowledged": lambda sctp: [
        _chunk(0, struct.pack("!LHHL", sctp.tsn, 900, 0, 50) + b"\2", 3)
    ],
    "text that is none": lambda sctp: [
        _chunk(0, struct.pack("!LHHL", sctp.tsn, 1, 0, 51) + b"\xff\xfe", 3)
    ],
    "chunks that are cut off": lambda sctp: [b"\0\3\0\5\0", b"\1\0\0\4"],
}
"""Packets that no peer sends, each of which is sent alone, and many times."""


async def odd_packets(base: str, seconds: float) -> str:
    """Packets that no peer sends, of every kind, each by a caller of its own."""
    share, taken = seconds / len(PACKETS), []
    async with ClientSession(timeout=ClientTimeout(CONNECT_S)) as http:
        for name, chunks in PACKETS.items():

            async def send(sctp: _Sctp, _: int, chunks: Any = chunks, name: str = name) -> None:
                await sctp.send(*chunks(sctp), tag=0 if name == "INIT" else None)

            sctp = await _flood(base, share, send)
            if not sctp.was_closed:
                taken.append(f"{name} ({sctp.packets})")
            try:
                async with http.get(f"{base}/healthz") as response:
                    await response.read()
            except TimeoutError:
                return f"the server answers no more after {name}"
    closed = len(PACKETS) - len(taken)
    return f"{closed} kinds closed the channel, {len(taken)} did nothing: {', '.join(taken)}"


# --- offers that are none ---


def broken(sdp: str) -> Iterator[tuple[str, str]]:
    """Returns descriptions with one line missing, doubled or garbled, and what was done."""
    lines = sdp.splitlines()
    for at, line in enumerate(lines):
        value = line.partition(":")[2] if line.startswith("a=") else line[2:]
        start = line.removesuffix(value)
        # Letters change case, digits their value; so words, addresses and fingerprints are others.
        other = value.translate(str.maketrans("0123456789", "9876543210")).swapcase()
        garbled = {
            "missing": [],
            "doubled": [line, line],
            "without a value": [start.rstrip(":")],
            "cut": [line[: len(line) - len(value) // 2]],
            "longer": [line + "x 99999999999 \u2460 " + "y" * 300],
            "other": [start + other],
            "words": [start + "holdconn nothing %s"],
            "spaced": [start + value.replace(" ", "\t").replace(":", " : ")],
            "negative": [re.sub(r"\d+", "-1", line)],
            "huge": [re.sub(r"\d+", "9" * 5000, line)],
            "binary": [start + "\x00\x1b[31m\ud800"],
        }
        for what, instead in garbled.items():
            yield f"{line[:60]} {what}", "\r\n".join([*lines[:at], *instead, *lines[at + 1 :], ""])


PYTHONS = re.compile(
    r"Error|None\b|invalid literal|object has|unpack|<class|Traceback|StopIter|out of range"
)
"""Words that a refusal should not have: it speaks of SDP."""


async def broken_offers(base: str, seconds: float) -> str:
    """Offers of which one line is missing, doubled or garbled, at every door that takes one."""
    doors: dict[str, Callable[[str], dict[str, Any]]] = {
        "/api/offer": lambda sdp: {"json": {"sdp": sdp, "type": "offer"}},
        "/v1/realtime/calls": _sdp_body,
        "/whip/attack": _sdp_body,
    }
    leg, loop, tried = PeerLeg("attacker"), asyncio.get_running_loop(), 0
    answers: Counter[int] = Counter()
    offer, end = await leg.offer(), loop.time() + seconds
    try:
        async with ClientSession() as http:
            for what, sdp in broken(offer):
                if loop.time() > end:
                    break
                for door, body in doors.items():
                    async with http.post(base + door, **body(sdp)) as response:
                        text = await response.text()
                        answers[response.status] += 1
                        gone = response.headers.get("Location", "")
                    tried += 1
                    if response.status >= 500 and response.status != 503:
                        return f"{door} answers {response.status} to {what}: {text[:200]}"
                    if response.status == 400 and PYTHONS.search(text):
                        return f"{door} says of {what}: {text[:200]}"
                    if response.status == 200:
                        gone = f"/api/offer/{(await response.json())['pc_id']}"
                    if gone.startswith("/v1/"):
                        await (await http.post(f"{base}{gone}/hangup")).read()
                    elif gone:
                        await (await http.delete(base + gone)).read()
    finally:
        await leg.hang_up("attack over")
    return f"{tried} offers: " + ", ".join(f"{n} × {status}" for status, n in answers.items())


def _sdp_body(sdp: str) -> dict[str, Any]:
    headers = {"Content-Type": "application/sdp"}
    return {"data": sdp.encode("utf-8", "replace"), "headers": headers}
