"""Requests within a call: how ours are sent and theirs are looked at; key presses and transfers.

The layer under `session_offers.py` and `session.py`: it knows the dialog, credentials and what is
out, and nothing of the INVITE that all of it hangs on.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from offhook.telephony.sip.auth.digest import DigestClient
from offhook.telephony.sip.messages.grammar import SipError
from offhook.telephony.sip.messages.info import DTMF, DTMF_RELAY, key_body, key_of
from offhook.telephony.sip.messages.message import Request, Response, respond, sdp_of
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.sessions.dialog import Dialog
from offhook.telephony.sip.sessions.ending import shown
from offhook.telephony.sip.sessions.refer import (
    SIPFRAG,
    InboundRefer,
    OutboundRefer,
    fragment,
    refer_headers,
)
from offhook.telephony.sip.sessions.session_events import (
    Core,
    Dtmf,
    SessionEvent,
    SessionSettings,
)
from offhook.telephony.sip.sessions.session_table import OVER, SessionState
from offhook.telephony.sip.transactions.transaction import (
    TRANSACTION_SECONDS,
    ClientTransaction,
    ServerTransaction,
)

ALLOWED = (
    "INVITE",
    "ACK",
    "BYE",
    "CANCEL",
    "OPTIONS",
    "PRACK",
    "UPDATE",
    "INFO",
    "REFER",
    "NOTIFY",
)
KNOWN = frozenset({*ALLOWED, "MESSAGE", "PUBLISH", "REGISTER", "SUBSCRIBE"})
"""Methods that there are: what we do not do of these gets 405, anything else 501 (§21.5.2)."""
MAX_ROUNDS = 4
"""Times one request is sent, each with an answer to the challenge before."""
MAX_FORKS = 16
"""Far ends that one INVITE of ours may reach; what others say is let pass."""
MAX_SENT = 64
"""Requests of ours without a final response; beyond that key presses are left out, and reliable
provisional responses wait for their PRACK."""
LINGER_SECONDS = 2 * TRANSACTION_SECONDS
"""From the end of a call until it is forgotten whatever is still unanswered."""
NOT_REACHABLE = "Not Reachable"
"""What stands for a response where nothing is known of why there is none."""


@dataclass(eq=False, slots=True)
class Sent:
    """A request of ours that has no final response yet."""

    request: Request
    """Without Via."""
    dialog: Dialog | None
    """None for the INVITE that makes one."""
    transaction: ClientTransaction
    round: int


class DialogUsage(ABC):
    """See `session.Session`, which is what there is objects of."""

    def __init__(
        self,
        core: Core,
        call_id: str,
        local_tag: str,
        local_contact: Uri,
        settings: SessionSettings,
        digest: DigestClient | None,
    ) -> None:
        self.call_id = call_id
        self.local_tag = local_tag
        self.dialog: Dialog | None = None
        """The call's; before it is taken, the one that was heard of last, or None."""
        self.state = SessionState.CALLING
        self._core = core
        self._contact = local_contact
        self._settings = settings
        self._digest = digest
        self._other_dialogs: dict[str, Dialog] = {}
        """By the far end's tag: other far ends that our INVITE has reached."""
        self._allow: frozenset[str] = frozenset()
        """Methods of the far end, as far as it has said."""
        self._sent: dict[tuple[str, ...], Sent] = {}
        self._refer_out: OutboundRefer | None = None
        self._refer_in: InboundRefer | None = None
        self._linger_until: float | None = None
        self._events: deque[SessionEvent] = deque()

    def next_event(self) -> SessionEvent | None:
        return self._events.popleft() if self._events else None

    @property
    def over(self) -> bool:
        """Nothing more will come of it or is awaited: it can be forgotten once its events are
        taken. Later than `Ended`: a BYE wants its answer, a transfer its outcome."""
        return self.state is SessionState.ENDED and self._linger_until is None

    def next_hop(self, request: Request) -> Uri:
        """Where a request of this session goes (RFC 3261 §8.1.2)."""
        dialog = self._dialog_named(request.to.tag)
        if dialog is not None and request.to.tag:
            return dialog.next_hop
        routes = request.routes
        return routes[0].uri if routes else request.uri

    # --- key presses and transfers, for the owner ---

    def info_dtmf(self, digit: str, now: float) -> None:
        """Tell a key press, one of 0-9*#A-D, by INFO. Ignored when there is no call; one that rings
        at the far end may already have a machine behind it that listens."""
        talking = self.state in (SessionState.PROCEEDING, SessionState.ESTABLISHED)
        if self.dialog is None or not talking or len(self._sent) >= MAX_SENT:
            return
        self._request("INFO", now, body=key_body(digit), content_type=DTMF_RELAY)

    def refer(self, target: Uri, now: float, replaces: str = "", referred_by: str = "") -> bool:
        """Ask the far end to call `target`, in place of the call `replaces` (`Dialog.replaces`).
        ReferProgress tells how it goes. False: there is no call, or a transfer is under way."""
        if self.state is not SessionState.ESTABLISHED or (self._refer_out and self._refer_out.open):
            return False
        self._refer_out = OutboundRefer()
        self._request("REFER", now, refer_headers(target, replaces, referred_by))
        return True

    def accept_refer(self, now: float) -> None:
        """Take the transfer on: 202 and the first NOTIFY."""
        refer = self._refer_in
        if refer is None or refer.accepted:
            return
        headers = [("Contact", f"<{self._contact}>"), *refer.accept(now)]
        self._respond(refer.transaction, 202, now, headers=headers)
        if refer.silent:
            self._refer_in = None
        else:
            self._notify(refer, 100, "Trying", now)

    def refuse_refer(self, status: int, now: float) -> None:
        refer = self._refer_in
        if refer is not None and not refer.accepted:
            self._refer_in = None
            self._respond(refer.transaction, status, now)

    def notify_refer(self, status: int, reason: str, now: float) -> None:
        """Tell how the call to the target goes; a final status closes the matter. The far end
        hears it also after the call has ended, as long as the session is not `over`."""
        refer = self._refer_in
        if refer is not None and refer.accepted:
            self._notify(refer, status, reason, now)
            if status >= 200:
                self._refer_in = None

    def _notify(self, refer: InboundRefer, status: int, reason: str, now: float) -> None:
        headers = refer.notify_headers(status, now)
        self._request("NOTIFY", now, headers, fragment(status, reason), SIPFRAG)

    # --- ours ---

    def _request(
        self,
        method: str,
        now: float,
        headers: Sequence[tuple[str, str]] = (),
        body: bytes = b"",
        content_type: str = "",
        dialog: Dialog | None = None,
    ) -> Sent:
        dialog = dialog or self.dialog
        assert dialog is not None
        agent = ("User-Agent", self._settings.user_agent)
        request = dialog.request(method, [*headers, agent], body, content_type)
        if self._digest is not None:
            self._digest.preempt(request)
        return self._send(request, dialog, now)

    def _send(self, request: Request, dialog: Dialog | None, now: float, round: int = 1) -> Sent:
        transaction = self._core.request(request, self, now)
        sent = self._sent[transaction.key] = Sent(request, dialog, transaction, round)
        return sent

    def receive_response(
        self, transaction: ClientTransaction, response: Response, now: float
    ) -> None:
        sent = self._sent.get(transaction.key)
        self._learn(response)
        if response.status < 200:
            if sent is not None and sent.dialog is None:
                self._provisional(sent, response, now)
        elif response.status < 300 and transaction.request.method == "INVITE":
            self._sent.pop(transaction.key, None)
            self._invite_succeeded(sent, transaction.request, response, now)
        elif sent is not None:
            del self._sent[transaction.key]
            if not self._asked_again(sent, response, now):
                self._finished(sent, response, now)
        self._settle(now)

    def failed(
        self, transaction: ClientTransaction | ServerTransaction, reason: str, now: float
    ) -> None:
        """There will be no final response (RFC 3261 §8.1.3.1): "timeout" or "transport"."""
        sent = self._sent.pop(transaction.key, None)
        if sent is None:
            self._request_lost(transaction, now)
        elif reason == "timeout":
            self._finished(sent, respond(sent.request, 408), now, heard=False)
        else:
            phrase = shown(transaction.broken) or NOT_REACHABLE
            self._finished(sent, respond(sent.request, 503, phrase), now, heard=False)
        self._settle(now)

    def _asked_again(self, sent: Sent, response: Response, now: float) -> bool:
        """Was the request sent once more, with an answer to the challenge (RFC 3261 §22)?"""
        challenged = response.status in (401, 407) and sent.round < MAX_ROUNDS
        if not challenged or self._digest is None:
            return False
        if self.state in OVER and sent.request.method not in ("BYE", "NOTIFY"):
            return False
        again = self._digest.authorize(response, sent.request)
        if again is None:
            return False
        if sent.dialog is not None and again.cseq.number <= sent.dialog.local_cseq:
            again = sent.dialog.again(again)  # another request has taken that number meanwhile
        elif sent.dialog is not None:
            sent.dialog.local_cseq = again.cseq.number
        self._resent(sent, self._send(again, sent.dialog, now, sent.round + 1))
        return True

    def _finished(self, sent: Sent, response: Response, now: float, heard: bool = True) -> None:
        """The final response to a request; `heard`: it is the far end's, else it stands for none
        having come."""
        match sent.request.method:
            case "REFER":
                if self._refer_out is not None:
                    self._tell(self._refer_out.answered(response, now))
            case "INFO" if response.status == 481:
                self._gone(now)
            case "NOTIFY" if response.status >= 300:
                self._refer_in = None  # the far end does not listen (RFC 6665 §4.2.2)

    # --- theirs ---

    def receive_request(self, request: Request, transaction: ServerTransaction, now: float) -> None:
        """A request with our tag in To."""
        dialog = self._dialog_named(request.from_.tag)
        if dialog is None or (self.state in OVER and request.method not in ("BYE", "NOTIFY")):
            self._respond(transaction, 481, now)
        elif not dialog.accept(request):
            self._respond(transaction, 500, now, "Request Out of Order")  # §12.2.2
        elif (fault := self.fault(request, self._settings)) is not None:
            status, headers = fault
            self._respond(transaction, status, now, headers=headers)
        else:
            self._learn(request)
            self._take(request, transaction, now)
        self._settle(now)

    @staticmethod
    def fault(
        request: Request, settings: SessionSettings
    ) -> tuple[int, list[tuple[str, str]]] | None:
        """What is wrong with a request whatever the call is like, in the order of RFC 3261 §8.2."""
        if request.method not in ALLOWED:
            return 405 if request.method in KNOWN else 501, [("Allow", ", ".join(ALLOWED))]
        unknown = [tag for tag in request.require if tag not in settings.supported]
        if unknown:
            return 420, [("Unsupported", ", ".join(unknown))]
        disposition = (request.headers.get("Content-Disposition") or "").lower()
        if request.method in ("INVITE", "UPDATE", "PRACK") and request.body:
            readable = sdp_of(request) is not None or "handling=optional" in disposition
            if not readable:
                return 415, [("Accept", "application/sdp")]
        return None

    def _take(self, request: Request, transaction: ServerTransaction, now: float) -> None:
        match request.method:
            case "OPTIONS":
                self._respond(transaction, 200, now, headers=[("Accept", "application/sdp")])
            case "INFO":
                self._take_info(request, transaction, now)
            case "REFER":
                self._take_refer(request, transaction, now)
            case "NOTIFY":
                self._take_notify(request, transaction, now)
            case _:
                self._respond(transaction, 405, now, headers=[("Allow", ", ".join(ALLOWED))])

    def _take_info(self, request: Request, transaction: ServerTransaction, now: float) -> None:
        """Key presses the old way; without a body it only asks whether we are there (RFC 2976)."""
        digit = key_of(request)
        if digit is None:
            accept = [("Accept", f"{DTMF_RELAY}, {DTMF}")]
            self._respond(transaction, 415, now, headers=accept)
            return
        self._respond(transaction, 200, now)
        if digit:
            self._tell(Dtmf(digit))

    def _take_refer(self, request: Request, transaction: ServerTransaction, now: float) -> None:
        if self.state not in (SessionState.ESTABLISHED, SessionState.ANSWERED):
            self._respond(transaction, 403, now)
            return
        if self._refer_in is not None:  # one at a time: the line can only go to one place
            self._respond(transaction, 491, now)
            return
        try:
            self._refer_in = InboundRefer.of(request, transaction, now)
        except SipError as error:
            self._respond(transaction, 400, now, str(error))
            return
        self._tell(self._refer_in.received)

    def _take_notify(self, request: Request, transaction: ServerTransaction, now: float) -> None:
        refer = self._refer_out
        package = (request.headers.get("Event") or "").partition(";")[0].strip().lower()
        if package != "refer":
            self._respond(transaction, 489, now, headers=[("Allow-Events", "refer")])
        elif refer is None or not refer.open:
            self._respond(transaction, 481, now)
        else:
            try:
                progress = refer.notified(request, now)
            except SipError as error:
                self._respond(transaction, 400, now, str(error))
                return
            self._respond(transaction, 200, now)
            self._tell(progress)

    def _respond(
        self,
        transaction: ServerTransaction,
        status: int,
        now: float,
        reason: str = "",
        headers: Sequence[tuple[str, str]] = (),
        sdp: str | None = None,
    ) -> Response:
        response = self._response(transaction.request, status, reason, headers, sdp)
        self._core.respond(transaction, response, now)
        return response

    def _response(
        self,
        request: Request,
        status: int,
        reason: str = "",
        headers: Sequence[tuple[str, str]] = (),
        sdp: str | None = None,
    ) -> Response:
        fields = [*headers, ("Server", self._settings.user_agent)]
        if request.method in ("INVITE", "UPDATE") and 100 < status < 300:
            fields.append(("Contact", f"<{self._contact}>"))
        if request.method in ("INVITE", "UPDATE", "OPTIONS") and 100 < status < 300:
            fields.append(("Allow", ", ".join(ALLOWED)))
            fields.append(("Supported", ", ".join(self._settings.supported)))
        body = sdp.encode("utf-8", "surrogateescape") if sdp else b""
        return respond(
            request,
            status,
            reason,
            to_tag=self.local_tag,
            headers=fields,
            body=body,
            content_type="application/sdp" if sdp else "",
        )

    # --- common ---

    def _dialog_named(self, remote_tag: str) -> Dialog | None:
        if self.dialog is not None and self.dialog.remote.tag == remote_tag:
            return self.dialog
        return self._other_dialogs.get(remote_tag)

    def _learn(self, message: Request | Response) -> None:
        if methods := message.allow:
            self._allow = frozenset(methods) & KNOWN

    def _tell(self, event: SessionEvent | None) -> None:
        if event is not None:
            self._events.append(event)

    def _timers(self) -> Iterator[float | None]:
        yield self._linger_until
        yield self._refer_in.until if self._refer_in is not None else None
        yield self._refer_out.get_timer() if self._refer_out is not None else None

    def _handle_timers(self, now: float) -> None:
        refer = self._refer_in
        if refer is not None and now >= refer.until:
            self.refuse_refer(603, now)
            self.notify_refer(408, "Request Timeout", now)
        if self._refer_out is not None:
            self._tell(self._refer_out.handle_timer(now))
        if self._linger_until is not None and now >= self._linger_until:
            self.state = SessionState.ENDED
            self._refer_in = self._refer_out = None
            self._linger_until = None

    def _refers_end(self, now: float) -> None:
        """The call is over: a transfer of theirs that is not decided on is refused, of one of ours
        the outcome is awaited a little."""
        self.refuse_refer(603, now)
        if self._refer_out is not None:
            self._tell(self._refer_out.call_ended(now))

    def _idle(self) -> bool:
        """Nothing is out or awaited."""
        transfer = self._refer_out is not None and self._refer_out.open
        return not self._sent and self._refer_in is None and not transfer

    # --- what the layers above do ---

    @abstractmethod
    def _provisional(self, sent: Sent, response: Response, now: float) -> None:
        """To the INVITE that made the call."""

    @abstractmethod
    def _invite_succeeded(
        self, sent: Sent | None, invite: Request, response: Response, now: float
    ) -> None:
        """Any 2xx to an INVITE of ours; `sent` is None from the second on."""

    @abstractmethod
    def _resent(self, before: Sent, sent: Sent) -> None:
        """One request has taken the place of another."""

    @abstractmethod
    def _request_lost(self, transaction: ClientTransaction | ServerTransaction, now: float) -> None:
        """The connection by which a request came is gone, before it had its answer."""

    @abstractmethod
    def _gone(self, now: float) -> None:
        """The far end does not know the dialog."""

    @abstractmethod
    def _settle(self, now: float) -> None:
        """Something may have come free that something else waits for."""
