"""Reasons why a call is refused."""

from typing import Any, Literal

RETRY_AFTER_S = 10
"""Retry-After in s of a refused call."""

Reason = Literal["full", "connecting", "late", "busy", "loading", "draining"]
"""Refusal reasons as counted by the metrics; `late` and `busy` mean overload: packets of calls in
progress leave late, or the event loop has no time left for another call."""

WORDS: dict[Reason, tuple[str, str]] = {
    "full": ("full", "all lines are busy"),
    "connecting": ("connecting", "too many callers are being connected"),
    "late": ("overloaded", "the server is overloaded: one more call would harm all others"),
    "busy": ("overloaded", "the server is overloaded: one more call would harm all others"),
    "loading": ("loading", "the server is starting: its speech engines are being loaded"),
    "draining": ("draining", "the server is shutting down and takes no more calls"),
}
"""Error code and message of each reason."""


class Busy(Exception):
    """Raised when no more calls are accepted at present."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason

    @property
    def code(self) -> str:
        """The reason as clients get it."""
        return WORDS[self.reason][0]

    @property
    def sentence(self) -> str:
        """The reason in words."""
        return WORDS[self.reason][1]

    def as_dict(self) -> dict[str, Any]:
        """The body of a 503."""
        return {"error": self.sentence, "reason": self.code}


class NoPhones(Exception):
    """Raised when the configuration has no phones."""
