"""What the speech engine has launched and not yet taken in, and when it will probably be done.

Nobody waits for the device: it is looked at again at the time when something should be done.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from offhook.media.pcm import Pcm
from offhook.pipeline.engine.tts.messages import Launched, SpeechCost, Step
from offhook.pipeline.engine.tts.streams import Segment

AHEAD = 2
"""Steps, and launches of the codec, that may be under way."""
POLL = 0.0002
"""s until what should be done and is not is looked at again, if it is but little late."""
PACE_SHARE = 0.05
SLOWEST, FASTEST = 3.0, 0.5
"""Bounds of how much longer than measured at load a step is thought to take."""


class StepFlight(NamedTuple):
    result: Launched[Sequence[int]]
    steps: Sequence[Step]
    segments: Sequence[Segment]
    """Of each step."""
    spent: Sequence[Segment]
    """Those that may not make another frame."""
    launched: float
    ms: float
    """It should take."""


class SoundFlight(NamedTuple):
    result: Launched[Sequence[Pcm]]
    pieces: Sequence[tuple[Segment, int, int]]
    """Of each: the first frame, and how many."""
    after: int
    """Steps that are done when this is."""
    ends: float


class InFlightLaunches:
    def __init__(self, cost: SpeechCost) -> None:
        self._cost = cost
        self.steps: deque[StepFlight] = deque()
        self.sounds: deque[SoundFlight] = deque()
        self._steps_taken = 0
        self._last_taken = 0.0
        self._pace = 1.0
        self.busy_until = 0.0
        """When all steps launched should be done. s."""

    @property
    def may_decode(self) -> bool:
        return len(self.sounds) < AHEAD

    def step_at(self) -> float | None:
        """When the next step should be launched; None: not before the result of one."""
        if len(self.steps) >= AHEAD:
            return None
        streams = len(self.steps[-1].steps) if self.steps else 0
        ms = self._cost.launch_ms + streams * self._cost.launch_stream_ms
        return self.busy_until - ms / 1000

    def sound_at(self, now: float, step_ms: float) -> float:
        """When the first frame of a step launched now should be heard."""
        ms = self._pace * step_ms + self._cost.codec_ms
        return max(now, self.busy_until) + ms / 1000

    def launched_prefill(self, rows: int, now: float) -> None:
        if rows:
            ms = self._cost.prefill_ms + (rows - 1) * self._cost.prefill_row_ms
            self.busy_until = max(now, self.busy_until) + ms / 1000

    def launched_step(
        self,
        result: Launched[Sequence[int]],
        steps: Sequence[Step],
        segments: Sequence[Segment],
        spent: Sequence[Segment],
        now: float,
        ms: float,
    ) -> None:
        self.steps.append(StepFlight(result, steps, segments, spent, now, ms))
        self.busy_until = max(now, self.busy_until) + self._pace * ms / 1000

    def launched_sound(
        self,
        result: Launched[Sequence[Pcm]],
        pieces: Sequence[tuple[Segment, int, int]],
        now: float,
    ) -> None:
        frames = sum(count for _, _, count in pieces)
        ms = self._cost.codec_ms + (frames - 1) * self._cost.codec_frame_ms
        begins = max(now, self.busy_until, self.sounds[-1].ends if self.sounds else 0.0)
        after = self._steps_taken + len(self.steps)
        self.sounds.append(SoundFlight(result, pieces, after, begins + ms / 1000))

    def next_step(self, now: float) -> StepFlight | None:
        """The oldest one, if it is done; it is over then."""
        if not self.steps or not self.steps[0].result.ready():
            return None
        flight = self.steps.popleft()
        self._steps_taken += 1
        took = (now - max(flight.launched, self._last_taken)) * 1000 / flight.ms
        self._pace += PACE_SHARE * (min(SLOWEST, max(FASTEST, took)) - self._pace)
        self._last_taken = now
        self.busy_until = now + sum(self._pace * f.ms for f in self.steps) / 1000
        return flight

    def next_sound(self) -> SoundFlight | None:
        """The oldest one, if it and all steps before it are done and taken in."""
        if not self.sounds or self.sounds[0].after > self._steps_taken:
            return None
        return self.sounds.popleft() if self.sounds[0].result.ready() else None

    def look_at(self, now: float) -> float | None:
        """When something should be done; None: nothing is under way."""
        ends = []
        if self.steps:
            first = self.steps[0]
            ends.append(max(first.launched, self._last_taken) + self._pace * first.ms / 1000)
        if self.sounds and self.sounds[0].after <= self._steps_taken:
            ends.append(self.sounds[0].ends)
        return min((_later(end, now) for end in ends), default=None)


def _later(end: float, now: float) -> float:
    return end if end > now else now + max(POLL, (now - end) / 4)
