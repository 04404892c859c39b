"""One SIP call, inbound or outbound, from its INVITE to its end (RFC 3261 §13–15).

Sans-io: the owner calls methods, the core passes in messages, `now` is monotonic seconds. After
every call that takes `now`, drain `next_event`, and call `handle_timer` when `get_timer` says so.
Requests of the owner that come too late (the far end has hung up meanwhile) are ignored; none
raises.

A session is composed of parts that can be read alone. This file combines them and carries out the
actions of the table in `session_table.py`:

    DialogRequests         dialogs, CSeq, credentials, ACKs
    Offers                 which offer is open
    OutgoingInvite or
    IncomingInvite         the initial INVITE
    SuccessSender          our 2xx until its ACK
    SessionModification    re-INVITE and UPDATE
    SessionTimer           refresh and expiry
    ReferUsage             transfers
"""

import random as _random
import secrets
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from offhook.media.end_reason import End
from offhook.telephony.call_record import EndedBy
from offhook.telephony.sip.auth.digest import DigestClient
from offhook.telephony.sip.messages.headers import Headers, NameAddr
from offhook.telephony.sip.messages.info import (
    DTMF,
    DTMF_RELAY,
    TELEPHONE_EVENT,
    key_body,
    key_of,
)
from offhook.telephony.sip.messages.message import Request, Response, respond, sdp_of
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.sessions.dialog import FIRST_CSEQ, MAX_FORWARDS, Dialog, sdp_body
from offhook.telephony.sip.sessions.dialog_requests import (
    ALLOWED,
    DialogRequests,
    HeaderLines,
    PendingRequest,
    request_error,
)
from offhook.telephony.sip.sessions.ending import (
    BY,
    Cause,
    ended,
    reason_header,
    reason_text,
    shown,
)
from offhook.telephony.sip.sessions.incoming_invite import IncomingInvite
from offhook.telephony.sip.sessions.offers import (
    DECISION_S,
    Offers,
    PendingOffer,
    Place,
    RemoteOffer,
)
from offhook.telephony.sip.sessions.outgoing_invite import NOT_REACHABLE, OutgoingInvite
from offhook.telephony.sip.sessions.refer import ReferUsage
from offhook.telephony.sip.sessions.reliable import SuccessSender
from offhook.telephony.sip.sessions.session_events import (
    Answered,
    Confirmed,
    Dtmf,
    OfferRefused,
    Progress,
    SessionCore,
    SessionEvent,
    SessionSettings,
)
from offhook.telephony.sip.sessions.session_modification import DIALOG_GONE, SessionModification
from offhook.telephony.sip.sessions.session_table import (
    OVER,
    RINGING,
    TABLE,
    Action,
    Event,
    SessionState,
)
from offhook.telephony.sip.sessions.session_timer import SessionTimer
from offhook.telephony.sip.transactions.transaction import (
    TRANSACTION_S,
    ClientTransaction,
    ServerTransaction,
)

LINGER_S = 2 * TRANSACTION_S
"""Time from the end of a call until it is forgotten, whatever is still unanswered."""
_LATE_METHODS = ("BYE", "NOTIFY")
"""Requests still meaningful after the end of the call."""


class Session:
    """One call. Create it with `incoming` or `outgoing`. Its parts hold no reference to it, so it
    is freed with the last outside reference, without cyclic garbage collection."""

    def __init__(
        self,
        core: SessionCore,
        call_id: str,
        offered: bool,
        local_tag: str,
        local_contact: Uri,
        settings: SessionSettings,
        digest: DigestClient | None,
        we_called: bool,
        random: Callable[[], float],
        now: float,
    ) -> None:
        """`offered`: whether the initial INVITE carries an offer."""
        self.call_id = call_id
        self.local_tag = local_tag
        self.we_called = we_called
        """Whether the Call-ID is ours."""
        self.state = SessionState.CALLING if we_called else SessionState.RECEIVED
        self._settings = settings
        self._events: deque[SessionEvent] = deque()
        emit = self._events.append
        self._requests = DialogRequests(core, local_tag, local_contact, settings, digest)
        self._offers = Offers(offered, emit)
        self._timer = SessionTimer(settings.session_seconds, settings.min_se)
        self._success = SuccessSender()
        self._modification = SessionModification(
            self._requests,
            self._offers,
            self._timer,
            self._success,
            weakref.proxy(self),
            emit,
            we_called,
            random,
        )
        self.refers = ReferUsage(self._requests, emit)
        """Accepts, refuses and reports on a ReferReceived."""
        self._incoming: IncomingInvite | None = None
        self._outgoing: OutgoingInvite | None = None
        self.heard = False
        """Whether the far end has responded to anything."""
        self._ring_deadline: float | None = now + settings.ring_seconds
        self._response_deadline: float | None = None
        if we_called and settings.response_seconds is not None:
            self._response_deadline = now + settings.response_seconds
        self._linger_deadline: float | None = None
        self._bye_reason: tuple[int, str] | None = None
        """Status and text for the Reason of our BYE."""

    @classmethod
    def incoming(
        cls,
        core: SessionCore,
        transaction: ServerTransaction,
        request: Request,
        local_contact: Uri,
        settings: SessionSettings,
        now: float,
        random: Callable[[], float] = _random.random,
    ) -> "Session":
        """Create the session of an inbound call. A request that cannot be served (420, 422 …) is
        rejected at once: the session has then ended."""
        tag = secrets.token_hex(8)
        offered = sdp_of(request) is not None
        session = cls(
            *(core, request.call_id, offered, tag, local_contact, settings, None, False),
            random,
            now,
        )
        requests, timer = session._requests, session._timer
        dialog = requests.dialog = Dialog.from_request(request, tag, local_contact)
        requests.learn_allow(request)
        session._incoming = IncomingInvite(
            transaction, request, requests, session._offers, timer, session._success, random
        )
        if request.expires is not None:
            session._ring_deadline = now + min(settings.ring_seconds, request.expires)
        refusal = request_error(request, settings)
        too_short = timer.refusal(request)
        if refusal is None and too_short is not None:
            refusal = 422, too_short
        if refusal is None and dialog.remote_target.scheme not in ("sip", "sips"):
            refusal = 400, []  # neither Contact nor From tells where to send requests
        if refusal is not None:
            session.refuse(refusal[0], "", now, refusal[1])
        return session

    @classmethod
    def outgoing(
        cls,
        core: SessionCore,
        target: Uri,
        from_: NameAddr,
        to: NameAddr,
        local_contact: Uri,
        sdp: str | None,
        settings: SessionSettings,
        now: float,
        headers: Sequence[tuple[str, str]] = (),
        digest: DigestClient | None = None,
        random: Callable[[], float] = _random.random,
    ) -> "Session":
        """Place a call. `sdp` is our offer; None asks for theirs. `headers` are added to the
        INVITE, such as Replaces, or Route for an outbound proxy."""
        tag = secrets.token_hex(8)
        body, content_type = sdp_body(sdp)
        fields = Headers(
            [
                ("Max-Forwards", MAX_FORWARDS),
                ("From", str(from_.with_parameter("tag", tag))),
                ("To", str(to)),
                ("Call-ID", secrets.token_hex(16)),
                ("CSeq", f"{FIRST_CSEQ} INVITE"),
                ("Contact", f"<{local_contact}>"),
                ("Allow", ", ".join(ALLOWED)),
                ("Supported", ", ".join(settings.supported)),
                ("User-Agent", settings.user_agent),
                *headers,
            ]
        )
        if body:
            fields.add("Content-Type", content_type)
        invite = Request("INVITE", replace(target, headers=()), fields, body)
        session = cls(
            *(core, invite.call_id, sdp is not None, tag, local_contact, settings, digest, True),
            random,
            now,
        )
        for name, value in session._timer.request_headers():
            fields.set(name, value)
        if digest is not None:
            digest.preempt(invite)
        session._outgoing = OutgoingInvite(
            invite, session._requests, session._offers, session._timer, weakref.proxy(session)
        )
        session._outgoing.send(now)
        return session

    @classmethod
    def restored(
        cls,
        core: SessionCore,
        dialog: Dialog,
        we_called: bool,
        settings: SessionSettings,
        now: float,
        digest: DigestClient | None = None,
        random: Callable[[], float] = _random.random,
    ) -> "Session":
        """Continue the established call of another server in its dialog: `reoffer` must follow, so
        that the far end learns our address."""
        session = cls(
            *(core, dialog.call_id, True, dialog.local.tag, dialog.local_contact, settings),
            *(digest, we_called, random, now),
        )
        session.state = SessionState.ESTABLISHED
        session._ring_deadline = session._response_deadline = None
        session._requests.dialog = dialog
        session._offers.complete()
        return session

    # --- state ---

    def next_event(self) -> SessionEvent | None:
        return self._events.popleft() if self._events else None

    @property
    def dialog(self) -> Dialog | None:
        """The call's dialog; before the answer, the one heard from last."""
        return self._requests.dialog

    @property
    def invite(self) -> Request:
        """The initial INVITE as received, or as last sent, without Via."""
        part = self._outgoing or self._incoming
        assert part is not None
        return part.request

    @property
    def moved_to(self) -> tuple[Uri, ...]:
        """Where a call of ours that was refused with 3xx can be placed instead."""
        return self._outgoing.moved_to if self._outgoing is not None else ()

    @property
    def supports_refer(self) -> bool:
        """Whether the far end may support REFER: its Allow says so, or it has sent none (RFC 3261
        §20.5)."""
        return not self._requests.allow or "REFER" in self._requests.allow

    @property
    def over(self) -> bool:
        """Whether nothing more is sent or awaited: drop the session once its events are drained.
        Later than `Ended`: a BYE awaits its response, a transfer its outcome."""
        return self.state is SessionState.ENDED and self._linger_deadline is None

    # --- the call ---

    def ring(self, now: float, sdp: str | None = None) -> None:
        """Send a ringing response; with `sdp`, early media: the answer to their offer, or our offer
        if they made none and support 100rel."""
        incoming = self._incoming
        if self.state is SessionState.RECEIVED and incoming and incoming.accepting is None:
            incoming.ring(now, sdp)

    def accept(self, sdp: str, now: float) -> None:
        """Answer the call. `sdp` is the answer to their offer, or our offer if they made none;
        ignored if media are already negotiated. Confirmed or Ended follows."""
        incoming = self._incoming
        if self.state is SessionState.RECEIVED and incoming and incoming.accepting is None:
            incoming.accepting = sdp
            self._advance(now)

    def refuse(self, status: int, reason: str, now: float, headers: HeaderLines = ()) -> None:
        """Reject the call. `reason` is the reason phrase, "" for the standard one."""
        self.apply(Event.REFUSE, now, status, reason, headers=headers)
        self._advance(now)

    def hang_up(self, now: float, reason: str = "", status: int = 0) -> None:
        """End the call as its state requires: reject it (480 unless `status` is given), cancel it
        or send BYE. `reason` is sent in a Reason header (RFC 3326)."""
        self.apply(Event.HANG_UP, now, status, reason)
        self._advance(now)

    def leave(self, now: float, reason: str) -> None:
        """End an established call here without a message: another server continues the dialog."""
        self.apply(Event.LEAVE, now, 200, reason)
        self._advance(now)

    def info_dtmf(self, digit: str, now: float) -> None:
        """Send a DTMF digit, one of 0-9*#A-D, by INFO. Ignored without a call; one that is still
        ringing may already have a machine listening."""
        talking = self.state in (SessionState.PROCEEDING, SessionState.ESTABLISHED)
        if self.dialog is not None and talking and not self._requests.full:
            body = key_body(digit)
            self._requests.request("INFO", now, body=body, content_type=DTMF_RELAY)

    # --- media ---

    def reoffer(self, sdp: str, now: float) -> None:
        """Send an offer: in a re-INVITE, before the answer in an UPDATE. It waits while an INVITE
        is in progress. AnswerReceived, OfferRefused or Ended follows; OfferRefused with 491 at once
        if another offer is open."""
        if self.state in OVER:
            return
        if self._offers.open or not self._offers.agreed:
            self._events.append(OfferRefused(491, "another offer is open"))
            return
        self._offers.pending = PendingOffer(sdp)
        self._advance(now)

    def answer_offer(self, sdp: str, now: float) -> None:
        """Respond to an OfferReceived, or an Answered with an offer: our answer, or our offer if it
        asked for one. Ignored if the offer has been withdrawn."""
        offers, theirs = self._offers, self._offers.theirs
        if theirs is None or theirs.place is Place.INVITE:
            return
        offers.theirs = None
        if theirs.place is Place.SUCCESS:
            self.apply(Event.ANSWER, now, sdp=sdp)
        elif theirs.sdp is None:
            offers.ours = Place.SUCCESS
        else:
            offers.agreed = True
        if theirs.response is not None and self._outgoing is not None:
            self._outgoing.acknowledge(theirs.response, now, sdp)
        elif theirs.transaction is not None and theirs.place is Place.PRACK:
            self._requests.respond(theirs.transaction, 200, now, sdp=sdp)
        elif theirs.transaction is not None:
            self._modification.accept(theirs.transaction, sdp, now)
        self._advance(now)

    def refuse_offer(self, status: int, now: float) -> None:
        """Reject an OfferReceived: the media stay as they are."""
        theirs = self._offers.theirs
        if theirs is None or theirs.place is Place.INVITE:
            return
        if theirs.transaction is None:  # an 18x or 2xx cannot be rejected
            self.apply(Event.HANG_UP, now, 488, End.NO_COMMON_MEDIA)
        else:
            self._offers.theirs = None
            self._requests.respond(theirs.transaction, status, now)
        self._advance(now)

    # --- transfers ---

    def refer(self, target: Uri, now: float, replaces: str = "", referred_by: str = "") -> bool:
        """Ask the far end to call `target`, replacing the call `replaces` (`Dialog.replaces`).
        ReferProgress follows. Returns False without a call, or if a transfer is in progress."""
        if self.state is not SessionState.ESTABLISHED or self.refers.sending:
            return False
        self.refers.send(target, now, replaces, referred_by)
        return True

    # --- time ---

    def get_timer(self) -> float | None:
        return min((t for t in self._timers() if t is not None), default=None)

    def _timers(self) -> Iterator[float | None]:
        yield self._ring_deadline
        yield self._response_deadline
        yield self._linger_deadline
        yield self._offers.theirs.deadline if self._offers.theirs else None
        yield self._success.get_timer()
        if self._incoming is not None and self._incoming.reliable is not None:
            yield self._incoming.reliable.get_timer()
        yield from self._modification.timers()
        yield from self.refers.timers()

    def handle_timer(self, now: float) -> None:
        self.refers.handle_timer(now)
        if self._linger_deadline is not None and now >= self._linger_deadline:
            self.state = SessionState.ENDED
            self.refers.abandon()
            self._linger_deadline = None
        if self._success.timed_out(now):
            self._success.stop()
            self.apply(Event.NO_ACK, now, 408, End.FAR_END + " did not confirm the call")
        elif (repeated := self._success.retransmit(now)) is not None:
            self._requests.send_response(*repeated, now)
        theirs = self._offers.theirs
        if theirs is not None and theirs.deadline is not None and now >= theirs.deadline:
            self.refuse_offer(500, now)
        self._modification.handle_timer(now)
        if self._ring_deadline is not None and now >= self._ring_deadline:
            self._ring_deadline = None
            text = End.NO_ANSWER + f" after {self._settings.ring_seconds:g} s"
            self.apply(Event.RING_TIMEOUT, now, 408 if self._outgoing else 480, text)
        if self._response_deadline is not None and now >= self._response_deadline:
            self._response_deadline = None
            waited = f"no response after {self._settings.response_seconds:g} s"
            self.apply(Event.UNANSWERED, now, 408, waited)
        if self._incoming is not None and not self._incoming.retransmit(now):
            self.apply(Event.NO_PRACK, now, 504, End.FAR_END + " did not acknowledge the ringing")
        self._advance(now)

    # --- responses to our requests, from the core ---

    def receive_response(
        self, transaction: ClientTransaction, response: Response, now: float
    ) -> None:
        requests = self._requests
        sent = requests.sent.get(transaction.key)
        requests.learn_allow(response)
        self._response_deadline, self.heard = None, True
        if response.status < 200:
            if sent is not None and sent.dialog is None and self._outgoing is not None:
                self._outgoing.receive_provisional(sent, response, now)
        elif response.status < 300 and transaction.request.method == "INVITE":
            requests.sent.pop(transaction.key, None)
            self._receive_success(sent, response, now)
        elif sent is not None:
            del requests.sent[transaction.key]
            if not self._retry(sent, response, now):
                self._receive_final(sent, response, now)
        self._advance(now)

    def failed(
        self, transaction: ClientTransaction | ServerTransaction, reason: str, now: float
    ) -> None:
        """Handle a request of ours that gets no final response (RFC 3261 §8.1.3.1): "timeout" or
        "transport"; or one of theirs whose connection was lost before our response."""
        sent = self._requests.sent.pop(transaction.key, None)
        theirs = self._offers.theirs
        if sent is not None:
            status, phrase = 408, ""
            if reason != "timeout":
                status, phrase = 503, shown(transaction.broken) or NOT_REACHABLE
            stand_in = respond(sent.request, status, phrase)
            self._receive_final(sent, stand_in, now, received=False)
        elif self._incoming is not None and transaction is self._incoming.transaction:
            self.apply(Event.FAILED, now, 503, End.CONNECTION_LOST, by="transport")
        elif theirs is not None and theirs.transaction is transaction:
            self._offers.theirs = None
        self._advance(now)

    def _retry(self, sent: PendingRequest, response: Response, now: float) -> bool:
        """Resend a challenged request with credentials. Returns whether it was resent."""
        if self.state in OVER and sent.request.method not in _LATE_METHODS:
            return False
        again = self._requests.retry(sent, response, now)
        if again is None:
            return False
        if sent.dialog is None and self._outgoing is not None:
            self._outgoing.resent(again)
        else:
            self._modification.resent(sent, again)
        return True

    def _receive_success(self, sent: PendingRequest | None, response: Response, now: float) -> None:
        """Handle a 2xx to an INVITE of ours; `sent` is None from the second on."""
        outgoing, dialog = self._outgoing, self.dialog
        if sent is not None and sent.dialog is None and outgoing is not None:
            outgoing.receive_success(response, now)
        elif self._requests.repeat_ack(response):
            pass
        elif sent is not None:
            self._modification.receive_success(sent, response, now)
        elif outgoing is not None:
            ours = dialog is not None and dialog.remote.tag == response.to.tag
            if self.state is not SessionState.OFFERED or not ours:  # else our answer is awaited
                outgoing.end_fork(response, now)

    def _receive_final(
        self, sent: PendingRequest, response: Response, now: float, received: bool = True
    ) -> None:
        """Handle a final response other than a 2xx to an INVITE. `received`: see
        SessionModification."""
        match sent.request.method:
            case "INVITE" if sent.dialog is None and self._outgoing is not None:
                self._outgoing.receive_failure(sent, response, now, received)
            case "INVITE" | "UPDATE":
                self._modification.receive_final(sent, response, now, received)
            case "BYE" if sent.dialog is self.dialog:
                self.apply(Event.BYE_DONE, now)
            case "REFER":
                self.refers.receive_response(response, now)
            case "INFO" if response.status == 481:
                self.apply(Event.GONE, now, 481, DIALOG_GONE)
            case "NOTIFY" if response.status >= 300:
                self.refers.notify_failed()

    # --- the far end's requests, from the core ---

    def receive_request(self, request: Request, transaction: ServerTransaction, now: float) -> bool:
        """Handle a request with our tag in To. Returns whether it was in order, which shows where
        the far end is now."""
        requests = self._requests
        dialog, in_order = requests.dialog_with(request.from_.tag), False
        if dialog is None or (self.state in OVER and request.method not in _LATE_METHODS):
            requests.respond(transaction, 481, now)
        elif not dialog.accept(request):
            requests.respond(transaction, 500, now, "Request Out of Order")  # §12.2.2
        elif (refusal := request_error(request, self._settings)) is not None:
            requests.respond(transaction, refusal[0], now, headers=refusal[1])
        else:
            in_order = True
            requests.learn_allow(request)
            self._receive(request, transaction, now)
        self._advance(now)
        return in_order

    def _receive(self, request: Request, transaction: ServerTransaction, now: float) -> None:
        requests = self._requests
        match request.method:
            case "BYE":
                requests.respond(transaction, 200, now)
                if request.from_.tag == (self.dialog.remote.tag if self.dialog else ""):
                    self.apply(Event.BYE, now, 200, reason_text(request))
            case "INVITE":
                if self._success.cseq is not None and self._offers.ours is None:
                    # A new INVITE shows that our 2xx arrived: its ACK was lost or overtaken.
                    self._acknowledged(None, now)
                self._modification.receive_reinvite(request, transaction, now)
            case "UPDATE":
                self._modification.receive_update(request, transaction, now)
            case "PRACK":
                if self._incoming is None:
                    requests.respond(transaction, 481, now)
                elif not self._incoming.receive_prack(request, transaction, now):
                    self.apply(Event.REFUSE, now, 488, "")
            case "OPTIONS":
                requests.respond(transaction, 200, now, headers=[("Accept", "application/sdp")])
            case "INFO":
                self._receive_info(request, transaction, now)
            case "REFER" if self.state in (SessionState.ESTABLISHED, SessionState.ANSWERED):
                self.refers.receive_refer(request, transaction, now)
            case "REFER":
                requests.respond(transaction, 403, now)
            case "NOTIFY":
                self.refers.receive_notify(request, transaction, now)
            case _:
                requests.respond(transaction, 405, now, headers=[("Allow", ", ".join(ALLOWED))])

    def _receive_info(self, request: Request, transaction: ServerTransaction, now: float) -> None:
        """Handle an INFO: a DTMF digit, or without a body a keep-alive (RFC 2976)."""
        digit = key_of(request)
        if digit is None:
            accept = [("Accept", f"{DTMF_RELAY}, {DTMF}, {TELEPHONE_EVENT}")]
            self._requests.respond(transaction, 415, now, headers=accept)
            return
        self._requests.respond(transaction, 200, now)
        if digit:
            self._events.append(Dtmf(digit))

    def receive_ack(self, request: Request, now: float) -> None:
        """Handle the ACK to our 2xx; repeated ones are ignored."""
        if self._success.cseq == request.cseq.number:
            self._acknowledged(sdp_of(request), now)
        self._advance(now)

    def _acknowledged(self, sdp: str | None, now: float) -> None:
        self._success.stop()
        due = self._offers.ours is Place.SUCCESS
        if self.state not in (SessionState.ANSWERED, SessionState.LEAVING):
            if due:
                self._offers.receive_answer(sdp)
            return
        if due:
            self._offers.ours = None
        if due and sdp is None:
            self.apply(Event.ACK_BARE, now, 488, End.FAR_END + " did not answer the offer")
        else:
            self._offers.agreed = True
            self.apply(Event.ACK, now, sdp=sdp if due else None)

    def cancelled(
        self, transaction: ServerTransaction, now: float, request: Request | None = None
    ) -> None:
        """Handle a CANCEL of an unanswered INVITE: of the call, or of the offer in a re-INVITE.
        `request` is the CANCEL, for its Reason."""
        theirs = self._offers.theirs
        if self._incoming is not None and transaction is self._incoming.transaction:
            text = reason_text(request) if request is not None else ""
            self.apply(Event.CANCEL, now, 487, text)
        elif theirs is not None and theirs.transaction is transaction:
            self._offers.theirs = None
            self._requests.respond(transaction, 487, now)
        self._advance(now)

    # --- state machine ---

    def _advance(self, now: float) -> None:
        """Do what has become possible: answer the call, send the pending offer, finish."""
        incoming = self._incoming
        if self.state is SessionState.RECEIVED and incoming is not None and incoming.ready:
            self.apply(Event.ACCEPT, now, sdp=incoming.accepting)
        if self._offers.pending is not None:
            self._modification.send_pending(now, self._may_update())
        if self.state is SessionState.ENDED and not self._requests.sent and self.refers.idle:
            self._linger_deadline = None

    def _may_update(self) -> bool:
        """Whether an UPDATE may carry an offer before the call is answered."""
        if not self._offers.agreed or "UPDATE" not in self._requests.allow:
            return False
        incoming = self._incoming
        if incoming is None:
            return self.state is SessionState.PROCEEDING
        unanswered = self.state is SessionState.RECEIVED and incoming.accepting is None
        return unanswered and not incoming.undelivered_sdp

    def apply(
        self,
        event: Event,
        now: float,
        status: int = 0,
        reason: str = "",
        sdp: str | None = None,
        *,
        headers: HeaderLines = (),
        by: EndedBy | None = None,
    ) -> None:
        """Apply an event by the table: see `session_table.Lifecycle`. For the parts of the
        session."""
        row = TABLE.get((self.state, event))
        if row is None:
            return
        cause = Cause(event, status, reason, sdp, headers, by or BY.get(event, "remote"))
        was_over = self.state in OVER
        before, self.state = self.state, row.state
        if cause.by != "remote" and reason:
            self._bye_reason = self._bye_reason or (status or 16, reason)
        self._perform(row.action, cause, now)
        if self.state not in RINGING:
            self._ring_deadline = None
            if self._incoming is not None and self._incoming.reliable is not None:
                self._incoming.reliable.stop()
        if self.state in OVER:
            self._linger_deadline = now + LINGER_S
            if self.state is not SessionState.LEAVING:
                self._success.stop()
            if not was_over:
                self._events.append(ended(cause, before))
                self._modification.stop(now)
                self.refers.call_ended(now)

    def _perform(self, action: Action, cause: Cause, now: float) -> None:
        offers, incoming, outgoing = self._offers, self._incoming, self._outgoing
        match action:
            case Action.NOTHING | Action.REPORT_END:
                pass
            case Action.PROGRESS:
                if cause.status > 100:
                    self._events.append(Progress(cause.status, cause.reason, cause.sdp))
            case Action.CONFIRM:
                offers.complete()
                self._send_ack()
                known = outgoing is not None and cause.sdp == outgoing.answer
                self._events.append(Answered(None if known else cause.sdp))
            case Action.HOLD_ACK:
                offers.theirs = RemoteOffer(Place.SUCCESS, cause.sdp, now + DECISION_S)
                self._events.append(Answered(cause.sdp))
            case Action.ACK_ANSWER:
                offers.agreed = True
                self._send_ack(cause.sdp)
            case Action.ACK_AND_BYE:
                self._send_ack()
                self._send_bye(now)
            case Action.BYE:
                self._send_bye(now)
            case Action.GIVE_UP if outgoing is not None:
                outgoing.cancel(now)
            case Action.ACCEPT if incoming is not None:
                incoming.send_success(cause.sdp, now)
            case Action.REFUSE if incoming is not None:
                incoming.refuse(cause, now)
            case Action.CONFIRMED:
                self._events.append(Confirmed(cause.sdp))

    def _send_ack(self, sdp: str | None = None) -> None:
        """Acknowledge the 2xx that answered our call."""
        assert self.dialog is not None
        self._requests.ack(self.dialog, self.invite, sdp)

    def _send_bye(self, now: float) -> None:
        reasons = [reason_header(*self._bye_reason)] if self._bye_reason else []
        self._requests.request("BYE", now, reasons)
