"""Splits an utterance's audio into the model's frames, seconds and windows, and finds what an
update must compute.

Frames: a 10 ms mel frame spans 200 samples on either side of its centre and is final once they have
arrived. The start and the end of the utterance are reflected, so its end makes the last frames
final; as in Whisper, N samples have N // 160 frames.

Seconds: the convolutions process 100 frames at a time, counted from the utterance's start, into 13
tokens. Windows: the encoder attends within 8 s. Neither changes once complete, with one exception:
mel values are clamped at 8 below the maximum up to the end of the window, so a louder frame changes
every second of an incomplete window.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.speech.errors import AudioOverrun

HOP = 160
"""Samples between frames."""
HALF_FRAME = 200
"""Samples that a frame spans on either side of its centre."""
SECOND_FRAMES = 100
SECOND_TOKENS = 13
WINDOW_S = 8
WINDOW_FRAMES = WINDOW_S * SECOND_FRAMES
WINDOW_SAMPLES = WINDOW_FRAMES * HOP
WINDOW_TOKENS = WINDOW_S * SECOND_TOKENS
ROOM = 2 * RATE_IN
"""Samples that a buffer has room for when it is made; what came before goes with an older one."""
MAX_PIECES = 64
"""Pieces of audio that wait for an update; more are joined, however small they are."""
MAX_PENDING = 60 * RATE_IN
"""Limit of samples not yet used by an update; beyond it `feed` raises AudioOverrun. Live updates
use everything, so only files, which are fed as `room` allows, come near it."""


def final_frames(samples: int, ended: bool) -> int:
    """Returns the number of mel frames that are final after `samples` samples."""
    if samples <= HALF_FRAME:
        return 0  # too short (under 12.5 ms) to be reflected
    return samples // HOP if ended else (samples - HALF_FRAME) // HOP + 1


def samples_for(frames: int) -> int:
    """Returns the samples needed to make `frames` frames final."""
    return (frames - 1) * HOP + HALF_FRAME


def encoder_tokens(frames: int) -> int:
    """Returns the encoder tokens of an utterance's first `frames` frames."""
    seconds, rest = divmod(frames, SECOND_FRAMES)
    return seconds * SECOND_TOKENS + (rest + 7) // 8  # three convolutions of stride 2


@dataclass(frozen=True)
class WindowStep:
    """New audio of one window."""

    index: int
    """Index in the utterance, from 0."""
    position: int
    """Position of its first embedding: tokens after the prompt's header."""
    known: int
    """Frames known at the last update."""
    frames: int
    """Frames now: 1 to 800, more than `known`."""
    pcm: Pcm
    """Samples of frames [first, frames): (frames - first - 1) * 160 + 400 of them, reflected at the
    utterance's ends, ready for a sliding window of 400 by 160."""

    @property
    def first(self) -> int:
        """First frame of the first second with new frames."""
        return self.seconds.start * SECOND_FRAMES

    @property
    def seconds(self) -> range:
        """Seconds of the window that have new frames."""
        return range(self.known // SECOND_FRAMES, -(-self.frames // SECOND_FRAMES))

    @property
    def tokens(self) -> int:
        """Encoder tokens of the window now; those of second s start at 13 * s."""
        return encoder_tokens(self.frames)

    @property
    def complete(self) -> bool:
        return self.frames == WINDOW_FRAMES


class AudioStep(NamedTuple):
    """What one update must compute."""

    audio_ms: int
    """Audio in ms that the update covers."""
    ended: bool
    windows: tuple[WindowStep, ...]
    """Windows with new frames, oldest first; all but the last are complete. Empty if nothing is
    new."""

    @property
    def encoder_tokens(self) -> int:
        return sum(w.tokens for w in self.windows)


class Windows:
    """Buffers one utterance: the incomplete second, the half frame before it, and samples no update
    has used; everything older is dropped."""

    def __init__(self) -> None:
        self.samples = 0
        """Samples fed so far."""
        self.completed = 0
        """Windows completed so far, including dropped ones."""
        self.dropped = 0
        self._frames = 0  # frames covered by the last update
        self._taken = 0  # samples covered by the last update
        self._loudest = float("-inf")
        self._buffer: Pcm = np.empty(0, np.int16)  # the utterance from `_offset` to `_joined`
        self._offset = self._joined = 0
        self._fed: list[Pcm] = []  # what follows

    @property
    def room(self) -> int:
        """Samples that can be fed before the next update."""
        return MAX_PENDING - (self.samples - self._taken)

    def feed(self, pcm: Pcm) -> None:
        """Adds 16 kHz int16 samples, which nobody changes any more. Raises AudioOverrun, adding
        none, beyond MAX_PENDING."""
        if len(pcm) > self.room:
            raise AudioOverrun(f"{len(pcm)} samples fed, room for {self.room}")
        self._fed.append(pcm)
        self.samples += len(pcm)
        if len(self._fed) > MAX_PIECES:
            self._join()

    def step(self, end: int | None = None, ended: bool = False) -> AudioStep:
        """Returns what an update must compute for the samples up to `end` (default: all). `ended`
        means the utterance ends there."""
        self._join()
        end = self.samples if end is None else end
        frames = max(self._frames, final_frames(end, ended))
        windows = []
        while self._frames < frames:
            index, known = divmod(self._frames, WINDOW_FRAMES)
            base = index * WINDOW_FRAMES
            until = min(frames, base + WINDOW_FRAMES)
            first = base + known // SECOND_FRAMES * SECOND_FRAMES
            position = (index - self.dropped) * WINDOW_TOKENS
            pcm = self._samples(first, until, end)
            windows.append(WindowStep(index, position, known, until - base, pcm))
            self._frames = until
        self.completed = frames // WINDOW_FRAMES
        self._taken = max(self._taken, end)
        self._drop_samples(frames // SECOND_FRAMES * SECOND_FRAMES * HOP - HALF_FRAME)
        return AudioStep(frames * HOP * 1000 // RATE_IN, ended, tuple(windows))

    def to_convolve(self, window: WindowStep, maximum: float) -> range:
        """Returns the seconds of the window to convolve, given the maximum log10 mel value up to
        the window's last frame: all if it rose since the last update, else those with new frames.
        Call once per window, in order."""
        rose = maximum > self._loudest
        self._loudest = max(maximum, self._loudest)
        return range(window.seconds.stop) if rose else window.seconds

    def drop(self, count: int) -> None:
        """Drops the oldest `count` completed windows; positions move accordingly."""
        self.dropped += count

    def _samples(self, first: int, until: int, end: int) -> Pcm:
        """Returns the samples spanned by frames [first, until) of an utterance that ends at
        `end`."""
        start, stop = first * HOP - HALF_FRAME - self._offset, samples_for(until) - self._offset
        end -= self._offset
        before, after = max(-start, 0), max(stop - end, 0)
        held = self._buffer
        heard = held[max(start, 0) : min(stop, end)]
        if not (before or after):
            return heard
        return np.concatenate(
            (held[1 : before + 1][::-1], heard, held[end - 1 - after : end - 1][::-1])
        )

    def _join(self) -> None:
        """Copies what was fed behind the rest; what `_samples` has returned stays as it is."""
        held, wanted = self._joined - self._offset, self.samples - self._offset
        if wanted > len(self._buffer):
            grown = np.empty(wanted + ROOM, np.int16)
            grown[:held] = self._buffer[:held]
            self._buffer = grown
        if self._fed:
            np.concatenate(self._fed, out=self._buffer[held:wanted])
            self._fed.clear()
            self._joined = self.samples

    def _drop_samples(self, before: int) -> None:
        if before > self._offset:
            self._buffer = self._buffer[before - self._offset :]
            self._offset = before
