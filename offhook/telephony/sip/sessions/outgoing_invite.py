"""An outbound INVITE until its final response: forks, reliable 18x, challenges (RFC 3261 §13.2, RFC
3262 §4).

One INVITE may reach several far ends. Each one that responds creates its own dialog; the first 2xx
gets the call.
"""

from dataclasses import dataclass, field

from offhook.media.end_reason import End
from offhook.telephony.call_record import EndedBy
from offhook.telephony.sip.messages.headers import CSeq, Headers
from offhook.telephony.sip.messages.message import Request, Response, sdp_of
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.sessions.dialog import Dialog, sdp_body
from offhook.telephony.sip.sessions.dialog_requests import (
    MAX_FORKS,
    DialogRequests,
    HeaderLines,
    PendingRequest,
)
from offhook.telephony.sip.sessions.ending import reason_header, shown, words
from offhook.telephony.sip.sessions.offers import Offers, Place
from offhook.telephony.sip.sessions.reliable import RAck, ReliableReceiver, rseq_of
from offhook.telephony.sip.sessions.session_table import RINGING, Event, Lifecycle
from offhook.telephony.sip.sessions.session_timer import SessionTimer

NOT_REACHABLE = "Not Reachable"
"""Reason phrase of the substitute response if nothing more is known."""


@dataclass(slots=True)
class EarlyDialog:
    """A far end that has responded provisionally (RFC 3261 §12)."""

    dialog: Dialog
    order: ReliableReceiver = field(default_factory=ReliableReceiver)
    sdp: str | None = field(default=None, repr=False)
    """Its answer to our offer so far."""
    agreed: bool = False
    """That answer was sent reliably and is final (RFC 3262 §5)."""


class OutgoingInvite:
    """The INVITE of one outbound call."""

    def __init__(
        self,
        invite: Request,
        requests: DialogRequests,
        offers: Offers,
        timer: SessionTimer,
        call: Lifecycle,
    ) -> None:
        self.request = invite
        """The INVITE last sent, without Via."""
        self.early: dict[str, EarlyDialog] = {}
        """Early dialogs by remote tag."""
        self.answer: str | None = None
        """The answer last reported to the owner."""
        self.moved_to: tuple[Uri, ...] = ()
        """Where the far end can be reached instead (RFC 3261 §21.3)."""
        self._requests = requests
        self._offers = offers
        self._timer = timer
        self._call = call
        self._sent: PendingRequest | None = None

    def send(self, now: float) -> None:
        self._offers.ours = Place.INVITE if self._offers.in_invite else None
        self._sent = self._requests.send(self.request, None, now)

    def cancel(self, now: float, headers: HeaderLines = ()) -> None:
        assert self._sent is not None
        self._requests.cancel(self._sent, now, headers)

    def resent(self, sent: PendingRequest) -> None:
        """The INVITE was sent again: forget the branches that rang before."""
        self._sent, self.request = sent, sent.request
        self.early.clear()
        self._requests.forks.clear()
        self._requests.dialog = None
        self._offers.restart()

    # --- provisional responses ---

    def receive_provisional(self, sent: PendingRequest, response: Response, now: float) -> None:
        if self._call.state not in RINGING:
            return
        early = self._early_dialog(sent, response)
        rseq = rseq_of(response)
        sdp = sdp_of(response) if early is not None else None
        if early is not None and rseq is not None and self._requests.settings.reliable:
            if self._requests.full or not early.order.accept(rseq):
                return  # it is retransmitted
            sdp = self._receive_reliable(early, response, sdp, now)
        elif early is not None and sdp is not None:
            if not self._offers.in_invite or early.agreed:
                sdp = None  # neither an answer nor, unreliably, an offer
            else:
                early.sdp = sdp
        sdp, self.answer = None if sdp == self.answer else sdp, sdp or self.answer
        self._call.apply(Event.PROVISIONAL, now, response.status, shown(response.reason), sdp)

    def _early_dialog(self, sent: PendingRequest, response: Response) -> EarlyDialog | None:
        """The early dialog a provisional response creates or belongs to; it becomes the call's."""
        tag = response.to.tag
        if response.status == 100 or not tag:
            return None
        early = self.early.get(tag)
        if early is None:
            if len(self.early) >= MAX_FORKS:
                return None
            dialog = Dialog.from_response(sent.request, response, self._requests.contact)
            early = self.early[tag] = EarlyDialog(dialog)
            self._requests.forks[tag] = dialog
        self._requests.dialog = early.dialog
        return early

    def _receive_reliable(
        self, early: EarlyDialog, response: Response, sdp: str | None, now: float
    ) -> str | None:
        """Acknowledge it, unless it carries an offer. Returns its answer, if that is new."""
        if sdp is None or early.agreed:
            self.acknowledge(response, now)
            return None
        if not self._offers.in_invite:
            if self._offers.theirs is None and not self._offers.agreed:
                self._offers.receive_offer(Place.PROVISIONAL, sdp, now, response=response)
            return None
        early.sdp, early.agreed = sdp, True
        self._offers.ours, self._offers.agreed = None, True
        self.acknowledge(response, now)
        return sdp

    def acknowledge(self, response: Response, now: float, sdp: str | None = None) -> None:
        """Send the PRACK of a reliable 18x; `sdp` is our answer to its offer."""
        early = self.early.get(response.to.tag)
        rseq = rseq_of(response)
        if early is None or rseq is None or self._call.state not in RINGING:
            return
        if sdp is not None:
            early.agreed = True
        rack = RAck(rseq, response.cseq.number, response.cseq.method)
        body, content_type = sdp_body(sdp)
        headers = [("RAck", str(rack))]
        self._requests.request("PRACK", now, headers, body, content_type, early.dialog)

    # --- final responses ---

    def receive_success(self, response: Response, now: float) -> None:
        """Handle the first 2xx: its sender gets the call (RFC 3261 §13.2.2.4)."""
        early = self.early.get(response.to.tag)
        dialog = early.dialog if early else None
        if dialog is None:
            dialog = Dialog.from_response(self.request, response, self._requests.contact)
        dialog.confirm(response)
        self._requests.dialog = dialog
        sdp = sdp_of(response)
        if early is not None and early.agreed:
            event, sdp = Event.SUCCESS, early.sdp
        elif self._offers.in_invite:
            sdp = sdp or (early.sdp if early else None)
            event = Event.SUCCESS if sdp else Event.SUCCESS_BARE
        else:
            theirs = self._offers.theirs
            sdp = sdp or (theirs.sdp if theirs is not None else None)
            event = Event.SUCCESS_OFFER if sdp else Event.SUCCESS_BARE
        if self._call.state in RINGING:
            self._timer.accepted(response, now)
        self._call.apply(event, now, 488, End.FAR_END + " answered without SDP", sdp)

    def end_fork(self, response: Response, now: float) -> None:
        """Another far end has answered too: acknowledge and hang up at once."""
        if self._requests.acks_full:
            return
        dialog = Dialog.from_response(self.request, response, self._requests.contact)
        self._requests.forks[response.to.tag] = dialog
        self._requests.ack(dialog, self.request)
        reason = reason_header(200, "Call completed elsewhere")
        self._requests.request("BYE", now, [reason], dialog=dialog)

    def receive_failure(
        self, sent: PendingRequest, response: Response, now: float, received: bool
    ) -> None:
        """Handle a final response from 300 on. `received` is False for a substitute for a response
        that never came."""
        status = response.status
        if not received:
            text = "no response" if status == 408 else End.FAR_END + " cannot be reached"
            if status == 503 and response.reason != NOT_REACHABLE:
                text += f": {response.reason}"
            by: EndedBy = "timeout" if status == 408 else "transport"
            self._call.apply(Event.FAILED, now, status, text, by=by)
        elif status == 422 and self._call.state in RINGING and self._timer.too_short(response):
            headers = Headers(sent.request.headers.items())
            headers.set("CSeq", str(CSeq(sent.request.cseq.number + 1, "INVITE")))
            for name, value in self._timer.request_headers():
                headers.set(name, value)
            again = Request("INVITE", sent.request.uri, headers, sent.request.body)
            self.resent(self._requests.send(again, None, now))
        else:
            if status < 400:
                self.moved_to = tuple(contact.uri for contact in response.contacts)
            self._call.apply(Event.FAILURE, now, status, words(response), sdp_of(response))
