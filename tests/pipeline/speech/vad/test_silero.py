"""The network computed by matrix products is the one that ONNX Runtime computes."""

import os
import wave
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offhook.pipeline.speech.vad.onnx_io import OnnxModel, package_file
from offhook.pipeline.speech.vad.silero import CONTEXT, STATE, Silero
from offhook.pipeline.speech.vad.vad import WINDOW
from offhook.pipeline.speech.vad.vad_io import load_silero

SPEECH = Path(os.environ.get("OFFHOOK_SPEECH", Path(__file__).parents[5] / "shared/speech"))
HALF = STATE // 2

Floats = npt.NDArray[np.float32]


@cache
def models() -> tuple[Silero, OnnxModel]:
    return load_silero(), OnnxModel(package_file("pipecat", "audio/vad/data/silero_vad.onnx"))


class Twins:
    """Both with the same windows, each with its own states."""

    def __init__(self, streams: int) -> None:
        self.ours = np.zeros((streams, STATE), np.float32)
        self.theirs = np.zeros((2, streams, HALF), np.float32)
        self.context = np.zeros((streams, CONTEXT), np.float32)

    def compare(self, windows: Floats) -> Floats:
        """Asserts that probabilities and states are equal, and returns the probabilities."""
        silero, onnx = models()
        rows = np.concatenate((self.context, windows), axis=1)
        self.context = windows[:, -CONTEXT:]
        ours, self.ours = silero.run(rows, self.ours)
        theirs, self.theirs = onnx.run(
            {"input": rows, "state": self.theirs, "sr": np.array(16_000, np.int64)}
        )
        assert ours.shape == (len(windows),)
        assert np.allclose(ours, theirs[:, 0], rtol=0, atol=1e-4)
        states = np.concatenate((self.theirs[0], self.theirs[1]), axis=1)
        assert np.allclose(self.ours, states, rtol=1e-4, atol=1e-3)
        return ours


def test_syllables_of_a_buzz_in_noise_carry_the_state_alike() -> None:
    t = np.arange(WINDOW * 150) / 16_000
    sounds = []
    for pitch in (90, 140, 220):
        buzz = sum(np.sin(2 * np.pi * pitch * k * t + k * k) / k for k in range(1, 16))
        noise = np.random.default_rng(pitch).normal(0, 0.05, len(t))
        sounds.append(0.1 * np.sin(2 * np.pi * 2 * t) ** 2 * (buzz + noise))
    twins = Twins(len(sounds))
    windows = np.array(sounds, np.float32).reshape(len(sounds), -1, WINDOW)
    found = [twins.compare(windows[:, i]) for i in range(windows.shape[1])]
    assert np.ptp(found) > 0.1


@settings(max_examples=40)
@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.floats(-90, 0), min_size=1, max_size=9),
    st.integers(1, 6),
)
def test_noise_of_any_level_in_batches_of_any_size(
    seed: int, levels: list[float], windows: int
) -> None:
    rng = np.random.default_rng(seed)
    gains = (10 ** (np.array(levels) / 20)).astype(np.float32)[:, None]
    twins = Twins(len(levels))
    for _ in range(windows):
        noise = rng.standard_normal((len(levels), WINDOW)).astype(np.float32)
        twins.compare(noise.clip(-1, 1) * gains)


@pytest.mark.speech
@pytest.mark.skipif(not SPEECH.is_dir(), reason="no recorded speech")
def test_recorded_speech() -> None:
    recordings = []
    for path in sorted(SPEECH.glob("*.wav")):
        with wave.open(str(path)) as recorded:
            pcm = np.frombuffer(recorded.readframes(WINDOW * 600), np.int16)
        recordings.append(np.resize(pcm, WINDOW * 600) / np.float32(32768))
    twins = Twins(len(recordings))
    windows = np.array(recordings, np.float32).reshape(len(recordings), -1, WINDOW)
    found = np.array([twins.compare(windows[:, i]) for i in range(windows.shape[1])])
    assert found.max() > 0.99
    assert found.min() < 0.01


def test_a_file_that_holds_another_model_is_refused(tmp_path: Path) -> None:
    other = package_file("pipecat", "audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx")
    with pytest.raises(ValueError, match="not version 5 of Silero"):
        Silero(other)
    cut = tmp_path / "silero_vad.onnx"
    whole = package_file("pipecat", "audio/vad/data/silero_vad.onnx").read_bytes()
    cut.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="not all of it"):
        Silero(cut)
