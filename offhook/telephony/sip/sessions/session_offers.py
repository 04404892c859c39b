"""Offers and answers within a call: re-INVITE, UPDATE, glare, and the refresh of its timer.

RFC 3261 §14, RFC 3311, RFC 4028, and RFC 3264 §4: one offer at a time, whoever makes it.
"""

import random
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace

from offhook.telephony.call_record import EndedBy
from offhook.telephony.sip.auth.digest import DigestClient
from offhook.telephony.sip.messages.message import Request, Response, sdp_of
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.sessions.dialog import Dialog, sdp_body
from offhook.telephony.sip.sessions.ending import words
from offhook.telephony.sip.sessions.open_offer import Place, TheirOffer, Waiting
from offhook.telephony.sip.sessions.reliable import Repetition
from offhook.telephony.sip.sessions.session_events import (
    AnswerReceived,
    Core,
    OfferReceived,
    OfferRefused,
    RefreshDue,
    SessionSettings,
)
from offhook.telephony.sip.sessions.session_requests import ALLOWED, DialogUsage, Sent
from offhook.telephony.sip.sessions.session_table import OVER, Event, SessionState
from offhook.telephony.sip.sessions.session_timer import Due, SessionTimer
from offhook.telephony.sip.transactions.transaction import (
    TRANSACTION_SECONDS,
    ClientTransaction,
    ServerTransaction,
)

DECISION_SECONDS = 20.0
"""From an offer of theirs to our answer; the far end waits for 32 s."""
RETRY_MOST_SECONDS = 10
"""Of the Retry-After that a far end gets which asks too fast (RFC 3261 §14.2)."""
ACKS_KEPT = 16
"""ACKs to be sent again when their 2xx is; one for each fork, and for what came after."""


class Negotiation(DialogUsage):
    """The media of a call, as far as they are spoken about."""

    def __init__(
        self,
        core: Core,
        invite: Request,
        local_tag: str,
        local_contact: Uri,
        settings: SessionSettings,
        digest: DigestClient | None,
        we_called: bool,
        random: Callable[[], float] = random.random,
    ) -> None:
        super().__init__(core, invite.call_id, local_tag, local_contact, settings, digest)
        self.invite = invite
        """As it came, or as it was sent last, without Via."""
        self._offered_first = sdp_of(invite) is not None
        """The INVITE has an offer in it."""
        self._random = random
        self._we_called = we_called
        self._timer = SessionTimer(settings.session_seconds, settings.min_se)
        self._agreed = False
        """Some offer has had its answer."""
        self._ours: Place | None = None
        """Where our offer is that has no answer yet."""
        self._theirs: TheirOffer | None = None
        self._waiting: Waiting | None = None
        self._again = False
        """The offer that is out has been refused for glare once."""
        self._reinvite: Sent | None = None
        """Ours that is out."""
        self._reinvite_until: float | None = None
        """When it is given up."""
        self._unacknowledged: tuple[ServerTransaction, Repetition] | None = None
        """The INVITE whose 2xx of ours waits for its ACK."""
        self._acks: dict[tuple[int, str], Request] = {}
        """By the INVITE's number and the far end's tag."""

    # --- for the owner ---

    def reoffer(self, sdp: str, now: float) -> None:
        """Offer other media: a re-INVITE, in a call that is not taken yet an UPDATE. It waits
        while an INVITE is under way. AnswerReceived or OfferRefused follows, the latter at once
        with 491 while another offer is open, or Ended."""
        if self.state in OVER:
            return
        if self._busy() or not self._agreed:
            self._tell(OfferRefused(491, "another offer is open"))
            return
        self._waiting = Waiting(sdp)
        self._settle(now)

    def answer_offer(self, sdp: str, now: float) -> None:
        """To an OfferReceived: our answer, or our offer where it asked for one. Ignored when the
        offer has been withdrawn."""
        theirs = self._theirs
        if theirs is None or theirs.place is Place.INVITE:
            return
        if theirs.place is Place.SUCCESS:
            self.accept_late_offer(sdp, now)
            return
        self._theirs = None
        if theirs.sdp is None:
            self._ours = Place.SUCCESS
        else:
            self._agreed = True
        if theirs.place is Place.PROVISIONAL and theirs.response is not None:
            self._acknowledge(theirs.response, now, sdp)
        elif theirs.transaction is not None:
            self._accept_request(theirs.transaction, sdp, now)
        self._settle(now)

    def refuse_offer(self, status: int, now: float) -> None:
        """To an OfferReceived: the media stay as they are."""
        theirs = self._theirs
        if theirs is None or theirs.place is Place.INVITE:
            return
        if theirs.transaction is None:  # an 18x or a 2xx has nowhere to say no
            self._happened(Event.HANG_UP, now, 488, "no common media")
        else:
            self._theirs = None
            self._respond(theirs.transaction, status, now)
        self._settle(now)

    # --- offers of ours ---

    def _busy(self) -> bool:
        return bool(self._ours or self._theirs or self._waiting)

    def _send_waiting(self, now: float) -> None:
        """Send the offer that waits, if it may go now."""
        waiting = self._waiting
        if waiting is None or waiting.since is not None or self._ours or self._theirs:
            return
        body, content_type = sdp_body(waiting.sdp)
        if self.state is SessionState.ESTABLISHED:
            if self._reinvite or self._unacknowledged:  # §14.1: one INVITE at a time
                return
            self._ours = Place.REINVITE
            self._reinvite = self._request("INVITE", now, self._capabilities(), body, content_type)
            self._reinvite_until = now + TRANSACTION_SECONDS
        elif self._may_update():
            self._ours = Place.UPDATE
            self._request("UPDATE", now, self._capabilities(), body, content_type)
        else:
            return
        self._waiting = None
        self._again = waiting.again

    @abstractmethod
    def _may_update(self) -> bool:
        """In a call that is not taken yet."""

    def _capabilities(self) -> list[tuple[str, str]]:
        """Of an INVITE or UPDATE within the call. No 100rel: nothing rings here."""
        supported = ", ".join(tag for tag in self._settings.supported if tag != "100rel")
        return [
            ("Allow", ", ".join(ALLOWED)),
            ("Supported", supported),
            *self._timer.request_headers(),
        ]

    def _resent(self, before: Sent, sent: Sent) -> None:
        if self._reinvite is before:
            self._reinvite = sent

    def _invite_succeeded(
        self, sent: Sent | None, invite: Request, response: Response, now: float
    ) -> None:
        """The 2xx to a re-INVITE (§14.1), as often as it comes."""
        ack = self._acks.get((response.cseq.number, response.to.tag))
        if ack is not None:
            self._core.ack(ack, self)
        elif sent is not None and sent.dialog is not None:
            self._reinvite_over()
            sent.dialog.refresh_target(response)
            self._send_ack(sent.dialog, sent.request)
            if self.state not in OVER:
                self._timer.accepted(response, now)
                self._answered_by(response)

    def _reinvite_over(self) -> None:
        self._reinvite = self._reinvite_until = None

    def _send_ack(self, dialog: Dialog, invite: Request, sdp: str | None = None) -> None:
        ack = dialog.ack(invite, [("User-Agent", self._settings.user_agent)], sdp)
        if len(self._acks) >= ACKS_KEPT:
            del self._acks[next(iter(self._acks))]
        self._acks[invite.cseq.number, dialog.remote.tag] = ack
        self._core.ack(ack, self)

    def _answered_by(self, response: Response) -> None:
        """A 2xx to our offer."""
        if self._ours is None:
            return
        self._ours = None
        sdp = sdp_of(response)
        if sdp is not None:
            self._tell(AnswerReceived(sdp))
        else:
            self._tell(OfferRefused(488, "the far end gave no answer to the offer"))

    def _finished(self, sent: Sent, response: Response, now: float, heard: bool = True) -> None:
        method = sent.request.method
        if method == "INVITE" and sent.dialog is not None:
            self._reinvite_over()
            self._refused(sent, response, now, heard)
        elif method == "UPDATE" and response.status >= 300:
            self._refused(sent, response, now, heard)
        elif method == "UPDATE":
            if sent.dialog is not None:
                sent.dialog.refresh_target(response)
            if self.state not in OVER:
                self._timer.accepted(response, now)
            if sent.request.body:
                self._answered_by(response)
        else:
            super()._finished(sent, response, now, heard)

    def _refused(self, sent: Sent, response: Response, now: float, heard: bool) -> None:
        """A re-INVITE or an UPDATE came to nothing."""
        status = response.status
        if self.state in OVER:
            return
        if status == 422 and self._timer.too_short(response):
            self._ask_longer(sent, now)
            return
        if status == 481:
            self._gone(now)
        elif status == 408:  # §12.2.1.2, RFC 4028 §10
            self._happened(Event.LOST, now, 408, "the far end does not answer any more")
        if self.state in OVER:
            return
        self._timer.refresh_failed(now)
        if sent.request.body:
            self._offer_refused(sent, response, now, heard)
        elif status in (405, 501):
            self._allow -= {"UPDATE"}
            self._refresh(now)

    def _offer_refused(self, sent: Sent, response: Response, now: float, heard: bool) -> None:
        self._ours = None
        if response.status == 491 and heard and not self._again:
            sdp = sent.request.body.decode("utf-8", "surrogateescape")
            self._waiting = Waiting(sdp, now + self._glare_seconds(), again=True)
        else:
            self._tell(OfferRefused(response.status, words(response)))

    def _ask_longer(self, sent: Sent, now: float) -> None:
        """Once more, with the time that the 422 wants (RFC 4028 §7.3)."""
        assert sent.dialog is not None
        again = sent.dialog.again(sent.request)
        for name, value in self._timer.request_headers():
            again.headers.set(name, value)
        resent = self._send(again, sent.dialog, now)
        if again.method == "INVITE":
            self._reinvite, self._reinvite_until = resent, now + TRANSACTION_SECONDS

    def _glare_seconds(self) -> float:
        """How long to wait after 491, in steps of 10 ms (§14.1): whoever made the Call-ID waits
        longer."""
        if self._we_called:
            return round(2.1 + self._random() * 1.9, 2)
        return round(self._random() * 2.0, 2)

    # --- offers of theirs ---

    def _take(self, request: Request, transaction: ServerTransaction, now: float) -> None:
        match request.method:
            case "INVITE":
                self._take_reinvite(request, transaction, now)
            case "UPDATE":
                self._take_update(request, transaction, now)
            case _:
                super()._take(request, transaction, now)

    def _take_reinvite(self, request: Request, transaction: ServerTransaction, now: float) -> None:
        """§14.2."""
        if self._unacknowledged is not None and self._ours is None:
            # Who asks for more has seen our 2xx: its ACK is lost or was overtaken.
            self._acknowledged(None, now)
        if self.state is SessionState.RECEIVED or (self._theirs and self._theirs.transaction):
            self._ask_later(transaction, now)
        elif (
            self.state is not SessionState.ESTABLISHED
            or self._ours
            or self._reinvite
            or self._theirs
        ):
            self._respond(transaction, 491, now)
        elif (headers := self._timer.refusal(request)) is not None:
            self._respond(transaction, 422, now, headers=headers)
        else:
            self._offered(Place.REINVITE, sdp_of(request), transaction, now)

    def _take_update(self, request: Request, transaction: ServerTransaction, now: float) -> None:
        """RFC 3311 §5.2; without an offer it only refreshes."""
        sdp = sdp_of(request)
        if (headers := self._timer.refusal(request)) is not None:
            self._respond(transaction, 422, now, headers=headers)
        elif sdp is None:
            self._accept_request(transaction, None, now)
        elif self._theirs is not None:
            self._ask_later(transaction, now)
        elif self._ours is not None or not self._agreed:
            self._respond(transaction, 491, now)
        else:
            self._offered(Place.UPDATE, sdp, transaction, now)

    def _ask_later(self, transaction: ServerTransaction, now: float) -> None:
        seconds = int(self._random() * (RETRY_MOST_SECONDS + 1))
        self._respond(transaction, 500, now, headers=[("Retry-After", str(seconds))])

    def _offered(
        self, place: Place, sdp: str | None, transaction: ServerTransaction, now: float
    ) -> None:
        if self._waiting is not None:  # what it says was made before this one and may not fit it
            self._waiting = None
            self._tell(OfferRefused(491, "the far end made an offer first"))
        self._theirs = TheirOffer(place, sdp, now + DECISION_SECONDS, transaction)
        self._tell(OfferReceived(sdp))

    def _accept_request(self, transaction: ServerTransaction, sdp: str | None, now: float) -> None:
        """The 2xx to a re-INVITE, an UPDATE or a PRACK."""
        request = transaction.request
        if request.method == "PRACK":
            self._respond(transaction, 200, now, sdp=sdp)
            return
        dialog = self._dialog_named(request.from_.tag)
        if dialog is not None:
            dialog.refresh_target(request)
        headers = self._timer.answer(request, now)
        response = self._respond(transaction, 200, now, headers=headers, sdp=sdp)
        if request.method == "INVITE":
            self._unacknowledged = transaction, Repetition(response, now)

    def receive_ack(self, request: Request, now: float) -> None:
        """The ACK to a 2xx of ours; a repeated one is let pass."""
        waiting = self._unacknowledged
        if waiting is not None and waiting[0].request.cseq.number == request.cseq.number:
            self._acknowledged(sdp_of(request), now)
        self._settle(now)

    def _acknowledged(self, sdp: str | None, now: float) -> None:
        self._unacknowledged = None
        due = self._ours is Place.SUCCESS
        if due:
            self._ours = None
        if self.state in (SessionState.ANSWERED, SessionState.LEAVING):
            if due and sdp is None:
                self._happened(Event.ACK_BARE, now, 488, "the far end gave no answer to the offer")
            else:
                self._agreed = True
                self._happened(Event.ACK, now, sdp=sdp if due else None)
        elif due and sdp is not None:
            self._tell(AnswerReceived(sdp))
        elif due:
            self._tell(OfferRefused(488, "the far end gave no answer to the offer"))

    def cancelled(
        self, transaction: ServerTransaction, now: float, request: Request | None = None
    ) -> None:
        """A CANCEL of an INVITE within the call: its offer is off."""
        theirs = self._theirs
        if theirs is not None and theirs.transaction is transaction:
            self._theirs = None
            self._respond(transaction, 487, now)
        self._settle(now)

    def _request_lost(self, transaction: ClientTransaction | ServerTransaction, now: float) -> None:
        if self._theirs is not None and self._theirs.transaction is transaction:
            self._theirs = None

    # --- time ---

    def _refresh(self, now: float) -> None:
        """RFC 4028 §7.4: an UPDATE says it without touching the media."""
        if self.state is not SessionState.ESTABLISHED or self._reinvite or self._busy():
            self._timer.refresh_failed(now)  # a re-INVITE under way refreshes by itself
        elif "UPDATE" in self._allow:
            self._request("UPDATE", now, self._capabilities())
        else:
            self._timer.refresh_failed(now)
            self._tell(RefreshDue())

    def _timers(self) -> Iterator[float | None]:
        yield from super()._timers()
        yield self._timer.get_timer()
        yield self._theirs.until if self._theirs else None
        yield self._waiting.since if self._waiting else None
        yield self._reinvite_until
        yield self._unacknowledged[1].get_timer() if self._unacknowledged else None

    def _handle_timers(self, now: float) -> None:
        super()._handle_timers(now)
        if self._unacknowledged is not None:
            transaction, repetition = self._unacknowledged
            if now >= repetition.gives_up_at:
                self._unacknowledged = None
                self._happened(Event.NO_ACK, now, 408, "the far end did not confirm the call")
            elif repetition.due(now):
                self._core.respond(transaction, repetition.response, now)
        theirs, waiting = self._theirs, self._waiting
        if theirs is not None and theirs.until is not None and now >= theirs.until:
            self.refuse_offer(500, now)
        if waiting is not None and waiting.since is not None and now >= waiting.since:
            self._waiting = replace(waiting, since=None)
        until, self._reinvite_until = self._reinvite_until, None
        if until is not None and now < until:
            self._reinvite_until = until
        elif until is not None and self._reinvite is not None:
            # What is cancelled ends by itself.
            self._core.cancel(self._reinvite.transaction, now)
        match self._timer.handle_timer(now):
            case Due.EXPIRED:
                self._happened(Event.LOST, now, 408, "the far end did not refresh the call")
            case Due.REFRESH:
                self._refresh(now)

    def _stop_negotiating(self, now: float) -> None:
        """The call is over: what is open is answered 487 (§15.1.2) or given up, and nothing more
        is made."""
        self._timer.stop()
        self._waiting = self._ours = None
        if self._reinvite is not None:  # after a provisional response it would wait for ever
            self._core.cancel(self._reinvite.transaction, now)
        self._reinvite_over()
        theirs, self._theirs = self._theirs, None
        if theirs is not None and theirs.transaction is not None:
            self._respond(theirs.transaction, 487, now)

    # --- what the layer above does ---

    @abstractmethod
    def accept_late_offer(self, sdp: str, now: float) -> None: ...

    @abstractmethod
    def _acknowledge(self, response: Response, now: float, sdp: str | None = None) -> None:
        """Send the PRACK."""

    @abstractmethod
    def _happened(
        self,
        event: Event,
        now: float,
        status: int = 0,
        reason: str = "",
        sdp: str | None = None,
        *,
        by: EndedBy | None = None,
    ) -> None:
        """Follow the table. `by`: who ends the call, where the event alone does not say."""
