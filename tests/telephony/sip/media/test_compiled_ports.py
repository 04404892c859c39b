"""Both paths do the same with all that arrives at phones' ports, plain and under SRTP."""

import asyncio
import base64
import random
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchmarks.callers.rtp import offer
from offhook.media.clock_io import DRAIN_DATAGRAMS
from offhook.media.rtp.receiver import AudioReceiver
from offhook.media.rtp.rtp import RtpPacket
from offhook.telephony.sip.media import leg_io, rtp_ports_io, rtp_reader_io, rtp_transport_io
from offhook.telephony.sip.media.latch import Latch
from offhook.telephony.sip.media.leg_io import SipLeg
from offhook.telephony.sip.media.offer_answer import MediaSettings
from offhook.telephony.sip.media.rtp_ports_io import RtpPorts
from offhook.telephony.sip.media.rtp_transport_io import RtpTransport
from offhook.telephony.sip.media.sdes import SUITES
from offhook.telephony.sip.media.srtp import SdesSrtp
from tests.media.native import test_packets
from tests.media.native.paths import Twins, needs_compiled, path
from tests.media.native.test_packets import TICK_S, Sender, state
from tests.support.waiting import until

pytestmark = needs_compiled

HOST = "127.0.0.1"
KEYS = ("", "AES_CM_128_HMAC_SHA1_80", "AEAD_AES_256_GCM")
"""The suites of the calls; the first is plain RTP."""
EVENT = 101
SENDER_REPORT = bytes((0x80, 200, 0, 6, 0, 0, 0, 7, *range(20)))
BYE = bytes((0x81, 203, 0, 1, 0, 0, 0, 9))


def key(suite: str, number: int) -> bytes:
    return bytes((number,)) * SUITES[suite]


class Leg(SipLeg):
    """Keeps what it sends, and what is pressed."""

    def __init__(self, number: int, ports: RtpPorts) -> None:
        super().__init__(str(number), MediaSettings(srtp="optional"), ports, HOST)
        self.sent: list[bytes] = []
        self.keys = ""
        self.listener = self  # type: ignore[assignment]

    on_dtmf = test_packets.Line.on_dtmf
    on_closed = test_packets.Line.on_closed

    def on_held(self, held: bool) -> None:
        self.keys += "h" if held else "r"

    def _send_rtp(self, packet: bytes) -> None:
        self.sent.append(packet)
        super()._send_rtp(packet)


class Phone(Sender):
    def __init__(self, number: int) -> None:
        super().__init__(ssrc=7 + number)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((HOST, 0))
        self.suite = KEYS[number % len(KEYS)]
        self.srtp: SdesSrtp | None = None
        self.use_key(number)
        self.seen = [b""]

    def use_key(self, number: int) -> None:
        self.key = number
        self.before = self.srtp
        self.srtp = None
        if self.suite:
            master = key(self.suite, number)
            self.srtp = SdesSrtp(self.suite, master, master)

    def protected(self, packet: bytes, rtcp: bool = False) -> bytes:
        if self.srtp is None:
            data = packet
        else:
            data = (self.srtp.protect_rtcp if rtcp else self.srtp.protect)(packet)
        self.seen.append(data)
        return data

    def sound(self, number: int) -> bytes:
        return self.protected(self.packet(number))

    def sdp(self, direction: str = "sendrecv") -> str:
        lines = [f"a={direction}"]
        if self.suite:
            inline = base64.b64encode(key(self.suite, self.key)).decode()
            lines.append(f"a=crypto:1 {self.suite} inline:{inline}")
        return offer(self.socket.getsockname()[1]) + "".join(f"{line}\r\n" for line in lines)


class Edge:
    """Ports with a call from each of these phones, and what the event loop is to read."""

    def __init__(self) -> None:
        self.ports = RtpPorts(HOST, 28_200, 28_900, drain_seconds=0)
        self.readers: dict[int, Callable[[], None]] = {}
        self.legs: list[Leg] = []

    async def open(self, phones: list[Phone]) -> None:
        loop: Any = asyncio.get_running_loop()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop, "add_reader", lambda of, f: self.readers.update({_fd(of): f}))
            patch.setattr(loop, "remove_reader", lambda of: self.readers.pop(_fd(of), None))
            for number, phone in enumerate(phones):
                random.seed(number)
                leg = Leg(number, self.ports)
                await leg.bind()
                leg.answer(phone.sdp())
                leg._rtcp._uniform = lambda: 0.5
                self.legs.append(leg)

    def address(self, number: int) -> tuple[str, int]:
        sockets = self.legs[number]._transport.sockets
        assert sockets is not None
        return HOST, sockets.port

    def drain(self) -> None:
        poll = select.poll()
        for fd in self.readers:
            poll.register(fd, select.POLLIN)
        while ready := poll.poll(0):
            for fd, _ in ready:
                self.readers[fd]()

    def knows(self) -> list[Any]:
        return [
            (
                state(leg),  # type: ignore[arg-type]
                leg.sent,
                leg.srtp_failures,
                leg.refused_packets,
                latched(leg._transport._latch),
                leg._transport._srtp and sorted(leg._transport._srtp._sources),
            )
            for leg in self.legs
        ]

    def close(self) -> None:
        loop: Any = asyncio.get_running_loop()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop, "remove_reader", lambda of: self.readers.pop(_fd(of), None))
            for leg in self.legs:
                leg._transport.close()
        assert not self.readers


def _fd(of: Any) -> int:
    return of if isinstance(of, int) else of.fileno()


def latched(latch: Latch) -> dict[str, Any]:
    known = dict(vars(latch))
    known["_candidates"] = {
        address: [getattr(candidate, name) for name in candidate.__slots__]
        for address, candidate in latch._candidates.items()
    }
    return known


class Lines:
    """Both paths, their phones, and the clock that all see."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.phones = [Phone(number) for number in range(len(KEYS) + 1)]  # the last has no call
        self.twins = Twins(Edge)

    async def open(self) -> None:
        for compiled, edge in ((False, self.twins.python), (True, self.twins.compiled)):
            with path(compiled):
                await edge.open(self.phones[: len(KEYS)])

    def send(self, number: int, data: bytes, by: Phone | None = None) -> None:
        if number < len(KEYS):
            for edge in (self.twins.python, self.twins.compiled):
                (by or self.phones[number]).socket.sendto(data, edge.address(number))

    def drain(self) -> None:
        self.twins.do(lambda edge: edge.drain())
        assert self.twins.compiled.knows() == self.twins.python.knows()

    def tick(self) -> None:
        self.now += TICK_S
        self.drain()

        def one(edge: Edge) -> list[list[int]]:
            for leg in edge.legs:
                leg.tick(self.now)
            return [leg.sound_in.tolist() for leg in edge.legs]

        python, compiled = self.twins.do(one)
        assert compiled == python

    def renegotiate(self, number: int, direction: str = "sendrecv") -> None:
        def one(edge: Edge) -> None:
            edge.legs[number].answer(self.phones[number].sdp(direction))

        self.twins.do(one)

    def close(self) -> None:
        self.twins.do(lambda edge: edge.close())
        for phone in self.phones:
            phone.socket.close()


@contextmanager
def clock_of_its_own(lines: Lines) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in (leg_io, rtp_ports_io, rtp_reader_io, rtp_transport_io):
            patch.setattr(module, "monotonic", lambda: lines.now)
        yield


phones = st.integers(0, len(KEYS) - 1)
steps = st.one_of(
    st.tuples(st.just("sound"), phones, st.integers(1, 12)),
    st.tuples(st.just("sound"), phones, st.integers(1, 12)),
    st.tuples(st.just("lose"), phones, st.integers(1, 5)),
    st.tuples(st.just("spoil"), phones, st.integers(0, 200)),
    st.tuples(st.just("replay"), phones, st.integers(1, 70)),
    st.tuples(st.just("swap"), phones, st.integers(2, 5)),
    st.tuples(st.just("type"), phones, st.sampled_from([8, 13, 77, EVENT])),
    st.tuples(st.just("ssrc"), phones, st.integers(0, 9)),
    st.tuples(st.just("rtcp"), phones, st.sampled_from([SENDER_REPORT, BYE])),
    st.tuples(st.just("raw"), phones, st.binary(max_size=40)),
    st.tuples(st.just("rtp"), phones, st.binary(max_size=40)),
    st.tuples(st.just("long"), phones, st.sampled_from([1499, 1500, 1501, 2048, 2049, 9000])),
    st.tuples(st.just("wrong key"), phones, st.integers(1, 3)),
    st.tuples(st.just("old key"), phones, st.integers(1, 3)),
    st.tuples(st.just("plain"), phones, st.integers(1, 3)),
    st.tuples(st.just("foreign"), phones, phones),
    st.tuples(st.just("moves"), phones, st.integers(1, 10)),
    st.tuples(st.just("hold"), phones, st.sampled_from(["inactive", "sendonly", "sendrecv"])),
    st.tuples(st.just("key"), phones, st.integers(20, 23)),
    st.tuples(st.just("suite"), phones, st.sampled_from(KEYS)),
    st.tuples(st.just("flood"), phones, st.integers(60, 150)),
    st.tuples(st.just("wait"), st.just(0), st.floats(0, 4)),
)


async def play(script: list[Any]) -> None:
    lines = Lines()
    with clock_of_its_own(lines):
        await lines.open()
        try:
            for i in range(4):
                for number in range(len(KEYS)):
                    lines.send(number, lines.phones[number].sound(i))
                lines.tick()
            for what, number, detail in script:
                act(lines, number, what, detail)
                lines.tick()
            for _ in range(3):
                lines.tick()
        finally:
            lines.close()


def act(lines: Lines, number: int, what: str, detail: Any) -> None:
    phone = lines.phones[number]
    match what:
        case "sound":
            for i in range(detail):
                lines.send(number, phone.sound(i))
                if i % 4:
                    lines.tick()
        case "lose":
            phone.number = (phone.number + detail) & 0xFFFF
            phone.timestamp = (phone.timestamp + 160 * detail) & 0xFFFF_FFFF
        case "spoil":
            spoiled = bytearray(phone.sound(1))
            spoiled[detail % len(spoiled)] ^= 1 + detail % 255
            lines.send(number, bytes(spoiled))
        case "replay":
            lines.send(number, phone.seen[-min(detail, len(phone.seen))])
        case "swap":
            for data in reversed([phone.sound(i) for i in range(detail)]):
                lines.send(number, data)
        case "type":
            packet = phone.packet(1, payload_type=detail)
            lines.send(number, phone.protected(packet[:16] if detail == EVENT else packet))
        case "ssrc":
            phone.ssrc = detail
        case "rtcp":
            lines.send(number, phone.protected(detail, rtcp=True))
        case "raw":
            lines.send(number, detail)
        case "rtp":
            lines.send(number, b"\x80" + detail)
        case "long":
            lines.send(number, phone.sound(1)[:12] + bytes(detail - 12))
        case "wrong key":
            before, phone.srtp = phone.srtp, SdesSrtp(KEYS[1], bytes(30), bytes(30))
            for i in range(detail):
                lines.send(number, phone.sound(i))
            phone.srtp = before
        case "old key":
            phone.srtp, phone.before = phone.before, phone.srtp
            for i in range(detail):
                lines.send(number, phone.sound(i))
            phone.srtp, phone.before = phone.before, phone.srtp
        case "plain":
            for i in range(detail):
                lines.send(number, phone.packet(i))
        case "foreign":
            lines.send(number, lines.phones[detail].sound(1), by=lines.phones[-1])
        case "moves":
            for i in range(detail):
                lines.send(number, phone.sound(i), by=lines.phones[-1])
                lines.tick()
        case "hold":
            lines.renegotiate(number, detail)
        case "key":
            phone.use_key(detail)
            lines.renegotiate(number)
        case "suite":
            phone.suite = detail
            phone.use_key(phone.key)
            lines.renegotiate(number)
        case "flood":
            for i in range(detail):
                lines.send(number, phone.sound(i) if i % 7 else b"\x90" + bytes(20))
        case "wait":
            lines.now += detail


@given(script=st.lists(steps, max_size=20))
@settings(max_examples=40, deadline=None)
@example([("rtp", 0, b""), ("raw", 0, b""), ("raw", 1, b"\x80"), ("long", 1, 1501)])
@example([("sound", 1, 9), ("replay", 1, 2), ("wrong key", 1, 2), ("sound", 1, 2)])
@example([("sound", 2, 9), ("key", 2, 20), ("sound", 2, 9), ("wait", 0, 3), ("sound", 2, 5)])
@example([("sound", 1, 5), ("ssrc", 1, 3), ("sound", 1, 5), ("ssrc", 1, 8), ("sound", 1, 5)])
@example([("sound", 2, 9), ("type", 2, EVENT), ("rtcp", 2, BYE), ("hold", 2, "inactive")])
@example([("sound", 1, 5), ("suite", 1, ""), ("sound", 1, 5), ("suite", 1, KEYS[2])])
@example([("sound", 1, 9), ("key", 1, 20), ("old key", 1, 2), ("wait", 0, 3), ("old key", 1, 2)])
@example([("sound", 0, 9), ("moves", 0, 9), ("sound", 0, 9), ("type", 0, EVENT)])
def test_whatever_arrives(script: list[Any]) -> None:
    asyncio.run(play(script))


@contextmanager
def on_the_event_loop() -> Iterator[tuple[Edge, list[Phone]]]:
    """A compiled edge whose ports the event loop or a clock reads."""
    edge, callers = Edge(), [Phone(number) for number in range(len(KEYS))]
    try:
        with path(True):
            yield edge, callers
    finally:
        for leg in edge.legs:
            leg._transport.close()
        for phone in callers:
            phone.socket.close()


async def connect(edge: Edge, callers: list[Phone]) -> None:
    for number, phone in enumerate(callers):
        leg = Leg(number, edge.ports)
        await leg.bind()
        leg.answer(phone.sdp())
        edge.legs.append(leg)


async def test_the_event_loop_reads_while_no_clock_does(nothing_left: None) -> None:
    """Also ports that are opened later, and after all were closed."""
    with on_the_event_loop() as (edge, callers):
        reader = edge.ports.reader
        reader.follow(True)
        await connect(edge, callers)
        for i in range(3):
            callers[0].socket.sendto(callers[0].sound(i), edge.address(0))
        await asyncio.sleep(0.05)
        stats = edge.legs[0]._receiver.stats
        assert stats.received == 0
        reader.read()
        assert stats.received == 3
        callers[1].socket.sendto(callers[1].sound(1), edge.address(1))
        reader.follow(False)
        await until(lambda: edge.legs[1]._receiver.stats.received == 1)
        for leg in edge.legs:
            leg._transport.close()
        edge.legs.clear()
        reader.read()
        await connect(edge, callers)
        callers[2].socket.sendto(callers[2].sound(1), edge.address(2))
        await until(lambda: edge.legs[2]._receiver.stats.received == 1)


async def test_what_waited_for_a_tick_has_arrived_when_it_did() -> None:
    arrived: list[float] = []
    with on_the_event_loop() as (edge, callers):
        edge.ports.reader.follow(True)
        await connect(edge, callers)
        leg = edge.legs[1]
        receive_rtp = leg.receive_rtp

        def noted(data: bytes, now: float) -> None:
            arrived.append(now)
            receive_rtp(data, now)

        leg.receive_rtp = noted  # type: ignore[method-assign]

        def send_and_wait(i: int) -> float:
            """Returns a time at which it has waited for a while, and goes on waiting."""
            callers[1].socket.sendto(callers[1].sound(i), edge.address(1))
            time.sleep(0.015)
            waits = time.monotonic()
            time.sleep(0.015)
            return waits

        waited = [send_and_wait(i) for i in range(4)]
        edge.ports.reader.read()
        assert len(arrived) == 4
        assert sorted([*arrived, *waited]) == list(chain(*zip(arrived, waited, strict=True)))
        for i in range(12):  # played, from when on Python does not see the next one
            leg.tick(arrived[-1] + i * TICK_S)
        waits = send_and_wait(4)
        edge.ports.reader.read()
        assert len(arrived) == 4
        assert leg._receiver.stats.received == 5
        assert arrived[-1] < leg.last_packet_at < waits
        assert leg.last_packet_at == leg._transport._latch._received_at


@pytest.mark.parametrize("number", range(len(KEYS)))
async def test_the_usual_packet_is_taken_without_python(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with on_the_event_loop() as (edge, callers):
        edge.ports.reader.follow(True)
        await connect(edge, callers)
        leg, phone = edge.legs[number], callers[number]
        for i in range(40):
            phone.socket.sendto(phone.sound(i), edge.address(number))
            if i == 20:
                for made, name in (
                    (AudioReceiver, "receive"),
                    (RtpTransport, "_receive_rtp"),
                    (Latch, "accept"),
                    (SdesSrtp, "unprotect"),
                    (RtpPacket, "parse"),
                ):
                    monkeypatch.setattr(made, name, None)
            edge.ports.reader.read()
            leg.tick(time.monotonic())
        assert leg._receiver.stats.received == 40
        assert leg._transport.destination == phone.socket.getsockname()


async def test_keys_of_a_handshake_are_used_as_those_in_sdp(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with on_the_event_loop() as (edge, callers):
        edge.ports.reader.follow(True)
        await connect(edge, callers)
        leg, phone, seen = edge.legs[1], callers[1], []
        phone.use_key(50)
        master = key(phone.suite, 50)
        keys = SdesSrtp(phone.suite, master, master)
        leg._transport._use_dtls_keys(keys, phone.socket.getsockname())
        unprotect = SdesSrtp.unprotect

        def noted(self: SdesSrtp, packet: bytes) -> bytes:
            seen.append(packet)
            return unprotect(self, packet)

        monkeypatch.setattr(SdesSrtp, "unprotect", noted)
        for i in range(20):
            phone.socket.sendto(phone.sound(i), edge.address(1))
            edge.ports.reader.read()
            leg.tick(time.monotonic())
        assert leg._receiver.stats.received == 20
        assert seen == phone.seen[1:2]


async def test_a_flood_at_one_port_is_read_in_pieces_and_the_others_whole() -> None:
    with on_the_event_loop() as (edge, callers):
        edge.ports.reader.follow(True)
        await connect(edge, callers)
        for i in range(DRAIN_DATAGRAMS + 10):
            callers[0].socket.sendto(callers[0].sound(i), edge.address(0))
        callers[1].socket.sendto(callers[1].sound(1), edge.address(1))
        for read in (DRAIN_DATAGRAMS, DRAIN_DATAGRAMS + 10, DRAIN_DATAGRAMS + 10):
            edge.ports.reader.read()
            assert [leg._receiver.stats.received for leg in edge.legs] == [read, 1, 0]


async def test_many_ports_are_read_at_one_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    """In rounds of READY_PORTS, and no more rounds than TICK_ROUNDS."""
    calls = rtp_reader_io.READY_PORTS + 5
    with on_the_event_loop() as (edge, callers):
        edge.ports.reader.follow(True)
        await connect(edge, [callers[0]] * calls)

        def send_and_read() -> int:
            for number in range(calls):
                callers[0].socket.sendto(callers[0].sound(number), edge.address(number))
            before = sum(leg._receiver.stats.received for leg in edge.legs)
            edge.ports.reader.read()
            return sum(leg._receiver.stats.received for leg in edge.legs) - before

        assert send_and_read() == calls
        monkeypatch.setattr(rtp_reader_io, "TICK_ROUNDS", 1)
        assert send_and_read() == rtp_reader_io.READY_PORTS
