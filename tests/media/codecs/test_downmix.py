"""Two channels to one: what is said in either is in it, whichever way round they are."""

import io
import wave
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.media.codecs.downmix import Downmix
from offhook.media.pcm import RATE_IN, Pcm, dbfs
from offhook.pipeline.engines.qwen3_tts import recordings_io
from offhook.web.app.cli.caller_io import read_audio
from offhook.web.speech_api.http.file_transcription_io import Pieces

RNG = np.random.default_rng(1)
SPEECH = (6000 * np.sin(np.arange(2 * RATE_IN) / 7) * np.sin(np.arange(2 * RATE_IN) / 3000)).astype(
    np.int16
)
NOISE = RNG.integers(-100, 100, len(SPEECH)).astype(np.int16)


def pairs(left: Pcm, right: Pcm) -> Pcm:
    return np.stack((left, right), 1).reshape(-1)


def mixed(left: Pcm, right: Pcm) -> Pcm:
    """20 ms at a time."""
    downmix = Downmix(RATE_IN)
    stereo = pairs(left, right)
    return np.concatenate([downmix.mix(block) for block in stereo.reshape(-1, 640)])


def test_what_is_alike_is_the_mean() -> None:
    assert np.array_equal(mixed(SPEECH, SPEECH), SPEECH)
    assert np.abs(mixed(SPEECH, NOISE).astype(int) - (SPEECH.astype(int) + NOISE) / 2).max() < 1
    assert dbfs(mixed(SPEECH, 0 * SPEECH)) == pytest.approx(dbfs(SPEECH) - 6, abs=0.1)


@pytest.mark.parametrize("loudness", [1.0, 0.8, 1.25])
def test_what_would_cancel_is_the_louder_channel(loudness: float) -> None:
    other = (-loudness * SPEECH).astype(np.int16)
    heard = mixed(SPEECH + NOISE, other)
    assert dbfs(heard) == pytest.approx(max(dbfs(SPEECH), dbfs(other)), abs=0.5)


def test_what_turns_round_is_heard_after_a_moment() -> None:
    left = np.concatenate((SPEECH, SPEECH))
    right = np.concatenate((SPEECH, -SPEECH))
    heard = mixed(left, right)
    assert np.array_equal(heard[: len(SPEECH)], SPEECH)
    late = len(SPEECH) + 2 * RATE_IN * 3 // 4
    assert dbfs(heard[late:]) == pytest.approx(dbfs(left[late:]), abs=0.1)


@given(st.lists(st.integers(-32768, 32767), min_size=2, max_size=40))
def test_no_samples_overflow(samples: list[int]) -> None:
    stereo = np.array(samples[: len(samples) // 2 * 2], np.int16)
    left, right = stereo[::2].astype(int), stereo[1::2].astype(int)
    heard = Downmix(RATE_IN).mix(stereo)
    choices = ((left + right) // 2, left, right)
    assert any(np.array_equal(heard, choice) for choice in choices)


def test_files_of_antiphase_stereo_are_heard_wherever_they_are_read(tmp_path: Path) -> None:
    data = io.BytesIO()
    with wave.open(data, "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(44_100)
        file.writeframes(pairs(SPEECH, -SPEECH).tobytes())
    path = tmp_path / "antiphase.wav"
    path.write_bytes(data.getvalue())
    uploaded = np.concatenate([piece.pcm for piece in Pieces(path, (27.0,))])
    sample, rate = recordings_io.read_recording(data.getvalue())
    for heard in (uploaded, read_audio(path), sample):
        assert dbfs(heard) == pytest.approx(dbfs(SPEECH), abs=0.5)
    assert rate == 44_100
