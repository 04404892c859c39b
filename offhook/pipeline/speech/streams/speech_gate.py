"""What of a stream's sound goes to the engine: speech, and a little before and after it. Sans-io.

Judged is each window of 32 ms by its chance of speech. The gate opens at the first that could be
speech, and gives what it has kept of the sound before it too, for a word begins softly; it closes
only after a pause that no sentence has, for a word cut short is worse than silence heard.
"""

from bisect import bisect_left, bisect_right
from collections import deque

from offhook.media.pcm import Pcm
from offhook.pipeline.speech.recognizer import Word

OPEN_PROBABILITY = 0.3
"""Below the model's own working point of 0.5: to hear noise costs time, to miss a word costs it."""
BEFORE_WINDOWS = 10
"""Kept while it is closed: 320 ms."""
AFTER_WINDOWS = 20
"""Without speech until it closes: 640 ms."""


class SpeechGate:
    """Of one utterance."""

    def __init__(self) -> None:
        self.is_open = False
        self._before: deque[Pcm] = deque(maxlen=BEFORE_WINDOWS)
        self._quiet = 0
        """Windows without speech since the last with."""

    def window(self, pcm: Pcm, probability: float) -> list[Pcm]:
        """What the engine is to hear now: nothing, or sound in a row that ends with the window."""
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
    """Where in a stream the sound is from that was given. Places in samples; each piece is after
    the one before, in the stream and in what was given."""

    def __init__(self) -> None:
        self.given = 0
        """In all."""
        self._next = 0
        """Where in the stream the sound would go on."""
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
        """Nobody will ask for places before this one."""
        stale = bisect_right(self._given_at, given) - 1
        del self._given_at[:stale], self._stream_at[:stale]

    def start(self, given: int) -> int:
        """Where in the stream the sound from `given` on is."""
        return self._place(given, bisect_right(self._given_at, given))

    def end(self, given: int) -> int:
        """Where in the stream the sound up to `given` is."""
        return self._place(given, bisect_left(self._given_at, given))

    def _place(self, given: int, index: int) -> int:
        piece = max(0, index - 1)
        return self._stream_at[piece] + given - self._given_at[piece]

    def in_stream(self, word: Word, rate: int) -> Word:
        """The word, whose times count what was given, with the stream's; `rate` in Hz."""
        ms = rate // 1000
        start = self.start(word.start_ms * ms) // ms
        return Word(word.text, start, max(start, self.end(word.end_ms * ms) // ms))
