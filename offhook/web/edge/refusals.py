"""Reasons why a call is refused."""

from typing import Any

from offhook.web.http.metrics import Reason

RETRY_AFTER_S = 10
"""Retry-After in s of a refused call."""

WORDS: dict[Reason, tuple[str, str]] = {
    "full": ("full", "all lines are busy"),
    "tenant": ("tenant", "all lines of this customer are busy"),
    "foreign": ("foreign", "whoever is called belongs to another customer"),
    "connecting": (
        "connecting",
        "too many callers are being connected, or have not said anything yet: try again soon",
    ),
    "share": ("share", "this caller has all lines that one may have: close one of them"),
    "late": ("overloaded", "the server is overloaded: one more call would harm all others"),
    "busy": ("overloaded", "the server is overloaded: one more call would harm all others"),
    "ports": ("ports", "the server has no UDP port left for another call"),
    "loading": ("loading", "the server is starting: its speech engines are being loaded"),
    "draining": ("draining", "the server is shutting down and takes no more calls"),
}
"""Error code and message of each reason."""


STATUSES: dict[Reason, int] = {"share": 429, "foreign": 409}


class Busy(Exception):
    """Raised when no more calls are accepted at present."""

    def __init__(self, reason: Reason, sentence: str = "") -> None:
        """`sentence`: the reason in words, if it has particulars."""
        super().__init__(reason)
        self.reason = reason
        self.sentence = sentence or WORDS[reason][1]
        """The reason in words."""

    @property
    def code(self) -> str:
        """The reason as clients get it."""
        return WORDS[self.reason][0]

    @property
    def status(self) -> int:
        """Of HTTP: 429 if it is for what the caller has already, 409 if it never goes, 503 if for
        what others have."""
        return STATUSES.get(self.reason, 503)

    def as_dict(self) -> dict[str, Any]:
        """The body of a 429 or 503."""
        return {"error": self.sentence, "reason": self.code}


class NoPhones(Exception):
    """Raised when the configuration has no phones."""
