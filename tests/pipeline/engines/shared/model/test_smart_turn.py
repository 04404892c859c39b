"""Smart Turn in torch decides as the file that edges run in ONNX Runtime, alone and in batches."""

import os
import wave
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import torch

from offhook.media.pcm import Pcm
from offhook.pipeline.engines.shared.model.onnx_program import OnnxProgram
from offhook.pipeline.engines.shared.model.smart_turn import SmartTurnModel, fill
from offhook.pipeline.engines.shared.recognition.turns_io import TurnJudge, turn_judge
from offhook.pipeline.speech.vad.onnx_io import package_file
from offhook.pipeline.speech.vad.smart_turn_io import SAMPLES, SmartTurn, log_mel, model_file

SPEECH = Path(os.environ.get("OFFHOOK_SPEECH", Path(__file__).parents[6] / "shared/speech"))
CPU = torch.device("cpu")
ENDS = ("input_features", "logits")
UNSURE = 0.15
"""Results within this of one half may be either decision, as with other kernels of ONNX Runtime."""


@pytest.fixture(scope="module")
def model() -> SmartTurnModel:
    return SmartTurnModel(CPU)


@pytest.fixture
async def judge() -> AsyncIterator[TurnJudge]:
    judge = TurnJudge(CPU)
    judge.load()
    yield judge
    await judge.close()


def sound(seconds: float, seed: int = 1) -> Pcm:
    rng = np.random.default_rng(seed)
    n = int(seconds * 16_000)
    beat = np.sin(np.arange(n) / 16_000 * 9) ** 2
    return np.asarray(np.cumsum(rng.normal(0, 300, n)) % 6000 * beat, np.int16)


def rows(*questions: Pcm) -> torch.Tensor:
    found = np.zeros((len(questions), SAMPLES), np.int16)
    fill(found, questions)
    return torch.from_numpy(found)


def test_features_are_those_of_the_edge(model: SmartTurnModel) -> None:
    questions = [sound(seconds) for seconds in (0, 0.5, 3.3, 8, 11)]
    found = model.features(rows(*questions)).numpy()
    for features, pcm in zip(found, questions, strict=True):
        assert np.abs(features - log_mel(pcm)[0]).max() < 1e-3


async def test_a_batch_has_the_results_of_its_questions(judge: TurnJudge) -> None:
    questions = [sound(1.5, 1), sound(9, 2)]
    together = judge.judge_all(questions)
    alone = [judge.judge_all([pcm])[0] for pcm in questions]
    assert together == pytest.approx(alone, abs=0.02)
    assert await judge.probability(questions[1], "call") == pytest.approx(alone[1], abs=0.02)


async def test_a_batch_that_fails_has_no_answers(
    judge: TurnJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(questions: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(judge, "judge_all", fail)
    assert await judge.probability(sound(1), "call") is None


@pytest.mark.speech
@pytest.mark.skipif(not SPEECH.is_dir(), reason="no recorded speech")
def test_decisions_are_those_of_the_edge(model: SmartTurnModel) -> None:
    edge = SmartTurn()
    said = (("austen_0920", 1.0), ("goforward", 0.6), ("something", 0.55), ("forever", 0.8))
    questions = [broken_off(name, part) for name, part in said]
    expected = np.array([edge.judge(pcm) for pcm in questions])
    found = model.probabilities(rows(*questions)).numpy()
    assert np.abs(found - expected).mean() < 0.08
    sure = np.abs(expected - 0.5) > UNSURE
    assert list((found > 0.5)[sure]) == list((expected > 0.5)[sure])
    assert sure.all()


def broken_off(name: str, part: float) -> Pcm:
    """The first part of a recording and the silence after which the model is asked."""
    with wave.open(str(SPEECH / f"{name}.wav")) as recorded:
        pcm = np.frombuffer(recorded.readframes(recorded.getnframes()), np.int16)
    return np.concatenate([pcm[: int(len(pcm) * part)], np.zeros(2560, np.int16)])


def test_another_network_is_not_taken_for_it() -> None:
    silero = package_file("pipecat", "audio/vad/data/silero_vad.onnx").read_bytes()
    with pytest.raises(ValueError, match="If"):
        OnnxProgram(silero, ENDS, CPU)
    with pytest.raises(ValueError, match="not ONNX"):
        OnnxProgram(model_file().read_bytes()[:100_000], ENDS, CPU)


def test_it_is_for_gpus_that_have_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    assert turn_judge(CPU) is None
    found = turn_judge(torch.device("cuda"))
    assert isinstance(found, TurnJudge)

    def missing() -> Path:
        raise OSError("it is not installed")

    monkeypatch.setattr("offhook.pipeline.engines.shared.recognition.turns_io.model_file", missing)
    assert turn_judge(torch.device("cuda")) is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.slow
def test_a_gpu_decides_as_a_cpu(model: SmartTurnModel) -> None:
    on_gpu = TurnJudge(torch.device("cuda"))
    on_gpu.load()
    questions = [sound(seconds, seed) for seed, seconds in enumerate((0.5, 2, 4, 8, 9))]
    expected = model.probabilities(rows(*questions)).tolist()
    assert on_gpu.judge_all(questions) == pytest.approx(expected, abs=0.1)
