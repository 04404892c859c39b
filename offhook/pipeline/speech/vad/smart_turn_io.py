"""Smart Turn v3 end-of-turn detection: has the caller finished, or only paused? One session, one
thread.

The model (8.7 MB, inside pipecat-ai) takes the last 8 s of the caller's audio as Whisper log-mel
features (Radford et al. 2022: 25 ms Hann windows every 10 ms, 80 Slaney mel bands) and needs 24 ms
of a core with VNNI, several times as much of an older one. A request is useful only while its
answer still matters, so requests wait in a short queue, the newest of a call replaces the previous
one, and none waits behind more than MAX_WAITING others.
"""

import asyncio
from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.speech.vad.onnx_io import OnnxModel, cpu_flags

SECONDS = 8
MAX_WAITING = 8
"""Maximum waiting calls. The last one waits 0.2 s with VNNI, up to a second without, by which time
silence alone has decided."""

Floats = npt.NDArray[np.float32]

_SAMPLES = SECONDS * RATE_IN
_FRAME = 400
_HOP = 160
_FRAMES = _SAMPLES // _HOP
_MELS = 80


def _mel_to_hz(mel: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Slaney's scale: linear to 1 kHz (15 mel), then 27 mel per factor of 6.4."""
    return np.where(mel < 15, mel * 200 / 3, 1000 * 6.4 ** ((mel - 15) / 27))


def _mel_filters() -> Floats:
    """Returns triangular filters of equal area over the bins of a 400-point transform, [201,
    80]."""
    top = 15 + 27 * np.log(RATE_IN / 2 / 1000) / np.log(6.4)
    edges = _mel_to_hz(np.linspace(0, top, _MELS + 2))
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
    sound = np.zeros(_SAMPLES, np.float32)
    heard = pcm[-_SAMPLES:]
    if len(heard):
        sound[-len(heard) :] = heard
    sound *= np.float32(1 / 32768)
    sound -= sound.mean()
    sound /= np.sqrt(sound.var() + np.float32(1e-7))
    padded = np.pad(sound, _FRAME // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, _FRAME)[::_HOP][:_FRAMES]
    spectrum = np.fft.rfft(frames * _HANN)
    power = spectrum.real**2 + spectrum.imag**2
    mel = np.log10(np.maximum(power @ _FILTERS, 1e-10))
    mel = (np.maximum(mel, mel.max() - 8) + 4) / 4
    return np.ascontiguousarray(mel.T[None], np.float32)


class SmartTurn:
    """The model and its queue, shared by all calls. It is first needed seconds into a call, so
    `load` may wait for the first speech; an idle server then uses 15 MB less. Raises OSError if the
    model is missing."""

    def __init__(self) -> None:
        # The weights are int8. On x86 without VNNI the default kernels add pairs of products in 16
        # bits and saturate, which changes results by up to 0.57 compared with the float model; the
        # precise kernels take a tenth longer and do not. With VNNI both give the same results, and
        # the precise ones take 40 % longer.
        vnni = not {"avx512_vnni", "avx_vnni"}.isdisjoint(cpu_flags() or ())
        # Softmax by a table over 8-bit numbers is ten times as slow as that of floats, a third of
        # the run, and changed 2 of 88 decisions.
        self._model = OnnxModel(
            "pipecat",
            "audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx",
            unfused="Softmax",
            x64quantprecision="0" if vnni else "1",
        )
        self._thread = ThreadPoolExecutor(1, "smart-turn")
        self._waiting: dict[Hashable, tuple[Pcm, asyncio.Future[float | None]]] = {}
        self._busy = False

    def load(self) -> None:
        """Starts loading in the thread; does nothing if already loaded."""
        self._thread.submit(self._model.load)

    def judge(self, pcm: Pcm) -> float:
        """Returns the probability, 0..1, that the turn ends with this audio (16 kHz, the last 8 s
        count). Blocks."""
        (output,) = self._model.run({"input_features": log_mel(pcm)}, ["logits"])
        return float(output[0, 0])

    async def probability(self, pcm: Pcm, call: Hashable) -> float | None:
        """Runs `judge` off the event loop; `pcm` must not change until then.

        Returns None if a newer request of the same call arrived before this one started, or at once
        if MAX_WAITING others are waiting; then decide by silence. Cancelling the awaiting task
        withdraws the request.
        """
        if call in self._waiting:
            self._waiting.pop(call)[1].set_result(None)
        elif len(self._waiting) >= MAX_WAITING:
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
        """Stops the thread after the current request; all others get None."""
        for _, answer in self._waiting.values():
            answer.set_result(None)
        self._waiting.clear()
        await asyncio.to_thread(self._thread.shutdown)

    def _start_next(self) -> None:
        if self._busy or not self._waiting:
            return
        pcm, answer = self._waiting.pop(next(iter(self._waiting)))
        self._busy = True
        job = asyncio.get_running_loop().run_in_executor(self._thread, self.judge, pcm)
        job.add_done_callback(lambda done: self._answer(answer, done))

    def _answer(self, answer: asyncio.Future[float | None], done: asyncio.Future[float]) -> None:
        self._busy = False
        self._start_next()
        if not answer.done():
            answer.set_result(done.result())
