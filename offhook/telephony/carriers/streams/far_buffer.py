"""A model of how far a carrier has played what it was sent.

Audio is sent ahead of time into a buffer at the carrier, which plays it by its own clock. Its
position is known only from marks that come back, each half a round trip old. What is needed is the
carrier's position when a `clear` sent now arrives: a whole round trip beyond the mark. All
positions here are of this kind.

The carrier cannot be ahead of a clock started when the first audio was sent. It may lag: it started
late, or its buffer ran empty because the network stalled. The lag is

    time from the clock passing a mark until the mark comes back, minus the round trip

and the round trip is measured by a mark sent into the empty buffer just before audio, which comes
back at once. An overdue mark reveals a lag before it arrives. Jitter only ever delays marks, so the
lag is at most what the last mark shows, unless the buffer has run empty since; whether it is that
large, the next marks show.

Times are monotonic seconds, positions are samples of `Playout.sent`.
"""

from collections import deque
from typing import NamedTuple

from offhook.media.pcm import PACKET_MS, RATE_OUT, SAMPLES_OUT

TOLERANCE = RATE_OUT * 40 // 1000
"""Samples, 40 ms: a single mark that is late by less may be due to network jitter."""
STEADY_MARKS = 3
"""This many marks in a row that are late by less are not chance."""
ROUND_TRIPS_KEPT = 4
"""Round trips remembered; the shortest counts."""
START_LAGS_KEPT = 4
"""Flows of audio whose starting lag is remembered; the smallest counts."""
MAX_START_LAG = RATE_OUT * 200 // 1000
"""Largest delay in samples (200 ms) of a carrier's start that is learned, as carriers start sooner:
a longer one is a network stall, and counts as this much."""
MAX_PENDING = 64
"""Outstanding marks, 6 s of them; the oldest are forgotten."""
MAX_HELD_TICKS = 2_000 // PACKET_MS
"""Time in ticks, 2 s, by which a mark may be overdue; it is not waited for any longer, and only the
clock counts."""


class _Mark(NamedTuple):
    name: str
    position: int
    sent_at: float
    probe: bool
    """Whether it was sent into an empty buffer."""


class FarBuffer:
    """The model of the carrier's buffer. Sans-io."""

    def __init__(self) -> None:
        self._generation = 0
        """Number of the flow of audio; marks of earlier ones come back too and are ignored."""
        self._origin = 0
        self._started_at = 0.0
        self._ticks = 0
        """Ticks since audio began to flow at `_origin`."""
        self._pending: deque[_Mark] = deque(maxlen=MAX_PENDING)
        self._round_trips: deque[int] = deque(maxlen=ROUND_TRIPS_KEPT)
        """Round trips, in samples."""
        self._round_trip: int | None = None
        """The shortest of them."""
        self._lag = 0
        """Samples the carrier lags behind the clock..."""
        self._min_lag = 0
        """...and the minimum, from times it had nothing to play."""
        self._start_lags: deque[int] = deque(maxlen=START_LAGS_KEPT)
        self.assumed_lag = 0
        """Lag assumed at the start of this flow until a mark shows it."""
        self._marks_measured = 0
        """Marks that came back in this flow."""
        self._lags: deque[int] = deque(maxlen=STEADY_MARKS)
        self._held = 0
        """Consecutive ticks in which nothing was counted as played."""

    @property
    def pending(self) -> bool:
        """Whether a mark has not come back yet."""
        return bool(self._pending)

    @property
    def round_trip_ms(self) -> float | None:
        return None if self._round_trip is None else self._round_trip * 1000 / RATE_OUT

    def start(self, position: int, now: float) -> None:
        """Begin a flow of audio at `position`, into an empty buffer."""
        self._generation += 1
        self._origin, self._started_at, self._ticks = position, now, 0
        self._pending.clear()
        self._lags.clear()
        self._lag = self.assumed_lag = min(self._start_lags, default=0)
        self._min_lag = self._marks_measured = self._held = 0

    def mark(self, position: int, now: float) -> str:
        """Return the name of a mark sent now, after the audio up to `position`."""
        name = f"{self._generation}.{position}"
        self._pending.append(_Mark(name, position, now, position == self._origin))
        return name

    def played(self, name: str, now: float) -> None:
        """Process a mark that came back. Unexpected names, e.g. of cleared marks, are ignored."""
        if all(mark.name != name for mark in self._pending):
            return
        while (mark := self._pending.popleft()).name != name:
            pass
        if mark.probe:
            self._record_round_trip(int((now - mark.sent_at) * RATE_OUT))
        else:
            self._measure(max(0, self.clock(now) - mark.position))

    def _record_round_trip(self, round_trip: int) -> int:
        """Record a round trip. Returns the shortest of the last ones."""
        self._round_trips.append(round_trip)
        self._round_trip = min(self._round_trips)
        return self._round_trip

    def _measure(self, delay: int) -> None:
        """Update the lag by a mark that came back `delay` samples after the clock passed it."""
        round_trip = self._round_trip
        if round_trip is None or delay < round_trip:
            round_trip = self._record_round_trip(delay)
        late = delay - round_trip
        if late > self._lag + TOLERANCE:
            self._lags.clear()
        self._lags.append(late)
        if len(self._lags) == STEADY_MARKS or late > self._lag + TOLERANCE or late < self._lag:
            self._lag = max(min(self._lags), self._min_lag)
        self.assumed_lag = 0
        self._marks_measured += 1
        if self._marks_measured == STEADY_MARKS:
            self._start_lags.append(min(self._lag, MAX_START_LAG))

    def clock(self, now: float) -> int:
        """The carrier's position if it never lagged."""
        return self._origin + int((now - self._started_at) * RATE_OUT)

    def assumed_start_lag(self, counted: int) -> int:
        """Samples not counted as played only because of the assumed starting lag. They are sent all
        the same: the carrier may be waiting for just that much audio."""
        return min(self.assumed_lag, self._origin + self._ticks * SAMPLES_OUT - counted)

    def due(self, now: float, counted: int, sent: int) -> int:
        """Advance by 20 ms while audio flows. Returns how many packets, 0 to 2, to count as played,
        given that samples up to `counted` were counted and up to `sent` were sent."""
        self._ticks += 1
        behind = self._origin + (self._ticks - 1) * SAMPLES_OUT - counted
        """Samples we lag behind the clock if one packet is counted."""
        clock = self._origin + int((now - self._started_at) * RATE_OUT)  # as `clock` has it
        if clock - sent > self._min_lag:
            self._min_lag = clock - sent
            self._lag = max(self._lag, self._min_lag)
        if self._round_trip is not None and self._pending and not self._pending[0].probe:
            late = clock - self._pending[0].position - self._round_trip
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
        self._round_trips.clear()
        self._round_trip = None
        self._lags.clear()
        self._lag, self._held = behind, 0
        return 1

    def cut(self) -> None:
        """Forget the outstanding marks: what was sent ahead has been cleared."""
        self._pending.clear()
