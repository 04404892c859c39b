"""Why a call is not taken."""

from typing import Any, Literal

RETRY_AFTER_S = 10
"""When a caller may try again who was told that no call is taken now."""

Reason = Literal["full", "connecting", "late", "busy", "loading", "draining"]
"""Of a refusal, as the metrics count them: `late` and `busy` are a server that has no time left,
one seen at its packets and one at its event loop."""

WORDS: dict[Reason, tuple[str, str]] = {
    "full": ("full", "all lines are busy"),
    "connecting": ("connecting", "too many callers are being connected"),
    "late": ("overloaded", "the server is overloaded: one more call would harm all others"),
    "busy": ("overloaded", "the server is overloaded: one more call would harm all others"),
    "loading": ("loading", "the server is starting: its speech engines are being loaded"),
    "draining": ("draining", "the server is shutting down and takes no more calls"),
}
"""What callers are told: a word for programs and a sentence for people."""


class Busy(Exception):
    """No more calls now."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason

    def as_dict(self) -> dict[str, Any]:
        """The body of a 503."""
        reason, sentence = WORDS[self.reason]
        return {"error": sentence, "reason": reason}


class NoPhones(Exception):
    """The configuration has none."""
