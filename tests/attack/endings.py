"""Callers who leave at once: every way into a call, and out of it again at any moment."""

import asyncio
import contextlib
import json
import struct
import uuid
from asyncio import DatagramProtocol, DatagramTransport
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from random import Random
from time import monotonic
from typing import Any
from urllib.parse import urlsplit
from xml.etree import ElementTree

import aiohttp

from offhook.signaling.peer_io import PeerLeg
from offhook.signaling.sdp import OfferError
from tests.support.waiting import HANGS_S

AT_ONCE = 4
"""Callers at the same time: fewer than a server refuses while they connect."""
LEAVES_S = (0.0, 0.0, 0.001, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5)
"""Seconds of which each caller waits one before it goes on, or leaves."""
SDP = {"Content-Type": "application/sdp"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}

Caller = Callable[[Random], Awaitable[str]]
"""Calls and leaves; says how far it came."""


async def repeated(call: Caller, seconds: float, most: int, seed: int) -> str:
    """Lets AT_ONCE callers come and leave until `most` have, or the time is over. Returns how many
    came how far."""
    ends, numbers, until = Counter[str](), iter(range(most)), monotonic() + seconds

    async def one_after_another() -> None:
        for number in numbers:
            if monotonic() > until:
                return
            try:
                async with asyncio.timeout(HANGS_S):
                    ends[await call(Random(f"{seed} {number}"))] += 1
            except TimeoutError:
                ends["no answer"] += 1
            except (OSError, aiohttp.ClientError) as error:
                ends[type(error).__name__] += 1

    await asyncio.gather(*(one_after_another() for _ in range(AT_ONCE)))
    return ", ".join(f"{count} {what}" for what, count in sorted(ends.items()))


async def a_moment(random: Random) -> None:
    await asyncio.sleep(random.choice(LEAVES_S) * random.random())


# --- browsers ---


async def browsers(base: str, seconds: float, most: int = 10_000, seed: int = 0) -> str:
    """SmallWebRTC: offers that are hung up before, while and after ICE connects."""

    async def ask(http: aiohttp.ClientSession, sdp: str) -> tuple[int, str, str]:
        async with http.post("/api/offer", json={"sdp": sdp, "type": "offer"}) as answer:
            if answer.status != 200:
                return answer.status, "", ""
            told = await answer.json()
            return 200, told["sdp"], f"/api/offer/{told['pc_id']}"

    return await _peers(base, ask, seconds, most, seed)


async def realtime_peers(base: str, seconds: float, most: int = 10_000, seed: int = 0) -> str:
    """The same by POST /v1/realtime/calls."""
    return await _by_sdp(base, lambda random: "/v1/realtime/calls", seconds, most, seed)


async def publishers(base: str, seconds: float, most: int = 10_000, seed: int = 0) -> str:
    """The same by WHIP, and players of what is published by WHEP."""

    def path(random: Random) -> str:
        return f"/{random.choice(('whip', 'whip', 'whep'))}/room{random.randrange(AT_ONCE)}"

    return await _by_sdp(base, path, seconds, most, seed)


async def _by_sdp(
    base: str, path: Callable[[Random], str], seconds: float, most: int, seed: int
) -> str:
    paths = Random(seed)

    async def ask(http: aiohttp.ClientSession, sdp: str) -> tuple[int, str, str]:
        async with http.post(path(paths), data=sdp, headers=SDP) as answer:
            where = answer.headers.get("Location", "")
            if where.startswith("/v1/"):
                where += "/hangup"
            return answer.status, await answer.text(), where

    return await _peers(base, ask, seconds, most, seed)


async def _peers(
    base: str,
    ask: Callable[[aiohttp.ClientSession, str], Coroutine[Any, Any, tuple[int, str, str]]],
    seconds: float,
    most: int,
    seed: int,
) -> str:
    """`ask` posts an offer and returns the status, the answer and where the call can be ended."""

    async def call(random: Random) -> str:
        peer = PeerLeg(uuid.uuid4().hex[:12])
        try:
            offer = await peer.offer()
            if random.random() < 0.2:
                asking = asyncio.ensure_future(ask(http, offer))
                await a_moment(random)
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
                return "left before the answer"
            status, sdp, where = await ask(http, offer)
            if status >= 300:
                return f"refused with {status}"
            if random.random() < 0.7:
                with contextlib.suppress(OfferError):  # the other side is what is tried here
                    await peer.accept(sdp)
            await a_moment(random)
            if random.random() < 0.3:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1):
                        await peer.until_connected()
                await a_moment(random)
            if random.random() < 0.2:
                return "vanished"
            method = "POST" if where.endswith("/hangup") else "DELETE"
            async with http.request(method, where) as answer:
                late = "" if answer.status == 200 else ", too late"
            return f"hung up {'connected' if peer.connected else 'unconnected'}{late}"
        finally:
            await peer.hang_up("left")

    async with aiohttp.ClientSession(base) as http:
        return await repeated(call, seconds, most, seed)


# --- sockets ---


GREETING = {"type": "response.create", "response": {"instructions": "Greet the caller."}}
SAID = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello?"}]}
EVENTS: tuple[dict[str, Any], ...] = (
    GREETING,
    {"type": "conversation.item.create", "item": SAID},
    {"type": "input_audio_buffer.append", "audio": "AAAA" * 1600},
    {"type": "input_audio_buffer.commit"},
    {"type": "response.cancel"},
    {"type": "session.update", "session": {"type": "realtime", "instructions": "Be brief."}},
    {"type": "output_audio_buffer.clear"},
)


async def realtime_sockets(base: str, seconds: float, most: int = 10_000, seed: int = 0) -> str:
    """Realtime WebSockets, closed at once and between any two events, while sound is queued too."""
    path = "/v1/realtime?model=gpt-realtime"
    return await _sockets(base, lambda random: (path, EVENTS), seconds, most, seed)


async def speech_sockets(base: str, seconds: float, most: int = 10_000, seed: int = 0) -> str:
    """The same of transcription sessions, /ws/transcribe and /ws/speak."""
    update = {"type": "session.update", "session": {"type": "transcription"}}
    doors: tuple[tuple[str, tuple[dict[str, Any], ...]], ...] = (
        ("/v1/realtime?intent=transcription", (update, *EVENTS[2:4])),
        ("/v1/realtime", (update, {"type": "session.update", "session": {"type": "realtime"}})),
        ("/ws/transcribe", ({"type": "start"}, {"type": "finish"})),
        ("/ws/speak", ({"type": "start"}, {"type": "text", "text": "A long story. " * 50})),
    )
    return await _sockets(base, lambda random: random.choice(doors), seconds, most, seed)


async def _sockets(
    base: str,
    door: Callable[[Random], tuple[str, tuple[dict[str, Any], ...]]],
    seconds: float,
    most: int,
    seed: int,
) -> str:
    async def call(random: Random) -> str:
        path, events = door(random)
        try:
            socket = await http.ws_connect(path, autoclose=False)
        except aiohttp.WSServerHandshakeError as refusal:
            return f"refused with {refusal.status}"
        try:
            for _ in range(random.choice((0, 0, 1, 2, 4))):
                if random.random() < 0.5:
                    event = GREETING if path.endswith("realtime") else random.choice(events)
                    await socket.send_str(json.dumps(random.choice((event, *events))))
                else:
                    with contextlib.suppress(TimeoutError):
                        await socket.receive(random.choice(LEAVES_S) + 0.01)
            await a_moment(random)
            return await _leave(socket, random)
        finally:
            await socket.close()

    async with aiohttp.ClientSession(base) as http:
        return await repeated(call, seconds, most, seed)


async def _leave(socket: aiohttp.ClientWebSocketResponse, random: Random) -> str:
    """Closes a WebSocket with the closing handshake, or drops the connection."""
    if random.random() < 0.5:
        await socket.close()
        return "closed"
    transport = socket._response.connection and socket._response.connection.transport
    if transport is not None:
        transport.abort()
    return "dropped"


async def carrier_sockets(base: str, seconds: float, most: int = 10_000, seed: int = 0) -> str:
    """Streams of chan_websocket and, by its webhook, of Twilio: never begun, begun, or stopped.
    The carriers are named after their providers and not signed."""

    async def call(random: Random) -> str:
        number, protocols = uuid.uuid4().hex, ("media",)
        if random.random() < 0.5:
            asterisk = {"connection_id": number, "channel_id": number, "format": "ulaw"}
            begins = [{"event": "MEDIA_START", "optimal_frame_size": 160, "ptime": 20, **asterisk}]
            ends: dict[str, Any] = {"event": "MEDIA_XOFF"}
            url = "/carriers/chan_websocket/stream"
        else:
            asked = {"CallSid": number, "From": "+491701", "To": "+493099"}
            async with http.post("/carriers/twilio/voice", data=asked) as answer:
                if answer.status != 200:
                    return f"refused by the webhook with {answer.status}"
                stream = next(ElementTree.fromstring(await answer.text()).iter("Stream"), None)
            if stream is None:
                return "refused by the webhook"
            url = urlsplit(stream.get("url") or "").path
            form = {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1}
            started = {"callSid": number, "streamSid": number, "mediaFormat": form}
            start = {"event": "start", "start": {"accountSid": "AC1", **started}}
            begins = [{"event": "connected", "protocol": "Call", "version": "1.0.0"}]
            begins.append({**start, "sequenceNumber": "1", "streamSid": number})
            ends = {"event": "stop", "streamSid": number, "stop": {"callSid": number}}
        try:
            socket = await http.ws_connect(url, protocols=protocols)
        except aiohttp.WSServerHandshakeError as refusal:
            return f"refused with {refusal.status}"
        try:
            for message in begins[: random.choice((0, 1, 2, 2, 2))]:
                await socket.send_str(json.dumps(message))
                await a_moment(random)
            if random.random() < 0.3:
                await socket.send_str(json.dumps(ends))
                await a_moment(random)
            return await _leave(socket, random)
        finally:
            await socket.close()

    async with aiohttp.ClientSession(base) as http:
        return await repeated(call, seconds, most, seed)


async def audiosockets(
    base: str, seconds: float, most: int = 10_000, seed: int = 0, *, port: int
) -> str:
    """AudioSocket at `port`: never begun, begun, hung up or dropped."""
    host = urlsplit(base).hostname or ""

    async def call(random: Random) -> str:
        _, writer = await asyncio.open_connection(host, port)
        try:
            if random.random() < 0.8:
                writer.write(b"\x01\x00\x10" + uuid.UUID(int=random.getrandbits(128)).bytes)
                await a_moment(random)
                writer.write(struct.pack("!BH", 0x10, 320) + bytes(320))
            await a_moment(random)
            if random.random() < 0.5:
                writer.write(b"\x00\x00\x00")
                await a_moment(random)
                return "hung up"
            writer.transport.abort()
            return "dropped"
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    return await repeated(call, seconds, most, seed)


# --- phones ---


class _Phones(DatagramProtocol):
    """Phones at one UDP port, each with a Call-ID of its own."""

    def __init__(self) -> None:
        self.answers: dict[str, asyncio.Queue[tuple[int, str, str]]] = {}
        """Status, To and method in CSeq of what each phone is answered."""

    def connection_made(self, transport: Any) -> None:
        self.transport: DatagramTransport = transport

    def datagram_received(self, data: bytes, source: tuple[str | Any, int]) -> None:
        first, *lines = data.decode(errors="replace").split("\r\n")
        fields = dict(line.partition(": ")[::2] for line in lines)
        call_id = fields.get("Call-ID", "")
        if first.startswith("SIP/2.0 "):
            if call_id in self.answers:
                told = int(first.split()[1]), fields["To"], fields["CSeq"].split()[1]
                self.answers[call_id].put_nowait(told)
            return
        if first.startswith("ACK"):
            return
        kept = ("Via", "From", "To", "Call-ID", "CSeq")
        copied = (line for line in lines if line.partition(":")[0] in kept)
        answer = "\r\n".join(("SIP/2.0 200 OK", *copied, "Content-Length: 0", "", ""))
        self.transport.sendto(answer.encode(), source)


async def phones(
    base: str, seconds: float, most: int = 10_000, seed: int = 0, *, sip_port: int
) -> str:
    """SIP over UDP at `sip_port`: CANCEL at once and later, BYE with the ACK and after it."""
    server = (urlsplit(base).hostname or "", sip_port)
    loop = asyncio.get_running_loop()
    transport, there = await loop.create_datagram_endpoint(_Phones, remote_addr=server)
    own = "{}:{}".format(*transport.get_extra_info("sockname"))
    sdp = (
        "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\n"
        "m=audio 9 RTP/AVP 0\r\n"
    )

    async def call(random: Random) -> str:
        call_id = uuid.uuid4().hex
        answers = there.answers[call_id] = asyncio.Queue()

        def send(
            method: str, number: int = 1, to: str = "", body: str = "", also: str = ""
        ) -> None:
            branch = f"z9hG4bK{call_id}{'' if method == 'CANCEL' else also}{number}"
            lines = (
                f"{method} sip:desk@{server[0]}:{server[1]} SIP/2.0",
                f"Via: SIP/2.0/UDP {own};branch={branch};rport",
                f"From: <sip:+4917{random.randrange(10**6)}@{own}>;tag={call_id[:8]}",
                f"To: {to or f'<sip:desk@{server[0]}>'}",
                f"Call-ID: {call_id}",
                f"CSeq: {number} {method}",
                f"Contact: <sip:phone@{own}>",
                "Max-Forwards: 70",
                *(("Content-Type: application/sdp",) if body else ()),
                f"Content-Length: {len(body)}",
            )
            there.transport.sendto("\r\n".join((*lines, "", body)).encode())

        async def final(method: str) -> tuple[int, str]:
            while True:
                status, to, of = await answers.get()
                if of == method and status >= 200:
                    return status, to

        try:
            send("INVITE", body=sdp)
            cancels = random.random() < 0.5
            if cancels:
                await a_moment(random)
                send("CANCEL")
            status, to = await final("INVITE")
            send("ACK", to=to, also="ack" if status < 300 else "")
            if status >= 300:
                return f"refused with {status}"
            if not cancels:
                await a_moment(random)
            send("BYE", 2, to=to)
            await final("BYE")
            return "taken and hung up"
        finally:
            del there.answers[call_id]

    try:
        return await repeated(call, seconds, most, seed)
    finally:
        transport.close()


# --- requests ---


async def requests(base: str, seconds: float, most: int = 10_000, seed: int = 0) -> str:
    """HTTP clients that leave before the answer, or in the middle of it."""
    story = {"input": "A long story. " * 100, "voice": "default", "response_format": "wav"}
    asked: tuple[tuple[str, dict[str, Any]], ...] = (
        ("/v1/audio/speech", story),
        ("/v1/audio/speech", {**story, "response_format": "pcm", "stream_format": "sse"}),
        ("/api/offer", {"sdp": "v=0", "type": "offer"}),
        ("/start", {}),
    )

    async def call(random: Random) -> str:
        path, body = random.choice(asked)

        async def ask() -> str:
            async with http.post(path, json=body) as answer:
                await answer.content.readany()
                await asyncio.sleep(random.random() * 0.05)
                answer.close()
                return f"left after {answer.status}"

        asking = asyncio.create_task(ask())
        await asyncio.sleep(random.choice(LEAVES_S) * random.random())
        if asking.done() or random.random() < 0.5:
            return await asking
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        return "left before the answer"

    async with aiohttp.ClientSession(base) as http:
        return await repeated(call, seconds, most, seed)
