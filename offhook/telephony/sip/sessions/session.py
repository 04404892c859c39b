"""One call by SIP, from its INVITE to its end, either way (RFC 3261 §13–15).

Sans-io: the owner asks for things, the core brings what the far end says, `now` is monotonic
seconds. After every call that takes `now`, take what `next_event` gives, and call `handle_timer`
when `get_timer` says so. What the owner asks for too late (the far end has hung up meanwhile) is
let pass; none of it raises.

The life of the call is the table of `session_table.py`; here is what its actions do, and the
INVITE that makes the call: provisional responses, forks, PRACK.
"""

import random as _random
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from offhook.telephony.call_record import EndedBy
from offhook.telephony.sip.auth.digest import DigestClient
from offhook.telephony.sip.messages.grammar import SipError
from offhook.telephony.sip.messages.headers import Headers, NameAddr
from offhook.telephony.sip.messages.message import Request, sdp_of
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.sessions.dialog import FIRST_CSEQ, MAX_FORWARDS, Dialog, sdp_body
from offhook.telephony.sip.sessions.ending import (
    BY,
    Cause,
    ended,
    reason_header,
    reason_text,
    shown,
)
from offhook.telephony.sip.sessions.open_offer import Place, TheirOffer
from offhook.telephony.sip.sessions.reliable import (
    FIRST_RSEQ_MOST,
    ReliableSender,
    Repetition,
)
from offhook.telephony.sip.sessions.session_calling import Calling
from offhook.telephony.sip.sessions.session_events import (
    Answered,
    AnswerReceived,
    Confirmed,
    Core,
    Progress,
    SessionSettings,
)
from offhook.telephony.sip.sessions.session_offers import DECISION_SECONDS
from offhook.telephony.sip.sessions.session_requests import ALLOWED, LINGER_SECONDS
from offhook.telephony.sip.sessions.session_table import (
    OVER,
    RINGING,
    TABLE,
    Action,
    Event,
    SessionState,
)
from offhook.telephony.sip.transactions.transaction import ClientTransaction, ServerTransaction


class Session(Calling):
    """One call. Made by `incoming` or `outgoing`."""

    def __init__(
        self,
        core: Core,
        invite: Request,
        local_tag: str,
        local_contact: Uri,
        settings: SessionSettings,
        digest: DigestClient | None,
        we_called: bool,
        random: Callable[[], float],
        now: float,
    ) -> None:
        super().__init__(
            core, invite, local_tag, local_contact, settings, digest, we_called, random
        )
        self.state = SessionState.CALLING if we_called else SessionState.RECEIVED
        self._rings_until: float | None = now + settings.ring_seconds
        self._invite_transaction: ServerTransaction | None = None
        self._reliable: ReliableSender | None = None
        self._accepting: str | None = None
        self._parting: tuple[int, str] | None = None
        """Status and text for the Reason of our BYE."""

    @classmethod
    def incoming(
        cls,
        core: Core,
        transaction: ServerTransaction,
        request: Request,
        local_contact: Uri,
        settings: SessionSettings,
        now: float,
        random: Callable[[], float] = _random.random,
    ) -> "Session":
        """Somebody calls. A request that cannot be served (420, 422 …) is refused at once: the
        session has then ended."""
        tag = secrets.token_hex(8)
        session = cls(core, request, tag, local_contact, settings, None, False, random, now)
        session._invite_transaction = transaction
        session.dialog = Dialog.from_request(request, tag, local_contact)
        session._learn(request)
        if session._offered_first:
            session._theirs = TheirOffer(Place.INVITE, sdp_of(request))
        required = "100rel" in request.require
        if required or ("100rel" in request.supported and settings.reliable):
            first = 1 + int(random() * (FIRST_RSEQ_MOST - 1))
            session._reliable = ReliableSender(request, first)
        if request.expires is not None:
            session._rings_until = now + min(settings.ring_seconds, request.expires)
        fault = cls.fault(request, settings)
        too_short = session._timer.refusal(request)
        if fault is None and too_short is not None:
            fault = 422, too_short
        if fault is None and session.dialog.remote_target.scheme not in ("sip", "sips"):
            fault = 400, []  # neither Contact nor From says where to send requests
        if fault is not None:
            session.refuse(fault[0], "", now, fault[1])
        return session

    @classmethod
    def outgoing(
        cls,
        core: Core,
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
        """Call somebody. `sdp`: our offer; None asks for theirs. `headers` are added to the
        INVITE, such as Replaces, or Route for a proxy on the way."""
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
        session = cls(core, invite, tag, local_contact, settings, digest, True, random, now)
        for name, value in session._timer.request_headers():
            fields.set(name, value)
        if digest is not None:
            digest.preempt(invite)
        session._ours = Place.INVITE if sdp else None
        session._sent_invite = session._send(invite, None, now)
        return session

    # --- for the owner ---

    def ring(self, now: float, sdp: str | None = None) -> None:
        """Tell the caller that it rings; with `sdp`, that there is sound before the call is taken:
        the answer to their offer, or our offer where they made none and can acknowledge it."""
        transaction = self._invite_transaction
        if (
            self.state is not SessionState.RECEIVED
            or transaction is None
            or self._accepting is not None
        ):
            return
        if sdp is not None and not self._offered_first and self._reliable is None:
            sdp = None  # an offer that may be lost is none (RFC 3262 §5)
        if self._agreed or self._ours is Place.PROVISIONAL:
            sdp = None
        response = self._response(self.invite, 183 if sdp else 180, sdp=sdp)
        if self._reliable is None:
            self._core.respond(transaction, response, now)
            return
        if sdp is not None and self._offered_first:
            self._theirs, self._agreed = None, True
        elif sdp is not None:
            self._ours = Place.PROVISIONAL
        first = self._reliable.send(response, now)
        if first is not None:
            self._core.respond(transaction, first, now)

    def accept(self, sdp: str, now: float) -> None:
        """Take the call: the answer to their offer, or our offer where they made none; not looked
        at when the media were agreed on before. Confirmed follows, or Ended."""
        if self.state is SessionState.RECEIVED and self._accepting is None:
            self._accepting = sdp
            self._settle(now)

    def refuse(
        self, status: int, reason: str, now: float, headers: Sequence[tuple[str, str]] = ()
    ) -> None:
        """Do not take the call. `reason`: the phrase of the response, "" the usual one."""
        self._happened(Event.REFUSE, now, status, reason, headers=headers)
        self._settle(now)

    def hang_up(self, now: float, reason: str = "", status: int = 0) -> None:
        """End the call as its state demands: refuse it (480 unless `status` says otherwise), give
        it up or hang up. `reason` goes along in a Reason header (RFC 3326)."""
        self._happened(Event.HANG_UP, now, status, reason)
        self._settle(now)

    def accept_late_offer(self, sdp: str, now: float) -> None:
        """Our answer to the offer that Answered brought."""
        if self._theirs is not None and self._theirs.place is Place.SUCCESS:
            self._theirs = None
            self._happened(Event.ANSWER, now, sdp=sdp)
            self._settle(now)

    # --- time ---

    def get_timer(self) -> float | None:
        return min((t for t in self._timers() if t is not None), default=None)

    def handle_timer(self, now: float) -> None:
        self._handle_timers(now)
        self._settle(now)

    def _timers(self) -> Iterator[float | None]:
        yield from super()._timers()
        yield self._rings_until
        yield self._reliable.get_timer() if self._reliable is not None else None

    def _handle_timers(self, now: float) -> None:
        super()._handle_timers(now)
        if self._rings_until is not None and now >= self._rings_until:
            self._rings_until = None
            text = f"no answer after {self._settings.ring_seconds:g} s"
            self._happened(Event.RANG_OUT, now, 408 if self._we_called else 480, text)
        if self._reliable is not None and self._invite_transaction is not None:
            if self._reliable.gave_up(now):
                text = "the far end did not acknowledge the ringing"
                self._happened(Event.NO_PRACK, now, 504, text)
            elif (response := self._reliable.repeat(now)) is not None:
                self._core.respond(self._invite_transaction, response, now)

    def _may_update(self) -> bool:
        if (
            self.state not in (SessionState.PROCEEDING, SessionState.RECEIVED)
            or self._accepting is not None
        ):
            return False
        unsure = self._reliable is not None and self._reliable.blocks_answer
        return self._agreed and not unsure and "UPDATE" in self._allow

    # --- we are called ---

    def _take(self, request: Request, transaction: ServerTransaction, now: float) -> None:
        match request.method:
            case "BYE":
                self._respond(transaction, 200, now)
                if request.from_.tag == (self.dialog.remote.tag if self.dialog else ""):
                    self._happened(Event.BYE, now, 200, reason_text(request))
            case "PRACK":
                self._take_prack(request, transaction, now)
            case _:
                super()._take(request, transaction, now)

    def _take_prack(self, request: Request, transaction: ServerTransaction, now: float) -> None:
        """RFC 3262 §3, §5."""
        try:
            if self._reliable is None or self._invite_transaction is None:
                raise SipError("nothing was sent reliably")
            acknowledged, following = self._reliable.acknowledge(request, now)
        except SipError:
            self._respond(transaction, 481, now)
            return
        sdp = sdp_of(request)
        if self._ours is Place.PROVISIONAL and acknowledged.body:
            self._ours = None
            self._respond(transaction, 200, now)
            if sdp is None:
                self._happened(Event.REFUSE, now, 488, "")
                return
            self._agreed = True
            self._tell(AnswerReceived(sdp))
        elif sdp is None:
            self._respond(transaction, 200, now)
        elif self._agreed and not self._ours and not self._theirs:
            self._offered(Place.PRACK, sdp, transaction, now)
        else:
            self._respond(transaction, 488, now)
        if following is not None:
            self._core.respond(self._invite_transaction, following, now)

    def cancelled(
        self, transaction: ServerTransaction, now: float, request: Request | None = None
    ) -> None:
        """A CANCEL of an INVITE that is unanswered. `request`: the CANCEL, for its Reason."""
        if transaction is self._invite_transaction:
            text = reason_text(request) if request is not None else ""
            self._happened(Event.CANCEL, now, 487, text)
            self._settle(now)
        else:
            super().cancelled(transaction, now, request)

    def _request_lost(self, transaction: ClientTransaction | ServerTransaction, now: float) -> None:
        if transaction is self._invite_transaction:
            self._happened(Event.FAILED, now, 503, "the connection is lost", by="transport")
        else:
            super()._request_lost(transaction, now)

    # --- the table ---

    def _gone(self, now: float) -> None:
        self._happened(Event.GONE, now, 481, "the far end does not know the call any more")

    def _settle(self, now: float) -> None:
        if (
            self._accepting is not None
            and self.state is SessionState.RECEIVED
            and self._may_answer()
        ):
            self._happened(Event.ACCEPT, now, sdp=self._accepting)
        self._send_waiting(now)
        if self.state is SessionState.ENDED and self._idle():
            self._linger_until = None

    def _may_answer(self) -> bool:
        """Is no offer in a PRACK, an UPDATE or an 18x open (RFC 3262 §3, §5)?"""
        if self._reliable is not None and self._reliable.blocks_answer:
            return False
        theirs = self._theirs.place if self._theirs is not None else None
        return theirs in (None, Place.INVITE) and self._ours is None

    def _happened(
        self,
        event: Event,
        now: float,
        status: int = 0,
        reason: str = "",
        sdp: str | None = None,
        *,
        headers: Sequence[tuple[str, str]] = (),
        by: EndedBy | None = None,
    ) -> None:
        row = TABLE.get((self.state, event))
        if row is None:
            return
        cause = Cause(event, status, reason, sdp, headers, by or BY.get(event, "remote"))
        was_over = self.state in OVER
        before, self.state = self.state, row.state
        if cause.by != "remote" and reason:
            self._parting = self._parting or (status or 16, reason)
        _ACTIONS[row.action](self, cause, now)
        if self.state not in RINGING:
            self._rings_until = None
            if self._reliable is not None:
                self._reliable.stop()
        if self.state in OVER:
            self._linger_until = now + LINGER_SECONDS
            if self.state is not SessionState.LEAVING:
                self._unacknowledged = None
            if not was_over:
                self._tell(ended(cause, before))
                self._stop_negotiating(now)
                self._refers_end(now)

    def _nothing(self, cause: Cause, now: float) -> None:
        pass

    def _do_progress(self, cause: Cause, now: float) -> None:
        if cause.status > 100:
            self._tell(Progress(cause.status, cause.reason, cause.sdp))

    def _do_confirm(self, cause: Cause, now: float) -> None:
        self._ours, self._theirs, self._agreed = None, None, True
        assert self.dialog is not None
        self._send_ack(self.dialog, self.invite)
        self._tell(Answered(None if cause.sdp == self._told_sdp else cause.sdp))

    def _do_hold_ack(self, cause: Cause, now: float) -> None:
        self._theirs = TheirOffer(Place.SUCCESS, cause.sdp, now + DECISION_SECONDS)
        self._tell(Answered(cause.sdp))

    def _do_ack_answer(self, cause: Cause, now: float) -> None:
        self._agreed = True
        assert self.dialog is not None
        self._send_ack(self.dialog, self.invite, cause.sdp)

    def _do_ack_and_bye(self, cause: Cause, now: float) -> None:
        assert self.dialog is not None
        self._send_ack(self.dialog, self.invite)
        self._do_bye(cause, now)

    def _do_give_up(self, cause: Cause, now: float) -> None:
        assert self._sent_invite is not None
        self._core.cancel(self._sent_invite.transaction, now)

    def _do_accept(self, cause: Cause, now: float) -> None:
        transaction, sdp = self._invite_transaction, cause.sdp
        assert transaction is not None
        if self._theirs is not None:
            self._theirs, self._agreed = None, True
        elif self._agreed:
            sdp = None
        else:
            self._ours = Place.SUCCESS
        headers = self._timer.answer(self.invite, now)
        response = self._respond(transaction, 200, now, headers=headers, sdp=sdp)
        self._unacknowledged = transaction, Repetition(response, now)

    def _do_refuse(self, cause: Cause, now: float) -> None:
        assert self._invite_transaction is not None
        status = cause.status if cause.status >= 300 else 480
        headers = list(cause.headers)
        phrase = cause.reason if cause.event is Event.REFUSE else ""
        if cause.event in (Event.BYE, Event.CANCEL):
            status = 487
        elif not phrase and cause.reason:
            headers.append(reason_header(status, cause.reason))
        self._theirs = None
        self._respond(self._invite_transaction, status, now, shown(phrase), headers)

    def _do_confirmed(self, cause: Cause, now: float) -> None:
        self._tell(Confirmed(cause.sdp))

    def _do_bye(self, cause: Cause, now: float) -> None:
        reasons = [reason_header(*self._parting)] if self._parting else []
        self._request("BYE", now, reasons)


_ACTIONS: Mapping[Action, Callable[[Session, Cause, float], None]] = {
    Action.NOTHING: Session._nothing,
    Action.PROGRESS: Session._do_progress,
    Action.CONFIRM: Session._do_confirm,
    Action.HOLD_ACK: Session._do_hold_ack,
    Action.ACK_ANSWER: Session._do_ack_answer,
    Action.ACK_AND_BYE: Session._do_ack_and_bye,
    Action.GIVE_UP: Session._do_give_up,
    Action.ACCEPT: Session._do_accept,
    Action.REFUSE: Session._do_refuse,
    Action.CONFIRMED: Session._do_confirmed,
    Action.BYE: Session._do_bye,
    Action.TELL: Session._nothing,
}
