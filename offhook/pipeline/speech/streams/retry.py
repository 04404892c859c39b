"""What came to nothing, and whether and when it is tried again."""

import math

from offhook.pipeline.speech.recognizer import EngineError, EngineFault, NotPossible

RETRY_S = 0.1
RETRY_MAX_S = 5.0
"""The pause before a request is tried again: twice as long each time, and as long as it is told."""


class AttemptFailed(Exception):
    """Something asked for came to nothing; the message says why."""

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
        """The same request fails again."""
        self.after_s = after_s
        """So long the server asks us to wait."""
        self.status = status
        """Of the answer; 0 when there was none."""
        self.fault = fault

    def as_error(self, words: str, demands: str) -> EngineError:
        """For whoever asked for speech. `words`: for whoever runs us; `demands`: what was asked of
        the engine beyond the usual, which is what a server refuses that takes other requests."""
        if self.status in (400, 422) and demands:
            return NotPossible(f"the speech engine refused a request for {demands}")
        return EngineError(words, self.fault)


class RetryPolicy:
    """Pauses between tries of one thing: `first_s`, then twice as long each time, `max_s` at most;
    and when to give it up. `now` in seconds of one clock."""

    def __init__(
        self, give_up_s: float = math.inf, first_s: float = RETRY_S, max_s: float = RETRY_MAX_S
    ) -> None:
        self._give_up_s, self._first_s, self._max_s = give_up_s, first_s, max_s
        self.reset()

    def reset(self) -> None:
        """It succeeded: the next failure is a first one."""
        self._pause = self._first_s
        self._until: float | None = None

    def next_s(self) -> float:
        """How long to wait after one more failure, of what is never given up."""
        pause = self._pause
        self._pause = min(2 * pause, self._max_s)
        return pause

    def pause_s(self, failed: AttemptFailed, now: float) -> float | None:
        """How long to wait before it is tried again; None: never."""
        if self._until is None:
            self._until = now + self._give_up_s
        pause = max(self.next_s(), failed.after_s)
        return None if failed.hopeless or now + pause > self._until else pause
