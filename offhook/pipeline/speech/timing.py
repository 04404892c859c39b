"""From sound to text, stage by stage: what an engine needs to fill a `Timing`, and what is made of
one. Sans-io: times are given, in s of time.monotonic()."""

from collections import deque
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from math import inf
from typing import TypeVar

from offhook.pipeline.speech.recognizer import Final, Partial, Timing

GRAIN = 80
"""Samples, 5 ms: what comes in smaller pieces is kept as pieces of this size."""

Event = TypeVar("Event", bound=Partial | Final)


@dataclass(frozen=True)
class Stages:
    """How long the newest sound behind a text was where, in ms."""

    buffering_ms: float
    """From its first sample to all that the update needed: what no engine can be faster than."""
    queued_ms: float
    gpu_ms: float
    routed_ms: float
    """From the model to the stream's mailbox on the event loop; where the engine is in another
    process, all the way from there."""
    sent_ms: float
    """From the mailbox to the write on the client's socket."""

    @classmethod
    def of(cls, timing: Timing, sent: float) -> "Stages":
        """`sent`: when the text was written."""
        at = (timing.begun, timing.buffered, timing.started, timing.done, timing.routed, sent)
        return cls(*[round(max(0.0, b - a) * 1000, 2) for a, b in pairwise(at)])

    def until(self, came: float) -> Timing:
        """The same on the clock of whoever got the text at `came`. The way there is not known: it
        counts as none."""
        done = came - (self.routed_ms + self.sent_ms) / 1000
        started = done - self.gpu_ms / 1000
        buffered = started - self.queued_ms / 1000
        return Timing(buffered - self.buffering_ms / 1000, buffered, started, done, came)


STAGES = tuple(each.name.removesuffix("_ms") for each in fields(Stages))


class Arrivals:
    """When the sound of one utterance came. Counts are samples of the utterance."""

    def __init__(self) -> None:
        self._pieces: deque[tuple[int, float]] = deque()
        """Where each ends and when it came: those the last update had are forgotten."""
        self._last = 0
        """Where the last one begins."""
        self._fed = 0
        self._ended = inf
        self._begun = self._buffered = 0.0
        self.covered = 0
        """By the updates so far."""

    def came(self, samples: int, now: float) -> None:
        if not samples:
            return
        if self._pieces and self._fed - self._last < GRAIN:
            self._pieces.pop()
        else:
            self._last = self._fed
        self._fed += samples
        self._pieces.append((self._fed, now))

    def ended(self, now: float) -> None:
        """There is no more of it."""
        self._ended = now

    def update(self, covers: int, needs: int, started: float, done: float) -> Timing:
        """Of a text of the sound up to `covers`, that was due when there was as much as `needs`,
        or the end. One without new sound waits since the last."""
        if covers > self.covered:
            self._note(covers)
            due = (came for end, came in self._pieces if end >= needs)
            self._buffered = max(self._begun, min(next(due, inf), self._end()))
        return Timing(self._begun, self._buffered, max(started, self._buffered), done)

    def final(self, started: float, done: float) -> Timing:
        """Of the last text, that was due when the end had been asked for."""
        self._note(self._fed)
        buffered = self._end()
        return Timing(min(self._begun, buffered), buffered, max(started, buffered), done)

    def forget(self, samples: int) -> None:
        """The utterance is taken to begin so much later."""
        self._pieces = deque((end - samples, came) for end, came in self._pieces)
        self._fed -= samples
        self._last -= samples
        self.covered = max(0, self.covered - samples)

    def _note(self, covers: int) -> None:
        """The next update has the sound from `covered` to `covers`."""
        while self._pieces and self._pieces[0][0] <= self.covered:
            self._pieces.popleft()
        self._begun = self._pieces[0][1] if self._pieces else self._end()
        self.covered = covers

    def _end(self) -> float:
        """When it was asked for; of an utterance that an engine ended, when its last sound came."""
        if self._ended < inf:
            return self._ended
        return self._pieces[-1][1] if self._pieces else self._buffered


def routed(event: Event, now: float) -> Event:
    """The event, that is in its stream's mailbox now."""
    if (t := event.timing) is None:
        return event
    return replace(event, timing=Timing(t.begun, t.buffered, t.started, t.done, now))
