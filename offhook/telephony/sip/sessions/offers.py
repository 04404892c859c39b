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
"""From an offer of the far end to our answer; the far end waits for 32 s."""


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
    """An offer of the far end that we have not answered yet."""

    place: Place
    sdp: str | None = field(repr=False)
    """None: a re-INVITE that asks for our offer."""
    deadline: float | None = None
    """When it is refused for want of an answer."""
    transaction: ServerTransaction | None = None
    """The transaction of the request that carries it."""
    response: Response | None = None
    """The reliable 18x that carries it; our answer goes into the PRACK."""


@dataclass(frozen=True, slots=True)
class PendingOffer:
    """An offer of ours that cannot be sent yet."""

    sdp: str = field(repr=False)
    not_before: float | None = None
    """When it may be sent after glare; None: as soon as no other offer is open."""
    retried: bool = False
    """It has met an offer of the far end (491) once."""


class Offers:
    """The state of the exchange. `emit` is given what the owner of the session must know."""

    def __init__(self, in_invite: bool, emit: Callable[[SessionEvent], None]) -> None:
        self.in_invite = in_invite
        """The INVITE that makes the call carries an offer."""
        self.agreed = False
        """At least one offer has been answered."""
        self.ours: Place | None = None
        """The message that carried our unanswered offer."""
        self.theirs: RemoteOffer | None = None
        self.pending: PendingOffer | None = None
        self._emit = emit

    @property
    def open(self) -> bool:
        """An offer is unanswered, or one of ours waits to be sent."""
        return bool(self.ours or self.theirs or self.pending)

    def restart(self) -> None:
        """The INVITE is sent anew: nothing agreed with whoever rang before counts."""
        self.ours = Place.INVITE if self.in_invite else None
        self.theirs, self.agreed = None, False

    def complete(self) -> None:
        """The open offer has been answered."""
        self.ours, self.theirs, self.agreed = None, None, True

    def receive_offer(
        self,
        place: Place,
        sdp: str | None,
        now: float,
        transaction: ServerTransaction | None = None,
        response: Response | None = None,
    ) -> None:
        """Open an offer of the far end. A pending one of ours was made before it and may not fit
        it: that one is refused."""
        if self.pending is not None:
            self.pending = None
            self._emit(OfferRefused(491, "the far end made an offer first"))
        deadline = now + DECISION_S
        self.theirs = RemoteOffer(place, sdp, deadline, transaction, response)
        self._emit(OfferReceived(sdp))

    def receive_answer(self, sdp: str | None) -> None:
        """Close our offer with what came where its answer belongs; None: there was no SDP."""
        self.ours = None
        if sdp is not None:
            self._emit(AnswerReceived(sdp))
        else:
            self._emit(OfferRefused(488, "the far end gave no answer to the offer"))
