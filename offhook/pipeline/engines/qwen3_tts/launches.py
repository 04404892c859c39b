"""Tracks the engine's launches in flight and predicts when they finish.

The device is never waited for; it is polled when a result is expected.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from offhook.media.pcm import Pcm
from offhook.pipeline.engines.qwen3_tts.streams import Segment
from offhook.pipeline.engines.shared.synthesis.messages import Launched, SpeechCost, Step

AHEAD = 2
"""Steps, and codec launches, that may be in flight."""
POLL = 0.0002
"""Shortest polling interval in s for a result that is overdue."""
PACE_SHARE = 0.05
SLOWEST, FASTEST = 3.0, 0.5
"""Bounds of the ratio between a step's actual and measured duration."""


class StepLaunch(NamedTuple):
    """A batch of frames in flight."""

    result: Launched[Sequence[int]]
    steps: Sequence[Step]
    segments: Sequence[Segment]
    """The segment of each step."""
    spent: Sequence[Segment]
    """Segments that may make no further frame."""
    launched: float
    ms: float
    """Expected duration in ms."""


class CodecLaunch(NamedTuple):
    """A codec launch in flight."""

    result: Launched[Sequence[Pcm]]
    pieces: Sequence[tuple[Segment, int, int]]
    """Per piece: segment, first frame and frame count."""
    after: int
    """Number of steps completed by the time this launch is."""
    ends: float


class InFlightLaunches:
    """Steps and codec launches in flight, oldest first."""

    def __init__(self, cost: SpeechCost) -> None:
        self._cost = cost
        self.steps: deque[StepLaunch] = deque()
        self.sounds: deque[CodecLaunch] = deque()
        self._steps_taken = 0
        self._last_taken = 0.0
        self._pace = 1.0
        self.busy_until = 0.0
        """When all launched steps should be done, in s."""

    @property
    def may_decode(self) -> bool:
        return len(self.sounds) < AHEAD

    def step_at(self) -> float | None:
        """Returns when to launch the next step, in s; None while too many are in flight."""
        if len(self.steps) >= AHEAD:
            return None
        streams = len(self.steps[-1].steps) if self.steps else 0
        ms = self._cost.launch_ms + streams * self._cost.launch_stream_ms
        return self.busy_until - ms / 1000

    def sound_at(self, now: float, step_ms: float) -> float:
        """Returns when the first frame of a step launched now should be audible, in s."""
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
        self.steps.append(StepLaunch(result, steps, segments, spent, now, ms))
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
        self.sounds.append(CodecLaunch(result, pieces, after, begins + ms / 1000))

    def next_step(self, now: float) -> StepLaunch | None:
        """Returns and removes the oldest step if it is done."""
        if not self.steps or not self.steps[0].result.ready():
            return None
        launch = self.steps.popleft()
        self._steps_taken += 1
        took = (now - max(launch.launched, self._last_taken)) * 1000 / launch.ms
        self._pace += PACE_SHARE * (min(SLOWEST, max(FASTEST, took)) - self._pace)
        self._last_taken = now
        self.busy_until = now + sum(self._pace * f.ms for f in self.steps) / 1000
        return launch

    def next_sound(self) -> CodecLaunch | None:
        """Returns and removes the oldest codec launch if it and all steps before it are done."""
        if not self.sounds or self.sounds[0].after > self._steps_taken:
            return None
        return self.sounds.popleft() if self.sounds[0].result.ready() else None

    def next_check(self, now: float) -> float | None:
        """Returns when to poll next, in s; None if nothing is in flight."""
        ends = []
        if self.steps:
            first = self.steps[0]
            ends.append(max(first.launched, self._last_taken) + self._pace * first.ms / 1000)
        if self.sounds and self.sounds[0].after <= self._steps_taken:
            ends.append(self.sounds[0].ends)
        return min((_later(end, now) for end in ends), default=None)


def _later(end: float, now: float) -> float:
    return end if end > now else now + max(POLL, (now - end) / 4)
