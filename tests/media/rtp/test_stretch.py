import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from offhook.media.pcm import Pcm
from offhook.media.rtp.stretch import MAX_PERIOD, MIN_PERIOD, accelerate, expand


def vowel(pitch: float, samples: int = 480) -> Pcm:
    t = np.arange(samples) / 16000
    sound = np.sum([np.sin(2 * np.pi * k * pitch * t) / k for k in range(1, 9)], axis=0)
    pcm: Pcm = (4000 * sound).astype(np.int16)
    return pcm


def largest_step(pcm: Pcm) -> int:
    return int(np.abs(np.diff(pcm.astype(np.int32))).max())


@pytest.mark.parametrize("pitch", [85, 120, 210, 330])
def test_a_vowel_loses_or_gains_whole_periods_without_a_step(pitch: float) -> None:
    pcm = vowel(pitch)
    for changed, samples, sign in (
        (*accelerate(pcm, MAX_PERIOD), -1),
        (*expand(pcm, MAX_PERIOD), 1),
    ):
        periods = samples * pitch / 16000
        assert round(periods) >= 1
        assert abs(periods - round(periods)) < 0.03
        assert len(changed) == len(pcm) + sign * samples
        assert largest_step(changed) <= 1.05 * largest_step(pcm)
        assert changed[0] == pcm[0]
        assert changed[-1] == pcm[-1]


def test_pitch_is_kept() -> None:
    pcm = vowel(120)
    for changed, _ in (accelerate(pcm, MAX_PERIOD), expand(pcm, MAX_PERIOD)):
        x = changed.astype(float)
        spectrum = np.abs(np.fft.rfft(x, 16000))
        assert abs(int(np.argmax(spectrum[60:200])) + 60 - 120) <= 4


def test_noise_is_left_alone_unless_forced() -> None:
    noise = np.random.default_rng(0).normal(0, 3000, 480).astype(np.int16)
    for stretch in (accelerate, expand):
        same, samples = stretch(noise, MAX_PERIOD)
        assert samples == 0
        assert same is noise
        assert stretch(noise, MAX_PERIOD, 0.1)[1] > 0


def test_near_silence_changes_by_exactly_what_is_wanted() -> None:
    quiet = np.random.default_rng(0).normal(0, 20, 320).astype(np.int16)
    for samples in (MIN_PERIOD, 77, 150):
        shorter, removed = accelerate(quiet, samples)
        longer, added = expand(quiet, samples)
        assert (removed, added) == (samples, samples)
        assert (len(shorter), len(longer)) == (320 - samples, 320 + samples)


def test_no_more_is_removed_than_allowed() -> None:
    assert accelerate(vowel(120), 100)[1] in (0, *range(MIN_PERIOD, 101))
    assert accelerate(vowel(120), MIN_PERIOD - 1)[1] == 0


@settings(max_examples=60)
@given(arrays(np.int16, st.integers(0, 700)), st.integers(0, 700), st.floats(0, 1))
def test_any_sound_is_lengthened_and_shortened_by_what_is_said(
    pcm: Pcm, samples: int, fit: float
) -> None:
    shorter, removed = accelerate(pcm, samples, fit)
    longer, added = expand(pcm, samples, fit)
    assert 0 <= removed <= samples
    assert len(shorter) == len(pcm) - removed
    assert len(longer) == len(pcm) + added
    assert shorter.dtype == longer.dtype == np.int16
