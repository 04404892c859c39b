"""Steady tones in noise, and what is none."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.answers.scenes import music, silence, tone
from benchmarks.answers.voices import trimmed, voices_of
from benchmarks.speech.noises import at_power
from offhook.media.pcm import RATE_IN, SAMPLES_IN
from offhook.media.telephone_tones.steady_tones import SteadyTones, Tone


def tones_in(sound: np.ndarray) -> list[Tone]:
    """The tones of 60 ms and more."""
    finder, found = SteadyTones(), []
    pcm = np.clip(np.rint(sound), -32768, 32767).astype(np.int16)
    for start in range(0, len(pcm) - SAMPLES_IN + 1, SAMPLES_IN):
        if (ended := finder.process(pcm[start : start + SAMPLES_IN])) is not None:
            found.append(ended)
    return [one for one in found if one.lasted_ms >= 60]


def among_silence(*sounds: np.ndarray) -> np.ndarray:
    return np.concatenate((silence(300), *sounds, silence(300)))


@settings(deadline=None, max_examples=30)
@given(
    st.floats(400, 2100),
    st.integers(10, 150).map(lambda tens: tens * 10),
    st.floats(-35, -8),
    st.integers(0, 2**32 - 1),
)
def test_a_tone_is_found_in_noise_with_its_frequency_and_length(
    frequency: float, lasts_ms: int, level: float, seed: int
) -> None:
    sound = tone((frequency,), lasts_ms, level)
    whole = among_silence(sound)
    noise = np.random.default_rng(seed).standard_normal(len(whole))
    (found,) = tones_in(whole + at_power(noise, float(np.mean(sound**2)) / 20))
    assert found.has(frequency, within=15)
    assert abs(found.lasted_ms - lasts_ms) <= 60


def test_two_lines_are_found_together() -> None:
    (found,) = tones_in(among_silence(tone((480.0, 620.0), 500)))
    assert found.has(480, 620, within=20)


def test_tones_without_a_pause_are_several() -> None:
    sound = [tone((f,), 330) for f in (950.0, 1400.0, 1800.0)]
    found = tones_in(among_silence(*sound))
    assert [round(one.frequencies[0], -1) for one in found] == [950, 1400, 1800]


def test_a_lost_packet_ends_no_tone() -> None:
    sound = among_silence(tone((1000.0,), 600))
    sound[RATE_IN // 2 : RATE_IN // 2 + SAMPLES_IN] = 0
    (found,) = tones_in(sound)
    assert found.lasted_ms >= 580


@pytest.mark.parametrize("text", ["Hello, who is there?", "Please leave a message after the tone."])
def test_a_voice_is_none(text: str) -> None:
    for _, speak in voices_of("en"):
        assert [one for one in tones_in(trimmed(speak(text))) if one.lasted_ms >= 140] == []


def test_noise_and_chords_are_none() -> None:
    rng = np.random.default_rng(3)
    assert tones_in(rng.standard_normal(5 * RATE_IN) * 3000) == []
    single = [one for one in tones_in(music(5000, rng)) if len(one.frequencies) == 1]
    assert [one for one in single if one.lasted_ms >= 200] == []
