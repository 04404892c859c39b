"""Call transfer by REFER (RFC 3515), both sides, and Replaces (RFC 3891).

Sans-io. An accepted REFER opens a subscription: its recipient reports the progress of the call to
the target by NOTIFY, and the last NOTIFY closes it. The subscription outlives its call (RFC 5057
§4), because either side may hang up as soon as it knows enough.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum, auto

from offhook.telephony.sip.messages.grammar import SipError
from offhook.telephony.sip.messages.headers import NameAddr
from offhook.telephony.sip.messages.message import Request, Response
from offhook.telephony.sip.messages.reasons import REASONS
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.sessions.dialog_requests import DialogRequests
from offhook.telephony.sip.sessions.ending import printable, shown, words
from offhook.telephony.sip.sessions.session_events import ReferProgress, ReferReceived
from offhook.telephony.sip.transactions.transaction import ServerTransaction

SIPFRAG = "message/sipfrag;version=2.0"
"""Content type of a NOTIFY (RFC 3420)."""
FIRST_NOTIFY_S = 5.0
"""Time limit in s from the 202 to the first NOTIFY, which is sent at once; then the far end is
taken for one that sends none, as many PBXs do, and the 202 for its word that the caller is
transferred. Three retransmissions fit in."""
SUBSCRIPTION_S = 180.0
"""Longest time between NOTIFYs, and the expiry we offer: a call that rings longer will not be
answered."""
AFTER_END_S = 10.0
"""Time from the end of the call to the last NOTIFY. The far end hangs up when the transfer is
complete, so its report is on its way."""
DECISION_S = 20.0
"""Time from a REFER to our response; the far end waits for 32 s."""
MAX_FRAGMENT_BYTES = 256
"""Maximum bytes of a NOTIFY's body that are read, as it starts with the status line; the rest is
ignored."""


# --- outbound ---


def refer_headers(target: Uri, replaces: str, referred_by: str) -> list[tuple[str, str]]:
    """Return the headers of a REFER. A Replaces header for the new call goes into the target (RFC
    3891 §2.1)."""
    if replaces:
        target = replace(target, headers=(*target.headers, ("Replaces", replaces)))
    headers = [("Refer-To", f"<{target}>")]
    if referred_by:
        headers.append(("Referred-By", referred_by))
    return headers


class _State(Enum):
    SENT = auto()
    ACCEPTED = auto()
    CLOSED = auto()


class OutboundRefer:
    """A transfer we requested.

    SENT      2xx              ACCEPTED  in progress (RFC 3515 §2.4.4)
    SENT      2xx              CLOSED    done: it says that it will not report (RFC 4488 §4)
    SENT      3xx–6xx          CLOSED    rejected
    SENT      NOTIFY           ACCEPTED or CLOSED: one may overtake the 202 (§2.4.4)
    ACCEPTED  NOTIFY           ACCEPTED, or CLOSED by a final status or Subscription-State
    ACCEPTED  time             CLOSED    done if it has never reported, else failed
    """

    def __init__(self) -> None:
        self._state = _State.SENT
        self._until: float | None = None
        self._silence = ""
        self._taken: ReferProgress | None = None
        """The 2xx, until a report comes."""

    @property
    def open(self) -> bool:
        return self._state is not _State.CLOSED

    def answered(self, response: Response, now: float) -> ReferProgress | None:
        """Handle the final response to the REFER."""
        if self._state is not _State.SENT:
            return None
        if response.status >= 300:
            self._state = _State.CLOSED
            return ReferProgress(response.status, words(response), final=True)
        taken = ReferProgress(response.status, shown(response.reason), final=True)
        if (response.headers.get("Refer-Sub") or "").strip().lower() == "false":
            self._state = _State.CLOSED
            return taken
        self._state, self._taken = _State.ACCEPTED, taken
        self._wait(FIRST_NOTIFY_S, "", now)
        return replace(taken, final=False)

    def notified(self, request: Request, now: float) -> ReferProgress | None:
        """Handle a NOTIFY. Returns None if it says nothing new. Raises SipError for 400."""
        status, reason = _status_of(request.body)
        state, _, rest = (request.headers.get("Subscription-State") or "").partition(";")
        over = state.strip().lower() == "terminated"
        if status >= 200 or over:
            self._state = _State.CLOSED
            self._until = None
            if status < 200:
                told = shown(rest) or "no reason given"
                return _unknown(f"the far end stopped reporting: {told}")
            return ReferProgress(status, reason, final=True)
        self._state, self._taken = _State.ACCEPTED, None
        self._wait(SUBSCRIPTION_S, "the far end did not say how the transfer ended", now)
        return ReferProgress(status, reason, final=False)

    def call_ended(self, now: float) -> ReferProgress | None:
        """The call has ended; the last NOTIFY may still come."""
        if self._state is _State.SENT:
            self._state = _State.CLOSED
            return ReferProgress(487, "the call ended before the transfer was accepted", final=True)
        if self._state is _State.ACCEPTED:
            self._wait(AFTER_END_S, "the call ended, the far end did not say how", now)
        return None

    def get_timer(self) -> float | None:
        return self._until

    def handle_timer(self, now: float) -> ReferProgress | None:
        if self._until is None or now < self._until:
            return None
        self._state = _State.CLOSED
        self._until = None
        return self._taken or _unknown(self._silence)

    def _wait(self, seconds: float, silence: str, now: float) -> None:
        self._until = now + seconds
        self._silence = f"{silence} within {seconds:g} s"


def _unknown(why: str) -> ReferProgress:
    return ReferProgress(408, why, final=True, is_known=False)


def _status_of(fragment: bytes) -> tuple[int, str]:
    """Parse status and reason of a message/sipfrag body (RFC 3515 §2.4.5). Raises SipError."""
    line = fragment[:MAX_FRAGMENT_BYTES].decode("utf-8", "replace").lstrip().partition("\n")[0]
    version, _, rest = line.partition(" ")
    status, _, reason = rest.strip().partition(" ")
    if version.upper() != "SIP/2.0" or not (status.isascii() and status.isdigit()):
        raise SipError("a transfer's NOTIFY does not start with a status line")
    if not 100 <= int(status[:4]) <= 699:
        raise SipError(f"{status[:24]} is not a valid status")
    return int(status[:4]), shown(reason)


# --- inbound ---


@dataclass(slots=True)
class InboundRefer:
    """A transfer requested by the far end."""

    transaction: ServerTransaction
    received: ReferReceived
    cseq: int
    silent: bool
    """No NOTIFY is wanted (RFC 4488)."""
    until: float
    """Decision deadline; once accepted, when the subscription expires."""
    accepted: bool = False

    @classmethod
    def of(cls, request: Request, transaction: ServerTransaction, now: float) -> "InboundRefer":
        """Parse a REFER. Raises SipError, for 400, unless it names one target we could call
        (§2.4.2)."""
        values = request.headers.all("Refer-To")
        if len(values) != 1:
            raise SipError("a REFER needs exactly one Refer-To")
        uri = NameAddr.parse(values[0]).uri
        if (uri.parameter("method") or "INVITE").upper() != "INVITE":
            raise SipError("only INVITE can be referred to")
        replaces = next((v for name, v in uri.headers if name.lower() == "replaces"), "")
        received = ReferReceived(
            replace(uri.without_parameter("method"), headers=()),
            printable(replaces),
            printable(request.headers.get("Referred-By") or ""),
        )
        silent = (request.headers.get("Refer-Sub") or "").strip().lower() == "false"
        return cls(transaction, received, request.cseq.number, silent, now + DECISION_S)

    def accept(self, now: float) -> list[tuple[str, str]]:
        """Accept it. Returns headers for the 202."""
        self.accepted = True
        self.until = now + SUBSCRIPTION_S
        return [("Refer-Sub", "false")] if self.silent else []

    def notify_headers(self, status: int, now: float) -> list[tuple[str, str]]:
        """Return the headers of a NOTIFY with this status (§2.4.4, RFC 6665 §4.1.3)."""
        if status < 200:
            state = f"active;expires={max(1, int(self.until - now))}"
        else:
            state = "terminated;reason=noresource"
        return [("Event", f"refer;id={self.cseq}"), ("Subscription-State", state)]


def fragment(status: int, reason: str) -> bytes:
    """Return the body of a NOTIFY; an empty reason means the standard phrase."""
    return f"SIP/2.0 {status} {shown(reason) or REASONS.get(status, '')}\r\n".encode()


class ReferUsage:
    """The transfers of one call, one in each direction at a time, and their subscriptions (RFC 5057
    §5.3). The session checks that its state allows them."""

    def __init__(
        self, requests: DialogRequests, emit: Callable[[ReferProgress | ReferReceived], None]
    ) -> None:
        self._requests = requests
        self._emit = emit
        self._outbound: OutboundRefer | None = None
        self._inbound: InboundRefer | None = None

    @property
    def sending(self) -> bool:
        """Whether a transfer we requested is still in progress."""
        return self._outbound is not None and self._outbound.open

    @property
    def idle(self) -> bool:
        return self._inbound is None and not self.sending

    def send(self, target: Uri, now: float, replaces: str, referred_by: str) -> None:
        self._outbound = OutboundRefer()
        self._requests.request("REFER", now, refer_headers(target, replaces, referred_by))

    def receive_response(self, response: Response, now: float) -> None:
        """Handle the final response to our REFER."""
        if self._outbound is not None:
            self._report(self._outbound.answered(response, now))

    def receive_notify(self, request: Request, transaction: ServerTransaction, now: float) -> None:
        package = (request.headers.get("Event") or "").partition(";")[0].strip().lower()
        if package != "refer":
            self._requests.respond(transaction, 489, now, headers=[("Allow-Events", "refer")])
        elif self._outbound is None or not self._outbound.open:
            self._requests.respond(transaction, 481, now)
        else:
            try:
                progress = self._outbound.notified(request, now)
            except SipError as error:
                self._requests.respond(transaction, 400, now, str(error))
                return
            self._requests.respond(transaction, 200, now)
            self._report(progress)

    def receive_refer(self, request: Request, transaction: ServerTransaction, now: float) -> None:
        if self._inbound is not None:  # one at a time: the leg can only go to one place
            self._requests.respond(transaction, 491, now)
            return
        try:
            self._inbound = InboundRefer.of(request, transaction, now)
        except SipError as error:
            self._requests.respond(transaction, 400, now, str(error))
            return
        self._emit(self._inbound.received)

    def accept(self, now: float) -> None:
        """Accept a ReferReceived: 202 and the first NOTIFY."""
        refer = self._inbound
        if refer is None or refer.accepted:
            return
        headers = [("Contact", f"<{self._requests.contact}>"), *refer.accept(now)]
        self._requests.respond(refer.transaction, 202, now, headers=headers)
        if refer.silent:
            self._inbound = None
        else:
            self._notify(refer, 100, "Trying", now)

    def refuse(self, status: int, now: float) -> None:
        refer = self._inbound
        if refer is not None and not refer.accepted:
            self._inbound = None
            self._requests.respond(refer.transaction, status, now)

    def notify(self, status: int, reason: str, now: float) -> None:
        """Report the progress of the call to the target; a final status ends the subscription.
        Works after the end of the call too, until the session is `over`."""
        refer = self._inbound
        if refer is not None and refer.accepted:
            self._notify(refer, status, reason, now)
            if status >= 200:
                self._inbound = None

    def notify_failed(self) -> None:
        """The far end rejected a NOTIFY and is not interested (RFC 6665 §4.2.2)."""
        self._inbound = None

    def call_ended(self, now: float) -> None:
        """Refuse an undecided inbound transfer, and wait a little for the outcome of an outbound
        one."""
        self.refuse(603, now)
        if self._outbound is not None:
            self._report(self._outbound.call_ended(now))

    def abandon(self) -> None:
        self._inbound = self._outbound = None

    def timers(self) -> Iterator[float | None]:
        yield self._inbound.until if self._inbound is not None else None
        yield self._outbound.get_timer() if self._outbound is not None else None

    def handle_timer(self, now: float) -> None:
        if self._inbound is not None and now >= self._inbound.until:
            self.refuse(603, now)
            self.notify(408, "Request Timeout", now)
        if self._outbound is not None:
            self._report(self._outbound.handle_timer(now))

    def _report(self, progress: ReferProgress | None) -> None:
        if progress is not None:
            self._emit(progress)

    def _notify(self, refer: InboundRefer, status: int, reason: str, now: float) -> None:
        headers = refer.notify_headers(status, now)
        self._requests.request("NOTIFY", now, headers, fragment(status, reason), SIPFRAG)


# --- Replaces ---


@dataclass(frozen=True, slots=True)
class Replaces:
    """The call that an INVITE replaces, as its far end identifies it (RFC 3891 §6.1)."""

    call_id: str
    to_tag: str
    from_tag: str
    early_only: bool = False

    @classmethod
    def parse(cls, text: str) -> "Replaces":
        """Parse a Replaces header. Raises SipError."""
        call_id, *parameters = text[:1024].split(";")
        values = {}
        for parameter in parameters:
            name, _, value = parameter.partition("=")
            values[name.strip().lower()] = value.strip()
        if not call_id.strip() or not values.get("to-tag") or not values.get("from-tag"):
            raise SipError("Replaces needs a Call-ID and two tags")
        early = "early-only" in values
        return cls(call_id.strip(), values["to-tag"], values["from-tag"], early)
