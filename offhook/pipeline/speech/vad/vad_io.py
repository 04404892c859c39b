"""Silero VAD for all streams of the process, in batches on the event loop.

A window is 512 samples (32 ms at 16 kHz) preceded by 64 samples of context. A batch takes at most
one window of each stream that has one (`WindowSource`). It takes less time than it would to hand it
to a thread, which would then wait for the interpreter's lock at every product.

Calls feed 20 ms ticks on the event loop, and the owner of the tick calls `VadBatch.run`. All calls'
windows end at the same ticks, so that batches are few and full.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

import numpy as np
import numpy.typing as npt
from loguru import logger

from offhook.media.pcm import SAMPLES_IN, Pcm
from offhook.pipeline.speech.vad.onnx_io import package_file
from offhook.pipeline.speech.vad.silero import CONTEXT, STATE, Silero
from offhook.pipeline.speech.vad.vad import WINDOW

MAX_WINDOWS = 64
"""Maximum windows of a batch; others wait for the next one. A batch needs about a millisecond,
between which packets are served; a larger one would hardly need less for each window."""
MAX_LATE_WINDOWS = 31
"""Windows (992 ms) that a call may lag behind. Then the oldest is dropped and counted: a barge-in
decision on old audio would be worse than one on less audio."""
QUIET_PROBABILITY = 0.1
QUIET_WINDOWS = 125
"""Windows (4 s) without anything like speech after which a stream's state is reset, since music and
long noise make it less sensitive: after 12 s of music speech was detected 28 ms later at the median
and 46 ms at the 95th percentile. With a shorter time, music itself is taken for speech far more
often."""
SILENT_LEVEL = -60.0
"""Level in dBFS below which nothing counts as speech, whatever its probability
(`vad.SpeechSettings`)."""
SILENT_WINDOWS = 4
"""Silent windows after which the model is skipped until one is louder. It must have processed some
silence: from the state just before it, or a reset one, speech is detected later."""

FULL_SCALE = np.float32(1 / 32768)

Floats = npt.NDArray[np.float32]


def load_silero() -> Silero:
    """Returns the model that comes with Pipecat. Raises OSError if it is missing, ValueError if the
    file holds another."""
    return Silero(package_file("pipecat", "audio/vad/data/silero_vad.onnx"))


class WindowSource(Protocol):
    """A stream to be searched for speech."""

    def next_window(self) -> Pcm | None:
        """Returns the next 512 samples, or None if they have not arrived; call `ready` when there
        are more."""

    def receive_probability(self, probability: float, level: float) -> None:
        """Receives the speech probability, 0..1, and the level in dBFS of the last window."""


def _silence() -> Floats:
    return np.zeros(STATE, np.float32)


@dataclass(eq=False)
class _Memory:
    """The model's state of one stream."""

    row: Floats = field(default_factory=lambda: np.zeros(CONTEXT + WINDOW, np.float32))
    """The last window with its context, the model's input."""
    state: Floats = field(default_factory=_silence)
    quiet: int = 0
    """Windows since something was slightly like speech, or the state was reset."""
    silent: int = 0
    """Consecutive silent windows, or windows since the state was reset."""

    def add_window(self, window: Pcm) -> None:
        row = self.row
        row[:CONTEXT] = row[WINDOW:]
        np.multiply(window, FULL_SCALE, out=row[CONTEXT:])

    def passes(self, level: float) -> bool:
        """Returns whether the model is skipped because the window continues a silence."""
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
    """The windows of one call, created by `VadBatch.open`.

    `on_probability(probability, level, end_sample)` is called on the event loop, in order, with the
    speech probability 0..1 and the level in dBFS of the window that ends at `end_sample`, counted
    at 16 kHz from the first sample fed.
    """

    def __init__(
        self, batch: "VadBatch", on_probability: Callable[[float, float, int], None]
    ) -> None:
        self.on_probability = on_probability
        self.dropped = 0
        """Windows dropped because inference was more than MAX_LATE_WINDOWS behind."""
        self._batch = batch
        # One window more than may wait: the one being filled.
        self._ring = np.zeros((MAX_LATE_WINDOWS + 1) * WINDOW, np.int16)
        self._fed = 0
        self._taken = 0
        self._asked = 0
        """End of the window in progress."""
        self._lead = -1
        """Zeros before the first sample, which align its windows with those of other calls."""

    def feed(self, pcm: Pcm) -> None:
        """Adds 16 kHz samples, at most one window. Never blocks."""
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

    def catch_up(self) -> None:
        """Has all complete windows processed at once."""
        self._batch.judge_now(self)

    def close(self) -> None:
        """Ends the stream; no probability follows."""
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
    """Returns the level in dBFS of each of [n, 512]."""
    power = np.einsum("ij,ij->i", windows, windows) / np.float32(WINDOW)
    levels: list[float] = (10 * np.log10(power + np.float32(1e-9))).tolist()
    return levels


Window = tuple[WindowSource, _Memory, float]
"""A window in progress: source, state and level in dBFS."""


class VadBatch:
    """The model and its state of each stream. Construction loads the model in 5 ms. Raises OSError
    if it is missing, ValueError if the file holds another."""

    def __init__(self) -> None:
        self.position = 0
        """Samples of each call's audio represented by the ticks so far."""
        self._model = load_silero()
        self._memories: dict[WindowSource, _Memory] = {}
        self._ready: dict[WindowSource, None] = {}
        """Sources that may have a window, longest waiting first."""
        self._due: asyncio.Handle | None = None
        """The next batch."""

    def open(self, on_probability: Callable[[float, float, int], None]) -> VadStream:
        """Opens a call's stream with a new state."""
        stream = VadStream(self, on_probability)
        self.watch(stream)
        return stream

    def watch(self, source: WindowSource) -> None:
        """Adds a source with a new state; `forget` removes it."""
        self._memories[source] = _Memory()

    def forget(self, source: WindowSource) -> None:
        """Removes a source, which gets no more results."""
        self._memories.pop(source, None)
        self._ready.pop(source, None)

    def ready(self, source: WindowSource) -> None:
        """Marks a source as possibly having a window for the next `judge`."""
        self._ready[source] = None

    def run(self) -> None:
        """Processes complete windows; call it every 20 ms on the loop, after the calls' ticks."""
        self.position += SAMPLES_IN
        self.judge()

    def judge(self) -> None:
        """Has the windows processed as soon as the event loop has served what is ready now, so that
        the sources that become ready with this one share its batch."""
        if self._ready and self._due is None:
            self._due = asyncio.get_running_loop().call_soon(self._judge_batch)

    def judge_now(self, source: WindowSource) -> None:
        """Has all windows of one source processed: audio that is read faster than it was spoken
        must not be ahead of what is known about it."""
        memory = self._memories.get(source)
        while memory is not None and (window := source.next_window()) is not None:
            memory.add_window(window)
            self._judge_windows([(source, memory)])
        self._ready.pop(source, None)

    def _judge_batch(self) -> None:
        self._due = None
        windows: list[tuple[WindowSource, _Memory]] = []
        for source in list(islice(self._ready, MAX_WINDOWS)):
            del self._ready[source]
            memory = self._memories.get(source)
            if memory is not None and (window := source.next_window()) is not None:
                memory.add_window(window)
                windows.append((source, memory))
        if windows:
            self._judge_windows(windows)
        self.judge()  # late windows do not wait for the next tick

    def _judge_windows(self, windows: list[tuple[WindowSource, _Memory]]) -> None:
        """Processes one window of each source: by the model, or as silence."""
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
            states = np.concatenate([memory.state for _, memory, _ in asked]).reshape(-1, STATE)
            probabilities, states = self._model.run(rows[places] if passed else rows, states)
            for window, state, probability in zip(
                asked, states, probabilities.tolist(), strict=True
            ):
                memory = window[1]
                memory.state = state
                memory.note(probability)
                self._report(window, probability)
        for window in passed:
            self._report(window, 0.0)

    def _report(self, window: Window, probability: float) -> None:
        source, memory, level = window
        if self._memories.get(source) is memory:
            try:
                source.receive_probability(probability, level)
            except Exception:  # an error of one stream must not affect the others
                logger.exception("a stream failed on its voice activity")

    def probabilities(self, pcm: Pcm) -> Floats:
        """Processes a whole recording at once, without an event loop.

        `pcm` is 16 kHz; returns one probability for each complete 512-sample window.
        """
        memory, found = _Memory(), np.empty(len(pcm) // WINDOW, np.float32)
        for i in range(len(found)):
            memory.add_window(pcm[i * WINDOW : (i + 1) * WINDOW])
            found[i : i + 1], (memory.state,) = self._model.run(
                memory.row[None], memory.state[None]
            )
            memory.note(float(found[i]))
        return found

    def close(self) -> None:
        """Forgets all sources; no probability follows."""
        self._memories.clear()
        self._ready.clear()
        if self._due is not None:
            self._due.cancel()
            self._due = None
