"""Smart Turn: the same features as its training, and a queue in which the newest counts."""

import asyncio
import os
import threading
import wave
from collections.abc import AsyncIterator, Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from pipecat.audio.turn.smart_turn._whisper_features import compute_whisper_log_mel_features

from offhook.media.pcm import Pcm
from offhook.pipeline.speech.vad.smart_turn_io import (
    MAX_WAITING,
    SECONDS,
    SmartTurn,
    TurnQuestions,
    log_mel,
)

SPEECH = Path(os.environ.get("OFFHOOK_SPEECH", Path(__file__).parents[5] / "shared/speech"))


@pytest.fixture(scope="module")
def model() -> SmartTurn:
    return SmartTurn()


@pytest.fixture
async def turn() -> AsyncIterator[SmartTurn]:
    smart_turn = SmartTurn()
    yield smart_turn
    await smart_turn.close()


def sound(seconds: float, seed: int = 1) -> Pcm:
    rng = np.random.default_rng(seed)
    n = int(seconds * 16_000)
    beat = np.sin(np.arange(n) / 16_000 * 9) ** 2
    return np.asarray(np.cumsum(rng.normal(0, 300, n)) % 6000 * beat, np.int16)


@pytest.mark.parametrize("seconds", [0, 0.5, 3.3, SECONDS, 11])
def test_features_are_those_the_model_was_trained_on(seconds: float) -> None:
    pcm = sound(seconds)
    last = pcm[-SECONDS * 16_000 :].astype(np.float32) / 32768
    padded = np.pad(last, (SECONDS * 16_000 - len(last), 0))
    expected = compute_whisper_log_mel_features(padded)
    assert log_mel(pcm).shape == (1, 80, 800)
    assert np.abs(log_mel(pcm)[0] - expected).max() < 1e-4


async def test_answer_off_the_loop_is_the_answer(turn: SmartTurn) -> None:
    pcm = sound(2)
    assert await turn.probability(pcm, "call") == turn.judge(pcm)


async def test_newest_request_of_a_call_replaces_its_waiting_one(turn: SmartTurn) -> None:
    blocker, stale, fresh = (
        asyncio.create_task(turn.probability(pcm, call))
        for pcm, call in ((sound(1), "other"), (sound(2), "call"), (sound(3), "call"))
    )
    assert await stale is None
    assert await fresh == turn.judge(sound(3))
    assert await blocker is not None


async def test_full_queue_answers_none_at_once(turn: SmartTurn) -> None:
    tasks = [asyncio.create_task(turn.probability(sound(1), i)) for i in range(1 + MAX_WAITING)]
    await asyncio.sleep(0)
    assert await turn.probability(sound(1), "one more") is None
    for task in tasks[1:]:
        task.cancel()
    assert await tasks[0] is not None


async def test_cancelled_request_leaves_the_queue(turn: SmartTurn) -> None:
    running = asyncio.create_task(turn.probability(sound(1), "a"))
    waiting = asyncio.create_task(turn.probability(sound(1), "b"))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert not turn._waiting
    assert await running is not None
    assert await turn.probability(sound(2), "b") == turn.judge(sound(2))


class Batches(TurnQuestions):
    """Answers with the first sample once it is let."""

    def __init__(self) -> None:
        super().__init__(max_batch=3, max_waiting=8)
        self.asked: list[list[int]] = []
        self.begun, self.let = threading.Event(), threading.Event()

    def judge_all(self, questions: Sequence[Pcm]) -> Sequence[float]:
        self.asked.append([int(pcm[0]) for pcm in questions])
        self.begun.set()
        assert self.let.wait(60)
        if self.asked[-1] == [9]:
            raise RuntimeError("the model failed")
        return [float(pcm[0]) for pcm in questions]


async def test_what_waits_is_asked_together() -> None:
    model = Batches()
    asking = [
        asyncio.create_task(model.probability(np.array([call], np.int16), call))
        for call in range(5)
    ]
    await asyncio.to_thread(model.begun.wait, 60)
    model.let.set()
    assert await asyncio.gather(*asking) == [0, 1, 2, 3, 4]
    assert model.asked == [[0], [1, 2, 3], [4]]
    await model.close()


async def test_a_model_that_fails_leaves_no_question_open() -> None:
    model = Batches()
    model.let.set()
    with pytest.raises(RuntimeError, match="the model failed"):
        await model.probability(np.array([9], np.int16), "call")
    assert await model.probability(np.array([1], np.int16), "call") == 1
    await model.close()


@pytest.mark.speech
@pytest.mark.skipif(not SPEECH.is_dir(), reason="no recorded speech")
@pytest.mark.parametrize(
    ("name", "part", "ended"),
    [("austen_0920", 1.0, True), ("something", 1.0, True), ("goforward", 1.0, True),
     ("austen_0920", 0.55, False), ("something", 0.55, False), ("austen_0890", 0.55, False)],
)  # fmt: skip
def test_finished_and_broken_off_sentences(
    model: SmartTurn, name: str, part: float, ended: bool
) -> None:
    assert (model.judge(broken_off(name, part)) > 0.5) is ended


def broken_off(name: str, part: float) -> Pcm:
    """The first part of a recording and the silence after which the model is asked."""
    with wave.open(str(SPEECH / f"{name}.wav")) as recorded:
        pcm = np.frombuffer(recorded.readframes(recorded.getnframes()), np.int16)
    return np.concatenate([pcm[: int(len(pcm) * part)], np.zeros(2560, np.int16)])


@pytest.mark.speech
@pytest.mark.skipif(not SPEECH.is_dir(), reason="no recorded speech")
def test_results_are_those_of_the_model_as_published(model: SmartTurn) -> None:
    """As it computes step by step, without fused operators and special instructions."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    path = files("pipecat.audio.turn.smart_turn.data") / "smart-turn-v3.2-cpu.onnx"
    published = onnxruntime.InferenceSession(str(path), options)
    off = []
    for name, part in (
        ("austen_0880", 0.7), ("austen_0890", 0.6), ("austen_0930", 0.9), ("forever", 0.6),
        ("forever", 0.7), ("something", 0.4),
    ):  # fmt: skip
        said = broken_off(name, part)
        expected = published.run(None, {"input_features": log_mel(said)})[0]
        off.append(abs(model.judge(said) - float(expected[0, 0])))
    assert np.mean(off) < 0.08
