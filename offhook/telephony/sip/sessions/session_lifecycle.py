"""The life of one SIP call: carries out the actions of the table in `session_table.py` with the
parts of its session, and keeps the time.

Its parts hold no reference to it, so it is freed with the last outside reference, without cyclic
garbage collection.
"""

import weakref
from collections import deque
from collections.abc import Callable, Iterator

from offhook.media.end_reason import End
from offhook.telephony.call_record import EndedBy
from offhook.telephony.sip.auth.digest import DigestClient
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.sessions.dialog_requests import DialogRequests, HeaderLines
from offhook.telephony.sip.sessions.ending import BY, Cause, ended, reason_header
from offhook.telephony.sip.sessions.incoming_invite import IncomingInvite
from offhook.telephony.sip.sessions.offers import DECISION_S, Offers, Place, RemoteOffer
from offhook.telephony.sip.sessions.outgoing_invite import OutgoingInvite
from offhook.telephony.sip.sessions.refer import ReferUsage
from offhook.telephony.sip.sessions.reliable import SuccessSender
from offhook.telephony.sip.sessions.session_events import (
    Answered,
    Confirmed,
    Progress,
    SessionCore,
    SessionEvent,
    SessionSettings,
)
from offhook.telephony.sip.sessions.session_modification import SessionModification
from offhook.telephony.sip.sessions.session_table import (
    OVER,
    RINGING,
    TABLE,
    Action,
    Event,
    SessionState,
)
from offhook.telephony.sip.sessions.session_timer import SessionTimer
from offhook.telephony.sip.transactions.transaction import TRANSACTION_S

LINGER_S = 2 * TRANSACTION_S
"""Time from the end of a call until it is forgotten, whatever is still unanswered."""


class SessionLifecycle:
    """State, parts and deadlines of one session."""

    def __init__(
        self,
        core: SessionCore,
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
        self.state = SessionState.CALLING if we_called else SessionState.RECEIVED
        self.settings = settings
        self.events: deque[SessionEvent] = deque()
        emit = self.events.append
        self.requests = DialogRequests(core, local_tag, local_contact, settings, digest)
        self.offers = Offers(offered, emit)
        self.timer = SessionTimer(settings.session_seconds, settings.min_se)
        self.success = SuccessSender()
        self.modification = SessionModification(
            self.requests,
            self.offers,
            self.timer,
            self.success,
            weakref.proxy(self),
            emit,
            we_called,
            random,
        )
        self.refers = ReferUsage(self.requests, emit)
        self.incoming: IncomingInvite | None = None
        self.outgoing: OutgoingInvite | None = None
        self.ring_deadline: float | None = now + settings.ring_seconds
        self.response_deadline: float | None = None
        if we_called and settings.response_seconds is not None:
            self.response_deadline = now + settings.response_seconds
        self.linger_deadline: float | None = None
        self._bye_reason: tuple[int, str] | None = None
        """Status and text for the Reason of our BYE."""

    # --- time ---

    def get_timer(self) -> float | None:
        return min((t for t in self._timers() if t is not None), default=None)

    def _timers(self) -> Iterator[float | None]:
        yield self.ring_deadline
        yield self.response_deadline
        yield self.linger_deadline
        yield self.offers.theirs.deadline if self.offers.theirs else None
        yield self.success.get_timer()
        if self.incoming is not None and self.incoming.reliable is not None:
            yield self.incoming.reliable.get_timer()
        yield from self.modification.timers()
        yield from self.refers.timers()

    def handle_timer(self, now: float) -> None:
        self.refers.handle_timer(now)
        if self.linger_deadline is not None and now >= self.linger_deadline:
            self.state = SessionState.ENDED
            self.refers.abandon()
            self.linger_deadline = None
        if self.success.timed_out(now):
            self.success.stop()
            self.apply(Event.NO_ACK, now, 408, End.FAR_END + " did not confirm the call")
        elif (repeated := self.success.retransmit(now)) is not None:
            self.requests.send_response(*repeated, now)
        theirs = self.offers.theirs
        if theirs is not None and theirs.deadline is not None and now >= theirs.deadline:
            self.refuse_offer(500, now)
        self.modification.handle_timer(now)
        if self.ring_deadline is not None and now >= self.ring_deadline:
            self.ring_deadline = None
            text = End.NO_ANSWER + f" after {self.settings.ring_seconds:g} s"
            self.apply(Event.RING_TIMEOUT, now, 408 if self.outgoing else 480, text)
        if self.response_deadline is not None and now >= self.response_deadline:
            self.response_deadline = None
            waited = f"no response after {self.settings.response_seconds:g} s"
            self.apply(Event.UNANSWERED, now, 408, waited)
        if self.incoming is not None and not self.incoming.retransmit(now):
            self.apply(Event.NO_PRACK, now, 504, End.FAR_END + " did not acknowledge the ringing")
        self.advance(now)

    # --- state machine ---

    def advance(self, now: float) -> None:
        """Do what has become possible: answer the call, send the pending offer, finish."""
        incoming = self.incoming
        if self.state is SessionState.RECEIVED and incoming is not None and incoming.ready:
            self.apply(Event.ACCEPT, now, sdp=incoming.accepting)
        if self.offers.pending is not None:
            self.modification.send_pending(now, self._may_update())
        if self.state is SessionState.ENDED and not self.requests.sent and self.refers.idle:
            self.linger_deadline = None

    def _may_update(self) -> bool:
        """Whether an UPDATE may carry an offer before the call is answered."""
        if not self.offers.agreed or "UPDATE" not in self.requests.allow:
            return False
        incoming = self.incoming
        if incoming is None:
            return self.state is SessionState.PROCEEDING
        unanswered = self.state is SessionState.RECEIVED and incoming.accepting is None
        return unanswered and not incoming.undelivered_sdp

    def refuse_offer(self, status: int, now: float) -> None:
        """Reject the far end's offer: the media stay as they are."""
        theirs = self.offers.theirs
        if theirs is None or theirs.place is Place.INVITE:
            return
        if theirs.transaction is None:  # an 18x or 2xx cannot be rejected
            self.apply(Event.HANG_UP, now, 488, End.NO_COMMON_MEDIA)
        else:
            self.offers.theirs = None
            self.requests.respond(theirs.transaction, status, now)
        self.advance(now)

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
            self.ring_deadline = None
            if self.incoming is not None and self.incoming.reliable is not None:
                self.incoming.reliable.stop()
        if self.state in OVER:
            self.linger_deadline = now + LINGER_S
            if self.state is not SessionState.LEAVING:
                self.success.stop()
            if not was_over:
                self.events.append(ended(cause, before))
                self.modification.stop(now)
                self.refers.call_ended(now)

    def _perform(self, action: Action, cause: Cause, now: float) -> None:
        offers, incoming, outgoing = self.offers, self.incoming, self.outgoing
        match action:
            case Action.NOTHING | Action.REPORT_END:
                pass
            case Action.PROGRESS:
                if cause.status > 100:
                    self.events.append(Progress(cause.status, cause.reason, cause.sdp))
            case Action.CONFIRM:
                offers.complete()
                self._send_ack()
                known = outgoing is not None and cause.sdp == outgoing.answer
                self.events.append(Answered(None if known else cause.sdp))
            case Action.HOLD_ACK:
                offers.theirs = RemoteOffer(Place.SUCCESS, cause.sdp, now + DECISION_S)
                self.events.append(Answered(cause.sdp))
            case Action.ACK_ANSWER:
                offers.agreed = True
                self._send_ack(cause.sdp)
            case Action.ACK_AND_BYE:
                self._send_ack()
                self._send_bye(now)
            case Action.BYE:
                self._send_bye(now)
            case Action.GIVE_UP if outgoing is not None:
                elsewhere = cause.status == 200  # RFC 3326 §2: phones then show no missed call
                outgoing.cancel(now, self._reasons() if elsewhere else ())
            case Action.ACCEPT if incoming is not None:
                incoming.send_success(cause.sdp, now)
            case Action.REFUSE if incoming is not None:
                incoming.refuse(cause, now)
            case Action.CONFIRMED:
                self.events.append(Confirmed(cause.sdp))

    def _send_ack(self, sdp: str | None = None) -> None:
        """Acknowledge the 2xx that answered our call."""
        assert self.requests.dialog is not None
        assert self.outgoing is not None
        self.requests.ack(self.requests.dialog, self.outgoing.request, sdp)

    def _send_bye(self, now: float) -> None:
        self.requests.request("BYE", now, self._reasons())

    def _reasons(self) -> HeaderLines:
        return [reason_header(*self._bye_reason)] if self._bye_reason else []
