"""Offers that have no answer yet (RFC 3264 §4), and where one may stand.

What an offer is in says where its answer belongs:

    INVITE                2xx, or a reliable 18x before it     (RFC 3261 §13.2.1, RFC 3262 §5)
    reliable 18x          PRACK
    2xx                   ACK
    PRACK                 2xx to the PRACK
    re-INVITE, UPDATE     2xx
"""

from dataclasses import dataclass, field
from enum import Enum, auto

from offhook.telephony.sip.messages.message import Response
from offhook.telephony.sip.transactions.transaction import ServerTransaction


class Place(Enum):
    """What an offer is in."""

    INVITE = auto()
    PROVISIONAL = auto()
    SUCCESS = auto()
    PRACK = auto()
    REINVITE = auto()
    UPDATE = auto()


@dataclass(frozen=True, slots=True)
class TheirOffer:
    """It waits for our answer."""

    place: Place
    sdp: str | None = field(repr=False)
    """None: a re-INVITE that asks for our offer."""
    until: float | None = None
    """When we have to have answered."""
    transaction: ServerTransaction | None = None
    """Of what is to be answered, where that is a request."""
    response: Response | None = None
    """The 18x to be acknowledged with the answer."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """An offer of ours that cannot be sent yet."""

    sdp: str = field(repr=False)
    since: float | None = None
    """Not before then; None: as soon as it may."""
    again: bool = False
    """It met one of theirs before."""
