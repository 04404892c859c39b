"""Latency from audio to text by stage: collects what a `Timing` needs and derives the stages.
Sans-io; times are time.monotonic() in s."""

from collections import deque
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from math import inf
from typing import Annotated, TypeVar

from annotated_types import Ge, Lt

from offhook.pipeline.speech.recognizer import Final, Partial, Timing

GRAIN = 80
"""Samples (5 ms); smaller chunks are merged to this size."""

Duration = Annotated[float, Ge(0), Lt(1e9)]

Event = TypeVar("Event", bound=Partial | Final)


@dataclass(frozen=True)
class Stages:
    """Time that the newest audio of a text spent in each stage, in ms."""

    buffering_ms: Duration
    """From its first sample until the update's audio was complete; no engine can be faster."""
    queued_ms: Duration
    gpu_ms: Duration
    routed_ms: Duration
    """From the model to the stream's mailbox on the event loop; for a remote engine, including the
    network."""
    sent_ms: Duration
    """From the mailbox to the write on the client's socket."""

    @classmethod
    def of(cls, timing: Timing, sent: float) -> "Stages":
        """`sent` is the time at which the text was written."""
        at = (timing.begun, timing.buffered, timing.started, timing.done, timing.routed, sent)
        return cls(*[round(max(0.0, b - a) * 1000, 2) for a, b in pairwise(at)])

    def until(self, came: float) -> Timing:
        """Reconstructs the timing on the receiver's clock for a text that arrived at `came`,
        ignoring the network delay."""
        done = came - (self.routed_ms + self.sent_ms) / 1000
        started = done - self.gpu_ms / 1000
        buffered = started - self.queued_ms / 1000
        return Timing(buffered - self.buffering_ms / 1000, buffered, started, done, came)


STAGES = tuple(each.name.removesuffix("_ms") for each in fields(Stages))


class Arrivals:
    """Arrival times of one utterance's audio, counted in its samples."""

    def __init__(self) -> None:
        self._pieces: deque[tuple[int, float]] = deque()
        """End position and arrival time of each chunk; those used by the last update are
        dropped."""
        self._last = 0
        """Start of the last chunk."""
        self._fed = 0
        self._ended = inf
        self._begun = self._buffered = 0.0
        self.covered = 0
        """Samples covered by the updates so far."""

    def add(self, samples: int, now: float) -> None:
        if not samples:
            return
        if self._pieces and self._fed - self._last < GRAIN:
            self._pieces.pop()
        else:
            self._last = self._fed
        self._fed += samples
        self._pieces.append((self._fed, now))

    def ended(self, now: float) -> None:
        """Ends the audio."""
        self._ended = now

    def update(self, covers: int, needs: int, started: float, done: float) -> Timing:
        """Returns the timing of a text that covers `covers` samples and was due at `needs` samples
        or at the end. An update without new audio counts from the last one."""
        if covers > self.covered:
            self._note(covers)
            due = (came for end, came in self._pieces if end >= needs)
            self._buffered = max(self._begun, min(next(due, inf), self._end()))
        return Timing(self._begun, self._buffered, max(started, self._buffered), done)

    def final(self, started: float, done: float) -> Timing:
        """Returns the timing of the final text, which was due when the end was requested."""
        self._note(self._fed)
        buffered = self._end()
        return Timing(min(self._begun, buffered), buffered, max(started, buffered), done)

    def forget(self, samples: int) -> None:
        """Moves the start of the utterance forward."""
        self._pieces = deque((end - samples, came) for end, came in self._pieces)
        self._fed -= samples
        self._last -= samples
        self.covered = max(0, self.covered - samples)

    def _note(self, covers: int) -> None:
        """Records that the next update covers audio from `covered` to `covers`."""
        while self._pieces and self._pieces[0][0] <= self.covered:
            self._pieces.popleft()
        self._begun = self._pieces[0][1] if self._pieces else self._end()
        self.covered = covers

    def _end(self) -> float:
        """Returns when the end was requested, or when the last audio arrived if an engine ended the
        utterance."""
        if self._ended < inf:
            return self._ended
        return self._pieces[-1][1] if self._pieces else self._buffered


def routed(event: Event, now: float) -> Event:
    """Returns the event with its arrival in the stream's mailbox recorded."""
    if (t := event.timing) is None:
        return event
    return replace(event, timing=Timing(t.begun, t.buffered, t.started, t.done, now))
