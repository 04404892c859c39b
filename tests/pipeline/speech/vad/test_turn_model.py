"""End-of-turn models of others: which files and objects are taken, what they hear, and that neither
blocking nor failing ones hold up anything."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from benchmarks.recognition.onnx_writer import INT64
from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.vad import turn_model_io
from offhook.pipeline.speech.vad.smart_turn_io import SECONDS, SmartTurn, log_mel, model_file
from offhook.pipeline.speech.vad.turn_model_io import (
    MAX_ASKED,
    ForeignTurnModel,
    OnnxTurnModel,
    open_turn_model,
)
from tests.support.turn_models import broken, levels, loudness, with_state

HALF = np.full(RATE_IN, 1 << 14, np.int16)
"""A second at half of full scale."""


async def asked(choice: object, pcm: Pcm) -> float | None:
    model = open_turn_model(str(choice))
    assert model is not None
    try:
        return await model.probability(pcm, "call")
    finally:
        await model.close()


# --- files ---


@pytest.mark.parametrize(
    ("samples", "window_s"), [(RATE_IN, 1.0), (4 * RATE_IN, 4.0), ("N", SECONDS), (1600, 0.1)]
)
@pytest.mark.parametrize("batch", [1, "B"])
async def test_a_window_of_audio_is_as_long_as_the_file_says(
    tmp_path: Path, samples: int | str, window_s: float, batch: int | str
) -> None:
    """The newest of it counts, and silence is before a young call."""
    file = loudness(tmp_path / "eou.onnx", batch, samples)
    model = open_turn_model(str(file))
    assert model is not None
    assert (model.name, model.window_s) == ("eou.onnx", window_s)
    window = round(window_s * RATE_IN)
    half = np.full(window // 2, 1 << 14, np.int16)
    long_ago, silence = np.full(RATE_IN, 32767, np.int16), np.zeros(window - len(half), np.int16)
    for heard in (half, np.concatenate((long_ago, silence, half))):
        assert await model.probability(heard, "call") == pytest.approx(0.25, abs=1e-3)
    await model.close()


@pytest.mark.parametrize("samples", ["N", 2 * RATE_IN])
async def test_of_a_probability_for_each_frame_the_last_counts(
    tmp_path: Path, samples: int | str
) -> None:
    file = levels(tmp_path / "stream.onnx", RATE_IN // 50, samples)
    loud_before = np.concatenate((HALF, HALF[: RATE_IN // 50] // 2))
    assert await asked(file, loud_before) == pytest.approx(0.25)
    assert await asked(file, loud_before[: RATE_IN // 2]) == pytest.approx(0.5)
    assert await asked(file, loud_before[:0]) == 0


async def test_a_file_that_wants_the_features_of_smart_turn_gets_them(tmp_path: Path) -> None:
    file = loudness(tmp_path / "mel.onnx", 1, 80, 800, times=0.5)
    sound = np.random.default_rng(1).normal(0, 1000, RATE_IN).astype(np.int16)
    expected = abs(log_mel(sound)).mean() / 2
    assert 0 < expected < 1
    assert await asked(file, sound) == pytest.approx(expected, abs=1e-4)


async def test_smart_turn_by_its_file_hears_as_smart_turn_by_its_name() -> None:
    pcm = np.zeros(RATE_IN, np.int16)
    by_file, by_name = await asked(model_file(), pcm), await asked("smart-turn", pcm)
    assert by_file == pytest.approx(by_name, abs=0.2)


def test_words_need_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_model_io, "SmartTurn", None)
    assert open_turn_model("words") is None


async def test_the_default_is_not_loaded_before_somebody_speaks() -> None:
    model = open_turn_model("smart-turn")
    assert isinstance(model, SmartTurn)
    assert model._model._session is None
    await model.close()


WANTED = (
    "; wanted: one input: float32 [1, N], 16000 Hz mono, of 0.1 to 30 s or any length; or float32 "
    "[1, 80, 800], the features of Smart Turn"
)


@pytest.mark.parametrize(
    ("write", "says"),
    [
        (lambda file: None, ": there is no such file"),
        (Path.mkdir, ": there is no such file"),
        (lambda file: file.write_bytes(b"<html>"), " is no model that ONNX Runtime loads: "),
        (lambda file: file.write_bytes(b""), " is no model that ONNX Runtime loads: "),
        (with_state, f" takes sound float32 [1, 512], state float32 [1, 512]{WANTED}"),
        (lambda file: loudness(file, 1, 512), f" takes sound float32 [1, 512]{WANTED}"),
        (lambda file: loudness(file, 1, 31 * RATE_IN), f" takes sound float32 [1, 496000]{WANTED}"),
        (lambda file: loudness(file, 4, RATE_IN), f" takes sound float32 [4, 16000]{WANTED}"),
        (lambda file: loudness(file, 1, 40, "T"), f" takes sound float32 [1, 40, T]{WANTED}"),
        (
            lambda file: loudness(file, 1, RATE_IN, kind=INT64),
            f" takes sound int64 [1, 16000]{WANTED}",
        ),
        (
            lambda file: loudness(file, 1, RATE_IN, less=3.0),
            " answers -3.0 about silence; wanted: a probability from 0 to 1, or one for each frame",
        ),
        (
            lambda file: loudness(file, 1, RATE_IN, less=float("nan")),
            " answers nan about silence; wanted: a probability from 0 to 1, or one for each frame",
        ),
        (broken, " fails about silence: "),
    ],
)
def test_a_file_that_is_something_else_is_named_with_what_it_is_and_what_is_wanted(
    tmp_path: Path, write: Callable[[Path], object], says: str
) -> None:
    file = tmp_path / "eou.onnx"
    write(file)
    with pytest.raises(EngineError) as caught:
        open_turn_model(str(file))
    assert str(caught.value).startswith(f"{file}{says}")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_right_about_silence_and_wrong_about_noise_is_found(tmp_path: Path) -> None:
    """As one that returns logits may be."""
    file = loudness(tmp_path / "mel.onnx", 1, 80, 800, less=1.4)
    with pytest.raises(EngineError, match=r"answers -0\.\d+ about noise"):
        open_turn_model(str(file))


# --- objects ---


class Half:
    """A model of somebody else."""

    name = "half"
    window_s = 2.0

    async def probability(self, pcm: Pcm) -> float | None:
        assert len(pcm) == 2 * RATE_IN
        assert pcm.dtype == np.int16
        return float(abs(pcm.astype(float)).mean() / 32768)


class Mute(Half):
    async def probability(self, pcm: Pcm) -> float | None:
        return None


class Raises(Half):
    async def probability(self, pcm: Pcm) -> float | None:
        raise RuntimeError("out of order")


class Lies(Half):
    async def probability(self, pcm: Pcm) -> float | None:
        return 7.0


class Speaks(Half):
    async def probability(self, pcm: Pcm) -> float | None:
        return "yes"  # type: ignore[return-value]


class Waits(Half):
    async def probability(self, pcm: Pcm) -> float | None:
        await asyncio.Event().wait()
        return 0.5


class Endless(Half):
    window_s = 600.0


class Nameless(Half):
    name = None  # type: ignore[assignment]


class NotAsync(Half):
    def probability(self, pcm: Pcm) -> float | None:  # type: ignore[override]
        return 0.5


class Unfinished(Half):
    def __init__(self) -> None:
        raise OSError("no weights")


half = Half()
HERE = __name__


async def test_an_object_or_a_class_by_its_name_is_a_model() -> None:
    for place in ("half", "Half"):
        model = open_turn_model(f"{HERE}:{place}")
        assert model is not None
        assert (model.name, model.window_s) == ("half", 2.0)
        assert await model.probability(HALF, "call") == pytest.approx(0.25)
        assert await model.probability(np.concatenate((HALF,) * 3), "call") == pytest.approx(0.5)
        model.load()
        await model.close()
    assert await asked(f"{HERE}:Mute", HALF) is None


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("no_such_package.turns:Model", "cannot be loaded: ModuleNotFoundError: No module named"),
        (f"{HERE}:Nothing", "cannot be loaded: AttributeError: "),
        (f"{HERE}:Unfinished", "cannot be loaded: OSError: no weights"),
        (f"{HERE}:Raises", "fails about silence: RuntimeError: out of order"),
        (f"{HERE}:Lies", "answers 7.0 about silence; wanted: a probability from 0 to 1, or one"),
        (f"{HERE}:Speaks", "answers 'yes' about silence; wanted: a probability from 0 to 1, or"),
        (f"{HERE}:Endless", "has the window_s 600.0; wanted: seconds of audio, from 0.1 to 30"),
        (f"{HERE}:Nameless", "has the name None; wanted: a text"),
        (f"{HERE}:NotAsync", "has no async probability(pcm)"),
        (f"{HERE}:HALF", "has the name None; wanted: a text"),
        (f"{HERE}:Waits", "fails about silence: TimeoutError: no answer in 0.02 s"),
    ],
)
def test_an_object_that_is_no_model_is_named_with_what_is_wrong(
    place: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "Waits" in place:
        monkeypatch.setattr(turn_model_io, "CHECK_S", 0.02)
    with pytest.raises(EngineError) as caught:
        open_turn_model(place)
    assert str(caught.value).startswith(f"{place} {says}")


class Blocks(Half):
    """Blocks its thread, once it has passed the check."""

    def __init__(self) -> None:
        self.asked, self.let = 0, threading.Event()

    async def probability(self, pcm: Pcm) -> float | None:
        self.asked += 1
        if self.asked > 2:
            self.let.wait(60)
        return 0.5


async def test_an_object_that_blocks_holds_up_nobody_and_bounds_what_it_is_asked() -> None:
    model = open_turn_model(f"{HERE}:Blocks")
    assert isinstance(model, ForeignTurnModel)
    asking = [asyncio.create_task(model.probability(HALF, call)) for call in range(MAX_ASKED)]
    await asyncio.sleep(0)
    assert await model.probability(HALF, "one more") is None
    for task in asking[1:]:
        task.cancel()  # nobody waits, and it has them still
    await asyncio.wait(asking[1:])
    assert await model.probability(HALF, "one more") is None
    model._model.let.set()  # type: ignore[attr-defined]
    assert await asking[0] == 0.5
    while model._asked:
        await asyncio.sleep(0.001)
    assert await model.probability(HALF, "one more") == 0.5
    await model.close()


async def test_a_question_that_an_object_never_answers_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turn_model_io, "_check", lambda *about: None)
    model = ForeignTurnModel(f"{HERE}:Waits")
    monkeypatch.setattr(turn_model_io.ForeignTurnModel._ask, "__defaults__", (0.02,))
    with pytest.raises(TimeoutError):
        await model.probability(HALF, "call")
    assert not model._asked
    await model.close()


async def test_a_file_that_fails_in_a_call_says_so_to_who_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = OnnxTurnModel(loudness(tmp_path / "eou.onnx", 1, "N"))

    def fail(*about: object) -> None:
        raise ValueError("bad luck")

    monkeypatch.setattr(model._model, "run", fail)
    with pytest.raises(ValueError, match="bad luck"):
        await model.probability(HALF, "call")
    await model.close()
