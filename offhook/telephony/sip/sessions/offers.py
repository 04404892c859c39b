"""The offer/answer exchange of a call: whose offer is open, and which message answers it (RFC 3264
§4, RFC 6337 §2). One offer is open at a time, whoever made it.

The message that carries an offer says which one carries its answer:

    INVITE                2xx, or a reliable 18x before it     (RFC 3261 §13.2.1, RFC 3262 §5)
    reliable 18x          PRACK
    2xx                   ACK
    PRACK                 2xx to the PRACK
    re-INVITE, UPDATE     2xx
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto

from offhook.telephony.sip.messages.message import Response
from offhook.telephony.sip.sessions.session_events import (
    AnswerReceived,
    OfferReceived,
    OfferRefused,
    SessionEvent,
)
from offhook.telephony.sip.transactions.transaction import ServerTransaction

DECISION_S = 20.0
"""Time from the far end's offer to our answer; the far end waits for 32 s."""


class Place(Enum):
    """The message that carries an offer."""

    INVITE = auto()
    PROVISIONAL = auto()
    SUCCESS = auto()
    PRACK = auto()
    REINVITE = auto()
    UPDATE = auto()


@dataclass(frozen=True, slots=True)
class RemoteOffer:
    """The far end's offer, not yet answered."""

    place: Place
    sdp: str | None = field(repr=False)
    """None for a re-INVITE that asks for our offer."""
    deadline: float | None = None
    """When it is rejected if unanswered."""
    transaction: ServerTransaction | None = None
    """Transaction of the request that carries it."""
    response: Response | None = None
    """The reliable 18x that carries it; our answer goes into the PRACK."""


@dataclass(frozen=True, slots=True)
class PendingOffer:
    """An offer of ours that cannot be sent yet."""

    sdp: str = field(repr=False)
    not_before: float | None = None
    """When it may be sent after glare; None: as soon as no other offer is open."""
    retried: bool = False
    """It has met glare (491) once."""


class Offers:
    """The state of the offer/answer exchange. `emit` receives events for the session's owner."""

    def __init__(self, in_invite: bool, emit: Callable[[SessionEvent], None]) -> None:
        self.in_invite = in_invite
        """Whether the initial INVITE carries an offer."""
        self.agreed = False
        """At least one offer has been answered."""
        self.ours: Place | None = None
        """The message that carried our unanswered offer."""
        self.theirs: RemoteOffer | None = None
        self.pending: PendingOffer | None = None
        self._emit = emit

    @property
    def open(self) -> bool:
        """Whether an offer is unanswered, or one of ours waits to be sent."""
        return bool(self.ours or self.theirs or self.pending)

    def restart(self) -> None:
        """Start over for a resent INVITE: nothing negotiated with earlier branches counts."""
        self.ours = Place.INVITE if self.in_invite else None
        self.theirs, self.agreed = None, False

    def complete(self) -> None:
        """Mark the open offer as answered."""
        self.ours, self.theirs, self.agreed = None, None, True

    def receive_offer(
        self,
        place: Place,
        sdp: str | None,
        now: float,
        transaction: ServerTransaction | None = None,
        response: Response | None = None,
    ) -> None:
        """Open the far end's offer. A pending one of ours was made without knowledge of it, and is
        rejected."""
        if self.pending is not None:
            self.pending = None
            self._emit(OfferRefused(491, "the far end made an offer first"))
        deadline = now + DECISION_S
        self.theirs = RemoteOffer(place, sdp, deadline, transaction, response)
        self._emit(OfferReceived(sdp))

    def receive_answer(self, sdp: str | None) -> None:
        """Close our offer with the answer received; None if its message had no SDP."""
        self.ours = None
        if sdp is not None:
            self._emit(AnswerReceived(sdp))
        else:
            self._emit(OfferRefused(488, "the far end did not answer the offer"))
