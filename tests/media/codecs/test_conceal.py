"""A lost packet is filled with more of the same, softly ended, and rejoined without a click."""

import os
import wave
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offhook.media.codecs.conceal import (
    CROSS_FADE,
    FADE_END,
    HISTORY,
    LAG_MAX,
    LAG_MIN,
    Concealer,
    best_lag,
)

SPEECH = Path(os.environ.get("OFFHOOK_SPEECH", Path(__file__).parents[4] / "shared/speech"))
PACKET = 320


def vowel(samples, pitch_hz=120.0):
    """A voiced sound: twenty harmonics of a slightly gliding pitch, with two formants."""
    t = np.arange(samples) / 16_000
    phase = 2 * np.pi * np.cumsum(pitch_hz * (1 + 0.02 * np.sin(2 * np.pi * 2 * t))) / 16_000
    sound = np.zeros(samples)
    for k in range(1, 21):
        gain = sum(np.exp(-(((k * pitch_hz - formant) / 250) ** 2)) for formant in (600, 1300))
        sound += (gain + 0.05) * np.cos(k * phase + k * k)
    return (sound / np.abs(sound).max() * 20_000).astype(np.int16)


def through(sound, lost):
    """What is heard of packets of which those numbered in `lost` do not arrive."""
    concealer = Concealer()
    return np.concatenate(
        [
            concealer.conceal(PACKET) if number in lost else concealer.process(packet)
            for number, packet in enumerate(np.split(sound, len(sound) // PACKET))
        ]
    )


def steps(sound):
    return np.abs(np.diff(sound.astype(int)))


def snr(reference, played):
    noise = played.astype(float) - reference
    return 10 * np.log10(np.sum(reference.astype(float) ** 2) / np.sum(noise**2))


def test_nothing_lost_nothing_changed():
    sound = vowel(20 * PACKET)
    np.testing.assert_array_equal(through(sound, ()), sound)


@pytest.mark.parametrize("pitch_hz", [60, 85, 120, 170, 240, 350])
def test_the_best_lag_is_a_whole_number_of_pitch_periods(pitch_hz):
    sound = np.cumsum(np.full(HISTORY, 2 * np.pi * pitch_hz / 16_000))
    saw = sum(np.sin(k * sound) / k for k in range(1, 12)).astype(np.float32) * 5000
    lag = best_lag(saw)
    assert LAG_MIN <= lag <= LAG_MAX
    periods = lag * pitch_hz / 16_000
    assert abs(periods - round(periods)) < 0.03
    assert round(periods) >= 1


@pytest.mark.parametrize("pitch_hz", [90, 120, 220])
def test_a_lost_packet_of_a_vowel_is_mostly_filled(pitch_hz):
    sound = vowel(30 * PACKET, pitch_hz)
    played = through(sound, {15})
    lost = slice(15 * PACKET, 16 * PACKET)
    assert snr(sound[lost], played[lost]) > 4
    np.testing.assert_array_equal(played[: lost.start], sound[: lost.start])
    np.testing.assert_array_equal(played[lost.stop + CROSS_FADE :], sound[lost.stop + CROSS_FADE :])


@pytest.mark.parametrize("burst", [1, 2, 3, 10])
@pytest.mark.parametrize("pitch_hz", [90, 120, 220])
def test_neither_end_of_a_loss_clicks(burst, pitch_hz):
    sound = vowel(40 * PACKET, pitch_hz)
    played = through(sound, set(range(20, 20 + burst)))
    assert steps(played).max() <= 1.25 * steps(sound).max()


def test_a_sound_that_does_not_repeat_does_not_click_either():
    sound = (20_000 * np.sin(2 * np.pi * 21 * np.arange(40 * PACKET) / 16_000)).astype(np.int16)
    for start in range(20, 26):
        played = through(sound, {start, start + 1})
        assert steps(played).max() <= 20_000 / CROSS_FADE + 3 * steps(sound).max()


def test_a_long_loss_fades_to_silence():
    sound = vowel(40 * PACKET)
    played = through(sound, set(range(20, 30))).astype(float)
    levels = [np.sqrt(np.mean(packet**2)) for packet in np.split(played[20 * PACKET :], 20)]
    assert levels[0] > levels[1] > levels[2] > 0
    assert levels[0] > 0.6 * np.sqrt(np.mean(sound.astype(float) ** 2))
    assert not played[20 * PACKET + FADE_END : 30 * PACKET].any()


def test_a_second_loss_right_after_goes_on_from_what_was_played():
    sound = vowel(30 * PACKET)
    played = through(sound, {15, 17})
    lost = slice(17 * PACKET, 18 * PACKET)
    assert snr(sound[lost], played[lost]) > 6
    assert steps(played).max() <= 1.25 * steps(sound).max()


def test_loss_before_any_sound_is_silence():
    concealer = Concealer()
    assert not concealer.conceal(PACKET).any()
    assert len(concealer.process(vowel(PACKET))) == PACKET


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 1000)), max_size=30),
    st.sampled_from([32767, 8000, 1]),
)
@settings(max_examples=60)
def test_any_blocks_any_losses(blocks, level):
    concealer = Concealer()
    random = np.random.default_rng(0)
    for lost, samples in blocks:
        if lost:
            pcm = concealer.conceal(samples)
        else:
            pcm = concealer.process(random.integers(-level, level + 1, samples).astype(np.int16))
        assert (pcm.dtype, len(pcm)) == (np.int16, samples)


@pytest.mark.speech
@pytest.mark.skipif(not SPEECH.is_dir(), reason="no recorded speech")
def test_human_speech_keeps_its_spectrum_over_one_loss_in_ten():
    with wave.open(str(SPEECH / "austen_0870.wav")) as file:
        sound = np.frombuffer(file.readframes(file.getnframes()), np.int16)
    sound = sound[: len(sound) // PACKET * PACKET]
    packets = len(sound) // PACKET
    lost = set(range(15, packets, 10))
    played = through(sound, lost)

    def spectra(pcm):
        spectrum = np.abs(np.fft.rfft(pcm.reshape(-1, PACKET) * np.hanning(PACKET))) ** 2
        return 10 * np.log10(np.add.reduceat(spectrum, np.arange(0, 160, 5), axis=1) + 1e4)

    loud = [n for n in lost if np.abs(sound[n * PACKET : (n + 1) * PACKET]).max() > 1000]
    difference = np.abs(spectra(played) - spectra(sound))[loud].mean()
    hole = np.abs(spectra(np.zeros_like(sound)) - spectra(sound))[loud].mean()
    assert difference < 7
    assert difference < hole / 3
    assert steps(played).max() <= steps(sound).max()
