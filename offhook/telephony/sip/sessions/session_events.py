"""What a session tells its owner, what it wants from the rest of SIP, and its settings.

Session descriptions stay out of every repr: they may have keys of the media in them (RFC 4568).
"""

from dataclasses import dataclass, field
from typing import Protocol

from offhook.telephony.call_record import EndedBy
from offhook.telephony.sip.messages.message import Request, Response
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.transactions.transaction import ClientTransaction, ServerTransaction


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """Times in seconds."""

    user_agent: str = "offhook"
    session_seconds: int = 1800
    """Between two refreshes at the longest (RFC 4028); 0 asks for none."""
    min_se: int = 90
    """The shortest such time we agree to; RFC 4028 §4 allows no less than 90."""
    reliable: bool = True
    """Provisional responses are acknowledged where the far end can (RFC 3262)."""
    ring_seconds: float = 60.0
    """How long a call may go unanswered, either way."""

    @property
    def supported(self) -> tuple[str, ...]:
        """Option tags of the extensions we speak."""
        return ("100rel", "timer", "replaces") if self.reliable else ("timer", "replaces")


@dataclass(frozen=True, slots=True)
class Progress:
    """The far end has answered provisionally; 180 is ringing."""

    status: int
    reason: str
    sdp: str | None = field(repr=False)
    """Early media: the answer to our offer, which Answered may yet replace. Not given again while
    it stays the same."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The far end has taken the call."""

    sdp: str | None = field(repr=False)
    """The answer to our offer; None when the one of a Progress stands. In a call that began without
    an offer of ours: their offer, which waits for `answer_offer`; None when it has been
    answered before."""


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The far end knows that we took the call."""

    sdp: str | None = field(repr=False)
    """Their answer where the offer was ours."""


@dataclass(frozen=True, slots=True)
class OfferReceived:
    """The far end wants to change the media: `answer_offer` or `refuse_offer`."""

    sdp: str | None = field(repr=False)
    """None: they ask for an offer of ours, to be given to `answer_offer` all the same; what they
    say to it comes as AnswerReceived."""


@dataclass(frozen=True, slots=True)
class AnswerReceived:
    """To the offer of `reoffer`, of `ring`, or that a re-INVITE asked for."""

    sdp: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class OfferRefused:
    """Our offer is off, the media are as before. 491: both made one at the same time; it may be
    made anew."""

    status: int
    reason: str


@dataclass(frozen=True, slots=True)
class RefreshDue:
    """The far end must be sent an offer that changes nothing, by `reoffer`, or the call will
    expire. Only comes where it knows no UPDATE (RFC 4028 §7.4)."""


@dataclass(frozen=True, slots=True)
class Dtmf:
    """A key was pressed: one of 0-9*#A-D."""

    digit: str


@dataclass(frozen=True, slots=True)
class ReferReceived:
    """The far end asks us to call somebody (RFC 3515): `Session.refers.accept` or
    `refuse`, then `notify` as that call goes."""

    target: Uri
    """Without headers."""
    replaces: str
    """Value for the Replaces header of that call; "" for none."""
    referred_by: str
    """Value for its Referred-By header."""


@dataclass(frozen=True, slots=True)
class ReferProgress:
    """How the transfer goes that we asked for. May still come after Ended."""

    status: int
    reason: str
    final: bool


@dataclass(frozen=True, slots=True)
class Ended:
    """The call is over, or never was. `reason` is for people to read."""

    status: int
    reason: str
    by: EndedBy
    sdp: str | None = field(default=None, repr=False)
    """What one who refused our offer can do instead, if it says so (RFC 3261 §21.4.26)."""


SessionEvent = (
    Progress
    | Answered
    | Confirmed
    | OfferReceived
    | AnswerReceived
    | OfferRefused
    | RefreshDue
    | Dtmf
    | ReferReceived
    | ReferProgress
    | Ended
)


class Core(Protocol):
    """What carries a session's messages: transactions and the way to the far end."""

    def request(self, request: Request, hop: Uri, now: float) -> ClientTransaction:
        """Send it, with a Via, towards `hop`."""
        ...

    def ack(self, request: Request, hop: Uri) -> None:
        """Send the ACK to a 2xx there."""
        ...

    def respond(self, transaction: ServerTransaction, response: Response, now: float) -> None: ...

    def cancel(self, transaction: ClientTransaction, now: float) -> None: ...
