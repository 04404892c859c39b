"""The receive path with real libopus, on speech-like sound; time is an argument throughout."""

from functools import cache
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.media.loss import (
    Impairment,
    click,
    decode,
    drift,
    simulate,
)
from benchmarks.speech.lines import encode, opus
from benchmarks.speech.recordings import TICKS, load_speech
from offhook.media.codecs.codec import CodecError
from offhook.media.codecs.opus import OpusDecoder
from offhook.media.pcm import Pcm
from offhook.media.rtp.receiver import AudioReceiver
from offhook.media.rtp.rtp import RtpPacket

OPUS = 111


class Counting:
    """Sixteen-bit samples as their own codec, 8 kHz RTP clock: what is heard says what was sent."""

    clock_rate = 8000

    def decode(self, payload: bytes) -> Pcm:
        if len(payload) % 2 or not payload:
            raise CodecError("odd")
        return np.frombuffer(payload, np.int16)

    def recover(self, following: bytes, samples: int) -> Pcm | None:
        return None

    def conceal(self, samples: int) -> Pcm:
        return np.zeros(samples, np.int16)


@cache
def speech() -> tuple[bytes, ...]:
    return encode(load_speech(8), opus(0.05))


def packet(i: int, payload: bytes | None = None, ssrc: int = 1, pt: int = OPUS) -> RtpPacket:
    payload = speech()[i % len(speech())] if payload is None else payload
    return RtpPacket(pt, i & 0xFFFF, i * TICKS & 0xFFFFFFFF, ssrc, payload)


def hear(receiver: AudioReceiver, packets: range, start: float = 0.0, phase: float = 0.01) -> Pcm:
    """Packets one by one 20 ms apart, a pull `phase` after each."""
    out = []
    for n, i in enumerate(packets):
        receiver.receive(packet(i), start + n * 0.02)
        out.append(receiver.pull(start + n * 0.02 + phase))
    return np.concatenate(out)


@pytest.mark.parametrize("first", [0, 0xFFF0])
@pytest.mark.parametrize("phase", [0.001, 0.01, 0.019])
def test_a_clean_line_is_heard_bit_by_bit(first: int, phase: float) -> None:
    receiver = AudioReceiver({OPUS: OpusDecoder})
    heard = hear(receiver, range(first, first + 300), phase=phase)
    plain = decode(tuple(speech()[i % len(speech())] for i in range(first, first + 300)))
    start = 320 if phase < 0.018 else 0
    assert not heard[:start].any()
    assert heard[start + 80 :].tobytes() == plain[80 : len(plain) - start].tobytes()
    assert receiver.stats.lost == receiver.stats.late == receiver.stats.concealed_samples == 0


def test_one_lost_packet_is_repaired_from_the_next_and_costs_no_delay() -> None:
    for i in range(60, 250):
        receiver = AudioReceiver({OPUS: OpusDecoder})
        hear(receiver, range(i))
        before = receiver.stats.delay_ms
        hear(receiver, range(i + 1, i + 100), start=(i + 1) * 0.02)
        if receiver.stats.fec_recovered:
            break
    assert (receiver.stats.fec_recovered, receiver.stats.lost) == (1, 1)
    assert receiver.stats.delay_ms == pytest.approx(before, abs=5)


def test_delay_after_a_long_stall_is_back_in_two_seconds() -> None:
    receiver = AudioReceiver({OPUS: OpusDecoder})
    hear(receiver, range(100))
    for pull in range(100, 115):
        receiver.pull(pull * 0.02 + 0.01)
    for i in range(100, 115):
        receiver.receive(packet(i), 2.30)
    hear(receiver, range(115, 215), start=2.30)
    assert receiver.stats.late == 0
    assert receiver.stats.delay_ms < 400
    hear(receiver, range(215, 515), start=4.30)
    assert receiver.stats.delay_ms < 60


def test_packets_that_waited_unread_are_no_jitter() -> None:
    receiver = AudioReceiver({OPUS: OpusDecoder})
    heard = [hear(receiver, range(100))]
    before = receiver.stats.delay_ms
    receiver.unread_since(2.0)
    for i in range(100, 115):
        receiver.receive(packet(i), 2.305)
    receiver.unread_since(None)
    heard += [receiver.pull(i * 0.02 + 0.01) for i in range(100, 115)]
    heard.append(hear(receiver, range(115, 215), start=2.30))
    plain = hear(AudioReceiver({OPUS: OpusDecoder}), range(215))
    assert np.array_equal(np.concatenate(heard), plain)
    assert receiver.stats.delay_ms == pytest.approx(before)


def test_continuous_loss_fades_to_silence_in_120_ms_and_speech_returns() -> None:
    receiver = AudioReceiver({OPUS: OpusDecoder})
    hear(receiver, range(100))
    lost = [receiver.pull(2.0 + n * 0.02 + 0.01) for n in range(50)]
    assert not np.concatenate(lost[8:]).any()
    back = hear(receiver, range(150, 200), start=3.0)
    assert back[640:].any()
    assert receiver.stats.delay_ms <= 40
    assert receiver.stats.lost == 50


def test_silence_not_sent_is_not_loss_and_the_next_word_starts_at_once() -> None:
    receiver = AudioReceiver({OPUS: OpusDecoder})
    hear(receiver, range(100))
    for n in range(500):
        receiver.pull(2.0 + n * 0.02 + 0.01)
    after = RtpPacket(OPUS, 100, 600 * TICKS, 1, speech()[100])
    receiver.receive(after, 12.0)
    receiver.pull(12.01)
    receiver.receive(RtpPacket(OPUS, 101, 601 * TICKS, 1, speech()[101]), 12.02)
    assert receiver.pull(12.03).any()
    assert receiver.stats.lost == receiver.stats.concealed_samples == 0
    assert receiver.stats.wait_ms <= 40


@pytest.mark.parametrize("ms", [10, 20, 40, 60])
def test_packets_of_any_length_are_heard_in_full(ms: int) -> None:
    samples = 16 * ms
    receiver = AudioReceiver({0: Counting})
    sent = (np.arange(16000) % 1000 * 8).astype(np.int16)
    sent = sent[: len(sent) // samples * samples]
    out = []
    for pull in range(60):
        now = pull * 0.02
        for i in range(len(sent) // samples):
            arrival = (i + 1) * ms / 1000
            if now - 0.02 < arrival <= now:
                payload = sent[i * samples : (i + 1) * samples].tobytes()
                receiver.receive(RtpPacket(0, i, i * 8 * ms, 1, payload), arrival)
        out.append(receiver.pull(now))
    heard = np.concatenate(out)
    start = int(np.flatnonzero(heard)[0])
    end = min(len(sent), len(heard) - start)
    assert receiver.stats.lost == receiver.stats.concealed_samples == 0
    if not receiver.stats.expanded_samples + receiver.stats.accelerated_samples:
        assert heard[start + 80 : start + end - 1].tobytes() == sent[81:end].tobytes()


def test_malformed_and_unknown_packets_are_counted_and_concealed() -> None:
    receiver = AudioReceiver({OPUS: OpusDecoder})
    hear(receiver, range(100))
    receiver.receive(packet(100, payload=b""), 2.0)
    assert len(receiver.pull(2.01)) == 320
    receiver.receive(packet(101, pt=77), 2.02)
    receiver.pull(2.03)
    hear(receiver, range(102, 200), start=2.04)
    assert receiver.stats.malformed == 1
    assert receiver.stats.ignored == 1
    assert receiver.stats.lost == 0


def test_a_new_source_takes_over_and_stragglers_of_the_old_do_not() -> None:
    receiver = AudioReceiver({OPUS: OpusDecoder})
    hear(receiver, range(100))
    receiver.receive(packet(5000, ssrc=2), 2.0)
    receiver.receive(packet(100), 2.001)
    receiver.pull(2.01)
    receiver.receive(packet(5001, ssrc=2), 2.02)
    assert receiver.pull(2.03).any()
    assert receiver.stats.ignored == 1
    assert receiver.stats.lost == 0


@pytest.mark.parametrize("loss", [0.01, 0.05])
def test_loss_and_jitter_cost_little(loss: float) -> None:
    result = simulate(speech(), Impairment("", loss=loss, jitter_ms=30))
    assert result.mean_ms < 75
    assert result.concealed < loss / 2 + 0.01
    assert result.hole_ms <= 60


@pytest.mark.parametrize("ppm", [-200.0, 50.0, 200.0])
def test_clocks_that_drift_neither_pile_up_nor_run_dry(ppm: float) -> None:
    result = drift(speech(), ppm, seconds=120)
    assert result.most_ms < 60
    assert abs(result.end_ms - result.start_ms) < 12
    assert result.concealed_ms == 0
    assert result.click <= 1.1


def test_the_measure_of_clicks_hears_a_cut() -> None:
    clean = decode(speech())
    sources = list(range(len(clean) // 320))
    assert click(clean, sources, clean) <= 1
    loud = int(np.argmax(np.abs(clean)))
    cut = np.concatenate((clean[: loud - 40], clean[loud:], clean[:40]))
    assert click(cut, sources, clean) > 1.5


payloads = st.one_of(st.binary(max_size=60), st.integers(0, 399).map(lambda i: speech()[i]))
rtp_packets = st.builds(
    RtpPacket,
    st.sampled_from([OPUS, OPUS, OPUS, 0, 13]),
    st.one_of(st.integers(0, 30), st.integers(0xFFF0, 0xFFFF), st.integers(0, 0xFFFF)),
    st.one_of(st.integers(0, 30).map(lambda n: n * TICKS), st.integers(0, 0xFFFFFFFF)),
    st.sampled_from([1, 1, 1, 2]),
    payloads,
)


@given(st.lists(st.one_of(rtp_packets, st.floats(0, 0.5)), max_size=150), st.randoms())
def test_whatever_comes_320_samples_go_out(events: list[RtpPacket | float], random: Random) -> None:
    receiver = AudioReceiver({OPUS: OpusDecoder, 0: Counting})
    now = 0.0
    for event in events:
        if isinstance(event, RtpPacket):
            receiver.receive(event, now)
        else:
            now += event
        if random.random() < 0.5:
            now += 0.02
            pcm = receiver.pull(now)
            assert pcm.dtype == np.int16
            assert len(pcm) == 320
    for _ in range(200):
        now += 0.02
        pcm = receiver.pull(now)
    assert not pcm.any()
