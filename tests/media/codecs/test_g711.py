"""The tables against the Recommendation's own, and what a telephone voice sounds like after."""

import av
import numpy as np
import pytest

from offhook.media.codecs.codec import CodecError
from offhook.media.codecs.g711 import (
    ALAW_CODES,
    ALAW_LEVELS,
    ULAW_CODES,
    ULAW_LEVELS,
    PcmaDecoder,
    PcmaEncoder,
    PcmuDecoder,
    PcmuEncoder,
)

SAMPLES = np.arange(65536, dtype=np.uint16).view(np.int16)

both_laws = pytest.mark.parametrize(
    ("encoder", "decoder"), [(PcmuEncoder, PcmuDecoder), (PcmaEncoder, PcmaDecoder)]
)


def decision_values(segment_ends, first_step, steps):
    """Tables 1 and 2 of G.711: each segment in equal steps. The first step may be a half one."""
    values = [0, *first_step]
    for start, end, count in zip(segment_ends, segment_ends[1:], steps, strict=False):
        begin = values[-1]
        assert begin == start
        values += [begin + (end - start) * (k + 1) // count for k in range(count)]
    return np.array(values)


def quantised(sample, decisions, outputs, scale):
    """By the definition: between decision values n and n + 1 the output is y(n + 1)."""
    magnitude = np.where(sample < 0, ~sample.astype(int), sample.astype(int)) / scale
    number = np.clip(np.searchsorted(decisions, magnitude, "right") - 1, 0, len(outputs) - 1)
    return number, np.where(sample < 0, -1, 1) * outputs[number] * scale


def test_mu_law_is_table_2_of_the_recommendation():
    # 14-bit units: a half step to 1, 15 steps of 2 to 31, then seven segments of 16 steps.
    ends = [1, 31, 95, 223, 479, 991, 2015, 4063, 8159]
    decisions = decision_values(ends, [1], [15] + [16] * 7)
    assert len(decisions) == 129
    outputs = np.concatenate(([0], (decisions[1:-1] + decisions[2:]) // 2))
    number, value = quantised(SAMPLES, decisions, outputs, 4)
    np.testing.assert_array_equal(ULAW_LEVELS[ULAW_CODES], value)
    # The character signal counts down from all ones; the first bit is 1 for positive samples.
    np.testing.assert_array_equal(ULAW_CODES, np.where(SAMPLES < 0, 127, 255) - number)


def test_a_law_is_table_1_of_the_recommendation():
    # 13-bit units: 32 steps of 2 to 64, then six segments of 16 steps.
    ends = [0, 64, 128, 256, 512, 1024, 2048, 4096]
    decisions = decision_values(ends, [], [32] + [16] * 6)
    assert len(decisions) == 129
    outputs = (decisions[:-1] + decisions[1:]) // 2
    number, value = quantised(SAMPLES, decisions, outputs, 8)
    np.testing.assert_array_equal(ALAW_LEVELS[ALAW_CODES], value)
    # Even bits of the character signal are inverted on the line.
    np.testing.assert_array_equal(ALAW_CODES, (np.where(SAMPLES < 0, 0, 128) + number) ^ 0x55)


@pytest.mark.parametrize(
    ("codec", "levels"), [("pcm_mulaw", ULAW_LEVELS), ("pcm_alaw", ALAW_LEVELS)]
)
def test_all_256_codes_mean_what_ffmpeg_takes_them_for(codec, levels):
    context = av.CodecContext.create(codec, "r")
    context.sample_rate, context.layout = 8000, "mono"
    (frame,) = context.decode(av.Packet(bytes(range(256))))
    np.testing.assert_array_equal(frame.to_ndarray()[0], levels)


@pytest.mark.parametrize(
    ("codes", "levels"), [(ULAW_CODES, ULAW_LEVELS), (ALAW_CODES, ALAW_LEVELS)]
)
def test_codes_survive_a_round_trip(codes, levels):
    again = codes[levels.view(np.uint16)]
    # Mu-law has two codes for zero, of which one is sent.
    changed = [code for code in range(256) if again[code] != code]
    assert changed == ([0x7F] if levels is ULAW_LEVELS else [])
    assert levels[again].tolist() == levels.tolist()


def test_silence_on_the_line():
    assert PcmuEncoder().encode(np.zeros(480, np.int16)) == b"\xff" * 160
    assert PcmaEncoder().encode(np.zeros(480, np.int16)) == b"\xd5" * 160


@both_laws
def test_a_voice_band_signal_keeps_its_quality(encoder, decoder):
    encoder, decoder = encoder(), decoder()
    t = np.arange(24_000) / 24_000
    sound = 8000 * np.sin(2 * np.pi * 300 * t) + 6000 * np.sin(2 * np.pi * 2900 * t)
    payloads = [encoder.encode(block.astype(np.int16)) for block in np.split(sound, 50)]
    assert {len(payload) for payload in payloads} == {160}
    heard = np.concatenate([decoder.decode(payload) for payload in payloads]).astype(float)
    assert len(heard) == 16_000
    t = np.arange(16_000) / 16_000 - (1.5417 + 1.5625) / 1000
    sent = 8000 * np.sin(2 * np.pi * 300 * t) + 6000 * np.sin(2 * np.pi * 2900 * t)
    noise = (heard - sent)[1000:]
    assert 10 * np.log10(np.mean(sent[1000:] ** 2) / np.mean(noise**2)) > 33


@both_laws
@pytest.mark.parametrize("ms", [10, 30, 40, 50, 60])
def test_packets_of_any_length_are_encoded_as_one_stream(encoder, decoder, ms):
    sound = (8000 * np.sin(np.arange(24 * 600) / 5)).astype(np.int16)
    twenties, others = encoder(), encoder()
    stream = b"".join(twenties.encode(block) for block in np.split(sound, 30))
    assert b"".join(others.encode(block) for block in np.split(sound, 600 // ms)) == stream


@both_laws
def test_packets_of_any_length_decode(encoder, decoder):
    decoder = decoder()
    for size in (1, 2, 80, 160, 240, 480, 1200):
        assert len(decoder.decode(bytes(size))) == 2 * size
    with pytest.raises(CodecError):
        decoder.decode(b"")
    assert decoder.recover(bytes(160), 320) is None
    assert len(decoder.conceal(320)) == 320


@both_laws
def test_the_rtp_clock_counts_samples_of_the_line(encoder, decoder):
    assert encoder().clock_rate == decoder().clock_rate == 8000
