"""Spoiled SCTP of a caller's data channels: an association is set up as it should be, and then its
peer sends chunks that are none, that come too early, twice or never, and that never end.

Nothing may be raised, since that would end the call; no packet may take long, and what is kept of
all of them has a bound.
"""

import asyncio
import random
import struct
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiortc.rtcsctptransport as sctp
from aiortc import RTCSctpCapabilities, RTCSctpTransport, rtcpeerconnection
from google_crc32c import value as crc32c

import offhook.signaling.peer_io  # noqa: F401  sets aiortc up
from tests.fuzz.complaints import complaints
from tests.fuzz.result import Result, collecting, resident_kb

PACKETS = 200
"""Of one association; of one in LONG_ONE, LONG."""
LONG, LONG_ONE = 2000, 100
PORT = 5000
MAX_HELD_BYTES = 2 << 20
"""Of one association: the window that it announces, and as much again."""
MAX_GROWTH_KB = 4096.0
CHECK_PACKETS = 100
"""From one look at what is kept to the next."""
STREAMS = (*(1,) * 12, 0, 2, 3, 65_535)
PROTOCOLS = (51,) * 20 + (50, 53, 56, 57, 0)
SIZES = (0, 1, 12, 60, 1100, 1100)
OPEN = struct.pack("!BBHLHH", 3, 0, 0, 0, 4, 0) + b"chat"
DATA = (
    b"\x02",
    b"\x03",
    OPEN,
    OPEN[:-2],
    OPEN[:8] + b"\xff\xff\xff\xff",
    b"ping: 1",
    b"\xff",
    b"{}",
)
MILD = ("next",) * 10 + ("early",) * 4 + ("again", "far", "many", "sack", "heartbeat")
"""What may come of a peer that means no ill, over a bad line."""
KINDS = (*MILD, "endless", "forward", "reconfig", "raw", "handshake", "damaged", "several")
AFTER_END = 5
"""Packets of an association that has been ended already."""
_MASK = 0xFFFFFFFF


@dataclass
class FakeDtls:
    """The connection beneath an association; what is sent stays here."""

    state: str = "connected"
    _role: str = "server"
    sent: list[bytes] = field(default_factory=list)

    def _register_data_receiver(self, receiver: object) -> None: ...

    def _unregister_data_receiver(self, receiver: object) -> None: ...

    async def _send_data(self, data: bytes) -> None:
        self.sent.append(data)


class Peer:
    """The other end of an association, which knows how it should be done."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.dtls = FakeDtls(_role=chance.choice(("server", "client")))
        # The class in use, which may be one of ours.
        transport: type[RTCSctpTransport] = vars(rtcpeerconnection)["RTCSctpTransport"]
        self.association = transport(self.dtls, PORT)  # type: ignore[arg-type]
        self.channels: list[Any] = []
        self.messages = 0
        self.association.on("datachannel", self._opened)
        self._tag, self._tsn = chance.getrandbits(32) or 1, chance.getrandbits(32)
        self._far_tag = self._far_tsn = 0
        self._sent: list[bytes] = []

    def _opened(self, channel: Any) -> None:
        self.channels.append(channel)
        channel.on("message", self._heard)

    def _heard(self, message: str | bytes) -> None:
        self.messages += 1

    async def connect(self) -> None:
        """RFC 9260 §5.1; the channel is that of a browser."""
        association = self.association
        await association.start(RTCSctpCapabilities(maxMessageSize=65_536), PORT)
        init = self._last(sctp.InitChunk)
        self._far_tag, self._far_tsn = init.initiate_tag, init.initial_tsn
        answer = sctp.InitAckChunk()
        answer.initiate_tag, answer.initial_tsn = self._tag, self._tsn
        answer.advertised_rwnd, answer.outbound_streams, answer.inbound_streams = 1 << 20, 300, 300
        answer.params = [(7, b"cookie"), *init.params]
        await self.send(bytes(answer))
        self._last(sctp.CookieEchoChunk)
        await self.send(bytes(sctp.CookieAckChunk()))
        await self.send(self.data(OPEN, stream=1, protocol=50))

    def _last(self, kind: type[Any]) -> Any:
        *_, chunks = sctp.parse_packet(self.dtls.sent[-1])
        (chunk,) = chunks
        assert isinstance(chunk, kind), chunk
        return chunk

    async def send(self, chunks: bytes, tag: int | None = None) -> None:
        """A packet with a right checksum."""
        await self.association._handle_data(self.packet(chunks, tag))

    def packet(self, chunks: bytes, tag: int | None = None) -> bytes:
        head = struct.pack("!HHL", PORT, PORT, self._far_tag if tag is None else tag)
        checksum = crc32c(head + bytes(4) + chunks)
        return head + struct.pack("<L", checksum) + chunks

    def data(
        self,
        payload: bytes,
        *,
        flags: int = 3,
        ahead: int | None = None,
        stream: int = 3,
        protocol: int = 51,
    ) -> bytes:
        """A DATA chunk: the next, or one that is so many TSNs ahead of it."""
        chunk = sctp.DataChunk(flags=flags)
        chunk.tsn = (self._tsn + (ahead or 0)) & _MASK
        if ahead is None:
            self._tsn = (self._tsn + 1) & _MASK
        chunk.stream_id, chunk.protocol, chunk.user_data = stream, protocol, payload
        chunk.stream_seq = self.chance.choice((0, 0, 1, 2, 65_535))
        return bytes(chunk)

    def packets(self, count: int) -> Iterator[bytes]:
        chance = self.chance
        kinds: Sequence[str] = chance.choice((KINDS, MILD, MILD, ("endless",), ("many", "early")))
        wild = chance.choice((0.001, 0.02))
        for _ in range(count):
            kind = chance.choice(KINDS if chance.random() < wild else kinds)
            packet = self.packet(self.chunk(kind))
            if chance.random() < 0.01:
                packet = chance.randbytes(chance.randrange(60))
            self._sent = [*self._sent[-20:], packet]
            yield packet if chance.random() < 0.98 else chance.choice(self._sent)

    def chunk(self, kind: str) -> bytes:
        chance = self.chance
        said = {"stream": chance.choice(STREAMS), "protocol": chance.choice(PROTOCOLS)}
        odd = chance.random() < 0.02
        payload = chance.choice(DATA) if odd else bytes(chance.choice(SIZES[odd or 1 :]))
        match kind:
            case "next":
                return self.data(payload, flags=chance.choice((3, 3, 3, 7, 2, 1, 0)), **said)
            case "endless":
                return self.data(bytes(1100), flags=0, protocol=51)
            case "early":
                ahead = chance.randrange(1, 40)
                return self.data(payload, flags=chance.choice((0, 3, 7)), ahead=ahead, **said)
            case "again":
                return self.data(payload, ahead=-chance.randrange(1, 40), **said)
            case "far":
                ahead = chance.choice((1 << 15, 1 << 31, (1 << 31) - 1, 1 << 20))
                return self.data(payload, ahead=ahead, **said)
            case "many":
                return self.data(payload, ahead=2 * chance.randrange(4_000), **said)
            case "sack":
                return self._sack()
            case "forward":
                return self._forward()
            case "reconfig":
                chunk = sctp.ReconfigChunk()
                chunk.params = [self._reconfig() for _ in range(chance.choice((1, 1, 2, 40)))]
                return bytes(chunk)
            case "heartbeat":
                beat = sctp.HeartbeatChunk()
                beat.params = [(1, bytes(chance.choice(SIZES)))]
                return bytes(beat) * chance.choice((1, 1, 30))
            case "handshake":
                return self._handshake()
            case "several":
                return b"".join(self.chunk(chance.choice(KINDS[:-1])) for _ in range(3))
            case "damaged":
                return self._damaged(self.chunk(chance.choice(KINDS[:-3])))
        body = chance.randbytes(chance.randrange(40))
        length = len(body) + 4 if chance.random() < 0.7 else chance.randrange(65_536)
        kind_ = chance.choice((*range(16), 130, 192, chance.randrange(256)))
        return struct.pack("!BBH", kind_, chance.randrange(256), length) + body

    def _sack(self) -> bytes:
        chance = self.chance
        sack = sctp.SackChunk()
        ahead = chance.choice((0, 1, 5, 1 << 30)) if chance.random() < 0.1 else -1
        sack.cumulative_tsn = (self._far_tsn + ahead) & _MASK
        sack.advertised_rwnd = chance.choice((0, 1, 1 << 20, _MASK))
        spans = ((1, 1), (2, 3), (0, 65_535), (9, 2), (65_535, 65_535), (1, 30))
        sack.gaps = [chance.choice(spans) for _ in range(chance.choice((0, 0, 1, 3, 280)))]
        sack.duplicates = [0] * chance.choice((0, 0, 0, 200))
        return bytes(sack)

    def _forward(self) -> bytes:
        chance = self.chance
        forward = sctp.ForwardTsnChunk()
        forward.cumulative_tsn = (self._tsn + chance.choice((-3, 0, 1, 50, 1 << 30))) & _MASK
        if chance.random() < 0.8:
            self._tsn = max(self._tsn, forward.cumulative_tsn + 1) & _MASK
        count = chance.choice((0, 1, 3, 250))
        forward.streams = [(chance.choice(STREAMS), chance.randrange(65_536)) for _ in range(count)]
        return bytes(forward)

    def _reconfig(self) -> tuple[int, bytes]:
        chance = self.chance
        numbers = [(self._tsn + chance.choice((-1, 0, 1, 7))) & _MASK for _ in range(3)]
        streams = struct.pack("!H", chance.choice(STREAMS)) * chance.choice((0, 1, 2, 200))
        match chance.randrange(4):
            case 0:
                return 13, struct.pack("!LLL", *numbers) + streams
            case 1:
                return 16, struct.pack("!LL", numbers[0], chance.randrange(8))
            case 2:
                return 17, struct.pack("!LHH", numbers[0], chance.choice((1, 65_535)), 0)
        return chance.choice((13, 14, 16, 17, 99)), chance.randbytes(chance.randrange(16))

    def _handshake(self) -> bytes:
        chance = self.chance
        chunk: Any = chance.choice((sctp.InitAckChunk, sctp.CookieEchoChunk, sctp.ErrorChunk))()
        if isinstance(chunk, sctp.CookieEchoChunk):
            chunk.body = chance.randbytes(24)
        elif isinstance(chunk, sctp.InitAckChunk):
            chunk.params = [(7, b"another")]
        plain = (sctp.CookieAckChunk, sctp.ShutdownChunk, sctp.ShutdownAckChunk, sctp.AbortChunk)
        if chance.random() < 0.1:
            chunk = chance.choice(plain)()
        return bytes(chunk)

    def _damaged(self, data: bytes) -> bytes:
        changed = bytearray(data)
        for _ in range(self.chance.randrange(1, 4)):
            changed[self.chance.randrange(len(changed))] ^= 1 << self.chance.randrange(8)
        return bytes(changed[: self.chance.randrange(4, len(changed) + 1)])


def held_bytes(association: RTCSctpTransport) -> int:
    """Of the texts and containers that an association is made of."""
    found, waiting, seen = 0, list(vars(association).values()), set[int]()
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, bytes | bytearray):
            found += len(thing)
        elif isinstance(thing, dict):
            found += 100 * len(thing)
            waiting += thing.values()
        elif isinstance(thing, list | set | tuple) or hasattr(thing, "popleft"):
            found += 50 * len(thing)
            waiting += thing
        elif type(thing).__module__.startswith(("offhook.signaling", "aiortc.rtcsctp")):
            slots = [getattr(thing, name) for name in getattr(thing, "__slots__", ())]
            waiting += [*getattr(thing, "__dict__", {}).values(), *slots]
    return found


async def _one(peer: Peer, packets: int, result: Result) -> None:
    """An association, from its set-up to its end."""
    await peer.connect()
    ended = 0
    for number, packet in enumerate(peer.packets(packets)):
        result.messages += 1
        started = time.thread_time()
        try:
            await peer.association._handle_data(packet)
        except Exception as error:
            result.raised(error, packet)
        took = time.thread_time() - started
        result.spent += took
        if took * 1000 > result.slowest_ms:
            result.slowest_ms, result.slowest = round(took * 1000, 3), packet.hex()
        if number % CHECK_PACKETS == 0:
            held = held_bytes(peer.association)
            if held > MAX_HELD_BYTES:
                result.left["bytes kept"] = max(held, result.left.get("bytes kept", 0))
        for channel in peer.channels[:1]:
            if peer.chance.random() < 0.05 and channel.readyState == "open":
                channel.send("x" * peer.chance.choice((1, 3_000)))
        if number % 20 == 0:
            await asyncio.sleep(0)
        peer.dtls.sent.clear()
        ended += peer.association._association_state is RTCSctpTransport.State.CLOSED
        if ended > AFTER_END:
            break
    result.counts["messages"] += peer.messages
    result.counts["channels"] += len(peer.channels)
    result.counts[peer.association._association_state.name.lower()] += 1
    await peer.association.stop()
    for timer in ("_t1_cancel", "_t2_cancel", "_t3_cancel", "_reconfig_timer_cancel"):
        getattr(peer.association, timer)()


async def _run(messages: int, seed: int, show: bool) -> Result:
    result = Result("sctp", most_growth_kb=MAX_GROWTH_KB)
    with complaints(result), collecting() as collect:
        await _associations(messages, random.Random(seed), show, result, collect)
    return result


async def _associations(
    messages: int,
    chance: random.Random,
    show: bool,
    result: Result,
    collect: Callable[[int], None],
) -> None:
    grown_from, shown, associations = 0.0, 0, 0
    while result.messages < messages:
        packets = LONG if chance.randrange(LONG_ONE) == 0 else PACKETS
        peer = Peer(chance)
        await _one(peer, min(packets, messages - result.messages), result)
        associations += 1
        collect(10 * associations)
        if not grown_from and result.messages >= messages // 10:
            grown_from = resident_kb()
        if show and result.messages >= shown + 50_000:
            shown = result.messages
            print(f"{shown} packets, {resident_kb():.0f} KB resident", file=sys.stderr)
    await asyncio.sleep(0)
    result.finish(grown_from)


def run(messages: int, seed: int, show: bool = False) -> Result:
    """Push that many packets through; progress goes to standard error."""
    return asyncio.run(_run(messages, seed, show))
