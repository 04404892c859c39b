"""Tickets: a verified webhook admits one stream.

Most providers sign the webhook that asks what to do with a call, but not the WebSocket they then
open. So the webhook's response names a secret URL that works once, for a minute.
"""

import hashlib
import secrets
from typing import Generic, TypeVar

from offhook.telephony.carriers.auth.signatures import Rejected

TICKET_LIFETIME_S = 60
"""Seconds from the webhook's response until the stream must have connected."""
MAX_TICKETS = 10_000
"""Calls that may wait for their stream at once; beyond that further calls are refused as if all
lines were busy."""

_TICKET_BYTES = 24

T = TypeVar("T")


class Tickets(Generic[T]):
    """Values of the calls whose streams are expected, each redeemable once by its ticket."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, tuple[float, T]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def issue(self, now: float, about: T, seconds: float = TICKET_LIFETIME_S) -> str:
        """Return a ticket, usable in a URL path and valid for `seconds`. `now` is in seconds of a
        monotonic clock. Raises Rejected if too many tickets are outstanding."""
        self._expire(now)
        if len(self._waiting) >= MAX_TICKETS:
            raise Rejected(f"{MAX_TICKETS} calls are waiting for their streams")
        ticket = secrets.token_urlsafe(_TICKET_BYTES)
        self._waiting[_key(ticket)] = (now + seconds, about)
        return ticket

    def redeem(self, ticket: str, now: float) -> T:
        """Return what the ticket was issued for. Raises Rejected if it is not valid."""
        self._expire(now)
        found = self._waiting.pop(_key(ticket), None)
        if found is None:
            raise Rejected("the ticket is unknown, used or expired")
        return found[1]

    def _expire(self, now: float) -> None:
        for key in [key for key, (until, _) in self._waiting.items() if until <= now]:
            del self._waiting[key]


def _key(ticket: str) -> bytes:
    # Hashed, so that look-up time reveals nothing about the tickets stored.
    return hashlib.sha256(ticket.encode(errors="surrogatepass")).digest()
