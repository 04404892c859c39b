"""Judges the sound that comes back to one call of many: how evenly, and how long after.

The lightest account there can be of what `Player` does sample by sample, for many calls at once:
when what comes would be played behind a jitter buffer, and so when it would have run dry.
"""

from array import array
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.carriers.far_ends.far_end import JITTER_MS
from benchmarks.carriers.far_ends.player import STARVED_S
from offhook.media.codecs.g711 import ULAW_LEVELS

RATE = 8_000
LOUD = bytes(int(abs(int(level)) > 1_000) for level in ULAW_LEVELS)
"""By PCMU code: 1 for samples of speech, 0 for those of a quiet room."""
QUIET_S = 0.4
"""Sound after so much silence is the beginning of a line."""
WINDOW_MESSAGES = 50
"""A message is late by the most punctual of so many before it: what has become later for good is
not late, but heard later (`echo_ms`)."""
ECHO_S = 2.0
"""What comes later than this after the beginning of a line is not its echo."""


def is_loud(pcmu: bytes) -> bool:
    return 1 in pcmu.translate(LOUD)


def lateness(transits: Any) -> Any:
    """Of each message, against the most punctual of those before it."""
    before = np.concatenate((np.full(WINDOW_MESSAGES - 1, np.inf), transits))
    return transits - np.lib.stride_tricks.sliding_window_view(before, WINDOW_MESSAGES).min(axis=1)


class Onsets:
    """When sound begins after silence."""

    def __init__(self) -> None:
        self._loud_at = float("-inf")

    def take(self, loud: bool, at: float) -> bool:
        """Whether a line begins with this sound."""
        if not loud:
            return False
        begins = at - self._loud_at > QUIET_S
        self._loud_at = at
        return begins


@dataclass
class Judged:
    """Since the last look."""

    messages: int = 0
    sound_ms: float = 0.0
    holes: int = 0
    hole_ms: float = 0.0
    late: list[Any] = field(default_factory=list)
    """Seconds, of every message."""
    echo_ms: list[float] = field(default_factory=list)
    """From a line's first sound sent to the same being played."""


class Ear:
    """One call. Times in s."""

    def __init__(self) -> None:
        self._judged = Judged()
        self.play_until = float("-inf")
        """When what has come will have been played."""
        self._total = 0.0
        """s of sound in this run."""
        self._transits = array("d")
        """Of the messages of this run: arrival less place in the sound."""
        self._spoken, self._heard = Onsets(), Onsets()
        self._began: deque[float] = deque(maxlen=4)
        """When lines were begun to be said whose echo has not come."""

    def say(self, loud: bool, now: float) -> None:
        if self._spoken.take(loud, now):
            self._began.append(now)

    def take(self, pcmu: bytes, now: float) -> None:
        judged, seconds = self._judged, len(pcmu) / RATE
        dry = now - self.play_until
        if dry > 0:
            if dry < STARVED_S:
                judged.holes += 1
                judged.hole_ms += dry * 1000 + JITTER_MS
            else:
                self._end_run()
            self.play_until = now + JITTER_MS / 1000
        if self._heard.take(is_loud(pcmu), self.play_until):
            self._echo(self.play_until)
        self.play_until += seconds
        self._transits.append(now - self._total)
        self._total += seconds
        judged.messages += 1
        judged.sound_ms += seconds * 1000

    def _echo(self, played: float) -> None:
        while self._began and played - self._began[0] > ECHO_S:
            self._began.popleft()
        if self._began and self._began[0] <= played:
            self._judged.echo_ms.append((played - self._began.popleft()) * 1000)

    def clear(self, now: float) -> None:
        self.play_until = min(self.play_until, now)

    def _end_run(self) -> None:
        if self._transits:
            self._judged.late.append(lateness(np.frombuffer(self._transits, np.float64)))
        self._transits, self._total = array("d"), 0.0

    def judge(self) -> Judged:
        """Of what came since the last call of this."""
        self._end_run()
        judged, self._judged = self._judged, Judged()
        return judged
