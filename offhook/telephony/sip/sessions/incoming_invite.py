"""An inbound INVITE until its final response: provisional responses, their PRACKs, and the final
response (RFC 3261 §13.3, RFC 3262 §3, §5)."""

from collections.abc import Callable

from offhook.telephony.sip.messages.grammar import SipError
from offhook.telephony.sip.messages.message import Request, sdp_of
from offhook.telephony.sip.sessions.dialog_requests import DialogRequests
from offhook.telephony.sip.sessions.ending import Cause, reason_header, shown
from offhook.telephony.sip.sessions.offers import Offers, Place, RemoteOffer
from offhook.telephony.sip.sessions.reliable import MAX_FIRST_RSEQ, ReliableSender, SuccessSender
from offhook.telephony.sip.sessions.session_table import Event
from offhook.telephony.sip.sessions.session_timer import SessionTimer
from offhook.telephony.sip.transactions.transaction import ServerTransaction


class IncomingInvite:
    """The INVITE of one inbound call."""

    def __init__(
        self,
        transaction: ServerTransaction,
        request: Request,
        requests: DialogRequests,
        offers: Offers,
        timer: SessionTimer,
        success: SuccessSender,
        random: Callable[[], float],
    ) -> None:
        self.transaction = transaction
        self.request = request
        self.accepting: str | None = None
        """Our SDP for the 2xx, once the owner has accepted the call."""
        self._requests = requests
        self._offers = offers
        self._timer = timer
        self._success = success
        required = "100rel" in request.require
        wanted = required or ("100rel" in request.supported and requests.settings.reliable)
        self.reliable: ReliableSender | None = None
        """None if provisional responses are not sent reliably."""
        if wanted:
            self.reliable = ReliableSender(request, 1 + int(random() * (MAX_FIRST_RSEQ - 1)))
        if offers.in_invite:
            offers.theirs = RemoteOffer(Place.INVITE, sdp_of(request))

    @property
    def undelivered_sdp(self) -> bool:
        """Whether SDP of ours in a provisional response is still unacknowledged."""
        return self.reliable is not None and self.reliable.blocks_answer

    @property
    def ready(self) -> bool:
        """Whether the call is accepted and the 2xx may be sent: no offer is open in a PRACK, an
        UPDATE or an 18x (RFC 3262 §3, §5)."""
        if self.accepting is None or self.undelivered_sdp or self._offers.ours is not None:
            return False
        theirs = self._offers.theirs
        return theirs is None or theirs.place is Place.INVITE

    def ring(self, now: float, sdp: str | None) -> None:
        """Send 180, or 183 with `sdp`."""
        offers = self._offers
        if sdp is not None and not offers.in_invite and self.reliable is None:
            sdp = None  # an offer must not be sent unreliably (RFC 3262 §5)
        if offers.agreed or offers.ours is Place.PROVISIONAL:
            sdp = None
        response = self._requests.response(self.request, 183 if sdp else 180, sdp=sdp)
        if self.reliable is None:
            self._requests.send_response(self.transaction, response, now)
            return
        if sdp is not None and offers.in_invite:
            offers.complete()
        elif sdp is not None:
            offers.ours = Place.PROVISIONAL
        first = self.reliable.send(response, now)
        if first is not None:
            self._requests.send_response(self.transaction, first, now)

    def receive_prack(self, request: Request, transaction: ServerTransaction, now: float) -> bool:
        """Handle a PRACK. Returns False if it lacks the answer that was due, which ends the
        call."""
        offers, sdp = self._offers, sdp_of(request)
        try:
            if self.reliable is None:
                raise SipError("no reliable response was sent")
            acknowledged, following = self.reliable.acknowledge(request, now)
        except SipError:
            self._requests.respond(transaction, 481, now)
            return True
        if offers.ours is Place.PROVISIONAL and acknowledged.body:
            offers.ours = None
            self._requests.respond(transaction, 200, now)
            if sdp is None:
                return False
            offers.agreed = True
            offers.receive_answer(sdp)
        elif sdp is None:
            self._requests.respond(transaction, 200, now)
        elif offers.agreed and not offers.ours and not offers.theirs:
            offers.receive_offer(Place.PRACK, sdp, now, transaction)
        else:
            self._requests.respond(transaction, 488, now)
        if following is not None:
            self._requests.send_response(self.transaction, following, now)
        return True

    def send_success(self, sdp: str | None, now: float) -> None:
        """Send the 2xx, retransmitted until its ACK. `sdp` is omitted if media are already
        negotiated."""
        offers = self._offers
        if offers.theirs is not None:
            offers.complete()
        elif offers.agreed:
            sdp = None
        else:
            offers.ours = Place.SUCCESS
        headers = self._timer.answer(self.request, now)
        response = self._requests.respond(self.transaction, 200, now, headers=headers, sdp=sdp)
        self._success.sent(self.transaction, response, now)

    def refuse(self, cause: Cause, now: float) -> None:
        """Send the final response from 300 on that the cause calls for."""
        status = cause.status if cause.status >= 300 else 480
        headers = list(cause.headers)
        phrase = cause.reason if cause.event is Event.REFUSE else ""
        if cause.event in (Event.BYE, Event.CANCEL):
            status = 487
        elif not phrase and cause.reason:
            headers.append(reason_header(status, cause.reason))
        self._offers.theirs = None
        self._requests.respond(self.transaction, status, now, shown(phrase), headers)

    def retransmit(self, now: float) -> bool:
        """Retransmit what is due. Returns False if no PRACK came in time and the INVITE must be
        rejected (RFC 3262 §3)."""
        if self.reliable is None:
            return True
        if self.reliable.timed_out(now):
            return False
        if (response := self.reliable.retransmit(now)) is not None:
            self._requests.send_response(self.transaction, response, now)
        return True
