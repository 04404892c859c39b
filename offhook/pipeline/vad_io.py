"""Silero VAD for all calls of the process: one ONNX session, one thread, one batch at a time.

A window is 512 samples (32 ms at 16 kHz) behind 64 samples of context. Calls feed 20 ms ticks on
the event loop; whoever owns the tick calls `VadBatch.run`, which sends every complete window, at
most one of each call, to the thread as one batch. Only the inference leaves the loop: windows,
recurrent state and slots are touched on the loop alone, so nothing here is locked.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime
from loguru import logger

from offhook.media.pcm import RATE_IN, Pcm

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


Judged = tuple[Floats, Floats, _Memory]


def _session() -> onnxruntime.InferenceSession:
    package = find_spec("pipecat.audio.vad.data")
    if package is None or not package.submodule_search_locations:
        raise OSError("silero_vad.onnx not found: it comes inside the package pipecat-ai")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    path = Path(package.submodule_search_locations[0]) / "silero_vad.onnx"
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


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
        self._ring = np.empty((MAX_LATE_WINDOWS + 1) * WINDOW, np.int16)
        self._fed = 0
        self._taken = 0

    def feed(self, pcm: Pcm) -> None:
        """Take 16 kHz samples, at most one window of them. Never blocks."""
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


class VadBatch:
    """The model and the slots of all calls. Building it loads the model: 30 ms, once a process."""

    def __init__(self) -> None:
        self._session = _session()
        self._rate = np.array(RATE_IN, np.int64)
        self._thread = ThreadPoolExecutor(1, "vad")
        self._busy = False
        self._streams: dict[int, VadStream] = {}
        self._free = list(range(MAX_CALLS - 1, -1, -1))
        self._rows = np.zeros((MAX_CALLS, CONTEXT + WINDOW), np.float32)
        self._memory = _Memory.fresh(MAX_CALLS)

    def open(self, on_probability: Callable[[float, float, int], None]) -> VadStream:
        """A stream with a fresh state. Raises RuntimeError when all MAX_CALLS slots are taken."""
        if not self._free:
            raise RuntimeError(f"all {MAX_CALLS} voice activity slots are taken")
        slot = self._free.pop()
        self._rows[slot] = 0
        self._memory.state[:, slot] = 0
        self._memory.quiet[slot] = 0
        stream = self._streams[slot] = VadStream(self, slot, on_probability)
        return stream

    def run(self) -> None:
        """Judge what is complete. Call once a tick, on the loop; does nothing while a batch is
        still in the thread."""
        if self._busy:
            return
        streams = [s for s in self._streams.values() if s._has_window()]
        if not streams:
            return
        self._busy = True
        slots = [s._slot for s in streams]
        for stream, slot in zip(streams, slots, strict=True):
            row = self._rows[slot]
            row[:CONTEXT] = row[WINDOW:]
            row[CONTEXT:] = stream._take()
            row[CONTEXT:] *= np.float32(1 / 32768)
        ends = [s._taken for s in streams]
        memory = _Memory(self._memory.state[:, slots], self._memory.quiet[slots])
        job = asyncio.get_running_loop().run_in_executor(
            self._thread, self._judge, self._rows[slots], memory
        )
        job.add_done_callback(lambda done: self._deliver(streams, ends, done))

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
            probability, _, memory = self._judge(row, memory)
            found[i] = probability[0]
        return found

    async def close(self) -> None:
        """End the thread, after the batch it is at."""
        self._streams.clear()
        await asyncio.to_thread(self._thread.shutdown)

    def _judge(self, rows: Floats, memory: _Memory) -> Judged:
        """[n, 576] sound to n probabilities, n levels in dBFS and what to remember."""
        inputs = {"input": rows, "state": memory.state, "sr": self._rate}
        output, state = self._session.run(None, inputs)
        probabilities = output[:, 0]
        quiet = np.where(probabilities < QUIET_PROBABILITY, memory.quiet + 1, 0)
        stale = quiet >= QUIET_WINDOWS
        state[:, stale] = 0
        quiet[stale] = 0
        windows = rows[:, CONTEXT:]
        power = np.einsum("ij,ij->i", windows, windows) / WINDOW
        return probabilities, 10 * np.log10(power + 1e-9), _Memory(state, quiet)

    def _deliver(
        self, streams: list[VadStream], ends: list[int], done: asyncio.Future[Judged]
    ) -> None:
        self._busy = False
        probabilities, levels, memory = done.result()
        # A call that closed meanwhile must not write into a slot that is another's by now.
        alive = [i for i, stream in enumerate(streams) if self._is_open(stream)]
        slots = [streams[i]._slot for i in alive]
        self._memory.state[:, slots] = memory.state[:, alive]
        self._memory.quiet[slots] = memory.quiet[alive]
        self.run()  # what was late does not wait for the next tick as well
        for stream, end, probability, level in zip(
            streams, ends, probabilities, levels, strict=True
        ):
            if not self._is_open(stream):
                continue
            try:
                stream.on_probability(float(probability), float(level), end)
            except Exception:  # one call's fault must not cost the others their windows
                logger.exception("a call failed on its voice activity")

    def _is_open(self, stream: VadStream) -> bool:
        return self._streams.get(stream._slot) is stream

    def _close(self, stream: VadStream) -> None:
        if self._is_open(stream):
            del self._streams[stream._slot]
            self._free.append(stream._slot)
