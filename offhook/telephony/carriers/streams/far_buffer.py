"""How far a carrier has played what it was sent.

Sound is sent ahead of time into a buffer at the carrier, which plays it by its own clock. Nothing
tells where it is now but marks that come back, and each of those tells where it was half a round
trip ago. What has to be known is where the carrier will be when a `clear` that is sent now reaches
it: as far beyond the mark as the whole round trip lasts. Positions here are always those.

The carrier cannot be faster than a clock that began when the first sound was sent. It may be
later: it began late, or its buffer ran dry because the network stood still. How late is

    time since the clock passed a mark, when that mark comes back, less the round trip

and the round trip is that of a mark sent into the empty buffer, just before sound: it comes back at
once. A mark that is overdue says as much before it comes. Jitter only ever makes marks late, so the
carrier is no later than the last mark says, unless it has played all it was sent since; whether it
is as late, the next marks show.

Times are monotonic seconds, positions are samples of `Playout.sent`.
"""

from collections import deque
from typing import NamedTuple

from offhook.media.pcm import PACKET_MS, RATE_OUT, SAMPLES_OUT

TOLERANCE = RATE_OUT * 40 // 1000
"""Samples, 40 ms: a single mark that is later by less may be so for the network's jitter."""
STEADY_MARKS = 3
"""So many marks in a row that are late by less are not late by chance."""
PATHS = 4
"""Round trips remembered; the shortest counts."""
FLOWS = 4
"""Flows of sound of which it is remembered how late the carrier began to play; the least counts."""
MAX_FIRST_LAG = RATE_OUT * 200 // 1000
"""Samples, 200 ms: no carrier waits for longer before it plays, it is the network that stood."""
MAX_PENDING = 64
"""Marks sent and not come back, 6 s of them; the oldest are forgotten."""
MAX_HELD_TICKS = 2_000 // PACKET_MS
"""2 s: marks that stay away for longer are not waited for, and the clock alone counts."""


class _Mark(NamedTuple):
    name: str
    position: int
    sent_at: float
    probe: bool
    """Sent into an empty buffer."""


class FarBuffer:
    """The carrier's buffer, as far as we can tell. Sans-io."""

    def __init__(self) -> None:
        self._generation = 0
        """Counts the flows of sound: marks that were cleared come back too, and say nothing."""
        self._origin = 0
        self._started_at = 0.0
        self._ticks = 0
        """Since the sound began to flow at `_origin`."""
        self._pending: deque[_Mark] = deque(maxlen=MAX_PENDING)
        self._paths: deque[int] = deque(maxlen=PATHS)
        """Round trips in samples."""
        self._path: int | None = None
        """The shortest of them."""
        self._lag = 0
        """Samples by which the carrier is behind the clock..."""
        self._least_lag = 0
        """...and at least is, having had nothing to play."""
        self._first_lags: deque[int] = deque(maxlen=FLOWS)
        self._habit = 0
        """How late it is taken to begin before a mark of this flow tells."""
        self._measured = 0
        """Marks that came back in this flow."""
        self._lags: deque[int] = deque(maxlen=STEADY_MARKS)
        self._held = 0
        """Ticks in a row in which nothing was counted as played."""

    @property
    def pending(self) -> bool:
        """A mark has not come back yet."""
        return bool(self._pending)

    @property
    def round_trip_ms(self) -> float | None:
        return None if self._path is None else self._path * 1000 / RATE_OUT

    def start(self, position: int, now: float) -> None:
        """Sound is about to flow from `position` on, into an empty buffer."""
        self._generation += 1
        self._origin, self._started_at, self._ticks = position, now, 0
        self._pending.clear()
        self._lags.clear()
        self._lag = self._habit = min(self._first_lags, default=0)
        self._least_lag = self._measured = self._held = 0

    def mark(self, position: int, now: float) -> str:
        """The name of a mark that is sent now, after the sound up to `position`."""
        name = f"{self._generation}.{position}"
        self._pending.append(_Mark(name, position, now, position == self._origin))
        return name

    def played(self, name: str, now: float) -> None:
        """A mark came back. Names that are not expected, as of marks cleared, say nothing."""
        if all(mark.name != name for mark in self._pending):
            return
        while (mark := self._pending.popleft()).name != name:
            pass
        if mark.probe:
            self._went(int((now - mark.sent_at) * RATE_OUT))
        else:
            self._measure(max(0, self.clock(now) - mark.position))

    def _went(self, path: int) -> int:
        """A round trip lasted this long: the shortest of the last."""
        self._paths.append(path)
        self._path = min(self._paths)
        return self._path

    def _measure(self, delay: int) -> None:
        """A mark came back `delay` samples after the clock passed it."""
        path = self._path
        if path is None or delay < path:
            path = self._went(delay)
        late = delay - path
        if late > self._lag + TOLERANCE:
            self._lags.clear()
        self._lags.append(late)
        if len(self._lags) == STEADY_MARKS or late > self._lag + TOLERANCE or late < self._lag:
            self._lag = max(min(self._lags), self._least_lag)
        self._habit = 0
        self._measured += 1
        if self._measured == STEADY_MARKS:
            self._first_lags.append(min(self._lag, MAX_FIRST_LAG))

    def clock(self, now: float) -> int:
        """Where the carrier would be were it never late."""
        return self._origin + int((now - self._started_at) * RATE_OUT)

    def held_by_habit(self, counted: int) -> int:
        """Samples not counted only because the carrier began late before. They are sent all the
        same: it may wait for just that much sound."""
        return min(self._habit, self._origin + self._ticks * SAMPLES_OUT - counted)

    def due(self, now: float, counted: int, sent: int) -> int:
        """20 ms pass while sound flows: how many packets of it, 0 to 2, are to be counted as
        played, where the samples up to `counted` are counted and those up to `sent` were sent."""
        self._ticks += 1
        behind = self._origin + (self._ticks - 1) * SAMPLES_OUT - counted
        """Samples by which we are behind the clock if one packet is counted."""
        clock = self.clock(now)
        if clock - sent > self._least_lag:
            self._least_lag = clock - sent
            self._lag = max(self._lag, self._least_lag)
        if self._path is not None and self._pending and not self._pending[0].probe:
            late = clock - self._pending[0].position - self._path
            if late > behind + TOLERANCE and late > self._lag:
                self._lag = late
                self._lags.clear()
        if self._lag - behind >= SAMPLES_OUT:
            return self._hold(behind)
        self._held = 0
        return 2 if behind - self._lag >= SAMPLES_OUT else 1

    def _hold(self, behind: int) -> int:
        self._held += 1
        if self._held <= MAX_HELD_TICKS:
            return 0
        self._pending.clear()
        self._paths.clear()
        self._path = None
        self._lags.clear()
        self._lag, self._held = behind, 0
        return 1

    def cut(self) -> None:
        """All that was sent ahead has been taken back."""
        self._pending.clear()
