"""Keys that come as tones: heard on bad lines, not heard in voices and music, and not passed on."""

import wave
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from offhook.media.codecs.g711 import PcmaDecoder, PcmaEncoder, PcmuDecoder, PcmuEncoder
from offhook.media.dtmf import DIGITS
from offhook.media.dtmf_detector import DtmfDetector
from offhook.media.pcm import RATE_IN, SAMPLES_IN
from offhook.media.tones import FULL_SCALE_DBM0, digit_frequencies

SPEECH = Path(__file__).parents[2].parent / "shared" / "speech"
KEYS = DIGITS + "1155"


def pressed(
    digits=KEYS, on_ms=80, off_ms=80, dbm0=-9.0, twist_db=2.0, off_percent=0.0, delay=0
) -> np.ndarray:
    """Tones of these keys, float64 at 16 kHz."""
    sound = [np.zeros(RATE_IN // 5 + delay)]
    amplitude = 32768 * 10 ** ((dbm0 - FULL_SCALE_DBM0) / 20)
    time = np.arange(RATE_IN * on_ms // 1000) / RATE_IN
    for digit in digits:
        low, high = (f * (1 + off_percent / 100) for f in digit_frequencies(digit))
        tones = np.sin(2 * np.pi * low * time)
        tones += 10 ** (twist_db / 20) * np.sin(2 * np.pi * high * time + 1)
        sound += [amplitude * tones, np.zeros(RATE_IN * off_ms // 1000)]
    return np.concatenate([*sound, np.zeros(RATE_IN // 2)])


def told(sound: np.ndarray) -> tuple[str, np.ndarray]:
    """The keys found, and the sound without them."""
    keys: list[str] = []
    detector = DtmfDetector(keys.append)
    pcm = sound.clip(-32768, 32767).astype(np.int16)
    frames = [
        detector.process(pcm[start : start + SAMPLES_IN])
        for start in range(0, len(pcm) - SAMPLES_IN + 1, SAMPLES_IN)
    ]
    return "".join(keys), np.concatenate(frames)


def loudness(sound: np.ndarray) -> float:
    return float((sound.astype(float) ** 2).mean())


@cache
def speech() -> np.ndarray:
    """Human and neural voices as a telephone line passes them; a hummed vowel without them."""
    voices = []
    for file in sorted(SPEECH.rglob("*.wav")):
        with wave.open(str(file)) as opened:
            pcm = np.frombuffer(opened.readframes(opened.getnframes()), np.int16).astype(float)
            pcm, rate = pcm[:: opened.getnchannels()], opened.getframerate()
        count = len(pcm) * RATE_IN // rate
        pcm = np.interp(np.arange(count) * rate / RATE_IN, np.arange(len(pcm)), pcm)
        spectrum, hz = np.fft.rfft(pcm), np.fft.rfftfreq(len(pcm), 1 / RATE_IN)
        spectrum[(hz < 250) | (hz > 3450)] = 0
        pcm = np.fft.irfft(spectrum, len(pcm))
        voices.append(12_000 * pcm / np.abs(pcm).max())
    if not voices:
        phase = 2 * np.pi * np.cumsum(120 + 40 * np.sin(np.arange(60 * RATE_IN) / RATE_IN))
        voices = [sum(3000 * np.sin(k * phase / RATE_IN) / k for k in range(1, 25))]
    return np.concatenate(voices)


@pytest.mark.parametrize(("on_ms", "off_ms"), [(40, 40), (50, 50), (80, 80), (200, 60)])
@pytest.mark.parametrize("off_percent", [-1.5, 0.0, 1.5])
@pytest.mark.parametrize(("dbm0", "twist_db"), [(-7, 4), (-25, 0), (-15, -8)])
def test_keys_within_q24_are_heard(on_ms, off_ms, off_percent, dbm0, twist_db):
    for delay in range(0, SAMPLES_IN, 67):
        sound = pressed(KEYS, on_ms, off_ms, dbm0, twist_db, off_percent, delay)
        assert told(sound)[0] == KEYS


def with_noise(sound, db, rng):
    power = loudness(sound[sound != 0])
    return sound + rng.normal(0, np.sqrt(power / 10 ** (db / 10)), len(sound))


def with_speech(sound, db, rng):
    at = rng.integers(0, len(speech()) - len(sound))
    behind = speech()[at : at + len(sound)]
    level = np.sqrt(loudness(sound[sound != 0]) / (loudness(behind) + 1) / 10 ** (db / 10))
    return sound + behind * level


def through(encoder, decoder):
    def line(sound, db, rng):
        encode, decode = encoder(), decoder()
        pcm = np.repeat(sound[::2], 3).clip(-32768, 32767).astype(np.int16)  # 24 kHz
        heard = []
        for start in range(0, len(pcm) - 479, 480):
            heard.append(decode.decode(encode.encode(pcm[start : start + 480])))
        return np.concatenate(heard).astype(float)

    return line


def with_loss(sound, db, rng):
    sound = sound.copy()
    for start in range(0, len(sound), SAMPLES_IN):
        if rng.random() < 0.02:
            sound[start : start + SAMPLES_IN] = 0
    return sound


@pytest.mark.parametrize(
    ("line", "db"),
    [(with_noise, 20), (with_noise, 15), (with_speech, 20), (with_speech, 15), (with_loss, 0)],
)
def test_keys_are_heard_on_bad_lines(line, db):
    rng = np.random.default_rng(7)
    for delay in range(0, SAMPLES_IN, 32):
        assert told(line(pressed(delay=delay), db, rng))[0] == KEYS


@pytest.mark.parametrize("codec", [(PcmuEncoder, PcmuDecoder), (PcmaEncoder, PcmaDecoder)])
def test_keys_are_heard_through_g711(codec):
    rng = np.random.default_rng(8)
    line = through(*codec)
    assert told(with_noise(line(pressed(), 0, rng), 20, rng))[0] == KEYS


def test_what_is_too_short_or_too_faint_is_no_key():
    assert told(pressed(on_ms=20))[0] == ""
    assert told(pressed(dbm0=-45))[0] == ""
    assert told(pressed(off_percent=4))[0] == ""
    assert told(pressed(twist_db=20))[0] == ""


def test_a_gap_of_a_packet_does_not_make_two_keys():
    sound = pressed("5", on_ms=200)
    for start in range(4000, 5500, 320):
        damaged = sound.copy()
        damaged[start : start + SAMPLES_IN] = 0
        assert told(damaged)[0] == "5"


def test_one_tone_or_a_dial_tone_is_no_key():
    time = np.arange(2 * RATE_IN) / RATE_IN
    for pair in ((697, 0), (0, 1336), (350, 440), (440, 480), (480, 620), (425, 0), (1000, 2000)):
        sound = sum(6000 * np.sin(2 * np.pi * hz * time) for hz in pair)
        assert told(sound)[0] == ""
    for high, low in product((1209, 1336), (1477, 1633)):  # of one group
        sound = sum(6000 * np.sin(2 * np.pi * hz * time) for hz in (high, low))
        assert told(sound)[0] == ""


@pytest.mark.parametrize("speed", [0.8, 1.0, 1.25])
def test_voices_are_no_keys_and_are_passed_on_whole(speed):
    voices = speech()
    voices = np.interp(np.arange(0, len(voices) - 1, speed), np.arange(len(voices)), voices)
    keys, passed = told(voices)
    assert keys == ""
    lost = np.count_nonzero((passed == 0) & (np.abs(voices[: len(passed)]) >= 1))
    assert lost < 0.001 * len(passed)


def test_the_tones_are_taken_out_of_what_is_heard_and_the_voice_around_them_is_not():
    voice = 2000 * np.sin(2 * np.pi * 300 * np.arange(RATE_IN) / RATE_IN)
    keys, passed = told(np.concatenate([voice, pressed("42", on_ms=200), voice]))
    assert keys == "42"
    assert loudness(passed[: RATE_IN - 640]) > 0.95 * loudness(voice)
    assert loudness(passed[-RATE_IN + 640 :]) > 0.95 * loudness(voice)
    between = passed[RATE_IN : -RATE_IN - 640]
    assert loudness(between) < 0.05 * loudness(pressed("42", on_ms=200))
