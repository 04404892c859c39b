"""Smart Turn v3 end-of-turn detection: has the caller finished, or only paused? One session, one
thread.

The model (8.7 MB, inside pipecat-ai) takes the last 8 s of the caller's audio as Whisper log-mel
features (Radford et al. 2022: 25 ms Hann windows every 10 ms, 80 Slaney mel bands) and needs 24 ms
of a core with VNNI, several times as much of an older one. A question is useful only while its
answer still matters, so questions wait in a short queue, and the newest of a call replaces the
previous one.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.speech.recognizer import TurnAnswers
from offhook.pipeline.speech.vad.onnx_io import OnnxModel, cpu_flags, package_file

SECONDS = 8
SAMPLES = SECONDS * RATE_IN
MAX_WAITING = 8
"""Maximum waiting calls; a further question gets no answer, and silence alone decides. The last one
waits 0.2 s with VNNI, up to a second without, by which time silence has decided anyway."""

Floats = npt.NDArray[np.float32]

_FRAME = 400
_HOP = 160
FRAMES = SAMPLES // _HOP
MELS = 80
"""Size of the model's input: mel bands and frames of 10 ms."""
_FILE = ("pipecat", "audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx")
"""A Python package and a path in it."""


def model_file() -> Path:
    """Returns the model's ONNX file. Raises OSError if it is missing."""
    return package_file(*_FILE)


def _mel_to_hz(mel: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Slaney's scale: linear to 1 kHz (15 mel), then 27 mel per factor of 6.4."""
    return np.where(mel < 15, mel * 200 / 3, 1000 * 6.4 ** ((mel - 15) / 27))


def _mel_filters() -> Floats:
    """Returns triangular filters of equal area over the bins of a 400-point transform, [201,
    80]."""
    top = 15 + 27 * np.log(RATE_IN / 2 / 1000) / np.log(6.4)
    edges = _mel_to_hz(np.linspace(0, top, MELS + 2))
    low, centre, high = edges[:-2], edges[1:-1], edges[2:]
    bins = np.linspace(0, RATE_IN / 2, _FRAME // 2 + 1)[:, None]
    triangles = np.minimum((bins - low) / (centre - low), (high - bins) / (high - centre))
    return (np.maximum(triangles, 0) * 2 / (high - low)).astype(np.float32)


_FILTERS = _mel_filters()
_HANN = np.hanning(_FRAME + 1)[:-1].astype(np.float32)


def log_mel(pcm: Pcm) -> Floats:
    """Returns the model's input [1, 80, 800] for the last 8 s of 16 kHz `pcm`; shorter audio is
    preceded by silence.

    It uses single precision: half the time of double, equal to 1e-5.
    """
    sound = np.zeros(SAMPLES, np.float32)
    heard = pcm[-SAMPLES:]
    if len(heard):
        sound[-len(heard) :] = heard
    sound *= np.float32(1 / 32768)
    sound -= sound.mean()
    sound /= np.sqrt(sound.var() + np.float32(1e-7))
    padded = np.pad(sound, _FRAME // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, _FRAME)[::_HOP][:FRAMES]
    spectrum = np.fft.rfft(frames * _HANN)
    power = spectrum.real**2 + spectrum.imag**2
    mel = np.log10(np.maximum(power @ _FILTERS, 1e-10))
    mel = (np.maximum(mel, mel.max() - 8) + 4) / 4
    return np.ascontiguousarray(mel.T[None], np.float32)


def _nothing() -> None:
    pass


class SharedTurnModel(TurnAnswers, Protocol):
    """The end-of-turn model of all calls of a process. `probability` may raise anything."""

    name: str
    window_s: float
    """Seconds of audio that it judges."""

    def load(self) -> None:
        """Starts loading, if it has not loaded: a caller begins to speak."""

    async def close(self) -> None: ...


class TurnQuestions(ABC):
    """The questions of many calls whether turns are over, answered in batches by one thread."""

    def __init__(
        self, max_batch: int, max_waiting: int, begin: Callable[[], None] = _nothing
    ) -> None:
        """`begin` runs first in the thread."""
        self._max_batch, self._max_waiting = max_batch, max_waiting
        self._thread = ThreadPoolExecutor(1, "smart-turn", begin)
        self._waiting: dict[Hashable, tuple[Pcm, asyncio.Future[float | None]]] = {}
        self._busy = False

    @abstractmethod
    def judge_all(self, questions: Sequence[Pcm]) -> Sequence[float]:
        """Returns the probabilities, 0..1, that turns end with this audio (16 kHz, the last 8 s
        count). Blocks; called in the thread."""

    async def probability(self, pcm: Pcm, call: Hashable) -> float | None:
        """Returns the probability that a turn ends with `pcm`, which must not change until then.

        Returns None if a newer question of the same call arrived before this one was taken up, at
        once if too many others are waiting; then decide by silence. Raises what the model raised.
        Cancelling the awaiting task withdraws the question.
        """
        if call in self._waiting:
            self._waiting.pop(call)[1].set_result(None)
        elif len(self._waiting) >= self._max_waiting:
            return None
        answer: asyncio.Future[float | None] = asyncio.get_running_loop().create_future()
        self._waiting[call] = (pcm, answer)
        self._start_next()
        try:
            return await answer
        finally:
            if (waiting := self._waiting.get(call)) and waiting[1] is answer:
                del self._waiting[call]

    async def close(self) -> None:
        """Stops the thread after the current batch; all others get None."""
        for _, answer in self._waiting.values():
            answer.set_result(None)
        self._waiting.clear()
        await asyncio.to_thread(self._thread.shutdown)

    def _start_next(self) -> None:
        if self._busy or not self._waiting:
            return
        calls = list(islice(self._waiting, self._max_batch))
        asked = [self._waiting.pop(call) for call in calls]
        self._busy = True
        sounds = [pcm for pcm, _ in asked]
        job = asyncio.get_running_loop().run_in_executor(self._thread, self.judge_all, sounds)
        job.add_done_callback(lambda done: self._answer([answer for _, answer in asked], done))

    def _answer(
        self,
        answers: Sequence["asyncio.Future[float | None]"],
        done: "asyncio.Future[Sequence[float]]",
    ) -> None:
        self._busy = False
        self._start_next()
        error = done.exception()
        found = [None] * len(answers) if error is not None else done.result()
        for answer, probability in zip(answers, found, strict=True):
            if answer.done():
                continue
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(probability)


class SmartTurn(TurnQuestions):
    """The model in ONNX Runtime, shared by all calls. It is first needed seconds into a call, so
    `load` may wait for the first speech; an idle server then uses 15 MB less. Raises OSError if the
    model is missing."""

    name = "Smart Turn v3.2"
    window_s: float = SECONDS

    def __init__(self) -> None:
        super().__init__(max_batch=1, max_waiting=MAX_WAITING)
        # The weights are int8. On x86 without VNNI the default kernels add pairs of products in 16
        # bits and saturate, which changes results by up to 0.57 compared with the float model; the
        # precise kernels take a tenth longer and do not. With VNNI both give the same results, and
        # the precise ones take 40 % longer.
        vnni = not {"avx512_vnni", "avx_vnni"}.isdisjoint(cpu_flags() or ())
        precision = "0" if vnni else "1"
        # Softmax by a table over 8-bit numbers is ten times as slow as that of floats, a third of
        # the run, and changed 2 of 88 decisions.
        self._model = OnnxModel(model_file(), unfused="Softmax", x64quantprecision=precision)

    def load(self) -> None:
        """Starts loading in the thread; does nothing if already loaded."""
        self._thread.submit(self._model.load)

    def judge(self, pcm: Pcm) -> float:
        """Returns the probability that a turn ends with `pcm`. Blocks."""
        (output,) = self._model.run({"input_features": log_mel(pcm)}, ["logits"])
        return float(output[0, 0])

    def judge_all(self, questions: Sequence[Pcm]) -> Sequence[float]:
        # A batch takes as long as its questions one by one.
        return [self.judge(pcm) for pcm in questions]
