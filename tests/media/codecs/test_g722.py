"""G.722 by FFmpeg: no delay but the codec's own, no packet kept back, silence stays silence."""

import numpy as np
import pytest

from offhook.media.codecs.codec import CodecError
from offhook.media.codecs.g722 import G722Decoder, G722Encoder

QMF_DELAY = 22
"""Samples at 16 kHz that the two filter banks of the codec take."""


def transmit(sound):
    encoder, decoder = G722Encoder(), G722Decoder()
    payloads = [
        encoder.encode(block.astype(np.int16)) for block in np.split(sound, len(sound) // 480)
    ]
    assert {len(payload) for payload in payloads} == {160}
    packets = [decoder.decode(payload) for payload in payloads]
    assert {len(packet) for packet in packets} == {320}
    return np.concatenate(packets).astype(float)


def wideband(t):
    return 6000 * np.sin(2 * np.pi * 400 * t) + 1500 * np.sin(2 * np.pi * 6000 * t)


def test_wideband_sound_comes_through_without_more_than_the_codecs_delay():
    heard = transmit(wideband(np.arange(24_000) / 24_000))
    resampler_ms = 0.7708
    sent = wideband(np.arange(16_000) / 16_000 - QMF_DELAY / 16_000 - resampler_ms / 1000)
    noise = (heard - sent)[1000:]
    assert 10 * np.log10(np.mean(sent[1000:] ** 2) / np.mean(noise**2)) > 20


def test_silence_is_silent():
    heard = transmit(np.zeros(480 * 20))
    assert np.abs(heard).max() <= 40


def test_packets_of_any_length_decode():
    decoder = G722Decoder()
    for size in (1, 3, 80, 160, 320, 1200):
        pcm = decoder.decode(bytes(range(size % 256)) + bytes(size - size % 256))
        assert (len(pcm), pcm.dtype) == (2 * size, np.int16)


def test_an_empty_payload_is_an_error_and_the_stream_goes_on():
    decoder = G722Decoder()
    decoder.decode(bytes(160))
    with pytest.raises(CodecError):
        decoder.decode(b"")
    assert len(decoder.decode(bytes(160))) == 320


def test_a_lost_packet_is_concealed_and_the_sound_finds_back():
    encoder, decoder = G722Encoder(), G722Decoder()
    t = np.arange(24_000) / 24_000
    blocks = np.split((9000 * np.sin(2 * np.pi * 250 * t)).astype(np.int16), 50)
    payloads = [encoder.encode(block) for block in blocks]
    clean = G722Decoder()
    reference = np.concatenate([clean.decode(payload) for payload in payloads]).astype(float)
    heard = np.concatenate(
        [decoder.conceal(320) if n == 20 else decoder.decode(p) for n, p in enumerate(payloads)]
    ).astype(float)
    lost = slice(20 * 320, 21 * 320)
    assert np.sum((heard - reference)[lost] ** 2) < 0.2 * np.sum(reference[lost] ** 2)
    assert np.abs((heard - reference)[30 * 320 :]).max() < 500
    assert decoder.recover(payloads[0], 320) is None


def test_the_rtp_clock_is_the_historical_8_khz():
    assert G722Encoder().clock_rate == G722Decoder().clock_rate == 8000


@pytest.mark.parametrize("ms", [10, 30, 40, 50, 60])
def test_packets_of_other_lengths_are_the_same_stream(ms):
    sound = wideband(np.arange(24_000 * 6 // 10) / 24_000).astype(np.int16)
    encoder, packed = G722Encoder(), G722Encoder()
    stream = b"".join(encoder.encode(block) for block in np.split(sound, 30))
    packets = [packed.encode(block) for block in np.split(sound, 600 // ms)]
    assert {len(packet) for packet in packets} == {8 * ms}
    assert b"".join(packets) == stream


def test_the_length_of_packets_may_change_within_a_stream():
    encoder, decoder = G722Encoder(), G722Decoder()
    for ms in (20, 10, 30, 20, 60):
        payload = encoder.encode(np.zeros(24 * ms, np.int16))
        assert len(decoder.decode(payload)) == 16 * ms
