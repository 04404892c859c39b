"""Decides when new calls are shed: while packets of existing calls leave so late that their callers
hear it, whatever the load of the machine. Sans-io."""

from enum import Enum

LATE_MS = 80
"""99th percentile of lateness in ms from which callers hear gaps: the adaptive jitter buffers of
phones and browsers grow to cover four packets, hardly more."""
IN_TIME_MS = 60
"""99th percentile in ms at which the packets leave in time again; a little below, so that calls are
not taken and shed by turns."""


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
    """Later than IN_TIME_MS, not than LATE_MS."""
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


def classify(calls: int, p99_ms: float) -> Lateness:
    """Classifies the 99th percentile of the packets' lateness over the last moments."""
    if not calls:
        return Lateness.NO_CALLS
    if p99_ms > LATE_MS:
        return Lateness.LATE
    return Lateness.BETWEEN if p99_ms > IN_TIME_MS else Lateness.IN_TIME


class Overload:
    """Whether new calls are shed."""

    def __init__(self) -> None:
        self.state = OverloadState.TAKING

    def update(self, calls: int, p99_ms: float) -> bool:
        """Takes in how late the packets of the `calls` in progress leave, and returns whether the
        state has changed."""
        before, self.state = self.state, TABLE[self.state, classify(calls, p99_ms)]
        return self.state is not before
