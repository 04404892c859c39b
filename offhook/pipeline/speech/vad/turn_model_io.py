"""Opens the end-of-turn model that `[turn] model` names: Smart Turn, none, an ONNX file, or an
object of an installed Python package.

What is not ours is checked before the first call: it is loaded, and asked about silence and noise.
"""

import asyncio
import re
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from functools import partial
from importlib import import_module
from math import prod
from pathlib import Path
from threading import Thread
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.vad.onnx_io import OnnxModel
from offhook.pipeline.speech.vad.smart_turn_io import (
    FRAMES,
    MAX_WAITING,
    MELS,
    SECONDS,
    SharedTurnModel,
    SmartTurn,
    TurnQuestions,
    log_mel,
)

SMART_TURN = "smart-turn"
WORDS = "words"
"""Values of `[turn] model` beside files and objects."""
OBJECT = re.compile(r"[^\W\d][\w.]*:[^\W\d]\w*")
"""package.module:Name"""
MIN_WINDOW_S, MAX_WINDOW_S = 0.1, 30.0
"""Limits of the audio that a model judges; each call keeps as much."""
CHECK_S = 30.0
"""Seconds for a foreign model's first answer, before the server starts."""
ANSWER_S = 10.0
"""Seconds after which a foreign model's answer is given up, long after silence has decided."""
MAX_ASKED = 64
"""Maximum open questions to a foreign model, those that no call waits for any more included; a
further one gets no answer, and silence decides."""

_AUDIO = f"float32 [1, N], {RATE_IN} Hz mono, of {MIN_WINDOW_S} to {MAX_WINDOW_S:g} s or any length"
_WANTED_INPUT = f"one input: {_AUDIO}; or float32 [1, {MELS}, {FRAMES}], the features of Smart Turn"
_WANTED_OUTPUT = "a probability from 0 to 1, or one for each frame"
_FLOAT32 = "tensor(float)"
_NOISE_LEVEL = 1000


class TurnModel(Protocol):
    """What an object named by `[turn] model` provides.

    It has a thread and an event loop of its own. What blocks them delays its answers to other
    calls, and no call: whatever is late, fails or is no probability leaves the decision to the
    words and silence.
    """

    name: str
    """As the log and `offhook doctor` call it."""
    window_s: float
    """Seconds of audio that it judges, from MIN_WINDOW_S to MAX_WINDOW_S."""

    async def probability(self, pcm: Pcm) -> float | None:
        """Returns the probability, 0..1, that the caller, who is silent, has finished; None: words
        and silence decide. `pcm` is the last `window_s` of the line, 16 kHz, int16, preceded by
        silence if the call is younger."""


def is_turn_model(choice: str) -> bool:
    """Returns whether `[turn] model` may have this value."""
    by_name = choice in (SMART_TURN, WORDS) or choice.endswith(".onnx")
    return by_name or OBJECT.fullmatch(choice) is not None


def open_turn_model(choice: str) -> SharedTurnModel | None:
    """Returns the model of a value of `[turn] model`; None for WORDS. Blocks while a file or an
    object is loaded and checked. Raises EngineError; OSError if Smart Turn is missing."""
    if choice == WORDS:
        return None
    if choice == SMART_TURN:
        return SmartTurn()
    if OBJECT.fullmatch(choice):
        return ForeignTurnModel(choice)
    return OnnxTurnModel(Path(choice).expanduser())


def as_probability(answer: Any) -> float:
    """Raises ValueError or TypeError if it is none."""
    probability = float(answer)
    if not 0 <= probability <= 1:
        raise ValueError(f"{probability:g} is no probability")
    return probability


def _words(error: Exception) -> str:
    """Returns the kind of an error and its message, in one line."""
    return " ".join((type(error).__name__ + ":", *str(error).split())).rstrip(":")


def _window(pcm: Pcm, window_s: float) -> Pcm:
    """Returns the last `window_s` of `pcm`, preceded by silence if it is shorter."""
    samples = round(window_s * RATE_IN)
    heard = pcm[-samples:]
    return np.concatenate((np.zeros(samples - len(heard), np.int16), heard))


def _noise() -> Pcm:
    samples = round(MAX_WINDOW_S * RATE_IN)
    return np.random.default_rng(0).normal(0, _NOISE_LEVEL, samples).astype(np.int16)


def _check(subject: str, judge: Callable[[Pcm], Any]) -> None:
    """Raises EngineError if `judge` answers silence or noise with something else than a
    probability; None is allowed."""
    for about, pcm in (("silence", np.zeros(0, np.int16)), ("noise", _noise())):
        try:
            answer = judge(pcm)
        except Exception as error:  # whatever somebody else's code raises
            raise EngineError(f"{subject} fails about {about}: {_words(error)}") from error
        try:
            if answer is not None:
                as_probability(answer)
        except (TypeError, ValueError) as error:
            wrong = f"{subject} answers {answer!r} about {about}"
            raise EngineError(f"{wrong}; wanted: {_WANTED_OUTPUT}") from error


class OnnxTurnModel(TurnQuestions):
    """A model in an ONNX file with one input, audio or the features of Smart Turn, on one thread.
    The last value of its first output counts, so that it may judge a window or each frame. Raises
    EngineError if the file is missing or something else."""

    def __init__(self, file: Path) -> None:
        super().__init__(max_batch=1, max_waiting=MAX_WAITING)
        self.name = file.name
        if not file.is_file():
            raise EngineError(f"{file}: there is no such file")
        self._model = OnnxModel(file)
        try:
            session = self._model.load()
        except Exception as error:  # ONNX Runtime's have no other common base
            words = " ".join(str(error).rpartition("failed:")[2].split())
            raise EngineError(f"{file} is no model that ONNX Runtime loads: {words}") from error
        self._input, self.window_s, self._prepare = _input_of(file, session.get_inputs())
        self._output: str = session.get_outputs()[0].name
        _check(str(file), self._last)

    def load(self) -> None:
        """Does nothing: it has loaded."""

    def judge_all(self, questions: Sequence[Pcm]) -> Sequence[float]:
        return [self._last(pcm) for pcm in questions]

    def _last(self, pcm: Pcm) -> Any:
        (output,) = self._model.run({self._input: self._prepare(pcm)}, [self._output])
        if not prod(np.shape(output)):
            raise ValueError("its output is empty")
        return np.ravel(output)[-1].item()


def _input_of(
    file: Path, inputs: Sequence[Any]
) -> tuple[str, float, Callable[[Pcm], npt.NDArray[np.float32]]]:
    """Returns the name of a model's input, the seconds of audio it takes, and what makes the input
    of audio. Raises EngineError if it is not one that we have."""
    if len(inputs) == 1 and inputs[0].type == _FLOAT32:
        (one,) = inputs
        match one.shape:
            case [1 | str() | None, int(mels), int(frames)] if (mels, frames) == (MELS, FRAMES):
                return one.name, SECONDS, log_mel
            case [1 | str() | None, int(samples)] if _fits(samples / RATE_IN):
                window_s = samples / RATE_IN
                return one.name, window_s, partial(_samples, window_s=window_s)
            case [1 | str() | None, str() | None]:
                return one.name, SECONDS, partial(_samples, window_s=SECONDS)
    found = ", ".join(map(_described, inputs)) or "nothing"
    raise EngineError(f"{file} takes {found}; wanted: {_WANTED_INPUT}")


def _described(one: Any) -> str:
    """Returns name, type and shape of an input."""
    sizes = ", ".join("?" if size is None else str(size) for size in one.shape)
    kind = "float32" if one.type == _FLOAT32 else one.type.removeprefix("tensor(").rstrip(")")
    return f"{one.name} {kind} [{sizes}]"


def _fits(window_s: float) -> bool:
    return MIN_WINDOW_S <= window_s <= MAX_WINDOW_S


def _samples(pcm: Pcm, window_s: float) -> npt.NDArray[np.float32]:
    """Returns [1, N] in -1..1."""
    return _window(pcm, window_s).astype(np.float32)[None] / np.float32(1 << 15)


class ForeignTurnModel:
    """A `TurnModel` of somebody else, by its place, package.module:Name: a class that is made
    without arguments, or an object. Raises EngineError if it is not there or no such model."""

    def __init__(self, place: str) -> None:
        self._model = _made(place)
        self.name, self.window_s = self._model.name, float(self._model.window_s)
        self._asked: set[asyncio.Future[Any]] = set()
        self._loop = asyncio.new_event_loop()
        # One that hangs does not keep the process from ending.
        Thread(target=self._run, name="turn-model", daemon=True).start()
        try:
            _check(place, self._first)
        except EngineError:
            self._stop()
            raise

    def load(self) -> None:
        """Does nothing: it has loaded."""

    async def probability(self, pcm: Pcm, call: Hashable) -> float | None:
        """Returns what the model answers; None at once if too many questions are open. Raises what
        it raises. A question that nobody waits for any more is not withdrawn."""
        if len(self._asked) >= MAX_ASKED:
            return None
        asked = asyncio.wrap_future(self._ask(pcm))
        self._asked.add(asked)
        asked.add_done_callback(self._asked.discard)
        return await asyncio.shield(asked)

    async def close(self) -> None:
        for asked in [*self._asked]:
            asked.cancel()
        self._stop()

    def _first(self, pcm: Pcm) -> Any:
        asked = self._ask(pcm, CHECK_S)
        try:
            return asked.result(CHECK_S)
        except TimeoutError as error:
            raise TimeoutError(f"no answer in {CHECK_S:g} s") from error

    def _ask(self, pcm: Pcm, timeout_s: float = ANSWER_S) -> "Future[Any]":
        asking = self._limited(_window(pcm, self.window_s), timeout_s)
        return asyncio.run_coroutine_threadsafe(asking, self._loop)

    async def _limited(self, pcm: Pcm, timeout_s: float) -> Any:
        async with asyncio.timeout(timeout_s):
            return await self._model.probability(pcm)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.run_until_complete(asyncio.sleep(0))  # what was cancelled ends
        self._loop.close()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)


def _made(place: str) -> TurnModel:
    """Raises EngineError if it is not there, fails, or is no `TurnModel`."""
    module, _, name = place.partition(":")
    try:
        found: Any = getattr(import_module(module), name)
        model = found() if isinstance(found, type) else found
    except Exception as error:  # whatever somebody else's code raises
        raise EngineError(f"{place} cannot be loaded: {_words(error)}") from error
    called, window_s = getattr(model, "name", None), getattr(model, "window_s", None)
    if not isinstance(called, str):
        raise EngineError(f"{place} has the name {called!r}; wanted: a text")
    if not isinstance(window_s, int | float) or not _fits(window_s):
        wanted = f"seconds of audio, from {MIN_WINDOW_S} to {MAX_WINDOW_S:g}"
        raise EngineError(f"{place} has the window_s {window_s!r}; wanted: {wanted}")
    if not asyncio.iscoroutinefunction(getattr(model, "probability", None)):
        raise EngineError(f"{place} has no async probability(pcm)")
    checked: TurnModel = model
    return checked
