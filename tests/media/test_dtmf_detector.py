"""Keys that come as tones: heard on bad lines, not heard in voices and music, and not passed on."""

from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from benchmarks.media.keys import (
    KEYS,
    at_speed,
    detected,
    music,
    power,
    pressed,
    streams,
    through_g711,
    voices_of,
    with_loss,
    with_noise,
    with_speech,
)
from offhook.media.pcm import RATE_IN, SAMPLES_IN
from offhook.media.telephone_tones.dtmf_detector import LONGEST, DtmfDetector

SPEECH = Path(__file__).parents[2].parent / "shared" / "speech"


def told(sound: np.ndarray) -> str:
    return detected(sound)[0]


@cache
def speech() -> np.ndarray:
    """Human and neural voices as a telephone line passes them; a hummed vowel without them."""
    if voices := voices_of(SPEECH):
        return np.concatenate(voices)
    phase = 2 * np.pi * np.cumsum(120 + 40 * np.sin(np.arange(60 * RATE_IN) / RATE_IN))
    return sum(3000 * np.sin(k * phase / RATE_IN) / k for k in range(1, 25))


def test_every_kind_of_stream_is_understood():
    assert {name: keys for name, keys in streams(speech()) if keys != KEYS} == {}


@pytest.mark.parametrize(("on_ms", "off_ms"), [(40, 40), (50, 50), (80, 80), (200, 60)])
@pytest.mark.parametrize("off_percent", [-1.5, 0.0, 1.5])
@pytest.mark.parametrize(("dbm0", "twist_db"), [(-7, 4), (-25, 0), (-15, -8)])
def test_keys_within_q24_are_heard(on_ms, off_ms, off_percent, dbm0, twist_db):
    for delay in range(0, SAMPLES_IN, 67):
        sound = pressed(KEYS, on_ms, off_ms, dbm0, twist_db, off_percent, delay)
        assert told(sound) == KEYS


@pytest.mark.parametrize(
    "line",
    [
        with_noise(20),
        with_noise(15),
        with_loss(0.02),
        through_g711("a"),
        lambda sound, rng: with_speech(speech(), 20)(sound, rng),
    ],
)
def test_keys_are_heard_on_bad_lines(line):
    rng = np.random.default_rng(7)
    for delay in range(0, SAMPLES_IN, 64):
        assert told(line(pressed(delay=delay), rng)) == KEYS


def test_next_to_no_key_is_lost_behind_louder_speech():
    rng = np.random.default_rng(7)
    streams = [told(with_speech(speech(), 15)(pressed(delay=n), rng)) for n in range(0, 320, 16)]
    assert sum(map(len, streams)) >= 0.98 * len(KEYS) * len(streams)


def test_what_is_too_short_or_too_faint_is_no_key():
    assert told(pressed(on_ms=20)) == ""
    assert told(pressed(dbm0=-45)) == ""
    assert told(pressed(off_percent=4)) == ""
    assert told(pressed(twist_db=20)) == ""


def test_a_gap_of_a_packet_does_not_make_two_keys():
    sound = pressed("5", on_ms=200)
    for start in range(4000, 5500, 320):
        damaged = sound.copy()
        damaged[start : start + SAMPLES_IN] = 0
        assert told(damaged) == "5"


def test_one_tone_or_a_dial_tone_is_no_key():
    time = np.arange(2 * RATE_IN) / RATE_IN
    for pair in ((697, 0), (0, 1336), (350, 440), (440, 480), (480, 620), (425, 0), (1000, 2000)):
        sound = sum(6000 * np.sin(2 * np.pi * hz * time) for hz in pair)
        assert told(sound) == ""
    for high, low in product((1209, 1336), (1477, 1633)):  # of one group
        sound = sum(6000 * np.sin(2 * np.pi * hz * time) for hz in (high, low))
        assert told(sound) == ""


@pytest.mark.parametrize("speed", [0.8, 1.0, 1.25])
def test_voices_are_no_keys_and_are_passed_on_whole(speed):
    voices = at_speed(speech(), speed)
    keys, passed = detected(voices)
    assert keys == ""
    lost = np.count_nonzero((passed == 0) & (np.abs(voices[: len(passed)]) >= 1))
    assert lost < 0.002 * len(passed)


def test_a_third_tone_makes_no_key_and_costs_no_more_with_time():
    seconds = np.arange(20 * RATE_IN) / RATE_IN
    detector = DtmfDetector(lambda digit: None)
    sound = sum(4000 * np.sin(2 * np.pi * hz * seconds) for hz in (770, 1336))
    sound = (sound + 2600 * np.sin(2 * np.pi * 500 * seconds)).astype(np.int16)
    for frame in sound.reshape(-1, SAMPLES_IN):
        detector.process(frame)
    assert len(detector._tone) <= LONGEST


def test_a_long_key_that_begins_in_noise_is_heard():
    rng = np.random.default_rng(9)
    for _ in range(10):
        sound = pressed("5", on_ms=1000)
        sound[RATE_IN // 5 :][: RATE_IN // 10] += rng.normal(0, 6000, RATE_IN // 10)
        assert told(sound) == "5"


def test_music_is_no_keys():
    assert told(music(120, np.random.default_rng(11))) == ""


def test_the_tones_are_taken_out_of_what_is_heard_and_the_voice_around_them_is_not():
    voice = 2000 * np.sin(2 * np.pi * 300 * np.arange(RATE_IN) / RATE_IN)
    sound = np.concatenate([voice, pressed("42", on_ms=200), voice])
    keys, passed = detected(sound)
    assert keys == "42"
    for at in (slice(0, RATE_IN - 640), slice(-RATE_IN + 640, None)):
        assert power(passed[at].astype(float)) > 0.95 * power(voice)
    between = passed[RATE_IN:-RATE_IN].astype(float)
    assert np.mean(between**2) < 0.02 * np.mean(sound[RATE_IN:-RATE_IN] ** 2)
