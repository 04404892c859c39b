"""Garbage into the compiled path of packets: `python -m tests.fuzz.packets --packets 100000`.

Calls take turns: in G.711, in Opus, in Opus under SRTP through a port that calls share, in G.711
through a phone's port, plain and under SRTP. Every call begins with packets in order, so that the
compiled path is taken, and goes on with those of every kind: spoiled headers and payloads of any
size, numbers and times far away, key presses and noise, other streams; on ports also what is not
authentic, or no RTP at all; to phones' ports also from elsewhere, and under new keys.
Nothing may be raised. Under sanitizers: see `sanitized`.
"""

import argparse
import asyncio
import random
import socket
import struct
from base64 import b64encode
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pylibsrtp

from benchmarks.callers.rtp import offer
from offhook.media import native
from offhook.media.codecs.g711 import PcmaDecoder, PcmuDecoder, PcmuEncoder
from offhook.media.codecs.g722 import G722Decoder
from offhook.media.codecs.opus import OpusDecoder, OpusEncoder
from offhook.media.rtp.rtp_leg import RtpFormat, RtpLeg
from offhook.media.rtp.srtp import Protector
from offhook.signaling import peer_io
from offhook.signaling.ice import port_io
from offhook.signaling.ice.demultiplexer import Demultiplexer
from offhook.signaling.ice.port_io import UdpSocket
from offhook.signaling.peer_io import PeerLeg
from offhook.telephony.sip.media import leg_io, rtp_ports_io, rtp_reader_io
from offhook.telephony.sip.media.leg_io import SipLeg
from offhook.telephony.sip.media.media_plan import MediaSettings
from offhook.telephony.sip.media.rtp_ports_io import RtpPorts
from offhook.telephony.sip.media.sdes import SUITES
from offhook.telephony.sip.media.srtp import SdesSrtp, SrtpError

HOST = "127.0.0.1"
KINDS = ("pcmu", "opus", "webrtc", "phone", "srtp phone")
CALL_PACKETS = 2_000
TYPES = (0, 0, 111, 8, 9, 13, 101, 77)
HEADER = struct.Struct("!BBHII")
G711 = RtpFormat(
    "pcmu",
    {0: PcmuDecoder, 8: PcmaDecoder, 9: G722Decoder},
    PcmuEncoder,
    0,
    False,
    events_in={101: 8000},
    events_out=(101, 8000),
    comfort_noise=frozenset({13}),
)
OPUS = RtpFormat(
    "opus",
    {111: OpusDecoder, 0: PcmuDecoder},
    OpusEncoder,
    111,
    True,
    events_in={101: 48_000},
    events_out=(101, 48_000),
)
OPUS_TICKS = 960
Send = Callable[[bytes, float], None]
"""Has a packet arrive at this time."""


@cache
def opus() -> list[bytes]:
    """A second of noise that repairs the packet before it, and DTX."""
    encoder, noise = OpusEncoder(), np.random.default_rng(1)
    encoder.set_loss(0.2)
    payloads = [encoder.encode(noise.integers(-9000, 9000, 480).astype("h")) for _ in range(50)]
    return [*payloads, payloads[0][:1], payloads[0][:2]]


class Line(RtpLeg):
    _intercept_datagrams: Any = PeerLeg._intercept_datagrams
    _is_remote_ssrc: Any = PeerLeg._is_remote_ssrc

    protector: Protector | None = None

    def _send_rtp(self, packet: bytes) -> None:
        assert len(packet) > 12
        if self.protector is not None:
            assert len(self.protector.protect(packet)) > len(packet)

    def _send_rtcp(self, packet: bytes) -> None:
        pass

    def _receive_bye(self) -> None:
        pass

    def send_message(self, text: str) -> bool:
        return False

    async def hang_up(self, reason: str) -> None:
        pass


class FarEnd:
    """Sends what it should most of the time."""

    def __init__(self, chance: random.Random, payload_type: int) -> None:
        self._chance = chance
        self._spoiled = chance.choice((0.0, 0.05, 0.3, 0.9))
        self._type, self._number, self._timestamp, self._ssrc = payload_type, 0, 0, 1
        self._bytes = chance.choice((160, 160, 80, 240, 320, 1))

    def packet(self, number: int) -> bytes:
        chance = self._chance
        opus = self._type == 111
        self._number = self._number + 1 & 0xFFFF
        self._timestamp = self._timestamp + (OPUS_TICKS if opus else self._bytes) & 0xFFFF_FFFF
        spoiled = number > 20 and chance.random() < self._spoiled
        if not spoiled:
            return self._serialize(0x80, self._opus() if opus else chance.randbytes(self._bytes))
        match chance.randrange(10):
            case 0:
                return chance.randbytes(chance.randrange(60))
            case 1:
                self._number = self._number + chance.randint(-150, 150) & 0xFFFF
            case 2:
                self._timestamp = chance.getrandbits(32)
            case 3:
                self._timestamp = self._timestamp + chance.randint(-20_000, 20_000) & 0xFFFF_FFFF
            case 4:
                self._number = chance.getrandbits(16)
            case 5:
                self._type = chance.choice(TYPES)
            case 6:
                self._ssrc = chance.randrange(3)
            case 7:
                return self._serialize(chance.getrandbits(8), chance.randbytes(100))
            case 8:
                self._bytes = chance.choice((160, 80, 1, 240, 1400, chance.randrange(1, 1500)))
            case 9 if opus:
                return self._serialize(0x80, self._damaged())
        return self._serialize(0x80, chance.randbytes(chance.randrange(1500)))

    def _opus(self) -> bytes:
        return self._chance.choice(opus())

    def _damaged(self) -> bytes:
        """A payload of which some bytes are others, or missing."""
        payload = bytearray(self._opus())
        for _ in range(self._chance.randrange(4)):
            payload[self._chance.randrange(len(payload))] = self._chance.getrandbits(8)
        return bytes(payload[: self._chance.randrange(1, len(payload) + 1)])

    def _serialize(self, first: int, payload: bytes) -> bytes:
        head = HEADER.pack(first, self._type, self._number, self._timestamp, self._ssrc)
        return head + payload


class Wire:
    """A port of many calls, one call after another from the same address, and the clock of both."""

    def __init__(self) -> None:
        self._now = 0.0
        self._demultiplexer = Demultiplexer()
        self._udp = UdpSocket(HOST, 0, self._demultiplexer)
        self._address = self._udp._socket.getsockname()
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((HOST, 0))

    def monotonic(self) -> float:
        return self._now

    @contextmanager
    def call(self, line: Line, chance: random.Random) -> Iterator[Send]:
        """Connects the line; yields what sends a packet to it."""
        agent = SimpleNamespace(inbound=None, data_received=lambda data, component: None)
        peer: Any = SimpleNamespace(
            agent=agent,
            receive_data=lambda data: agent.data_received(data, 1),
            sends=lambda ssrc: agent.is_remote_ssrc(ssrc),
            check_address=lambda local, remote: None,
        )
        ice = self._demultiplexer.register(peer, "ufrag", "password")
        self._demultiplexer._learn(ice, self._udp.local, self._socket.getsockname())
        key = chance.randbytes(44)
        keys, into, out = (_session(key, inbound) for inbound in (False, True, False))
        line.protector = Protector(out)
        line._intercept_datagrams(
            SimpleNamespace(_rx_srtp=into, transport=SimpleNamespace(_connection=agent))
        )
        before = b""

        def send(packet: bytes, now: float) -> None:
            nonlocal before
            self._now = now
            try:
                data = keys.protect(packet)
            except (pylibsrtp.Error, ValueError):
                data = packet
            self._socket.sendto(_spoiled(data, before, chance), self._address)
            before = data
            self._udp._drain()

        yield send
        self._demultiplexer.unregister(ice, self._now)

    def close(self) -> None:
        self._socket.close()
        self._udp.close()


class Phones:
    """Ports of phones, and the clock of both ends."""

    def __init__(self) -> None:
        self._now = 0.0
        self._ports = RtpPorts(HOST, 28_100, 28_198, drain_seconds=0)
        self._own, self._other = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in "12")
        for one in (self._own, self._other):
            one.bind((HOST, 0))

    def monotonic(self) -> float:
        return self._now

    @asynccontextmanager
    async def call(
        self, secure: bool, now: float, chance: random.Random
    ) -> AsyncIterator[tuple[SipLeg, Send]]:
        """A leg, and what sends a packet to it."""
        self._now = now
        leg = SipLeg("fuzz", MediaSettings(srtp="optional"), self._ports, HOST)
        await leg.bind()
        sockets = leg._transport.sockets
        assert sockets is not None
        here, before = (HOST, sockets.port), b""
        read = rtp_ports_io._reader(sockets._rtp, leg._transport._rtp_received)
        keys = self._answered(leg, secure, chance)

        def send(packet: bytes, now: float) -> None:
            nonlocal before, keys
            self._now = now
            if secure and chance.random() < 0.002:
                keys = self._answered(leg, secure, chance)
            try:
                data = packet if keys is None else keys.protect(packet)
            except SrtpError:
                data = packet
            sender = self._other if chance.random() < 0.02 else self._own
            sender.sendto(_spoiled(data, before, chance), here)
            before = data
            self._ports.reader._drain() if sockets._compiled else read()

        yield leg, send
        leg._transport.close()

    def _answered(self, leg: SipLeg, secure: bool, chance: random.Random) -> SdesSrtp | None:
        """The keys of an offer that the leg has answered."""
        sdp, keys = offer(self._own.getsockname()[1]), None
        if secure:
            suite = chance.choice(sorted(SUITES))
            master = chance.randbytes(SUITES[suite])
            keys = SdesSrtp(suite, master, master)
            sdp += f"a=crypto:1 {suite} inline:{b64encode(master).decode()}\r\n"
        leg.answer(sdp)
        return keys

    def close(self) -> None:
        self._own.close()
        self._other.close()


def _session(key: bytes, inbound: bool) -> pylibsrtp.Session:
    policy = pylibsrtp.Policy
    direction = policy.SSRC_ANY_INBOUND if inbound else policy.SSRC_ANY_OUTBOUND
    profile = policy.SRTP_PROFILE_AEAD_AES_256_GCM
    return pylibsrtp.Session(policy(key, direction, srtp_profile=profile))


def _spoiled(data: bytes, before: bytes, chance: random.Random) -> bytes:
    """A datagram on the wire, or what comes in its place."""
    match chance.randrange(40):
        case 0:
            return before
        case 1:
            return data[: chance.randrange(len(data) + 1)]
        case 2:
            return chance.randbytes(chance.choice((0, 1, 2, 20, 2000, 5000)))
        case 3:
            at = chance.randrange(len(data) or 1)
            return data[:at] + chance.randbytes(1) + data[at + 1 :]
    return data


@contextmanager
def _opened(
    kind: str, now: float, wire: Wire, chance: random.Random
) -> Iterator[tuple[RtpLeg, Send]]:
    """A leg that is not a phone's."""
    line = Line("fuzz")
    line._open(G711 if kind == "pcmu" else OPUS, chance.getrandbits(32), now)
    if kind == "webrtc":
        with wire.call(line, chance) as send:
            yield line, send
    else:
        yield line, line.receive_rtp


async def call(
    kind: str, packets: int, chance: random.Random, wire: Wire, phones: Phones
) -> Counter[str]:
    now = chance.uniform(0, 1e6)
    if "phone" in kind:
        async with phones.call(kind == "srtp phone", now, chance) as (leg, send):
            _talk(leg, send, packets, now, chance)
            return _became(kind, leg)
    with _opened(kind, now, wire, chance) as (line, send):
        _talk(line, send, packets, now, chance)
        return _became(kind, line)


def _became(kind: str, leg: RtpLeg) -> Counter[str]:
    stats = leg._receiver.stats
    return Counter(
        {
            f"{kind} played": stats.played_packets,
            "late": stats.late,
            "no audio": stats.malformed,
            "malformed": leg.malformed_packets,
            "refused": leg.refused_packets,
            "not authentic": leg.srtp_failures,
        }
    )


def _talk(
    line: RtpLeg,
    receive: Send,
    packets: int,
    now: float,
    chance: random.Random,
) -> None:
    far, every = FarEnd(chance, line._format.payload_type), chance.choice((1, 4))
    for number in range(packets):
        now += chance.choice((0.02, 0.02, 0.02, 0.0, 0.001, 0.1, chance.uniform(0, 2)))
        line.receiving = chance.random() > 0.01
        receive(far.packet(number), now)
        if chance.random() < 0.05:
            line.receive_rtcp(chance.randbytes(chance.randrange(80)), now)
        if chance.random() < 0.02 and line.playout.room > 10_000:
            samples = chance.randrange(10_000)
            line.playout.write(np.frombuffer(chance.randbytes(2 * samples), np.int16))
        if number % every == 0:
            line.tick(now)
            assert len(line.sound_in) == 320


def run(packets: int, seed: int) -> Counter[str]:
    """Returns what became of them."""
    return asyncio.run(_run(packets, seed))


async def _run(packets: int, seed: int) -> Counter[str]:
    chance, found, wire, phones = random.Random(seed), Counter[str](), Wire(), Phones()
    with ExitStack() as patches:
        for module in (port_io, peer_io):
            patches.enter_context(mock.patch.object(module, "monotonic", wire.monotonic))
        for module in (leg_io, rtp_ports_io, rtp_reader_io):
            patches.enter_context(mock.patch.object(module, "monotonic", phones.monotonic))
        for number, done in enumerate(range(0, packets, CALL_PACKETS)):
            count = min(CALL_PACKETS, packets - done)
            found += await call(KINDS[number % len(KINDS)], count, chance, wire, phones)
            found["packets"] += count
    wire.close()
    phones.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--packets", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    print(native.description(), dict(run(arguments.packets, arguments.seed)), flush=True)


if __name__ == "__main__":
    main()
