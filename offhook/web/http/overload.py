"""Decides when new calls are shed: while packets of existing calls leave so late that their callers
hear it, whatever the load of the machine. Sans-io."""

from enum import Enum

LATE_MS = 80.0
"""95th percentile of lateness in ms from which callers hear gaps: the adaptive jitter buffers of
phones and browsers grow to cover four packets, hardly more."""
IN_TIME = 0.75
"""Share of `max_lateness_ms` down to which lateness must fall before calls are accepted again; a
little below that limit, so that calls are not accepted and shed by turns."""


class OverloadState(Enum):
    TAKING = "taking"
    """New calls are taken, as far as this is concerned."""
    SHEDDING = "shedding"


class Lateness(Enum):
    """How late the packets leave, as callers hear it."""

    NO_CALLS = "no calls"
    """Nobody hears how late the process is."""
    IN_TIME = "in time"
    BETWEEN = "between"
    """Not late, and not in time again."""
    LATE = "late"


TABLE: dict[tuple[OverloadState, Lateness], OverloadState] = {
    (OverloadState.TAKING, Lateness.NO_CALLS): OverloadState.TAKING,
    (OverloadState.TAKING, Lateness.IN_TIME): OverloadState.TAKING,
    (OverloadState.TAKING, Lateness.BETWEEN): OverloadState.TAKING,
    (OverloadState.TAKING, Lateness.LATE): OverloadState.SHEDDING,
    (OverloadState.SHEDDING, Lateness.NO_CALLS): OverloadState.TAKING,
    (OverloadState.SHEDDING, Lateness.IN_TIME): OverloadState.TAKING,
    (OverloadState.SHEDDING, Lateness.BETWEEN): OverloadState.SHEDDING,
    (OverloadState.SHEDDING, Lateness.LATE): OverloadState.SHEDDING,
}


def classify(calls: int, late_ms: float, limit_ms: float = LATE_MS) -> Lateness:
    """Classifies the 95th percentile of the packets' lateness over the last moments: what exceeds
    `limit_ms` is late."""
    if not calls:
        return Lateness.NO_CALLS
    if late_ms > limit_ms:
        return Lateness.LATE
    return Lateness.BETWEEN if late_ms > IN_TIME * limit_ms else Lateness.IN_TIME


class Overload:
    """Whether new calls are shed."""

    def __init__(self, limit_ms: float = LATE_MS) -> None:
        """`limit_ms`: 95th percentile of the packets' lateness beyond which calls are shed."""
        self._limit_ms = limit_ms
        self.state = OverloadState.TAKING

    def update(self, calls: int, late_ms: float) -> bool:
        """Takes in how late the packets of the `calls` in progress leave, and returns whether the
        state has changed."""
        before, self.state = self.state, TABLE[self.state, classify(calls, late_ms, self._limit_ms)]
        return self.state is not before
