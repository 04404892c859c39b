"""Silero VAD for all calls of the process: one ONNX session, one thread, one batch at a time.

A window is 512 samples (32 ms at 16 kHz) behind 64 samples of context. Calls feed 20 ms ticks on
the event loop; whoever owns the tick calls `VadBatch.run`, which sends every complete window, at
most one of each call, to the thread as one batch. The windows of all calls end at the same ticks,
so that batches are few and full. Only the inference leaves the loop: windows, recurrent state and
slots are touched on the loop alone, so nothing here is locked.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from loguru import logger

from offhook.media.pcm import RATE_IN, SAMPLES_IN, Pcm
from offhook.pipeline.speech.vad.onnx_io import OnnxModel

WINDOW = 512
CONTEXT = 64
STATE = 128
MAX_CALLS = 256
"""Slots. One core carries about 500 calls of VAD; an edge has long refused calls by then."""
MAX_LATE_WINDOWS = 31
"""About 1 s (992 ms) a call may wait for a late inference. After that the oldest window is
dropped and counted: a barge-in judged on older sound would be worse than one judged on less."""
QUIET_PROBABILITY = 0.1
QUIET_WINDOWS = 125
"""After 4 s of nothing like speech a call's state is made fresh. Music and long noise leave it
hard of hearing: after 12 s of music speech was found 28 ms later at the median and 46 ms at the
95th percentile. Earlier than 4 s, music itself is taken for speech far more often."""
SILENT_LEVEL = -60.0
"""dBFS. Nothing softer counts as speech, whatever its probability (`vad.SpeechSettings`)..."""
SILENT_WINDOWS = 4
"""...so after so many silent windows the model is not asked, until one is louder. It must have
heard some of the silence: from a state just before it, or a fresh one, speech is found later."""

Floats = npt.NDArray[np.float32]
Counts = npt.NDArray[np.int64]


@dataclass
class _Memory:
    """What the model carries from window to window, for n calls."""

    state: Floats
    """[2, n, 128]"""
    quiet: Counts
    """[n] windows since something was a little like speech or the state was made fresh."""

    @classmethod
    def fresh(cls, calls: int) -> "_Memory":
        return cls(np.zeros((2, calls, STATE), np.float32), np.zeros(calls, np.int64))


Judged = tuple[Floats, _Memory]


def _levels(windows: Floats) -> Floats:
    """dBFS of each of [n, 512]."""
    power = np.einsum("ij,ij->i", windows, windows) / np.float32(WINDOW)
    levels: Floats = 10 * np.log10(power + np.float32(1e-9))
    return levels


class VadStream:
    """The windows of one call. Made by `VadBatch.open`.

    `on_probability(probability, level, end_sample)` is called on the loop, in order: the chance
    of speech 0..1 and the level in dBFS of the window that ends at `end_sample`, counted at
    16 kHz from the first sample fed.
    """

    def __init__(
        self, batch: "VadBatch", slot: int, on_probability: Callable[[float, float, int], None]
    ) -> None:
        self.on_probability = on_probability
        self.dropped = 0
        """Windows never judged because inference was more than MAX_LATE_WINDOWS behind."""
        self._batch = batch
        self._slot = slot
        # One window more than may wait: the one being filled.
        self._ring = np.zeros((MAX_LATE_WINDOWS + 1) * WINDOW, np.int16)
        self._fed = 0
        self._taken = 0
        self._lead = -1
        """Zeros before the first sample, for windows that end when those of other calls do."""

    def feed(self, pcm: Pcm) -> None:
        """Take 16 kHz samples, at most one window of them. Never blocks."""
        if self._lead < 0:
            self._lead = self._fed = self._batch._position % WINDOW
        ring, size = self._ring, len(pcm)
        at = self._fed % len(ring)
        first = min(size, len(ring) - at)
        ring[at : at + first] = pcm[:first]
        if first < size:
            ring[: size - first] = pcm[first:]
        self._fed += size
        if self._fed - self._taken >= len(ring):
            self._taken += WINDOW
            self.dropped += 1

    def close(self) -> None:
        """Free the slot. No probability comes after this."""
        self._batch._close(self)

    def _has_window(self) -> bool:
        return self._fed - self._taken >= WINDOW

    def _take(self) -> Pcm:
        at = self._taken % len(self._ring)
        self._taken += WINDOW
        return self._ring[at : at + WINDOW]


Heard = tuple[VadStream, float, int]
"""A window: whose, its level in dBFS, where it ends."""


def _tell(stream: VadStream, probability: float, level: float, end: int) -> None:
    try:
        stream.on_probability(probability, level, end)
    except Exception:  # one call's fault must not cost the others their windows
        logger.exception("a call failed on its voice activity")


class VadBatch:
    """The model and the slots of all calls. Building it loads the model: 30 ms, once a process.
    Raises OSError when there is none."""

    def __init__(self) -> None:
        self._model = OnnxModel("pipecat.audio.vad.data", "silero_vad.onnx")
        self._model.load()
        self._rate = np.array(RATE_IN, np.int64)
        self._thread = ThreadPoolExecutor(1, "vad")
        self._busy = False
        self._streams: dict[int, VadStream] = {}
        self._free = list(range(MAX_CALLS - 1, -1, -1))
        self._position = 0
        """Samples of each call's sound that the ticks so far stand for."""
        self._rows = np.zeros((MAX_CALLS, CONTEXT + WINDOW), np.float32)
        self._silent = np.zeros(MAX_CALLS, np.int64)
        """Windows since the last one that was not silent, or since the state was made fresh."""
        self._memory = _Memory.fresh(MAX_CALLS)

    def open(self, on_probability: Callable[[float, float, int], None]) -> VadStream:
        """A stream with a fresh state. Raises RuntimeError when all MAX_CALLS slots are taken."""
        if not self._free:
            raise RuntimeError(f"all {MAX_CALLS} voice activity slots are taken")
        slot = self._free.pop()
        self._rows[slot] = 0
        self._memory.state[:, slot] = 0
        self._memory.quiet[slot] = self._silent[slot] = 0
        stream = self._streams[slot] = VadStream(self, slot, on_probability)
        return stream

    def run(self) -> None:
        """20 ms have passed: judge what is complete. On the loop, after the calls' ticks."""
        self._position += SAMPLES_IN
        self._judge_complete()

    def _judge_complete(self) -> None:
        """Until a batch is in the thread, or no window is left."""
        while not self._busy:
            streams = [s for s in self._streams.values() if s._has_window()]
            if not streams:
                return
            self._judge_windows(streams)

    def _judge_windows(self, streams: list[VadStream]) -> None:
        """One window of each: by the model, in the thread, or by its silence, here."""
        for stream in streams:
            row = self._rows[stream._slot]
            row[:CONTEXT] = row[WINDOW:]
            row[CONTEXT:] = stream._take()
            row[CONTEXT:] *= np.float32(1 / 32768)
        slots = np.array([s._slot for s in streams])
        rows = self._rows[slots]
        levels = _levels(rows[:, CONTEXT:])
        judged = self._hear_silence(slots, levels)
        heard = [(s, float(dB), s._taken - s._lead) for s, dB in zip(streams, levels, strict=True)]
        if judged.any():
            self._busy = True
            asked = slots[judged]
            memory = _Memory(self._memory.state[:, asked], self._memory.quiet[asked])
            job = asyncio.get_running_loop().run_in_executor(
                self._thread, self._judge, rows[judged], memory
            )
            batch = [window for window, ask in zip(heard, judged, strict=True) if ask]
            job.add_done_callback(lambda done: self._deliver(batch, done))
        for (stream, level, end), ask in zip(heard, judged, strict=True):
            if not ask and self._is_open(stream):
                _tell(stream, 0.0, level, end)

    def _hear_silence(self, slots: Counts, levels: Floats) -> npt.NDArray[np.bool_]:
        """Which of the windows the model is to judge; silence passes without it."""
        memory, silent = self._memory, self._silent
        silent[slots] = np.where(levels < SILENT_LEVEL, silent[slots] + 1, 0)
        judged = silent[slots] <= SILENT_WINDOWS
        passed = slots[~judged]
        memory.quiet[passed] += 1
        stale = passed[memory.quiet[passed] >= QUIET_WINDOWS]
        memory.state[:, stale] = 0
        memory.quiet[stale] = silent[stale] = 0
        return judged

    def probabilities(self, pcm: Pcm) -> Floats:
        """Judge a whole recording at once, without loop or thread.

        `pcm` is 16 kHz; returns one probability for each complete 512-sample window.
        """
        count = len(pcm) // WINDOW
        padded = np.zeros(CONTEXT + count * WINDOW, np.float32)
        padded[CONTEXT:] = pcm[: count * WINDOW] * np.float32(1 / 32768)
        memory = _Memory.fresh(1)
        found = np.empty(count, np.float32)
        for i in range(count):
            row = padded[None, i * WINDOW : (i + 1) * WINDOW + CONTEXT]
            probability, memory = self._judge(row, memory)
            found[i] = probability[0]
        return found

    async def close(self) -> None:
        """End the thread, after the batch it is at."""
        self._streams.clear()
        await asyncio.to_thread(self._thread.shutdown)

    def _judge(self, rows: Floats, memory: _Memory) -> Judged:
        """[n, 576] sound to n probabilities and what to remember."""
        inputs = {"input": rows, "state": memory.state, "sr": self._rate}
        output, state = self._model.run(inputs)
        probabilities = output[:, 0]
        quiet = np.where(probabilities < QUIET_PROBABILITY, memory.quiet + 1, 0)
        stale = quiet >= QUIET_WINDOWS
        state[:, stale] = 0
        quiet[stale] = 0
        return probabilities, _Memory(state, quiet)

    def _deliver(self, batch: list[Heard], done: asyncio.Future[Judged]) -> None:
        self._busy = False
        probabilities, memory = done.result()
        # A call that closed meanwhile must not write into a slot that is another's by now.
        alive = [i for i, (stream, _, _) in enumerate(batch) if self._is_open(stream)]
        slots = [batch[i][0]._slot for i in alive]
        self._memory.state[:, slots] = memory.state[:, alive]
        self._memory.quiet[slots] = memory.quiet[alive]
        for i in alive:
            stream, level, end = batch[i]
            if self._is_open(stream):
                _tell(stream, float(probabilities[i]), level, end)
        self._judge_complete()  # what was late does not wait for the next tick as well

    def _is_open(self, stream: VadStream) -> bool:
        return self._streams.get(stream._slot) is stream

    def _close(self, stream: VadStream) -> None:
        if self._is_open(stream):
            del self._streams[stream._slot]
            self._free.append(stream._slot)
