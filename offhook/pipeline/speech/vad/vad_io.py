"""Silero VAD for all streams of the process: one ONNX session, one thread, one batch at a time.

A window is 512 samples (32 ms at 16 kHz) behind 64 samples of context. A batch takes at most one
window of each stream that has one (`WindowSource`), and only the inference leaves the loop: windows
and recurrent state are touched on the loop alone, so nothing here is locked.

Calls feed 20 ms ticks on the event loop; whoever owns the tick calls `VadBatch.run`. The windows of
all calls end at the same ticks, so that batches are few and full.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

import numpy as np
import numpy.typing as npt
from loguru import logger

from offhook.media.pcm import RATE_IN, SAMPLES_IN, Pcm
from offhook.pipeline.speech.vad.onnx_io import OnnxModel
from offhook.pipeline.speech.vad.vad import WINDOW

CONTEXT = 64
STATE = 128
MAX_CALLS = 256
"""Of one edge, and windows in a batch. One core carries about 500 calls of VAD."""
MAX_LATE_WINDOWS = 31
"""About 1 s (992 ms) a call may wait for a late inference. After that the oldest window is
dropped and counted: a barge-in judged on older sound would be worse than one judged on less."""
QUIET_PROBABILITY = 0.1
QUIET_WINDOWS = 125
"""After 4 s of nothing like speech a stream's state is made fresh. Music and long noise leave it
hard of hearing: after 12 s of music speech was found 28 ms later at the median and 46 ms at the
95th percentile. Earlier than 4 s, music itself is taken for speech far more often."""
SILENT_LEVEL = -60.0
"""dBFS. Nothing softer counts as speech, whatever its probability (`vad.SpeechSettings`)..."""
SILENT_WINDOWS = 4
"""...so after so many silent windows the model is not asked, until one is louder. It must have
heard some of the silence: from a state just before it, or a fresh one, speech is found later."""

FULL_SCALE = np.float32(1 / 32768)

Floats = npt.NDArray[np.float32]


class WindowSource(Protocol):
    """A stream in which speech is to be found."""

    def next_window(self) -> Pcm | None:
        """The next 512 samples; None: they have not come yet. With more of them it is `ready`."""

    def receive_probability(self, probability: float, level: float) -> None:
        """Of the last window: the chance of speech 0..1 and the level in dBFS."""


def _silence() -> Floats:
    return np.zeros((2, 1, STATE), np.float32)


@dataclass(eq=False)
class _Memory:
    """What the model carries from window to window of one stream."""

    row: Floats = field(default_factory=lambda: np.zeros(CONTEXT + WINDOW, np.float32))
    """The last window behind its context: the model's input."""
    state: Floats = field(default_factory=_silence)
    quiet: int = 0
    """Windows since something was a little like speech or the state was made fresh."""
    silent: int = 0
    """Windows since the last one that was not silent, or since the state was made fresh."""

    def hear(self, window: Pcm) -> None:
        row = self.row
        row[:CONTEXT] = row[WINDOW:]
        np.multiply(window, FULL_SCALE, out=row[CONTEXT:])

    def passes(self, level: float) -> bool:
        """The model is not asked: the window is one more of silence."""
        self.silent = self.silent + 1 if level < SILENT_LEVEL else 0
        if self.silent <= SILENT_WINDOWS:
            return False
        self.note(0.0)
        return True

    def note(self, probability: float) -> None:
        self.quiet = self.quiet + 1 if probability < QUIET_PROBABILITY else 0
        if self.quiet >= QUIET_WINDOWS:
            self.state = _silence()
            self.quiet = self.silent = 0


class VadStream:
    """The windows of one call. Made by `VadBatch.open`.

    `on_probability(probability, level, end_sample)` is called on the loop, in order: the chance
    of speech 0..1 and the level in dBFS of the window that ends at `end_sample`, counted at
    16 kHz from the first sample fed.
    """

    def __init__(
        self, batch: "VadBatch", on_probability: Callable[[float, float, int], None]
    ) -> None:
        self.on_probability = on_probability
        self.dropped = 0
        """Windows never judged because inference was more than MAX_LATE_WINDOWS behind."""
        self._batch = batch
        # One window more than may wait: the one being filled.
        self._ring = np.zeros((MAX_LATE_WINDOWS + 1) * WINDOW, np.int16)
        self._fed = 0
        self._taken = 0
        self._asked = 0
        """Where the window ends that is being judged."""
        self._lead = -1
        """Zeros before the first sample, for windows that end when those of other calls do."""

    def feed(self, pcm: Pcm) -> None:
        """Take 16 kHz samples, at most one window of them. Never blocks."""
        if self._lead < 0:
            self._lead = self._fed = self._batch.position % WINDOW
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
        if self._fed - self._taken >= WINDOW:
            self._batch.ready(self)

    def close(self) -> None:
        """No probability comes after this."""
        self._batch.forget(self)

    def next_window(self) -> Pcm | None:
        if self._fed - self._taken < WINDOW:
            return None
        at = self._taken % len(self._ring)
        self._taken += WINDOW
        self._asked = self._taken - self._lead
        if self._fed - self._taken >= WINDOW:
            self._batch.ready(self)
        return self._ring[at : at + WINDOW]

    def receive_probability(self, probability: float, level: float) -> None:
        self.on_probability(probability, level, self._asked)


def _levels(windows: Floats) -> list[float]:
    """dBFS of each of [n, 512]."""
    power = np.einsum("ij,ij->i", windows, windows) / np.float32(WINDOW)
    levels: list[float] = (10 * np.log10(power + np.float32(1e-9))).tolist()
    return levels


Window = tuple[WindowSource, _Memory, float]
"""One that is being judged: whose, and its level in dBFS."""


class VadBatch:
    """The model, and what it carries of each stream. Building it loads the model: 30 ms, once a
    process. Raises OSError when there is none, ImportError without ONNX Runtime.

    `inline`: a batch of at most so many windows is judged on the event loop."""

    def __init__(self, inline: int = 0) -> None:
        self.position = 0
        """Samples of each call's sound that the ticks so far stand for."""
        self._model = OnnxModel("pipecat.audio.vad.data", "silero_vad.onnx")
        self._model.load()
        self._rate = np.array(RATE_IN, np.int64)
        self._thread = ThreadPoolExecutor(1, "vad")
        self._inline = inline
        self._busy = False
        self._memories: dict[WindowSource, _Memory] = {}
        self._ready: dict[WindowSource, None] = {}
        """Those that may have a window, the one that waits longest first."""

    def open(self, on_probability: Callable[[float, float, int], None]) -> VadStream:
        """A call's stream with a fresh state."""
        stream = VadStream(self, on_probability)
        self.watch(stream)
        return stream

    def watch(self, source: WindowSource) -> None:
        """It has a fresh state. `forget` ends it."""
        self._memories[source] = _Memory()

    def forget(self, source: WindowSource) -> None:
        """It is told nothing any more."""
        self._memories.pop(source, None)
        self._ready.pop(source, None)

    def ready(self, source: WindowSource) -> None:
        """It may have a window, which the next `judge` takes."""
        self._ready[source] = None

    def run(self) -> None:
        """20 ms have passed: judge what is complete. On the loop, after the calls' ticks."""
        self.position += SAMPLES_IN
        self.judge()

    def judge(self) -> None:
        """Until a batch is under way, or no window is left."""
        while self._ready and not self._busy:
            ready = list(islice(self._ready, MAX_CALLS))
            for source in ready:
                del self._ready[source]
            windows: list[tuple[WindowSource, _Memory]] = []
            for source in ready:
                memory = self._memories.get(source)
                if memory is not None and (window := source.next_window()) is not None:
                    memory.hear(window)
                    windows.append((source, memory))
            if windows:
                self._judge_windows(windows)

    def _judge_windows(self, windows: list[tuple[WindowSource, _Memory]]) -> None:
        """One of each: by the model, or by its silence."""
        rows = np.concatenate([memory.row for _, memory in windows]).reshape(-1, CONTEXT + WINDOW)
        asked: list[Window] = []
        passed: list[Window] = []
        places: list[int] = []
        levels = _levels(rows[:, CONTEXT:])
        for place, ((source, memory), level) in enumerate(zip(windows, levels, strict=True)):
            if memory.passes(level):
                passed.append((source, memory, level))
            else:
                asked.append((source, memory, level))
                places.append(place)
        if asked:
            self._busy = True
            states = np.concatenate([memory.state for _, memory, _ in asked], axis=1)
            if passed:
                rows = rows[places]
            loop = asyncio.get_running_loop()
            if len(asked) <= self._inline:
                loop.call_soon(self._deliver, asked, *self._infer(rows, states))
            else:
                job = loop.run_in_executor(self._thread, self._infer, rows, states)
                job.add_done_callback(
                    lambda done: None if done.cancelled() else self._deliver(asked, *done.result())
                )
        for window in passed:
            self._tell(window, 0.0)

    def _infer(self, rows: Floats, states: Floats) -> tuple[Floats, Floats]:
        """[n, 576] sound and [2, n, 128] states to [n] probabilities and the states after it."""
        output, states = self._model.run({"input": rows, "state": states, "sr": self._rate})
        return output[:, 0], states

    def _deliver(self, windows: list[Window], probabilities: Floats, states: Floats) -> None:
        self._busy = False
        for place, (window, probability) in enumerate(
            zip(windows, probabilities.tolist(), strict=True)
        ):
            memory = window[1]
            memory.state = states[:, place : place + 1]
            memory.note(probability)
            self._tell(window, probability)
        self.judge()  # what was late does not wait for the next tick as well

    def _tell(self, window: Window, probability: float) -> None:
        source, memory, level = window
        if self._memories.get(source) is memory:
            try:
                source.receive_probability(probability, level)
            except Exception:  # one stream's fault must not cost the others their windows
                logger.exception("a stream failed on its voice activity")

    def probabilities(self, pcm: Pcm) -> Floats:
        """Judge a whole recording at once, without loop or thread.

        `pcm` is 16 kHz; returns one probability for each complete 512-sample window.
        """
        memory, found = _Memory(), np.empty(len(pcm) // WINDOW, np.float32)
        for i in range(len(found)):
            memory.hear(pcm[i * WINDOW : (i + 1) * WINDOW])
            found[i : i + 1], memory.state = self._infer(memory.row[None], memory.state)
            memory.note(float(found[i]))
        return found

    async def close(self) -> None:
        """End the thread, after the batch it is at."""
        self._memories.clear()
        self._ready.clear()
        await asyncio.to_thread(self._thread.shutdown)
