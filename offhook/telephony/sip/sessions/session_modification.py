"""Changes within a call: re-INVITE and UPDATE by either side, glare, and session refresh (RFC 3261
§14, RFC 3311, RFC 4028)."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from offhook.media.end_reason import End
from offhook.telephony.sip.messages.message import Request, Response, sdp_of
from offhook.telephony.sip.sessions.dialog import sdp_body
from offhook.telephony.sip.sessions.dialog_requests import (
    ALLOWED,
    DialogRequests,
    HeaderLines,
    PendingRequest,
)
from offhook.telephony.sip.sessions.ending import words
from offhook.telephony.sip.sessions.offers import Offers, PendingOffer, Place
from offhook.telephony.sip.sessions.reliable import SuccessSender
from offhook.telephony.sip.sessions.session_events import OfferRefused, RefreshDue, SessionEvent
from offhook.telephony.sip.sessions.session_table import OVER, Event, Lifecycle, SessionState
from offhook.telephony.sip.sessions.session_timer import Due, SessionTimer
from offhook.telephony.sip.transactions.transaction import TRANSACTION_S, ServerTransaction

MAX_RETRY_AFTER_S = 10
"""Largest random Retry-After in s with which an overlapping offer is refused with 500 (RFC 3261
§14.2)."""
DIALOG_GONE = End.FAR_END + " no longer knows the call"


class SessionModification:
    """The re-INVITEs and UPDATEs of one call."""

    def __init__(
        self,
        requests: DialogRequests,
        offers: Offers,
        timer: SessionTimer,
        success: SuccessSender,
        call: Lifecycle,
        emit: Callable[[SessionEvent], None],
        owns_call_id: bool,
        random: Callable[[], float],
    ) -> None:
        """`owns_call_id`: we created the Call-ID, which decides who waits longer after glare."""
        self._requests = requests
        self._offers = offers
        self._timer = timer
        self._success = success
        self._call = call
        self._emit = emit
        self._owns_call_id = owns_call_id
        self._random = random
        self._reinvite: PendingRequest | None = None
        """Our re-INVITE without a final response."""
        self._reinvite_deadline: float | None = None
        self._retried = False
        """The offer just sent has met glare once."""

    # --- outbound ---

    def send_pending(self, now: float, may_update: bool) -> None:
        """Send the pending offer if possible. `may_update`: an UPDATE may carry it before the call
        is answered (RFC 3311 §5.1)."""
        offers = self._offers
        pending = offers.pending
        if pending is None or pending.not_before is not None or offers.ours or offers.theirs:
            return
        body, content_type = sdp_body(pending.sdp)
        if self._call.state is SessionState.ESTABLISHED:
            if self._reinvite or self._success.cseq is not None:  # §14.1: one INVITE at a time
                return
            method, offers.ours = "INVITE", Place.REINVITE
        elif may_update:
            method, offers.ours = "UPDATE", Place.UPDATE
        else:
            return
        sent = self._requests.request(method, now, self._capabilities(), body, content_type)
        self._track(sent, now)
        offers.pending = None
        self._retried = pending.retried

    def _track(self, sent: PendingRequest, now: float) -> None:
        if sent.request.method == "INVITE":
            self._reinvite, self._reinvite_deadline = sent, now + TRANSACTION_S

    def _capabilities(self) -> HeaderLines:
        """Headers of a re-INVITE or UPDATE. No 100rel: nothing rings here."""
        supported = ", ".join(t for t in self._requests.settings.supported if t != "100rel")
        return [
            ("Allow", ", ".join(ALLOWED)),
            ("Supported", supported),
            *self._timer.request_headers(),
        ]

    def resent(self, before: PendingRequest, sent: PendingRequest) -> None:
        """`before` was resent with credentials as `sent`."""
        if self._reinvite is before:
            self._reinvite = sent

    def receive_success(self, sent: PendingRequest, response: Response, now: float) -> None:
        """Handle the first 2xx to a re-INVITE (§14.1)."""
        self._reinvite = self._reinvite_deadline = None
        assert sent.dialog is not None
        sent.dialog.refresh_target(response)
        self._requests.ack(sent.dialog, sent.request)
        self._accepted(sent, response, now)

    def _accepted(self, sent: PendingRequest, response: Response, now: float) -> None:
        if self._call.state not in OVER:
            self._timer.accepted(response, now)
            if sent.request.body and self._offers.ours is not None:
                self._offers.receive_answer(sdp_of(response))

    def receive_final(
        self, sent: PendingRequest, response: Response, now: float, received: bool
    ) -> None:
        """Handle the final response to an UPDATE, or a failure of a re-INVITE. `received` is False
        for a substitute for a response that never came."""
        if sent.request.method == "INVITE":
            self._reinvite = self._reinvite_deadline = None
        if response.status < 300:
            if sent.dialog is not None:
                sent.dialog.refresh_target(response)
            self._accepted(sent, response, now)
        elif self._call.state not in OVER:
            self._refused(sent, response, now, received)

    def _refused(
        self, sent: PendingRequest, response: Response, now: float, received: bool
    ) -> None:
        status = response.status
        if status == 422 and self._timer.too_short(response):
            self._lengthen_interval(sent, now)
            return
        if status == 481:
            self._call.apply(Event.GONE, now, 481, DIALOG_GONE)
        elif status == 408:  # §12.2.1.2, RFC 4028 §10
            self._call.apply(Event.LOST, now, 408, End.FAR_END + " does not answer any more")
        if self._call.state in OVER:
            return
        self._timer.refresh_failed(now)
        if sent.request.body:
            self._offer_refused(sent, response, now, received)
        elif status in (405, 501):
            self._requests.allow -= {"UPDATE"}
            self._refresh(now)

    def _offer_refused(
        self, sent: PendingRequest, response: Response, now: float, received: bool
    ) -> None:
        self._offers.ours = None
        if response.status == 491 and received and not self._retried:
            sdp = sent.request.body.decode("utf-8", "surrogateescape")
            self._offers.pending = PendingOffer(sdp, now + self._glare_s(), retried=True)
        else:
            self._emit(OfferRefused(response.status, words(response)))

    def _lengthen_interval(self, sent: PendingRequest, now: float) -> None:
        """Resend the request with the session interval that a 422 requires (RFC 4028 §7.3)."""
        assert sent.dialog is not None
        again = sent.dialog.renumbered(sent.request)
        for name, value in self._timer.request_headers():
            again.headers.set(name, value)
        self._track(self._requests.send(again, sent.dialog, now), now)

    def _glare_s(self) -> float:
        """Seconds to wait after a 491, in steps of 10 ms: the owner of the Call-ID waits longer
        (§14.1)."""
        if self._owns_call_id:
            return round(2.1 + self._random() * 1.9, 2)
        return round(self._random() * 2.0, 2)

    # --- inbound ---

    def receive_reinvite(
        self, request: Request, transaction: ServerTransaction, now: float
    ) -> None:
        """Handle a re-INVITE (§14.2)."""
        offers, state = self._offers, self._call.state
        if state is SessionState.RECEIVED or (offers.theirs and offers.theirs.transaction):
            self._retry_later(transaction, now)
        elif (
            state is not SessionState.ESTABLISHED or offers.ours or self._reinvite or offers.theirs
        ):
            self._requests.respond(transaction, 491, now)
        elif (headers := self._timer.refusal(request)) is not None:
            self._requests.respond(transaction, 422, now, headers=headers)
        else:
            offers.receive_offer(Place.REINVITE, sdp_of(request), now, transaction)

    def receive_update(self, request: Request, transaction: ServerTransaction, now: float) -> None:
        """Handle an UPDATE (RFC 3311 §5.2); without an offer it only refreshes the session."""
        offers, sdp = self._offers, sdp_of(request)
        if (headers := self._timer.refusal(request)) is not None:
            self._requests.respond(transaction, 422, now, headers=headers)
        elif sdp is None:
            self.accept(transaction, None, now)
        elif offers.theirs is not None:
            self._retry_later(transaction, now)
        elif offers.ours is not None or not offers.agreed:
            self._requests.respond(transaction, 491, now)
        else:
            offers.receive_offer(Place.UPDATE, sdp, now, transaction)

    def _retry_later(self, transaction: ServerTransaction, now: float) -> None:
        seconds = int(self._random() * (MAX_RETRY_AFTER_S + 1))
        self._requests.respond(transaction, 500, now, headers=[("Retry-After", str(seconds))])

    def accept(self, transaction: ServerTransaction, sdp: str | None, now: float) -> None:
        """Send the 2xx to a re-INVITE or UPDATE."""
        request = transaction.request
        dialog = self._requests.dialog_with(request.from_.tag)
        if dialog is not None:
            dialog.refresh_target(request)
        headers = self._timer.answer(request, now)
        response = self._requests.respond(transaction, 200, now, headers=headers, sdp=sdp)
        if request.method == "INVITE":
            self._success.sent(transaction, response, now)

    # --- time ---

    def _refresh(self, now: float) -> None:
        """Refresh the session by an UPDATE, which leaves the media unchanged (RFC 4028 §7.4)."""
        if self._call.state is not SessionState.ESTABLISHED or self._reinvite or self._offers.open:
            self._timer.refresh_failed(now)  # a re-INVITE in progress refreshes too
        elif "UPDATE" in self._requests.allow:
            self._requests.request("UPDATE", now, self._capabilities())
        else:
            self._timer.refresh_failed(now)
            self._emit(RefreshDue())

    def timers(self) -> Iterator[float | None]:
        yield self._timer.get_timer()
        yield self._offers.pending.not_before if self._offers.pending else None
        yield self._reinvite_deadline

    def handle_timer(self, now: float) -> None:
        pending, deadline = self._offers.pending, self._reinvite_deadline
        if pending is not None and pending.not_before is not None and now >= pending.not_before:
            self._offers.pending = replace(pending, not_before=None)
        if deadline is not None and now >= deadline:
            self._reinvite_deadline = None
            if self._reinvite is not None:  # a cancelled request ends by itself
                self._requests.cancel(self._reinvite, now)
        match self._timer.handle_timer(now):
            case Due.EXPIRED:
                self._call.apply(Event.LOST, now, 408, End.FAR_END + " did not refresh the call")
            case Due.REFRESH:
                self._refresh(now)

    def stop(self, now: float) -> None:
        """End with the call: the far end's open requests get 487 (§15.1.2), ours are cancelled."""
        self._timer.stop()
        self._offers.pending = self._offers.ours = None
        if self._reinvite is not None:  # after a provisional response it would wait forever
            self._requests.cancel(self._reinvite, now)
        self._reinvite = self._reinvite_deadline = None
        theirs, self._offers.theirs = self._offers.theirs, None
        if theirs is not None and theirs.transaction is not None:
            self._requests.respond(theirs.transaction, 487, now)
