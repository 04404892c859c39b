"""Both paths hear and say the same of the same packets, whatever happens to them on the way."""

import random
from dataclasses import dataclass
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.media import native, pcm
from offhook.media.codecs import conceal, opus
from offhook.media.codecs.g711 import PcmaDecoder, PcmaEncoder, PcmuDecoder, PcmuEncoder
from offhook.media.codecs.g722 import G722Decoder, G722Encoder
from offhook.media.rtp import jitter, receiver, rtcp, sender, stretch
from offhook.media.rtp.rtp import RtpPacket
from offhook.media.rtp.rtp_leg import RtpFormat, RtpLeg
from offhook.media.telephone_tones.dtmf import DIGITS
from offhook.signaling.ice import port_io
from offhook.telephony.carriers.streams import media_form, packets
from offhook.telephony.sip.media import rtp_reader_io
from tests.media.native.paths import Twins, exact_resampling, needs_compiled

pytestmark = needs_compiled

PCMU, PCMA, G722, NOISE, EVENT, UNKNOWN = 0, 8, 9, 13, 101, 77
DECODERS = {PCMU: PcmuDecoder, PCMA: PcmaDecoder, G722: G722Decoder}
TICK_S = 0.02


class G722Twin(G722Encoder):
    def __init__(self) -> None:
        super().__init__()
        exact_resampling(self)


def telephone(dtx: bool, ptime_ms: int, wideband: bool) -> RtpFormat:
    return RtpFormat(
        "g722" if wideband else "pcmu",
        DECODERS,
        G722Twin if wideband else PcmuEncoder,
        G722 if wideband else PCMU,
        dtx,
        ptime_ms,
        events_in={EVENT: 8000},
        events_out=(EVENT, 8000),
        comfort_noise=frozenset({NOISE}),
    )


class Line(RtpLeg):
    def __init__(self, seed: int, format: RtpFormat) -> None:
        super().__init__("line")
        random.seed(seed)
        self.sent: list[bytes] = []
        self.keys = ""
        self.listener = self  # type: ignore[assignment]
        self._open(format, 0xCAFE, 0.0)
        self._rtcp._uniform = lambda: 0.5

    def on_dtmf(self, digit: str) -> None:
        self.keys += digit

    def on_closed(self, reason: object) -> None:
        pass

    def _send_rtp(self, packet: bytes) -> None:
        self.sent.append(packet)

    def _send_rtcp(self, packet: bytes) -> None:
        # The wall clock is in sender reports.
        self.sent.append(packet[:8] + packet[16:])

    def send_message(self, text: str) -> bool:
        return False

    async def hang_up(self, reason: str) -> None:
        pass


def members(made: type, *objects: str) -> list[str]:
    """What a compiled class keeps, but for these objects, which are looked into by themselves."""
    return [
        name
        for name, value in vars(made).items()
        if isinstance(value, MemberDescriptorType | GetSetDescriptorType) and name not in objects
    ]


def state(line: Line) -> dict[str, Any]:
    """All that a line knows."""
    r, b, s, rtp = line._receiver, line._receiver._buffer, line._sender, line._rtcp.reception
    parts = ("stats", "reception", "_buffer", "_ready", "_steady", "_steady_type")
    return {
        "receiver": values(r, members(native.Receiver, *parts)),
        "buffer": values(b, members(native.JitterBuffer)),
        "stats": values(r.stats, members(native.ReceiverStats)),
        "held": len(b),
        "backlog": b.backlog(),
        "slack": b.slack(12345, 1.5),
        "ready": r._ready.tolist(),
        "reception": rtp and values(rtp, members(native.Reception)),
        "sender": values(s, members(native.Sender, "_compiled")),
        "keys": line.keys,
        "malformed": line.malformed_packets,
        "last packet": line.last_packet_at,
        "statistics": line.statistics(),
    }


def values(what: object, names: list[str]) -> dict[str, Any]:
    return {name: getattr(what, name) for name in names}


def same(twins: Twins[Line]) -> None:
    right, got = state(twins.python), state(twins.compiled)
    assert got == right
    assert twins.compiled.sent == twins.python.sent
    assert not isinstance(twins.python._receiver, receiver.CompiledReceiver)
    assert isinstance(twins.compiled._receiver, receiver.CompiledReceiver)
    assert isinstance(twins.compiled._sender, sender.CompiledSender)
    assert isinstance(twins.compiled._rtcp.reception, rtcp.CompiledReception | None)


def twins(
    seed: int = 1, dtx: bool = False, ptime_ms: int = 20, wideband: bool = False
) -> Twins[Line]:
    return Twins(lambda: Line(seed, telephone(dtx, ptime_ms, wideband)))


def tick(pair: Twins[Line], now: float) -> None:
    heard: list[np.ndarray] = []

    def one(line: Line) -> None:
        line.begin_tick()
        line.receive_tick(now)
        line.send_tick(now)
        heard.append(line.sound_in)

    pair.do(one)
    assert heard[0].dtype == heard[1].dtype
    np.testing.assert_array_equal(*heard)


def tone(samples: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    sound = 9000 * np.sin(np.arange(samples) * rng.uniform(0.01, 0.3))
    return np.asarray(sound + rng.normal(0, 300, samples), np.int16)


@dataclass
class Sender:
    """The far end."""

    number: int = 65_500
    timestamp: int = 0xFFFF_F000
    ssrc: int = 7
    type: int = PCMU
    encoder: Any = None

    def packet(self, seed: int, samples: int = 160, **changed: int) -> bytes:
        self.number = (self.number + 1) & 0xFFFF
        self.timestamp = (self.timestamp + samples) & 0xFFFF_FFFF
        fields = {
            "payload_type": self.type,
            "sequence_number": self.number,
            "timestamp": self.timestamp,
            "ssrc": self.ssrc,
            **changed,
        }
        self.encoder = self.encoder or PcmaEncoder()
        payload = self.encoder.encode(tone(3 * samples, seed)) if samples % 80 == 0 else b""
        return RtpPacket(payload=payload or bytes(samples), **fields).serialize()


@pytest.mark.parametrize("seed", range(6))
def test_a_minute_of_a_bad_line(seed: int) -> None:
    """Loss, bursts of it, jitter, reordering, duplicates and drift: nothing differs in any tick."""
    rng = np.random.default_rng(seed)
    wideband = bool(seed % 2)
    pair, far = twins(seed, wideband=wideband), Sender(type=G722 if wideband else PCMU)
    loss, jitter_s, drift = rng.uniform(0, 0.08), rng.uniform(0, 0.05), rng.uniform(-3e-3, 3e-3)
    length = int(rng.choice([80, 160, 160, 240, 320, 480]))
    coming: list[tuple[float, bytes]] = []
    for i in range(1200 * 160 // length):
        data = far.packet(i, length)
        if rng.random() < loss:
            continue
        at = i * length / 8000 * (1 + drift) + rng.exponential(jitter_s)
        coming.append((at, data))
        if rng.random() < 0.01:
            coming.append((at + rng.uniform(0, 0.1), data))
    coming.sort(key=lambda one: one[0])
    for i in range(1250):
        now = i * TICK_S + float(rng.uniform(0, 0.004))
        while coming and coming[0][0] <= now:
            at, data = coming.pop(0)
            pair.do(lambda line, data=data, at=at: line.receive_rtp(data, at))
        if i % 200 == 0:
            sound = tone(24_000 + 50 * i, i)
            pair.do(lambda line, sound=sound: line.playout.write(sound))
        if i == 700:
            pair.do(lambda line: line.send_dtmf("12#"))
        tick(pair, now)
        if i % 10 == 0:
            same(pair)
    same(pair)
    assert pair.compiled._receiver.stats.played_packets > 300


@pytest.mark.parametrize("wideband", [False, True])
def test_a_clock_that_stands_still_and_goes_on(wideband: bool) -> None:
    pair, far = twins(wideband=wideband), Sender(type=G722 if wideband else PCMU)
    stood = 0xFFFF_FF00
    for i in range(300):
        changed = {"timestamp": stood} if 50 <= i < 200 else {}
        data = far.packet(i, **changed)
        if i % 40 == 7:  # lost
            continue
        pair.do(lambda line, data=data, i=i: line.receive_rtp(data, i * TICK_S))
        tick(pair, i * TICK_S + 0.001)
        same(pair)
    assert pair.compiled._receiver.stats.played_packets > 280


def test_a_stall_of_the_process() -> None:
    pair, far = twins(), Sender()
    for start, ticks, late in ((0, 60, 0), (60, 20, 1), (80, 60, 0), (140, 3, 1), (143, 60, 0)):
        now = (start + late * ticks) * TICK_S
        if late:
            pair.do(lambda line, at=start * TICK_S: line.unread_since(at))
            for i in range(start, start + ticks):
                data = far.packet(i)
                pair.do(lambda line, data=data, now=now: line.receive_rtp(data, now))
            same(pair)
            pair.do(lambda line: line.unread_since(None))
        for i in range(start, start + ticks):
            if not late:
                data = far.packet(i)
                pair.do(lambda line, data=data, i=i: line.receive_rtp(data, i * TICK_S))
            tick(pair, i * TICK_S + 0.001)
            same(pair)
    assert pair.compiled._receiver.stats.expanded_samples == 0
    assert pair.compiled._receiver.stats.concealed_samples == 0


steps = st.one_of(
    st.tuples(st.just("packets"), st.integers(1, 30), st.sampled_from([160, 160, 80, 320, 1, 77])),
    st.tuples(st.just("lose"), st.integers(1, 200), st.booleans()),
    st.tuples(st.just("swap"), st.integers(0, 99), st.integers(1, 6)),
    st.tuples(st.just("repeat"), st.integers(1, 120), st.none()),
    st.tuples(st.just("type"), st.sampled_from([PCMU, PCMA, G722]), st.none()),
    st.tuples(st.just("ssrc"), st.integers(0, 3), st.none()),
    st.tuples(st.just("other"), st.sampled_from([NOISE, EVENT, UNKNOWN]), st.binary(max_size=12)),
    st.tuples(st.just("overtaken"), st.sampled_from([NOISE, EVENT, UNKNOWN]), st.integers(1, 4)),
    st.tuples(st.just("jump"), st.integers(0, 0xFFFF), st.integers(0, 0xFFFF_FFFF)),
    st.tuples(st.just("still"), st.integers(1, 60), st.sampled_from([160, 160, 240])),
    st.tuples(st.just("garbage"), st.binary(max_size=40), st.none()),
    st.tuples(st.just("wait"), st.floats(0, 3), st.none()),
    st.tuples(st.just("tick"), st.integers(1, 30), st.none()),
    st.tuples(st.just("say"), st.integers(0, 5000), st.none()),
    st.tuples(st.just("keys"), st.sampled_from(DIGITS), st.none()),
    st.tuples(st.just("direction"), st.booleans(), st.booleans()),
    st.tuples(st.just("format"), st.booleans(), st.sampled_from([10, 20, 20, 30])),
    st.tuples(st.just("loss"), st.floats(0, 1), st.none()),
)


@given(
    script=st.lists(steps, max_size=40),
    seed=st.integers(0, 9),
    dtx=st.booleans(),
    ptime=st.sampled_from([20, 20, 10, 30]),
    wideband=st.booleans(),
)
def test_whatever_happens(
    script: list[Any], seed: int, dtx: bool, ptime: int, wideband: bool
) -> None:
    pair, far, now, seen = twins(seed, dtx, ptime, wideband), Sender(), 0.0, [b""]
    far.type = G722 if wideband else PCMU

    def receive(data: bytes) -> None:
        seen.append(data)
        pair.do(lambda line: line.receive_rtp(data, now))

    for what, one, two in script:
        match what:
            case "packets":
                for i in range(one):
                    receive(far.packet(i, two))
                    now += two / 8000
                    if two >= 77:
                        tick(pair, now)
            case "lose":
                far.number = (far.number + one) & 0xFFFF
                if two:
                    far.timestamp = (far.timestamp + 160 * one) & 0xFFFF_FFFF
            case "swap":
                held = [far.packet(one + i) for i in range(two)]
                for data in reversed(held):
                    receive(data)
            case "repeat":
                receive(seen[-min(one, len(seen))])
            case "type":
                far.type = one
            case "ssrc":
                far.ssrc = one
            case "other":
                data = far.packet(1, 160, payload_type=one)
                receive(data[:12] + two)
            case "overtaken":
                data = far.packet(1, 160, payload_type=one)
                for i in range(two):
                    receive(far.packet(i))
                receive(data[:16])
            case "jump":
                far.number, far.timestamp = one, two
            case "still":
                for i in range(one):
                    receive(far.packet(i, two, timestamp=far.timestamp))
                    far.timestamp = (far.timestamp - two) & 0xFFFF_FFFF
                    now += two / 8000
                    tick(pair, now)
            case "garbage":
                receive(one)
                receive(far.packet(1)[:12] + one)
            case "wait":
                now += one
            case "tick":
                for _ in range(one):
                    now += TICK_S
                    tick(pair, now)
            case "say":
                pair.do(lambda line, n=one: line.playout.write(tone(n, n)))
            case "keys":
                if pair.python.sending:
                    pair.do(lambda line, key=one: line.send_dtmf(key))
            case "direction":
                for line in (pair.python, pair.compiled):
                    line.receiving, line.sending = one, two
            case "format":
                change_format(pair, one, two)
            case "loss":
                pair.do(lambda line, loss=one: line._sender.report_loss(loss))
        same(pair)


def change_format(pair: Twins[Line], dtx: bool, ptime_ms: int) -> None:
    """To the other law."""
    old = pair.python._format
    payload_type = PCMA if old.payload_type == PCMU else PCMU
    new = RtpFormat(
        "pcma" if payload_type == PCMA else "pcmu",
        {PCMU: PcmuDecoder, PCMA: PcmaDecoder},
        PcmaEncoder if payload_type == PCMA else PcmuEncoder,
        payload_type,
        dtx,
        ptime_ms,
        events_in=old.events_in,
        events_out=old.events_out,
        comfort_noise=old.comfort_noise,
    )
    pair.do(lambda line: line._change_formats(new))


def test_silence_after_silence_suppression_is_given_up() -> None:
    pair = twins(dtx=True)
    pair.do(lambda line: line.playout.write(tone(4800, 1)))
    for i in range(60):
        if i == 5:
            change_format(pair, False, 20)
        tick(pair, i * TICK_S)
        same(pair)


@given(data=st.lists(st.binary(max_size=300), max_size=60))
def test_any_bytes(data: list[bytes]) -> None:
    """Behind a header that fits, so that they come as far as can be."""
    pair, far = twins(), Sender()
    for i in range(20):
        packet = far.packet(i)
        pair.do(lambda line, packet=packet, at=i * TICK_S: line.receive_rtp(packet, at))
        tick(pair, i * TICK_S + 0.01)
    for i, garbage in enumerate(data):
        head = far.packet(i)[: i % 13]
        now = 0.4 + i * TICK_S
        packet = head + garbage[len(head) :]
        pair.do(lambda line, packet=packet, now=now: line.receive_rtp(packet, now))
        tick(pair, now + 0.01)
        same(pair)


def test_constants_are_those_of_python() -> None:
    rooms = (jitter, receiver, sender, stretch, rtcp, conceal, opus, pcm, port_io, rtp_reader_io)
    rooms += (media_form, packets)
    for name, value in native.CONSTANTS.items():
        found = [getattr(room, name) for room in rooms if hasattr(room, name)]
        assert found, name
        assert set(found) == {value}, name
