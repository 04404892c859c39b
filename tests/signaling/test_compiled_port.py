"""Both paths do the same with all that arrives at the port that calls share, and protect alike."""

import asyncio
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pylibsrtp
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from offhook.media.clock_io import DRAIN_DATAGRAMS
from offhook.media.codecs.opus import OpusDecoder, OpusEncoder
from offhook.media.rtp import srtp
from offhook.media.rtp.receiver import AudioReceiver
from offhook.media.rtp.rtp_leg import RtpFormat
from offhook.media.rtp.srtp import Protector
from offhook.signaling import peer_io
from offhook.signaling.ice import port_io
from offhook.signaling.ice.demultiplexer import Demultiplexer, IceSession
from offhook.signaling.ice.port_io import UdpSocket
from offhook.signaling.peer_io import PeerLeg
from tests.media.native import test_packets
from tests.media.native.paths import Twins, both, needs_compiled, path
from tests.media.native.test_opus import OPUS, FarEnd, said
from tests.media.native.test_packets import TICK_S, state
from tests.support.waiting import until

pytestmark = needs_compiled

HOST = "127.0.0.1"
CALLS = 2
FORMAT = RtpFormat("opus", {OPUS: OpusDecoder}, OpusEncoder, OPUS, True)
PROFILES = {
    pylibsrtp.Policy.SRTP_PROFILE_AEAD_AES_256_GCM: 44,
    pylibsrtp.Policy.SRTP_PROFILE_AEAD_AES_128_GCM: 28,
    pylibsrtp.Policy.SRTP_PROFILE_AES128_CM_SHA1_80: 30,
}
SENDER_REPORT = bytes((0x80, 200, 0, 6, 0, 0, 0, 7, *range(20)))
BYE = bytes((0x81, 203, 0, 1, 0, 0, 0, 9))


def session(direction: int, key: int = 1, profile: int | None = None) -> pylibsrtp.Session:
    if profile is None:
        profile = pylibsrtp.Policy.SRTP_PROFILE_AEAD_AES_256_GCM
    master = bytes((key,)) * PROFILES[profile]
    policy = pylibsrtp.Policy(master, direction, srtp_profile=profile)
    return pylibsrtp.Session(policy)


class Line(test_packets.Line):
    """What PeerLeg does with datagrams."""

    _intercept_datagrams = PeerLeg._intercept_datagrams
    _is_remote_ssrc = PeerLeg._is_remote_ssrc


class Peer:
    """The ICE of a leg, without its checks."""

    def __init__(self) -> None:
        self.queued: list[bytes] = []
        self.checked: list[tuple[str, int]] = []
        self.agent = SimpleNamespace(
            data_received=lambda data, component: self.queued.append(data),
            inbound=None,
            is_remote_ssrc=lambda ssrc: False,
            _nominated={},
        )

    def receive_data(self, data: bytes) -> None:
        self.agent.data_received(data, 1)

    def sends(self, ssrc: int) -> bool:
        return bool(self.agent.is_remote_ssrc(ssrc))

    def check_address(self, local: object, remote: tuple[str, int]) -> None:
        self.checked.append(remote)


class Edge:
    """A port with a call from each of these addresses."""

    def __init__(self, callers: list[tuple[str, int]]) -> None:
        self.demultiplexer = Demultiplexer()
        self.udp = UdpSocket(HOST, 0, self.demultiplexer)
        self.address = self.udp._socket.getsockname()
        self.legs: list[Line] = []
        self.peers: list[Peer] = []
        self.sessions: list[IceSession] = []
        for number, address in enumerate(callers):
            self.add(number, address)

    def add(self, number: int, address: tuple[str, int]) -> None:
        leg, peer = Line(1, FORMAT), Peer()
        ice: Any = self.demultiplexer.register(peer, str(number), "secret")  # type: ignore[arg-type]
        self.demultiplexer._learn(ice, self.udp.local, address)
        keys = session(pylibsrtp.Policy.SSRC_ANY_INBOUND, number)
        leg._intercept_datagrams(
            SimpleNamespace(_rx_srtp=keys, transport=SimpleNamespace(_connection=peer.agent))
        )
        self.legs.append(leg)
        self.peers.append(peer)
        self.sessions.append(ice)

    def knows(self) -> dict[str, Any]:
        return {
            "dropped": asdict(self.demultiplexer.dropped),
            "legs": [(state(leg), leg.srtp_failures, leg.sent) for leg in self.legs],
            "peers": [(peer.queued, peer.checked) for peer in self.peers],
        }


class Caller(FarEnd):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.ssrc = 7 + number
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((HOST, 0))
        self.keys = session(pylibsrtp.Policy.SSRC_ANY_OUTBOUND, number)
        self.seen = [b""]

    def sound(self, number: int) -> bytes:
        data = self.keys.protect(self.packet(said(20)[number % 50]))
        self.seen.append(data)
        return data


class Port:
    """Both paths, and the clock that they see."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.callers = [Caller(number) for number in range(CALLS + 1)]  # the last has no call
        addresses = [caller.socket.getsockname() for caller in self.callers[:CALLS]]
        self.twins = Twins(lambda: Edge(addresses))

    def send(self, caller: Caller, data: bytes) -> None:
        for edge in (self.twins.python, self.twins.compiled):
            caller.socket.sendto(data, edge.address)

    def drain(self) -> None:
        self.twins.do(lambda edge: edge.udp._drain())
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

    def close(self) -> None:
        self.twins.do(lambda edge: edge.udp.close())
        for caller in self.callers:
            caller.socket.close()


@contextmanager
def opened() -> Iterator[Port]:
    """A port whose clock is the test's."""
    with pytest.MonkeyPatch.context() as patch:
        port = Port()
        try:
            for module in (port_io, peer_io):
                patch.setattr(module, "monotonic", lambda: port.now)
            yield port
        finally:
            port.close()


callers = st.integers(0, CALLS)
steps = st.one_of(
    st.tuples(st.just("sound"), callers, st.integers(1, 12)),
    st.tuples(st.just("sound"), callers, st.integers(1, 12)),
    st.tuples(st.just("lose"), callers, st.integers(1, 5)),
    st.tuples(st.just("spoil"), callers, st.integers(0, 200)),
    st.tuples(st.just("replay"), callers, st.integers(1, 70)),
    st.tuples(st.just("swap"), callers, st.integers(2, 5)),
    st.tuples(st.just("other"), callers, st.binary(max_size=60)),
    st.tuples(st.just("type"), callers, st.sampled_from([0, 13, 110])),
    st.tuples(st.just("rtcp"), callers, st.sampled_from([SENDER_REPORT, BYE, b"\x80\xc8"])),
    st.tuples(st.just("raw"), callers, st.binary(max_size=40)),
    st.tuples(st.just("rtp"), callers, st.binary(max_size=40)),
    st.tuples(st.just("long"), callers, st.sampled_from([1499, 1500, 1501, 2048, 2049, 9000])),
    st.tuples(st.just("foreign"), callers, st.integers(0, CALLS)),
    st.tuples(st.just("hold"), callers, st.booleans()),
    st.tuples(st.just("leave"), callers, st.none()),
    st.tuples(st.just("flood"), callers, st.integers(60, 150)),
    st.tuples(st.just("wait"), st.just(0), st.floats(0, 2)),
)


async def play(script: list[Any]) -> None:
    with opened() as port:
        for i in range(4):
            for caller in port.callers[:CALLS]:
                port.send(caller, caller.sound(i))
            port.tick()
        for what, which, detail in script:
            act(port, port.callers[which], what, detail)
            port.tick()
        for _ in range(3):
            port.drain()


def act(port: Port, caller: Caller, what: str, detail: Any) -> None:
    match what:
        case "sound":
            for i in range(detail):
                port.send(caller, caller.sound(i))
                if i % 4:
                    port.tick()
        case "lose":
            caller.number = (caller.number + detail) & 0xFFFF
            caller.timestamp = (caller.timestamp + 960 * detail) & 0xFFFF_FFFF
        case "spoil":
            data = bytearray(caller.sound(1))
            data[detail % len(data)] ^= 1 + detail % 255
            port.send(caller, bytes(data))
        case "replay":
            port.send(caller, caller.seen[-min(detail, len(caller.seen))])
        case "swap":
            for data in reversed([caller.sound(i) for i in range(detail)]):
                port.send(caller, data)
        case "other":
            port.send(caller, caller.keys.protect(caller.packet(detail)))
        case "type":
            port.send(caller, caller.keys.protect(caller.packet(b"sound", payload_type=detail)))
        case "rtcp":
            data = caller.keys.protect_rtcp(detail) if len(detail) > 2 else detail
            port.send(caller, data)
        case "raw":
            port.send(caller, detail)
        case "rtp":
            port.send(caller, b"\x80" + detail)
        case "long":
            port.send(caller, caller.sound(1)[:12] + bytes(detail - 12))
        case "foreign":
            port.send(caller, port.callers[detail].sound(1))
        case "hold":
            for edge in (port.twins.python, port.twins.compiled):
                for leg in edge.legs:
                    leg.receiving = detail
        case "leave" if caller is not port.callers[CALLS]:
            number = port.callers.index(caller)
            port.twins.do(
                lambda edge: edge.demultiplexer.unregister(edge.sessions[number], port.now)
            )
        case "flood":
            for i in range(detail):
                port.send(caller, caller.sound(i) if i % 7 else b"\x90" + bytes(20))
        case "wait":
            port.now += detail


@given(script=st.lists(steps, max_size=20))
@settings(max_examples=30)
@example([("rtp", 0, b""), ("raw", 0, b""), ("raw", 1, b"\x80"), ("long", 0, 1501)])
def test_whatever_arrives(script: list[Any]) -> None:
    asyncio.run(play(script))


async def test_the_usual_packet_is_taken_without_python(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened() as port, path(True):
        caller = port.callers[0]
        for i in range(40):
            port.send(caller, caller.sound(i))
            if i == 20:
                monkeypatch.setattr(AudioReceiver, "receive", None)
                monkeypatch.setattr(port.twins.compiled.udp, "local", None)
                monkeypatch.setattr(type(port.twins.compiled.udp._socket), "recvfrom", None)
            port.twins.compiled.udp._drain()
            port.twins.compiled.legs[0].tick(port.now)
            port.now += TICK_S
        assert port.twins.compiled.legs[0]._receiver.stats.received == 40


async def test_a_flood_is_read_in_pieces() -> None:
    """The rest waits in the kernel, which drops what it has no room for."""
    with opened() as port:
        caller = port.callers[0]
        for i in range(DRAIN_DATAGRAMS + 10):
            port.send(caller, caller.sound(i))
        for read in (DRAIN_DATAGRAMS, DRAIN_DATAGRAMS + 10, DRAIN_DATAGRAMS + 10):
            port.drain()
            assert port.twins.compiled.legs[0]._receiver.stats.received == read


async def test_what_waited_for_a_tick_has_arrived_when_it_did() -> None:
    """RTP and RTCP; and so has what did not wait."""
    with opened() as port:
        caller, edge = port.callers[0], port.twins.compiled
        leg = edge.legs[0]
        arrived: list[float] = []
        report = caller.keys.protect_rtcp(SENDER_REPORT)
        for data in (caller.sound(1), caller.sound(2), report, caller.sound(3)):
            port.send(caller, data)
            time.sleep(0.03)  # noqa: ASYNC251 -- for it to wait
        receive_rtp, receive_rtcp = leg.receive_rtp, leg.receive_rtcp
        leg.receive_rtp = lambda data, now: (arrived.append(now), receive_rtp(data, now))  # type: ignore[method-assign,assignment]
        leg.receive_rtcp = lambda data, now: (arrived.append(now), receive_rtcp(data, now))  # type: ignore[method-assign,assignment]
        edge.udp.read()
        assert len(arrived) == 4
        assert all(earlier < later for earlier, later in pairwise([*arrived, port.now]))
        port.send(caller, caller.sound(4))
        edge.udp._drain()
        assert arrived[4] == port.now


async def test_a_tick_reads_what_is_there_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_io, "TICK_DRAINS", 2)
    with opened() as port:
        caller, edge = port.callers[0], port.twins.compiled
        for sent, read in ((DRAIN_DATAGRAMS + 5, DRAIN_DATAGRAMS + 5), (200, 2 * DRAIN_DATAGRAMS)):
            before = edge.legs[0]._receiver.stats.received
            for i in range(sent):
                port.send(caller, caller.sound(i))
            edge.udp.read()
            assert edge.legs[0]._receiver.stats.received - before == read


async def test_the_event_loop_reads_while_no_clock_does() -> None:
    with opened() as port:
        caller, edge = port.callers[0], port.twins.compiled
        edge.udp.follow(True)
        for i in range(3):
            port.send(caller, caller.sound(i))
        await asyncio.sleep(0.05)
        assert edge.legs[0]._receiver.stats.received == 0
        assert port.twins.python.legs[0]._receiver.stats.received == 3
        edge.udp.follow(False)
        await until(lambda: edge.legs[0]._receiver.stats.received == 3)


async def test_who_fails_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first error is raised once all that was read has gone where it belongs."""
    unraisable: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda error: unraisable.append(error.exc_type))
    with opened() as port:
        first, second = port.callers[:CALLS]
        for caller in (first, second, first):
            port.send(caller, caller.sound(1))
        edge = port.twins.compiled
        edge.legs[0].receive_rtp = None  # type: ignore[assignment,method-assign]
        with pytest.raises(TypeError):
            edge.udp._drain()
        assert edge.legs[1]._receiver.stats.received == 1
    assert unraisable == [TypeError]


@given(
    packets=st.lists(
        st.one_of(
            st.binary(max_size=30),
            st.sampled_from([12, 1355, 1356, 1357, 1500, 3000]).map(lambda n: b"\x80" + bytes(n)),
            st.tuples(st.integers(0, 0xFFFF), st.binary(max_size=200)),
        ),
        max_size=20,
    ),
    profile=st.sampled_from(sorted(PROFILES)),
)
@settings(max_examples=80)
def test_packets_are_protected_the_same(packets: list[Any], profile: int) -> None:
    """A tuple is a packet with this sequence number."""

    def protected(protector: Protector, packet: Any) -> bytes | str:
        if isinstance(packet, tuple):
            packet = bytes((0x80, 111)) + packet[0].to_bytes(2) + bytes(8) + packet[1]
        try:
            return protector.protect(packet)
        except (pylibsrtp.Error, ValueError) as error:
            return repr(error)

    def make() -> Protector:
        return Protector(session(pylibsrtp.Policy.SSRC_ANY_OUTBOUND, 1, profile))

    python, compiled = both(make)
    assert python._compiled is None
    assert compiled._compiled is not None
    for packet in packets:
        assert protected(compiled, packet) == protected(python, packet)
        assert compiled.protect_rtcp(SENDER_REPORT) == python.protect_rtcp(SENDER_REPORT)


def test_another_libsrtp_is_left_to_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(srtp, "_SIGNATURE", "int(*)(void)")
    assert srtp._address("srtp_protect") == 0
    monkeypatch.setattr(srtp, "_FUNCTIONS", (1, 2, 0))
    assert srtp.compiled(session(pylibsrtp.Policy.SSRC_ANY_INBOUND)) is None
    monkeypatch.setattr(srtp, "_ffi", None)
    assert srtp._address("srtp_protect") == 0
