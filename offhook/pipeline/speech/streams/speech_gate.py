"""Selects the audio for the engine: speech with some context before and after. Sans-io.

The decision uses the speech probability of each 32 ms window. The gate opens at the first window
that could be speech and includes buffered audio before it, since words start softly; it closes only
after a pause longer than any within a sentence, since a truncated word is worse than recognized
silence.
"""

from bisect import bisect_left, bisect_right
from collections import deque

from offhook.media.pcm import Pcm
from offhook.pipeline.speech.recognizer import Word

OPEN_PROBABILITY = 0.3
"""Below the model's usual threshold of 0.5: processing noise costs time, missing speech costs a
word."""
BEFORE_WINDOWS = 10
"""Windows buffered while the gate is closed: 320 ms."""
AFTER_WINDOWS = 20
"""Windows without speech until the gate closes: 640 ms."""


class SpeechGate:
    """The gate of one utterance."""

    def __init__(self) -> None:
        self.is_open = False
        self._before: deque[Pcm] = deque(maxlen=BEFORE_WINDOWS)
        self._quiet = 0
        """Windows without speech since the last one with speech."""

    def window(self, pcm: Pcm, probability: float) -> list[Pcm]:
        """Returns the audio that the engine gets now: nothing, or contiguous audio that ends with
        the window."""
        if probability >= OPEN_PROBABILITY:
            given = [*self._before, pcm]
            self._before.clear()
            self._quiet, self.is_open = 0, True
            return given
        if self.is_open:
            self._quiet += 1
            self.is_open = self._quiet < AFTER_WINDOWS
            return [pcm]
        self._before.append(pcm)
        return []


class Splices:
    """Maps positions in the audio given to the engine to positions in the stream, in samples.
    Pieces are added in order."""

    def __init__(self) -> None:
        self.given = 0
        """Total samples given."""
        self._next = 0
        """Position in the stream where contiguous audio would continue."""
        self._given_at: list[int] = [0]
        self._stream_at: list[int] = [0]

    def give(self, at: int, samples: int) -> None:
        if at != self._next:
            if self._given_at[-1] == self.given:
                del self._given_at[-1], self._stream_at[-1]
            self._given_at.append(self.given)
            self._stream_at.append(at)
        self.given += samples
        self._next = at + samples

    def forget_before(self, given: int) -> None:
        """Drops the mapping of positions before this one."""
        stale = bisect_right(self._given_at, given) - 1
        del self._given_at[:stale], self._stream_at[:stale]

    def start(self, given: int) -> int:
        """Returns the stream position of the audio from `given` on."""
        return self._place(given, bisect_right(self._given_at, given))

    def end(self, given: int) -> int:
        """Returns the stream position of the audio up to `given`."""
        return self._place(given, bisect_left(self._given_at, given))

    def _place(self, given: int, index: int) -> int:
        piece = max(0, index - 1)
        return self._stream_at[piece] + given - self._given_at[piece]

    def in_stream(self, word: Word, rate: int) -> Word:
        """Converts a word's times from given audio to the stream; `rate` in Hz."""
        ms = rate // 1000
        start = self.start(word.start_ms * ms) // ms
        return Word(word.text, start, max(start, self.end(word.end_ms * ms) // ms))
