"""Every ratio on the way of sound: delay, flatness, aliases, and blocks without a seam."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offhook.media.codecs.resample import Resampler

RATIOS = [(8_000, 16_000), (24_000, 8_000), (24_000, 16_000)]
every_ratio = pytest.mark.parametrize(("rate_in", "rate_out"), RATIOS)


def process(rate_in, rate_out, sound):
    """In packets of 20 ms, each of which gives exactly 20 ms."""
    resampler = Resampler(rate_in, rate_out)
    blocks = np.split(sound, len(sound) // (rate_in // 50))
    packets = [resampler.process(block) for block in blocks]
    assert {len(packet) for packet in packets} == {rate_out // 50}
    return np.concatenate(packets)


def tone_level(rate_in, rate_out, frequency):
    """dB at which one second of a tone comes out, and of all else that comes with it."""
    tone = 20_000 * np.sin(2 * np.pi * frequency * np.arange(rate_in) / rate_in)
    out = process(rate_in, rate_out, np.rint(tone).astype(np.int16))[rate_out // 10 :]
    spectrum = np.abs(np.fft.rfft(out * np.blackman(len(out)))) / len(out) * 2 / 0.42 / 20_000
    own = np.abs(np.fft.rfftfreq(len(out), 1 / rate_out) - frequency) < 30
    return [
        20 * np.log10(max(part.max(initial=0), 1e-6)) for part in (spectrum[own], spectrum[~own])
    ]


@every_ratio
def test_an_impulse_comes_out_at_the_delay_stated_and_within_2500_us(rate_in, rate_out):
    sound = np.zeros(rate_in // 50 * 3, np.int16)
    at = rate_in // 50
    sound[at] = 30_000
    out = process(rate_in, rate_out, sound).astype(float)
    centre = (out * np.arange(len(out))).sum() / out.sum()
    delay_ms = 1000 * (centre / rate_out - at / rate_in)
    assert delay_ms == pytest.approx(Resampler(rate_in, rate_out).delay_ms, abs=0.02)
    assert delay_ms <= 2.5


@every_ratio
def test_the_band_is_flat_to_085_of_its_edge(rate_in, rate_out):
    edge = min(rate_in, rate_out) / 2
    for frequency in (100, 1000, 0.5 * edge, 0.85 * edge):
        passed, rest = tone_level(rate_in, rate_out, frequency)
        assert abs(passed) < 0.05
        assert rest < -60


@every_ratio
def test_aliases_and_images_are_down_from_115_of_the_edge(rate_in, rate_out):
    edge = min(rate_in, rate_out) / 2
    for share in (1.15, 1.25, 1.4):
        if share * edge < rate_in / 2:
            assert max(tone_level(rate_in, rate_out, share * edge)) < -55
    if rate_out > rate_in:
        # The image of a tone at 0.85 of the edge is at 1.15 of it.
        assert tone_level(rate_in, rate_out, 0.85 * edge)[1] < -55


@every_ratio
def test_full_scale_saturates_and_does_not_wrap(rate_in, rate_out):
    square = np.where(np.arange(rate_in // 10) // (rate_in // 400) % 2, 32767, -32768)
    out = process(rate_in, rate_out, square.astype(np.int16))
    assert out.max() == 32767
    assert out.min() == -32768
    low = np.abs(np.fft.rfft(out[rate_out // 50 :])).argmax() * rate_out / (0.08 * rate_out)
    assert low == pytest.approx(200, abs=13)


@every_ratio
@given(blocks=st.lists(st.integers(0, 200), min_size=1, max_size=8), seed=st.integers(0, 99))
@settings(max_examples=30)
def test_blocks_of_any_size_make_the_same_sound(rate_in, rate_out, blocks, seed):
    down = 3 if rate_in == 24_000 else 1
    sizes = [down * block for block in blocks]
    sound = np.random.default_rng(seed).integers(-32768, 32768, sum(sizes)).astype(np.int16)
    whole, parts = Resampler(rate_in, rate_out), Resampler(rate_in, rate_out)
    pieces = np.split(sound, np.cumsum(sizes)[:-1])
    in_parts = np.concatenate([parts.process(piece) for piece in pieces])
    np.testing.assert_array_equal(in_parts, whole.process(sound))
