"""Failed attempts, and whether and when to retry them."""

import math

from offhook.pipeline.speech.recognizer import EngineError, EngineFault, UnsupportedRequest

RETRY_S = 0.1
RETRY_MAX_S = 5.0
"""Maximum pause in s between retries, unless the server asks for more; pauses double each time."""


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


class RetryPolicy:
    """Pauses between retries: `first_s`, doubling up to `max_s`, and a time to give up. `now` is in
    s of one monotonic clock."""

    def __init__(
        self, give_up_s: float = math.inf, first_s: float = RETRY_S, max_s: float = RETRY_MAX_S
    ) -> None:
        self._give_up_s, self._first_s, self._max_s = give_up_s, first_s, max_s
        self.reset()

    def reset(self) -> None:
        """Resets the pauses after a success."""
        self._pause = self._first_s
        self._until: float | None = None

    def next_s(self) -> float:
        """Returns the pause in s after another failure, for something that is never given up."""
        pause = self._pause
        self._pause = min(2 * pause, self._max_s)
        return pause

    def pause_s(self, failed: AttemptFailed, now: float) -> float | None:
        """Returns the pause in s before the next attempt, or None to give up."""
        if self._until is None:
            self._until = now + self._give_up_s
        pause = max(self.next_s(), failed.after_s)
        return None if failed.hopeless or now + pause > self._until else pause
