"""Answers to webhooks, for those that come again: a retry must not make a second call.

Providers repeat a webhook whose answer they have not got. They sign it anew, or send it as it was,
which anybody can who has read it. Either way the request says the same, and gets the answer that
the first got, while that can be of use.
"""

import hashlib
from typing import Generic, TypeVar

from offhook.telephony.carriers.auth.signatures import MAX_SEEN
from offhook.telephony.carriers.auth.tickets import TICKET_LIFETIME_S

REPEAT_S = TICKET_LIFETIME_S
"""Seconds for which an answer is repeated: as long as the ticket in it is good. After that the same
webhook is a new one if it is signed anew, and refused if it is not."""

T = TypeVar("T")


def content_key(target: str, body: bytes) -> bytes:
    """Return what two requests have in common that say the same: path, query and body."""
    return hashlib.sha256(target.encode(errors="surrogatepass") + b"\n" + body).digest()


class Answers(Generic[T]):
    """The latest answers of one carrier's webhooks, at most MAX_SEEN; the oldest are dropped. `now`
    is monotonic seconds."""

    def __init__(self) -> None:
        self._answers: dict[bytes, tuple[float, T]] = {}

    def get(self, key: bytes, now: float) -> T | None:
        """Return the answer to a request with this content, None if there is none."""
        self._expire(now)
        found = self._answers.get(key)
        return found[1] if found is not None else None

    def add(self, key: bytes, now: float, answer: T) -> None:
        self._answers.pop(key, None)
        self._answers[key] = now + REPEAT_S, answer
        while len(self._answers) > MAX_SEEN:
            del self._answers[next(iter(self._answers))]

    def _expire(self, now: float) -> None:
        while self._answers:
            oldest = next(iter(self._answers))
            if self._answers[oldest][0] > now:
                return
            del self._answers[oldest]
