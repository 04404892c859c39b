"""Failed attempts and lost workers, and whether and when to try again.

Losses in quick succession are mostly not the fault of the work: a balancer that changes its mind
cuts every stream several times within a second. So work is given up only after MAX_LOSSES and after
LOSSES_S. But input that crashes its worker would take all other streams of it along each time: from
SUSPECT_LOSSES on it is tried again one at a time (`Quarantine`), and after MAX_LOSSES only once
more, when LOSSES_S are over.
"""

import math

from offhook.pipeline.speech.errors import EngineError, EngineFault, UnsupportedRequest
from offhook.processes.restarts import Backoff

RETRY_S = 0.1
"""Pause in s before the first retry; it doubles with each further one up to RETRY_MAX_S."""
RETRY_MAX_S = 5.0
"""Maximum pause in s between retries, at which it stays, unless the server asks for more."""
SPREAD_S = 0.1
"""Random addition of up to this many s to the pause before a reconnection, so that all who lost the
same server do not return at the same moment."""
MAX_LOSSES = 3
"""Losses after which an utterance or word is given up, once LOSSES_S are over as well."""
LOSSES_S = 10.0
"""Time in s since the first loss before which work is not given up."""
SUSPECT_LOSSES = 2
"""Losses from which on the work itself is suspected."""


class AttemptFailed(Exception):
    """Raised when a request fails; the message says why."""

    def __init__(
        self,
        words: str,
        *,
        hopeless: bool = False,
        after_s: float = 0.0,
        status: int = 0,
        fault: EngineFault = "failed",
    ) -> None:
        super().__init__(words)
        self.hopeless = hopeless
        """Whether a retry would fail again."""
        self.after_s = after_s
        """Delay in s that the server asks for."""
        self.status = status
        """HTTP status of the response; 0 if there was none."""
        self.fault = fault

    def as_error(self, words: str, demands: str) -> EngineError:
        """Converts the failure to an EngineError. `words` is for the operator; `demands` describes
        the special requirements of the request, which are blamed if the server rejects it."""
        if self.status in (400, 422) and demands:
            return UnsupportedRequest(f"the speech engine refused a request for {demands}")
        return EngineError(words, self.fault)


class RetryPolicy(Backoff):
    """Pauses between retries, and a time to give up. `now` is in s of one monotonic clock."""

    def __init__(
        self,
        give_up_s: float = math.inf,
        first_s: float = RETRY_S,
        max_s: float = RETRY_MAX_S,
        spread_s: float = 0.0,
    ) -> None:
        super().__init__(first_s, max_s, spread_s)
        self._give_up_s = give_up_s

    def reset(self) -> None:
        """Resets the pauses, and the time to give up, after a success."""
        super().reset()
        self._until: float | None = None

    def pause_s(self, failed: AttemptFailed, now: float) -> float | None:
        """Returns the pause in s before the next attempt, or None to give up."""
        if self._until is None:
            self._until = now + self._give_up_s
        pause = max(self.next_s(), failed.after_s)
        return None if failed.hopeless or now + pause > self._until else pause


class Losses:
    """The losses of one utterance, or of one word to be spoken. Times are in s of one monotonic
    clock."""

    def __init__(self, most: int = MAX_LOSSES, within_s: float | None = None) -> None:
        """Work is given up after `most` losses and `within_s`; None: LOSSES_S."""
        self.count = 0
        self._most = most
        self._within_s = within_s
        self._first_at = 0.0
        self._workers: set[str] = set()

    def add(self, now: float, worker: str = "") -> None:
        """Records a loss of `worker`."""
        if not self.count:
            self._first_at = now
        self.count += 1
        self._workers.add(worker)

    def clear(self) -> None:
        """Forgets the losses, since the work goes on elsewhere."""
        self.count = 0
        self._workers.clear()

    @property
    def is_suspect(self) -> bool:
        """Whether the work may be what ends its workers."""
        return self.count >= SUSPECT_LOSSES

    def are_too_many(self, now: float, *, has_others: bool = False) -> bool:
        """Returns whether to give up; with `has_others`, not before two workers were lost."""
        if self.count < self._most or (has_others and len(self._workers) < 2):
            return False
        return self._left_s(now) <= 0

    def pause_s(self, now: float) -> float:
        """Returns the minimum time in s before the next attempt."""
        return max(0.0, self._left_s(now)) if self.count >= self._most else 0.0

    def _left_s(self, now: float) -> float:
        within_s = LOSSES_S if self._within_s is None else self._within_s
        return self._first_at + within_s - now
