"""Linear samples in and out: nothing is changed but the rate."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.media.codecs.codec import CodecError
from offhook.media.codecs.l16 import RATES, L16Decoder, L16Encoder

both_orders = pytest.mark.parametrize("big_endian", [False, True])


def sines(rate, samples, delay_ms=0.0):
    t = np.arange(samples) / rate - delay_ms / 1000
    return 8000 * np.sin(2 * np.pi * 300 * t) + 6000 * np.sin(2 * np.pi * 2900 * t)


@both_orders
def test_24_khz_is_said_and_16_khz_is_heard_to_the_bit(big_endian):
    order = ">i2" if big_endian else "<i2"
    sound = np.array([0, 1, -2, 32767, -32768, 0x1234], np.int16).repeat(80)
    assert L16Encoder(24_000, big_endian).encode(sound) == sound.astype(order).tobytes()
    heard = L16Decoder(16_000, big_endian).decode(sound.astype(order).tobytes())
    assert heard.dtype == np.int16
    np.testing.assert_array_equal(heard, sound)


def test_the_byte_orders_are_those_of_the_name():
    assert L16Encoder(24_000, True).encode(np.full(240, 0x0102, np.int16))[:2] == b"\x01\x02"
    assert L16Encoder(24_000, False).encode(np.full(240, 0x0102, np.int16))[:2] == b"\x02\x01"


@both_orders
@pytest.mark.parametrize("rate", RATES)
def test_a_voice_band_signal_keeps_its_quality(rate, big_endian):
    encoder, decoder = L16Encoder(rate, big_endian), L16Decoder(rate, big_endian)
    payloads = [encoder.encode(b.astype(np.int16)) for b in np.split(sines(24_000, 24_000), 50)]
    assert {len(payload) for payload in payloads} == {rate // 25}
    heard = np.concatenate([decoder.decode(payload) for payload in payloads]).astype(float)
    assert len(heard) == 16_000
    # The resamplers' delay, on the way out and on the way in.
    delays = {8000: 1.5417 + 1.5625, 16_000: 0.75 + 1 / 48, 24_000: 0.75 + 1 / 48}
    noise = [
        np.mean((heard - sines(16_000, 16_000, delays[rate] + shift))[1000:] ** 2)
        for shift in np.arange(-0.05, 0.05, 0.0005)
    ]
    assert 10 * np.log10(np.mean(sines(16_000, 16_000) ** 2) / min(noise)) > 40


@pytest.mark.parametrize("rate", RATES)
def test_clocks_count_samples_of_the_line(rate):
    assert L16Encoder(rate).clock_rate == L16Decoder(rate).clock_rate == rate
    assert L16Decoder(rate).sound_rate == min(rate, 16_000)


@pytest.mark.parametrize("ms", [10, 60, 100, 200])
@pytest.mark.parametrize("rate", RATES)
def test_packets_of_any_length_are_encoded_as_one_stream(rate, ms):
    sound = (8000 * np.sin(np.arange(24 * 600) / 5)).astype(np.int16)
    twenties, others = L16Encoder(rate), L16Encoder(rate)
    stream = b"".join(twenties.encode(block) for block in np.split(sound, 30))
    assert b"".join(others.encode(block) for block in np.split(sound, 600 // ms)) == stream


@given(st.sampled_from(RATES), st.lists(st.integers(2, 700), min_size=1, max_size=20))
def test_however_it_is_cut_the_same_sound_is_heard(rate, samples):
    sound = (8000 * np.sin(np.arange(sum(samples)) / 3)).astype("<i2")
    pieces = np.split(sound, np.cumsum(samples)[:-1])
    whole = L16Decoder(rate)
    unit = 3 if rate == 24_000 else 1
    at_once = whole.decode(sound[: max(unit, len(sound) // unit * unit)].tobytes())
    decoder = L16Decoder(rate)
    heard = np.concatenate([decoder.decode(piece.tobytes()) for piece in pieces])
    assert len(heard) == len(sound) // unit * unit * 16_000 // rate
    assert np.abs(heard.astype(int) - at_once[: len(heard)]).max(initial=0) <= 1


def test_half_a_sample_is_dropped_and_none_is_refused():
    for rate in RATES:
        decoder = L16Decoder(rate)
        for payload in (b"", b"\x01"):
            with pytest.raises(CodecError):
                decoder.decode(payload)
        assert len(decoder.decode(bytes(6 * 160 + 1))) == 3 * 160 * 16_000 // rate
        assert decoder.recover(bytes(320), 320) is None
        assert len(decoder.conceal(320)) == 320


def test_other_rates_are_refused():
    for make in (L16Decoder, L16Encoder):
        with pytest.raises(CodecError, match="44100 Hz"):
            make(44_100)
    L16Encoder(8000).set_loss(0.5)
