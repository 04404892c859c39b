"""Voices: which recordings may be cloned, voices as text, and clones in memory."""

import json
import os
import wave
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import soxr
from hypothesis import given, settings
from hypothesis import strategies as st

from offhook.media.pcm import RATE_OUT, Pcm, dbfs
from offhook.pipeline.engines.embedded.espeak_io import EspeakSynthesizer
from offhook.pipeline.engines.qwen3_tts.voices import (
    MAX_S,
    Clone,
    CloneCache,
    Voice,
    prepare,
)
from offhook.pipeline.speech.voice_cloning import VoiceError

MODEL = "Qwen/Qwen3-TTS-12Hz-0.6B-Base"
HIDDEN = 24
WORDS = "The quick brown fox jumps over the lazy dog, and nobody minds at all."
SENTENCES = (
    WORDS,
    "We are open from nine in the morning, and the doctor will see you on Friday.",
    "Bring the letter with you, please, and come to the desk on the second floor.",
)
RECORDINGS = Path(os.environ.get("OFFHOOK_SPEECH", Path(__file__).parents[5] / "shared" / "speech"))


@cache
def sentence(number: int) -> tuple[Pcm, int]:
    """As eSpeak says it; and the rate."""
    sound = EspeakSynthesizer().sound(SENTENCES[number].split(), "en-us")
    return sound.pcm, sound.rate


@cache
def speech(seconds: float, rate: int = RATE_OUT) -> Pcm:
    """Sentences with 0.4 s of silence after each, at least so long in all."""
    pieces: list[Pcm] = []
    while sum(map(len, pieces)) < seconds * rate:
        pcm, own_rate = sentence(len(pieces) // 2 % len(SENTENCES))
        pieces += [soxr.resample(pcm, own_rate, rate), silence(0.4, rate)]
    return np.concatenate(pieces)


def silence(seconds: float, rate: int = RATE_OUT) -> Pcm:
    return np.zeros(int(seconds * rate), np.int16)


def louder(pcm: Pcm, gain: float) -> Pcm:
    """1: the peak is full scale."""
    return np.clip(pcm * (gain * 32767 / np.abs(pcm.astype(int)).max()), -32768, 32767).astype(
        np.int16
    )


def likeness(a: Pcm, b: Pcm) -> float:
    """Of two sounds that begin at about the same time: their highest correlation."""
    size = 1 << (len(a) + len(b)).bit_length()
    spectrum = np.fft.rfft(a, size) * np.fft.rfft(b, size).conj()
    norm = np.linalg.norm(a.astype(float)) * np.linalg.norm(b.astype(float))
    return float(np.fft.irfft(spectrum).max() / norm)


# --- recordings ---


@pytest.mark.parametrize("rate", [8_000, 11_025, 16_000, 24_000, 44_100, 48_000, 47_999])
def test_any_rate_is_heard_as_24_khz(rate: int) -> None:
    reference = prepare(speech(3, rate), rate)
    assert reference.pcm.dtype == np.int16
    band = soxr.resample(soxr.resample(speech(3), RATE_OUT, 8_000), 8_000, RATE_OUT)
    heard = soxr.resample(soxr.resample(reference.pcm, RATE_OUT, 8_000), 8_000, RATE_OUT)
    assert likeness(heard, band) > 0.99


def test_silence_around_is_left_out() -> None:
    sound = speech(3)
    reference = prepare(np.concatenate((silence(5), sound, silence(20))), RATE_OUT)
    spoken = len(sound) - int(0.4 * RATE_OUT)
    assert spoken - RATE_OUT / 20 < len(reference.pcm) < spoken + RATE_OUT / 2
    assert likeness(reference.pcm, sound) > 0.9999


def test_a_long_recording_is_cut_in_a_pause() -> None:
    pcm = speech(45)
    reference = prepare(pcm, RATE_OUT)
    assert 20 * RATE_OUT <= len(reference.pcm) <= MAX_S * RATE_OUT
    assert dbfs(reference.pcm[-RATE_OUT // 20 :]) < -60
    assert likeness(reference.pcm, pcm[: len(reference.pcm)]) > 0.9999


@pytest.mark.parametrize("tail", [0.0, 0.1, 0.3, 5.0])
def test_a_reference_with_words_ends_with_a_pause(tail: float) -> None:
    sound = speech(3)[: -int(0.4 * RATE_OUT)]
    recording = np.concatenate((sound, silence(tail)))
    reference = prepare(recording, RATE_OUT, WORDS)
    spoken = len(np.trim_zeros(reference.pcm, "b"))
    pcm = reference.pcm_for_codes
    assert np.array_equal(pcm[: len(reference.pcm)], reference.pcm)
    assert dbfs(pcm[spoken:]) < -60
    assert RATE_OUT * 0.45 < len(pcm) - spoken < RATE_OUT * 0.55


def test_a_very_long_recording_is_not_read_to_its_end() -> None:
    hour = np.broadcast_to(speech(3)[:1000], (86_400, 1000)).reshape(-1)
    assert len(prepare(hour, RATE_OUT).pcm) <= MAX_S * RATE_OUT


def test_words_are_one_line() -> None:
    assert prepare(speech(3), RATE_OUT, "  The quick\n brown \ud800").text == "The quick brown ?"


@pytest.mark.parametrize(
    ("pcm", "text", "words"),
    [
        (silence(10), "", "is silent"),
        (silence(0), "", "is silent"),
        (np.full(10 * RATE_OUT, 60, np.int16), "", "is silent"),
        (speech(3)[: 2 * RATE_OUT], "", r"holds 2\.\d s of sound: 3 to 30 s of one person"),
        (speech(45), WORDS, "over 30 s: shorten it and its words, or give no words"),
        (np.concatenate((speech(3), silence(60))), WORDS, "over 30 s"),
        (louder(speech(3), 4), "", r"clipped \(\d+\.\d % .* less gain"),
        (louder(speech(3), 4) // 8, "", "clipped"),
        (speech(3), "word " * 201, "over 1000 characters"),
    ],
)
def test_what_is_refused(pcm: Pcm, text: str, words: str) -> None:
    with pytest.raises(VoiceError, match=words):
        prepare(pcm, RATE_OUT, text)


def test_two_clicks_are_no_voice() -> None:
    pcm = silence(8)
    pcm[[RATE_OUT, 7 * RATE_OUT]] = 20_000
    with pytest.raises(VoiceError, match=r"only 0\.0 s of the recording are not silent"):
        prepare(pcm, RATE_OUT)


@pytest.mark.parametrize("rate", [0, 7_999, 192_001])
def test_rates_that_are_none(rate: int) -> None:
    with pytest.raises(VoiceError, match=f"of {rate} Hz"):
        prepare(speech(3), rate)


def test_loud_is_not_clipped() -> None:
    for rate in (8_000, 24_000, 48_000):
        assert prepare(louder(speech(6, rate), 1), rate)


@pytest.mark.speech
def test_people_are_not_refused() -> None:
    """Nor is what they say clipped by a gain of 1.2; but by one of 4."""
    if not RECORDINGS.is_dir():
        pytest.skip("no recordings here")
    for path in sorted(RECORDINGS.glob("austen_*.wav")):
        with wave.open(str(path)) as file:
            pcm, rate = np.frombuffer(file.readframes(1 << 30), np.int16), file.getframerate()
        pcm = np.concatenate((pcm, pcm))
        for gain in (0.2, 1, 1.2):
            assert len(prepare(louder(pcm, gain), rate).pcm) > 3 * RATE_OUT
        with pytest.raises(VoiceError, match="clipped"):
            prepare(louder(pcm, 4), rate)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 60_000), st.integers(0, 32_767)), max_size=8),
    st.sampled_from([8_000, 24_000, 192_000]),
    st.sampled_from(["", "some words"]),
)
def test_anything_is_used_or_refused(blocks: list[tuple[int, int]], rate: int, text: str) -> None:
    noise = np.random.default_rng(0)
    parts = [noise.integers(-level, level + 1, length) for length, level in blocks]
    pcm = np.concatenate([silence(0), *parts]).astype(np.int16)
    try:
        reference = prepare(pcm, rate, text)
    except VoiceError:
        return
    assert 3 * RATE_OUT <= len(reference.pcm) <= MAX_S * RATE_OUT or len(pcm) > 30 * rate


def test_digests_tell_apart_what_sounds_different() -> None:
    one = prepare(speech(3), RATE_OUT, WORDS)
    assert prepare(speech(3), RATE_OUT, WORDS + " ").digest(MODEL) == one.digest(MODEL)
    others = [
        prepare(speech(3), RATE_OUT).digest(MODEL),
        prepare(speech(6), RATE_OUT, WORDS).digest(MODEL),
        one.digest("Qwen/Qwen3-TTS-12Hz-1.7B-Base"),
    ]
    assert len({one.digest(MODEL), *others}) == 4


# --- voices as text ---

NAMES = st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)


@given(NAMES, st.sampled_from(["design", "clone"]), st.sampled_from(["", "de"]), st.text())
def test_a_voice_is_read_as_it_was_written(name: str, kind: str, language: str, text: str) -> None:
    voice = Voice(name, kind, 64 * "a", language, text, consent=True, created="2026-11-21")  # type: ignore[arg-type]
    written = voice.to_json().encode().decode()
    assert Voice.from_json(written) == voice


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(),
    lambda values: st.lists(values) | st.dictionaries(st.text(), values),
    max_leaves=8,
)
FIELDS = st.fixed_dictionaries(
    {"kind": st.just("clone") | JSON},
    optional={
        name: JSON | st.just("../x") | st.just(True) | st.just("a" * 64)
        for name in ("name", "digest", "language", "text", "consent", "created")
    },
)


@given(st.text() | JSON.map(json.dumps) | FIELDS.map(json.dumps))
def test_everything_else_is_no_voice(text: str) -> None:
    try:
        voice = Voice.from_json(text)
    except ValueError:
        return
    assert voice.consent
    assert "." not in voice.name
    assert len(voice.digest) == 64


def test_deep_json_is_no_voice() -> None:
    with pytest.raises(ValueError, match="too deep"):
        Voice.from_json("[" * 100_000)


# --- memory ---


def some_clone(size: int = HIDDEN) -> Clone:
    return Clone(np.zeros(size, np.float32), None)


def test_memory_is_bounded_by_count_and_bytes() -> None:
    cache = CloneCache(most=3, most_bytes=1000)
    for digest in "abc":
        cache.put(digest, some_clone())
    assert cache.get("a")
    cache.put("d", some_clone())
    assert [bool(cache.get(digest)) for digest in "abcd"] == [True, False, True, True]
    assert (cache.hits, cache.misses, cache.evictions) == (4, 1, 1)
    cache.put("e", some_clone(200))
    assert (len(cache), cache.nbytes) == (3, 992)
    cache.put("e", some_clone(150))
    assert (len(cache), cache.nbytes) == (3, 792)
    cache.put("f", some_clone(300))  # more than there is room for
    assert (len(cache), cache.nbytes) == (0, 0)
