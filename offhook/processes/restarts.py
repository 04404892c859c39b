"""When to start a process again that has ended."""

import math
import random
from collections.abc import Mapping
from typing import Literal

SPREAD_S = 0.1
"""Random addition of up to this many s to the pause before a restart, so that processes that have
ended together do not start at the same moment."""
PAUSE_MAX_S = 5.0
"""Maximum pause in s before a restart, where nothing else is set."""


class Backoff:
    """Pauses between attempts: `first_s`, doubling up to `max_s`, each with up to `spread_s` of
    chance added."""

    def __init__(self, first_s: float, max_s: float, spread_s: float = 0.0) -> None:
        self._first_s, self._max_s, self._spread_s = first_s, max_s, spread_s
        self.reset()

    def reset(self) -> None:
        """Resets the pauses after a success."""
        self._pause = self._first_s

    def next_s(self) -> float:
        """Returns the pause in s after another failure, for something that is never given up."""
        pause = self._pause
        self._pause = min(2 * pause, self._max_s)
        return pause + random.uniform(0.0, self._spread_s)


Condition = Literal["steady", "crashing"]
"""A process is `crashing` while crashes count that it has had before."""
Ending = Literal["crash", "one too many", "fault"]
"""After a `fault` the next process would end in the same way."""
Action = Literal["first pause", "longer pause", "give up"]

TABLE: Mapping[tuple[Condition, Ending], tuple[Action, Condition]] = {
    ("steady", "crash"): ("first pause", "crashing"),
    ("steady", "fault"): ("give up", "steady"),
    ("crashing", "crash"): ("longer pause", "crashing"),
    ("crashing", "one too many"): ("give up", "steady"),
    ("crashing", "fault"): ("give up", "steady"),
}
"""What follows an end: the action, and the condition of the next process, which is `steady` again
once the last crash no longer counts."""


class Restarts:
    """The restarts of one process. Times are in s of one monotonic clock."""

    def __init__(
        self,
        first_s: float,
        window_s: float,
        max_crashes: float = math.inf,
        max_s: float = PAUSE_MAX_S,
    ) -> None:
        """Pauses are `first_s`, doubling up to `max_s`, and up to SPREAD_S more. A crash counts
        until `window_s` after the restart that follows it; `max_crashes`, at least 2, are one too
        many."""
        self._pauses = Backoff(first_s, max_s, SPREAD_S)
        self._window_s, self._max_crashes = window_s, max_crashes
        self._counting: list[float] = []
        """Until when each crash counts."""

    def next_s(self, now: float, *, fault: bool = False) -> float:
        """Returns the pause in s before the process that has ended is started again; infinite: it
        is given up."""
        self._counting = [until for until in self._counting if until > now]
        before: Condition = "crashing" if self._counting else "steady"
        too_many = len(self._counting) + 1 >= self._max_crashes
        ending: Ending = "fault" if fault else "one too many" if too_many else "crash"
        action, after = TABLE[before, ending]
        if after == "steady":
            self._counting.clear()
        if action == "give up":
            return math.inf
        if action == "first pause":
            self._pauses.reset()
        pause = self._pauses.next_s()
        self._counting.append(now + pause + self._window_s)
        return pause
