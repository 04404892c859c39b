"""Noise of the level and the spectrum that a packet tells (RFC 3389)."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offhook.media.codecs.comfort_noise import LOOP_SAMPLES, ComfortNoise
from offhook.media.pcm import RATE_IN, SAMPLES_IN, dbfs


def noise(payload, sound_rate=8000, ticks=100):
    source = ComfortNoise()
    source.update(payload, sound_rate)
    return np.concatenate([source.next_samples(SAMPLES_IN) for _ in range(ticks)])


def shares(pcm, *edges):
    """How the power is shared out between bands that end at `edges` Hz."""
    power = np.abs(np.fft.rfft(pcm.astype(float) * np.hanning(len(pcm)))) ** 2
    bounds = [int(edge * len(pcm) / RATE_IN) for edge in (0, *edges)]
    bands = [power[a:b].sum() for a, b in pairwise(bounds)]
    return np.array(bands) / power.sum()


@pytest.mark.parametrize("level", [10, 30, 50, 70])
@pytest.mark.parametrize("rest", [b"", bytes([140, 90, 127])])
def test_the_level_is_that_below_the_loudest_square_wave(level, rest):
    assert dbfs(noise(bytes([level]) + rest)) == pytest.approx(-level, abs=0.5)


def test_the_highest_bit_of_the_level_means_nothing():
    np.testing.assert_array_equal(noise(bytes([0x80 | 40])), noise(bytes([40])))


def test_the_lowest_level_is_silence_in_sixteen_bits():
    assert not noise(bytes([127])).any()


def test_no_packet_and_an_empty_one_are_silence():
    assert not ComfortNoise().next_samples(320).any()
    assert not noise(b"").any()


@pytest.mark.parametrize("sound_rate", [8000, 16000])
def test_without_a_spectrum_it_is_flat_in_the_band_of_the_sound(sound_rate):
    quarter = sound_rate // 8
    found = shares(noise(bytes([40]), sound_rate), *(quarter * n for n in (1, 2, 3, 4)))
    np.testing.assert_allclose(found, 0.25, atol=0.03)


@pytest.mark.parametrize("sound_rate", [8000, 16000])
@pytest.mark.parametrize("coefficient", [-0.9, -0.5, 0.5, 0.9])
def test_one_coefficient_tilts_the_spectrum(sound_rate, coefficient):
    """A(z) = 1 + k/z: its noise has the power 1 / (1 + k² + 2k cos w) over frequency."""
    byte = 127 + round(coefficient * 32768 / 258)
    found = shares(noise(bytes([40, byte]), sound_rate), sound_rate // 4, sound_rate // 2)
    w = np.linspace(0, np.pi, 2001)
    power = 1 / (1 + coefficient**2 + 2 * coefficient * np.cos(w))
    expected = power[:1001].sum() / power.sum()
    assert found[0] == pytest.approx(expected, abs=0.05)


def test_two_coefficients_make_a_resonance():
    """k1, k2 of the predictor 1 - 2 r cos(w)/z + r²/z², whose noise peaks at w."""
    r, hz = 0.95, 1200
    a1, a2 = -2 * r * np.cos(2 * np.pi * hz / 8000), r * r
    k = (a1 / (1 + a2), a2)
    payload = bytes([40, *(127 + round(value * 32768 / 258) for value in k)])
    found = shares(noise(payload), hz - 200, hz + 200, 4000)
    assert found[1] > 0.8


def test_it_goes_round_without_a_seam_and_is_not_the_same_each_tick():
    sound = noise(bytes([30]), ticks=2 * LOOP_SAMPLES // SAMPLES_IN + 2).astype(float)
    np.testing.assert_array_equal(sound[:1000], sound[LOOP_SAMPLES : LOOP_SAMPLES + 1000])
    steps = np.abs(np.diff(sound))
    assert steps[LOOP_SAMPLES - 2 : LOOP_SAMPLES + 2].max() < steps.std() * 5
    first, second = sound[:SAMPLES_IN], sound[SAMPLES_IN : 2 * SAMPLES_IN]
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.3


def test_the_level_follows_at_once_and_the_spectrum_in_its_time():
    """Made anew for every packet, spectra would be a way to keep a server busy."""
    source = ComfortNoise()
    source.update(bytes([40, 20]), 8000)
    low = shares(np.concatenate([source.next_samples(320) for _ in range(4)]), 2000)
    source.update(bytes([50, 235]), 8000)
    still = np.concatenate([source.next_samples(320) for _ in range(4)])
    for _ in range(4):
        source.next_samples(320)
    later = shares(np.concatenate([source.next_samples(320) for _ in range(10)]), 2000)
    assert low[0] > 0.8
    assert shares(still, 2000)[0] > 0.8
    assert dbfs(still) == pytest.approx(-50, abs=2)
    assert later[0] < 0.2


@given(st.lists(st.tuples(st.binary(max_size=40), st.sampled_from([8000, 16000])), max_size=8))
@settings(max_examples=50)
def test_any_payload_is_some_noise(payloads):
    source = ComfortNoise()
    for payload, sound_rate in payloads:
        source.update(payload, sound_rate)
        for _ in range(11):
            pcm = source.next_samples(SAMPLES_IN)
            assert (pcm.dtype, len(pcm)) == (np.int16, SAMPLES_IN)
        if payload:
            assert dbfs(pcm) <= max(-90, -(payload[0] & 127) + 12)
