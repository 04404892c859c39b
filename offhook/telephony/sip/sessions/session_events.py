"""Events of a session for its owner, the interface it needs to the core, and its settings.

Session descriptions are kept out of every repr: they may contain media keys (RFC 4568).
"""

from dataclasses import dataclass, field
from typing import Protocol

from offhook.telephony.call_record import EndedBy
from offhook.telephony.sip.messages.message import Request, Response
from offhook.telephony.sip.messages.recording_metadata import Metadata
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.transactions.transaction import ClientTransaction, ServerTransaction


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """Settings of a session. Times in seconds."""

    user_agent: str = "offhook"
    session_seconds: int = 1800
    """Longest session interval between refreshes (RFC 4028); 0 requests none."""
    min_se: int = 90
    """Shortest session interval we accept; RFC 4028 §4 requires at least 90."""
    reliable: bool = True
    """Use reliable provisional responses if the far end supports them (RFC 3262)."""
    ring_seconds: float = 60.0
    """How long a call may go unanswered, in either direction."""
    response_seconds: float | None = None
    """How long an outbound call waits for any response; None for as long as the transaction."""
    recorder: bool = False
    """We record the far end's call: we are the server of a recording session (RFC 7866)."""

    @property
    def supported(self) -> tuple[str, ...]:
        """Option tags of the extensions supported."""
        tags = ("100rel", "timer", "replaces") if self.reliable else ("timer", "replaces")
        return (*tags, "siprec") if self.recorder else tags

    @property
    def contact_features(self) -> str:
        """Feature tags behind a Contact of ours (RFC 3840 §9), with their semicolons."""
        return ";+sip.srs" if self.recorder else ""


@dataclass(frozen=True, slots=True)
class Progress:
    """The far end sent a provisional response; 180 is ringing."""

    status: int
    reason: str
    sdp: str | None = field(repr=False)
    """Early media: the answer to our offer, which Answered may still replace. Not repeated while
    unchanged."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The far end answered the call."""

    sdp: str | None = field(repr=False)
    """The answer to our offer; None if that of a Progress applies. If the call began without our
    offer: their offer, to be answered with `answer_offer`; None if it was answered before."""


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The far end has acknowledged our answer."""

    sdp: str | None = field(repr=False)
    """Their answer, if the offer was ours."""


@dataclass(frozen=True, slots=True)
class OfferReceived:
    """The far end wants to change the media: call `answer_offer` or `refuse_offer`."""

    sdp: str | None = field(repr=False)
    """None asks for our offer, which also goes to `answer_offer`; their answer arrives as
    AnswerReceived."""


@dataclass(frozen=True, slots=True)
class AnswerReceived:
    """The answer to an offer made by `reoffer` or `ring`, or requested by a re-INVITE."""

    sdp: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class OfferRefused:
    """Our offer was rejected; the media stay as they are. 491: both sides made one at once; it may
    be repeated."""

    status: int
    reason: str


@dataclass(frozen=True, slots=True)
class RefreshDue:
    """The far end must be sent an unchanged offer with `reoffer`, or the call will expire. Only
    emitted if it does not support UPDATE (RFC 4028 §7.4)."""


@dataclass(frozen=True, slots=True)
class MetadataReceived:
    """A recording client says how the recorded call has changed (RFC 7866 §9.1)."""

    metadata: Metadata


@dataclass(frozen=True, slots=True)
class Dtmf:
    """A DTMF digit was received: one of 0-9*#A-D."""

    digit: str


@dataclass(frozen=True, slots=True)
class ReferReceived:
    """The far end asks us to call somebody (RFC 3515): call `Session.refers.accept` or `refuse`,
    then `notify` with the progress of that call."""

    target: Uri
    """URI to call, without headers."""
    replaces: str
    """Value for the Replaces header of that call; "" for none."""
    referred_by: str
    """Value for its Referred-By header."""


@dataclass(frozen=True, slots=True)
class ReferProgress:
    """Progress of a transfer we requested. May still come after Ended."""

    status: int
    reason: str
    final: bool
    is_known: bool = True
    """Whether the far end has said so; False: it reports no more, and the status is ours."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The call has ended, or failed. `reason` is for people."""

    status: int
    reason: str
    by: EndedBy
    sdp: str | None = field(default=None, repr=False)
    """What a far end that rejected our offer supports, if it says so (RFC 3261 §21.4.26)."""


SessionEvent = (
    Progress
    | Answered
    | Confirmed
    | OfferReceived
    | AnswerReceived
    | OfferRefused
    | RefreshDue
    | MetadataReceived
    | Dtmf
    | ReferReceived
    | ReferProgress
    | Ended
)


class SessionCore(Protocol):
    """Carries a session's messages: transactions and routing."""

    def request(self, request: Request, hop: Uri, now: float) -> ClientTransaction:
        """Send a request, adding a Via, towards `hop`."""
        ...

    def ack(self, request: Request, hop: Uri) -> None:
        """Send the ACK to a 2xx there."""
        ...

    def respond(self, transaction: ServerTransaction, response: Response, now: float) -> None: ...

    def cancel(self, transaction: ClientTransaction, now: float) -> None: ...
