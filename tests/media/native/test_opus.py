"""Opus: both paths hear and say the same of the same packets, whatever happens to them."""

import gc
import random
import weakref
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offhook.media import native
from offhook.media.codecs.g711 import PcmuDecoder, PcmuEncoder
from offhook.media.codecs.opus import OpusDecoder, OpusEncoder, OpusSettings
from offhook.media.rtp.receiver import AudioReceiver
from offhook.media.rtp.rtp import RtpPacket
from offhook.media.rtp.rtp_leg import RtpFormat
from offhook.media.rtp.sender import AudioSender
from offhook.media.telephone_tones.dtmf import DIGITS
from tests.media.native.paths import Twins, both, needs_compiled
from tests.media.native.test_packets import TICK_S, Line, same, tick, tone

pytestmark = needs_compiled

OPUS, PCMU, EVENT = 111, 0, 110
TICKS_20_MS = 960


def opus(dtx: bool = True, ptime_ms: int = 20) -> RtpFormat:
    return RtpFormat(
        "opus",
        {OPUS: OpusDecoder, PCMU: PcmuDecoder},
        OpusEncoder,
        OPUS,
        dtx,
        ptime_ms,
        events_in={EVENT: 48_000},
        events_out=(EVENT, 48_000),
    )


def pcmu(dtx: bool, ptime_ms: int) -> RtpFormat:
    return RtpFormat("pcmu", opus().decoders, PcmuEncoder, PCMU, dtx, ptime_ms)


def twins(dtx: bool = True, ptime_ms: int = 20, seed: int = 1) -> Twins[Line]:
    return Twins(lambda: Line(seed, opus(dtx, ptime_ms)))


@cache
def said(ms: int) -> list[bytes]:
    """Two seconds in packets of so many ms, each with what is needed to repair the one before."""
    encoder = OpusEncoder(OpusSettings(dtx=False))
    encoder.set_loss(0.2)
    samples = 24 * ms
    return [encoder.encode(tone(samples, seed)) for seed in range(2000 // ms)]


@cache
def quiet() -> list[bytes]:
    """Silence with DTX."""
    encoder = OpusEncoder()
    encoder.set_dtx(True)
    return [encoder.encode(np.zeros(480, np.int16)) for _ in range(40)]


class FarEnd:
    def __init__(self, number: int = 65_500, timestamp: int = 0xFFFF_0000) -> None:
        self.number, self.timestamp, self.ssrc = number, timestamp, 7

    def packet(self, payload: bytes, ticks: int = TICKS_20_MS, payload_type: int = OPUS) -> bytes:
        self.number = (self.number + 1) & 0xFFFF
        self.timestamp = (self.timestamp + ticks) & 0xFFFF_FFFF
        packet = RtpPacket(payload_type, self.number, self.timestamp, self.ssrc, payload)
        return packet.serialize()


def receive(pair: Twins[Line], data: bytes, now: float) -> None:
    pair.do(lambda line: line.receive_rtp(data, now))


def test_the_usual_packet_is_taken_and_made_in_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python has the first packet in and out, those that are stretched, and none of the others."""
    pair, far, python = twins(), FarEnd(), {"play": 0, "encode": 0}

    def count(made: type, name: str, what: str) -> None:
        whole = getattr(made, name)

        def counted(self: object, *args: object) -> object:
            python[what] += native.used
            return whole(self, *args)

        monkeypatch.setattr(made, name, counted)

    count(AudioReceiver, "_account", "play")
    count(AudioSender, "_encode_block", "encode")
    pair.do(lambda line: line.playout.write(tone(480 * 200, 1)))
    for i in range(200):
        receive(pair, far.packet(said(20)[i % 100]), i * TICK_S)
        tick(pair, i * TICK_S + 0.005)
    same(pair)
    assert pair.compiled._receiver.stats.played_packets > 190
    assert pair.compiled._sender.packets == 200
    assert python["play"] < 40
    assert python["encode"] == 0


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("ms", [20, 10, 40, 60])
def test_a_bad_line(seed: int, ms: int) -> None:
    """Loss, jitter, duplicates and reordering, in packets of any length; losses are repaired."""
    pair, far, rng = twins(), FarEnd(), random.Random(seed)
    coming: list[tuple[float, bytes]] = []
    for i in range(4000 // ms):
        data = far.packet(said(ms)[i % len(said(ms))], 48 * ms)
        if rng.random() < 0.1:
            continue
        for _ in range(1 + (rng.random() < 0.02)):
            coming.append((i * ms / 1000 + rng.expovariate(100 * (1 + seed)), data))
    coming.sort()
    for i in range(210):
        now = i * TICK_S + rng.uniform(0, 0.004)
        while coming and coming[0][0] <= now:
            at, data = coming.pop(0)
            receive(pair, data, at)
        if i % 70 == 10:
            pair.do(lambda line, n=i: line.playout.write(tone(480 * 30 + 7, n)))
        if i == 100:
            pair.do(lambda line: line._sender.report_loss(0.3))
        tick(pair, now)
        if i % 10 == 0:
            same(pair)
    same(pair)
    stats = pair.compiled._receiver.stats
    assert stats.played_packets > 3000 // ms
    if ms == 20:
        assert stats.fec_recovered > 0


def test_what_libopus_refuses_is_refused_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A packet that only decoding shows to be none: Python goes on from what libopus has said."""
    bad = bytes([0x4B, 0x82, 0xFF, 0xFF]) + bytes(30)  # two frames, of which one is too long
    pair, far, again = twins(), FarEnd(), []
    decode = OpusDecoder._decode

    def seen(self: OpusDecoder, payload: bytes | None, samples: int, fec: int) -> np.ndarray:
        if payload == bad:
            again.append(native.used)
        return decode(self, payload, samples, fec)

    monkeypatch.setattr(OpusDecoder, "_decode", seen)
    for i in range(60):
        receive(pair, far.packet(bad if i in (30, 45) else said(20)[i]), i * TICK_S)
        tick(pair, i * TICK_S + 0.005)
        same(pair)
    assert pair.compiled._receiver.stats.malformed == 2
    assert again == [False, False]


def test_a_stereo_stream_is_left_to_python() -> None:
    pair, far = twins(), FarEnd()
    stereo = [bytes([payload[0] | 4]) + payload[1:] for payload in said(20)]
    for i in range(80):
        receive(pair, far.packet((said(20) if i < 30 else stereo)[i]), i * TICK_S)
        tick(pair, i * TICK_S + 0.005)
        same(pair)
    assert pair.compiled._receiver._steady is None


payloads = st.one_of(
    st.tuples(st.sampled_from([20, 20, 20, 10, 40, 60]), st.integers(0, 30)),
    st.tuples(st.just("quiet"), st.integers(0, 39)),
    st.tuples(st.just("stereo"), st.integers(0, 30)),
    st.tuples(st.just("cut"), st.integers(0, 90)),
    st.tuples(st.just("bytes"), st.binary(max_size=60)),
    st.tuples(st.just("mono"), st.binary(min_size=1, max_size=60)),
)


def payload_of(kind: Any, one: Any) -> bytes:
    match kind:
        case "quiet":
            return quiet()[one]
        case "stereo":
            payload = said(20)[one]
            return bytes([payload[0] | 4]) + payload[1:]
        case "cut":
            return said(20)[one % 30][:one]
        case "bytes":
            return bytes(one)
        case "mono":
            return bytes([one[0] & ~4]) + one[1:]
    return said(kind)[one]


steps = st.one_of(
    st.tuples(st.just("packets"), st.integers(1, 30), st.sampled_from([20, 20, 20, 10, 40])),
    st.tuples(st.just("payloads"), st.lists(payloads, max_size=6), st.booleans()),
    st.tuples(st.just("lose"), st.integers(1, 12), st.booleans()),
    st.tuples(st.just("swap"), st.integers(0, 40), st.integers(1, 5)),
    st.tuples(st.just("other"), st.sampled_from([PCMU, EVENT, 77]), st.binary(max_size=160)),
    st.tuples(st.just("ssrc"), st.integers(0, 2), st.none()),
    st.tuples(st.just("jump"), st.integers(0, 0xFFFF), st.integers(0, 0xFFFF_FFFF)),
    st.tuples(st.just("wait"), st.floats(0, 2), st.none()),
    st.tuples(st.just("tick"), st.integers(1, 40), st.none()),
    st.tuples(st.just("say"), st.integers(0, 8000), st.none()),
    st.tuples(st.just("keys"), st.sampled_from(DIGITS), st.none()),
    st.tuples(st.just("hold"), st.booleans(), st.booleans()),
    st.tuples(st.just("loss"), st.floats(0, 1), st.none()),
    st.tuples(st.just("opus"), st.booleans(), st.sampled_from([10, 20, 20, 40])),
    st.tuples(st.just("pcmu"), st.booleans(), st.sampled_from([20, 20, 10])),
)


@given(
    script=st.lists(steps, max_size=25),
    seed=st.integers(0, 9),
    dtx=st.booleans(),
    ptime=st.sampled_from([20, 20, 20, 10, 60]),
)
@settings(max_examples=60)
def test_whatever_happens(script: list[Any], seed: int, dtx: bool, ptime: int) -> None:
    pair, far, now = twins(dtx, ptime, seed), FarEnd(), 0.0
    for i in range(5):
        receive(pair, far.packet(said(20)[i]), now)
        now += TICK_S
        tick(pair, now)
    for what, one, two in script:
        match what:
            case "packets":
                for i in range(one):
                    receive(pair, far.packet(said(two)[i], 48 * two), now)
                    now += two / 1000
                    tick(pair, now)
            case "payloads":
                for kind, which in one:
                    receive(pair, far.packet(payload_of(kind, which)), now)
                    now += TICK_S * two
                    tick(pair, now)
            case "lose":
                far.number = (far.number + one) & 0xFFFF
                if two:
                    far.timestamp = (far.timestamp + TICKS_20_MS * one) & 0xFFFF_FFFF
            case "swap":
                for data in reversed([far.packet(said(20)[one + i]) for i in range(two)]):
                    receive(pair, data, now)
            case "other":
                receive(pair, far.packet(two, payload_type=one), now)
            case "ssrc":
                far.ssrc = one
            case "jump":
                far.number, far.timestamp = one, two
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
            case "hold":
                for line in (pair.python, pair.compiled):
                    line.receiving, line.sending = one, two
            case "loss":
                pair.do(lambda line, loss=one: line._sender.report_loss(loss))
            case "opus" | "pcmu":
                change_format(pair, (opus if what == "opus" else pcmu)(one, two))
        same(pair)


def change_format(pair: Twins[Line], format: RtpFormat) -> None:
    chance = random.getstate()  # of a new SSRC

    def change(line: Line) -> None:
        random.setstate(chance)
        line._change_formats(format)

    pair.do(change)


@pytest.mark.parametrize("make", [OpusDecoder, OpusEncoder])
def test_a_stream_is_freed_with_the_last_of_its_users(
    make: type[OpusDecoder] | type[OpusEncoder],
) -> None:
    """Without a garbage collection."""
    gc.collect()
    gc.disable()
    try:
        _, made = both(make)
        memory, compiled = weakref.ref(made._memory), made.compiled
        del made
        assert memory() is not None
        del compiled
        assert memory() is None
    finally:
        gc.enable()


def test_no_address_is_refused() -> None:
    memory = OpusDecoder()._memory
    with pytest.raises(ValueError, match="no address"):
        native.OpusDecoder(memory, 0, 1)
    with pytest.raises(ValueError, match="no address"):
        native.OpusEncoder(memory, 0)
    with pytest.raises(AttributeError):
        native.OpusEncoder(object(), 1)
