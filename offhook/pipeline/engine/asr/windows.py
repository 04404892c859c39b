"""The audio of one utterance as the model divides it, and what of it an update must compute.

Frames: a mel frame (10 ms) looks at 200 samples to each side of its middle; it is final once those
are there. The end of the utterance is reflected, as its beginning is, so the last frames become
final with it; as in Whisper, an utterance of N samples has N // 160 frames.

Seconds: the convolutions see 100 frames at a time, counted from the utterance's start, and make 13
tokens of them. Windows: the encoder attends within 8 seconds. Both never change once complete,
with one exception: mel values are clamped at 8 below the loudest frame up to the end of the
window, so all seconds of a window not yet complete change when a louder frame comes.
"""

from dataclasses import dataclass

import numpy as np

from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.speech.recognizer import AudioOverrun

HOP = 160
"""Samples from frame to frame."""
HALF_FRAME = 200
"""Samples that a frame needs on either side of its middle."""
SECOND_FRAMES = 100
SECOND_TOKENS = 13
WINDOW_S = 8
WINDOW_FRAMES = WINDOW_S * SECOND_FRAMES
WINDOW_SAMPLES = WINDOW_FRAMES * HOP
WINDOW_TOKENS = WINDOW_S * SECOND_TOKENS
MAX_PENDING = 60 * RATE_IN
"""Samples held that no update has taken. A live caller never comes near it, for one update takes
all there is; a file is fed as `room` allows. Beyond it `feed` raises AudioOverrun."""


def final_frames(samples: int, ended: bool) -> int:
    """Mel frames that will not change any more, given so many samples of an utterance."""
    if samples <= HALF_FRAME:
        return 0  # too short to be reflected: 12.5 ms
    return samples // HOP if ended else (samples - HALF_FRAME) // HOP + 1


def samples_for(frames: int) -> int:
    """Samples that make so many frames final."""
    return (frames - 1) * HOP + HALF_FRAME


def encoder_tokens(frames: int) -> int:
    """Tokens that the encoder makes of the first so many frames of an utterance."""
    seconds, rest = divmod(frames, SECOND_FRAMES)
    for _ in range(3):  # three convolutions of stride 2
        rest = (rest + 1) // 2
    return seconds * SECOND_TOKENS + rest


@dataclass(frozen=True)
class WindowStep:
    """What is new in one window."""

    index: int
    """Of the utterance; the first is 0."""
    position: int
    """Where its embeddings begin: tokens after the prompt's header."""
    known: int
    """Frames of it that were there at the last update."""
    frames: int
    """Frames of it now: 1 to 800, more than `known`."""
    pcm: Pcm
    """The samples of frames [first, frames), (frames - first - 1) * 160 + 400 of them, reflected
    at the utterance's ends: a plain sliding window of 400 by 160 gives the frames."""

    @property
    def first(self) -> int:
        """The frame that begins the first second with new frames."""
        return self.seconds.start * SECOND_FRAMES

    @property
    def seconds(self) -> range:
        """Seconds of the window with new frames."""
        return range(self.known // SECOND_FRAMES, -(-self.frames // SECOND_FRAMES))

    @property
    def tokens(self) -> int:
        """Encoder tokens of the window now; those of second s begin at 13 * s."""
        return encoder_tokens(self.frames)

    @property
    def complete(self) -> bool:
        return self.frames == WINDOW_FRAMES


@dataclass(frozen=True)
class AudioStep:
    """What one update must compute."""

    audio_ms: int
    """Audio of the utterance that the update covers."""
    ended: bool
    windows: tuple[WindowStep, ...]
    """Those with new frames, oldest first, all but the last complete. None: nothing is new, and
    the text of the last update stands."""

    @property
    def encoder_tokens(self) -> int:
        return sum(w.tokens for w in self.windows)


class Windows:
    """Audio of one utterance. Remembers the samples of the window that is not complete, of the
    half frame before it, and of what no update has taken; the rest is dropped."""

    def __init__(self) -> None:
        self.samples = 0
        """Fed in all."""
        self.completed = 0
        """Windows completed, the dropped ones too."""
        self.dropped = 0
        self._frames = 0  # covered by the last update
        self._taken = 0  # samples that the last update had
        self._loudest = float("-inf")
        self._buffer: Pcm = np.empty(RATE_IN, np.int16)  # the utterance from `_offset` on
        self._offset = 0

    @property
    def room(self) -> int:
        """Samples that may be fed before the next update."""
        return MAX_PENDING - (self.samples - self._taken)

    def feed(self, pcm: Pcm) -> None:
        """Take 16 kHz samples. Raises AudioOverrun, taking none, beyond MAX_PENDING."""
        if len(pcm) > self.room:
            raise AudioOverrun(f"{len(pcm)} samples fed, room for {self.room}")
        held = self.samples - self._offset
        if held + len(pcm) > len(self._buffer):
            grown = np.empty(2 * (held + len(pcm)), np.int16)
            grown[:held] = self._buffer[:held]
            self._buffer = grown
        self._buffer[held : held + len(pcm)] = pcm
        self.samples += len(pcm)

    def step(self, end: int | None = None, ended: bool = False) -> AudioStep:
        """What an update with the samples up to `end` (all, if None) must compute. `ended`: the
        utterance ends with them."""
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
        self._drop_samples(self.completed * WINDOW_SAMPLES - HALF_FRAME)
        return AudioStep(frames * HOP * 1000 // RATE_IN, ended, tuple(windows))

    def to_convolve(self, window: WindowStep, maximum: float) -> range:
        """Seconds of the window to convolve, `maximum` being the largest log10 mel value of the
        utterance up to the window's last frame: all when it rose since the last update, else
        those with new frames. To be asked once for each window, in order."""
        rose = maximum > self._loudest
        self._loudest = max(maximum, self._loudest)
        return range(window.seconds.stop) if rose else window.seconds

    def drop(self, count: int) -> None:
        """The oldest `count` completed windows leave the prompt; positions move accordingly."""
        self.dropped += count

    def _samples(self, first: int, until: int, end: int) -> Pcm:
        """Samples that frames [first, until) look at, in an utterance that ends at `end`."""
        start, stop = first * HOP - HALF_FRAME - self._offset, samples_for(until) - self._offset
        end -= self._offset
        before, after = max(-start, 0), max(stop - end, 0)
        held = self._buffer
        return np.concatenate(
            (
                held[1 : before + 1][::-1],
                held[max(start, 0) : min(stop, end)],
                held[end - 1 - after : end - 1][::-1],
            )
        )

    def _drop_samples(self, before: int) -> None:
        if before <= self._offset:
            return
        kept = self.samples - before
        shorter = np.empty(max(2 * kept, RATE_IN), np.int16)
        shorter[:kept] = self._buffer[before - self._offset : self.samples - self._offset]
        self._buffer = shorter
        self._offset = before
