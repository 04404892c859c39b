"""Tickets: a webhook that was verified lets one stream in.

Most providers sign the webhook that asks what to do with a call, but not the socket they open
then. So the answer names a URL that nobody else knows and that works once, for a minute.
"""

import hashlib
import secrets
from typing import Generic, TypeVar

from offhook.telephony.carriers.auth.signatures import Refused

TICKET_S = 60
"""s from the webhook's answer until the stream must be there."""
MAX_TICKETS = 10_000
"""Calls that wait for their stream at a time; above it webhooks are refused."""

_TICKET_BYTES = 24

T = TypeVar("T")


class Tickets(Generic[T]):
    """What is known of each call whose stream is expected, by a ticket that works once."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, tuple[float, T]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def issue(self, now: float, about: T, seconds: float = TICKET_S) -> str:
        """A ticket, made of characters that a path may have, good for so many `seconds`. `now` in
        s, of any clock that does not go back. Refused when too many are out."""
        self._forget(now)
        if len(self._waiting) >= MAX_TICKETS:
            raise Refused(f"{MAX_TICKETS} calls are waiting for their streams")
        ticket = secrets.token_urlsafe(_TICKET_BYTES)
        self._waiting[_key(ticket)] = (now + seconds, about)
        return ticket

    def redeem(self, ticket: str, now: float) -> T:
        """What it was issued for. Refused when it never was, was used, or is too old."""
        self._forget(now)
        found = self._waiting.pop(_key(ticket), None)
        if found is None:
            raise Refused("the ticket is not known, was used or is too old")
        return found[1]

    def _forget(self, now: float) -> None:
        for key in [key for key, (until, _) in self._waiting.items() if until <= now]:
            del self._waiting[key]


def _key(ticket: str) -> bytes:
    # Hashed, so that the time of looking one up tells nothing about those that are there.
    return hashlib.sha256(ticket.encode(errors="surrogatepass")).digest()
