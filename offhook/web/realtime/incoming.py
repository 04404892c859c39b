"""An incoming call that a program accepts or rejects: its states as a table.

    RINGING    the program accepts it        → ACCEPTED
    RINGING    the program rejects it        → REJECTED
    RINGING    nobody decides in time        → EXPIRED
    RINGING    the webhook is not delivered  → EXPIRED
    RINGING    the caller hangs up           → CANCELLED

The other states are final: webhooks are delivered at least once, so a program may decide twice, and
the first decision counts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

DECLINED = 603
"""Default SIP status of a rejected call, and that of a call that nobody accepts."""


class IncomingState(Enum):
    RINGING = "ringing"
    ACCEPTED = "accepted"
    REJECTED = "rejected"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


class IncomingEvent(Enum):
    ACCEPT = "accept"
    REJECT = "reject"
    TIMEOUT = "timeout"
    UNDELIVERED = "undelivered"
    CANCEL = "cancel"


S, E = IncomingState, IncomingEvent
TABLE: Mapping[tuple[IncomingState, IncomingEvent], IncomingState] = {
    (S.RINGING, E.ACCEPT): S.ACCEPTED,
    (S.RINGING, E.REJECT): S.REJECTED,
    (S.RINGING, E.TIMEOUT): S.EXPIRED,
    (S.RINGING, E.UNDELIVERED): S.EXPIRED,
    (S.RINGING, E.CANCEL): S.CANCELLED,
}


@dataclass
class IncomingCall:
    """A call on which a program decides."""

    state: IncomingState = IncomingState.RINGING
    session: Mapping[str, Any] | None = None
    """The session object with which it was accepted."""
    status: int = DECLINED
    """The SIP status with which it is rejected."""

    def apply(self, event: IncomingEvent) -> bool:
        """Applies an event; returns whether it changed the state."""
        after = TABLE.get((self.state, event))
        if after is None:
            return False
        self.state = after
        return True
