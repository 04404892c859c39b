"""The INVITE that we send, until the call is taken or not: forks, reliable 18x, challenges.

RFC 3261 §13.2 and RFC 3262 §4. One INVITE may reach several far ends. Each that answers makes a
dialog of its own; who takes the call first has it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from offhook.telephony.call_record import EndedBy
from offhook.telephony.sip.auth.digest import DigestClient
from offhook.telephony.sip.messages.headers import CSeq, Headers
from offhook.telephony.sip.messages.message import Request, Response, sdp_of
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.sessions.dialog import Dialog, sdp_body
from offhook.telephony.sip.sessions.ending import reason_header, shown, words
from offhook.telephony.sip.sessions.open_offer import Place, TheirOffer
from offhook.telephony.sip.sessions.reliable import RAck, ReliableReceiver, rseq_of
from offhook.telephony.sip.sessions.session_events import (
    Core,
    OfferReceived,
    SessionSettings,
)
from offhook.telephony.sip.sessions.session_offers import DECISION_SECONDS, Negotiation
from offhook.telephony.sip.sessions.session_requests import MAX_FORKS, MAX_SENT, NOT_REACHABLE, Sent
from offhook.telephony.sip.sessions.session_table import RINGING, Event, SessionState


@dataclass(slots=True)
class Early:
    """A far end that our INVITE has reached, before anybody took the call."""

    dialog: Dialog
    order: ReliableReceiver = field(default_factory=ReliableReceiver)
    sdp: str | None = field(default=None, repr=False)
    """Its answer to our offer, as far as it has given one."""
    agreed: bool = False
    """That answer came reliably: it stands (RFC 3262 §5)."""


class Calling(Negotiation):
    """What `Session` is while nobody has taken our call."""

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
    ) -> None:
        super().__init__(
            core, invite, local_tag, local_contact, settings, digest, we_called, random
        )
        self._sent_invite: Sent | None = None
        self._early: dict[str, Early] = {}
        """By the far end's tag."""
        self._told_sdp: str | None = None
        """The answer that the owner knows of."""

    def _provisional(self, sent: Sent, response: Response, now: float) -> None:
        if self.state not in RINGING:
            return
        early = self._early_of(sent, response)
        rseq = rseq_of(response)
        sdp = sdp_of(response) if early is not None else None
        if early is not None and rseq is not None and self._settings.reliable:
            if len(self._sent) >= MAX_SENT or not early.order.take(rseq):
                return  # it comes again
            sdp = self._take_reliably(early, response, sdp, now)
        elif early is not None and sdp is not None:
            if not self._offered_first or early.agreed:
                sdp = None  # no answer to anything, and as an offer it does not count
            else:
                early.sdp = sdp
        sdp, self._told_sdp = None if sdp == self._told_sdp else sdp, sdp or self._told_sdp
        self._happened(Event.PROVISIONAL, now, response.status, shown(response.reason), sdp)

    def _early_of(self, sent: Sent, response: Response) -> Early | None:
        """The dialog that a provisional response makes or belongs to; it is the call's now."""
        tag = response.to.tag
        if response.status == 100 or not tag:
            return None
        early = self._early.get(tag)
        if early is None:
            if len(self._early) >= MAX_FORKS:
                return None
            dialog = Dialog.from_response(sent.request, response, self._contact)
            early = self._early[tag] = Early(dialog)
            self._other_dialogs[tag] = dialog
        self.dialog = early.dialog
        return early

    def _take_reliably(
        self, early: Early, response: Response, sdp: str | None, now: float
    ) -> str | None:
        """Acknowledge it. Gives the answer in it, if there is a new one."""
        if sdp is None or early.agreed:
            self._acknowledge(response, now)
            return None
        if not self._offered_first:
            if self._theirs is None and not self._agreed:
                until = now + DECISION_SECONDS
                self._theirs = TheirOffer(Place.PROVISIONAL, sdp, until, response=response)
                self._tell(OfferReceived(sdp))
            return None
        early.sdp, early.agreed = sdp, True
        self._ours, self._agreed = None, True
        self._acknowledge(response, now)
        return sdp

    def _acknowledge(self, response: Response, now: float, sdp: str | None = None) -> None:
        early = self._early.get(response.to.tag)
        rseq = rseq_of(response)
        if early is None or rseq is None or self.state not in RINGING:
            return
        if sdp is not None:
            early.agreed = True
        rack = RAck(rseq, response.cseq.number, response.cseq.method)
        body, content_type = sdp_body(sdp)
        self._request("PRACK", now, [("RAck", str(rack))], body, content_type, early.dialog)

    def _invite_succeeded(
        self, sent: Sent | None, invite: Request, response: Response, now: float
    ) -> None:
        tag = response.to.tag
        if sent is not None and sent.dialog is None:
            self._take_success(response, now)
        elif sent is not None or (response.cseq.number, tag) in self._acks:
            super()._invite_succeeded(sent, invite, response, now)
        elif (
            self.state is not SessionState.OFFERED
            or self.dialog is None
            or self.dialog.remote.tag != tag
        ):
            self._end_fork(response, now)

    def _take_success(self, response: Response, now: float) -> None:
        """The first 2xx: whoever sent it has the call (RFC 3261 §13.2.2.4)."""
        early = self._early.get(response.to.tag)
        dialog = early.dialog if early else None
        if dialog is None:
            dialog = Dialog.from_response(self.invite, response, self._contact)
        dialog.confirm(response)
        self.dialog = dialog
        sdp = sdp_of(response)
        if early is not None and early.agreed:
            event, sdp = Event.SUCCESS, early.sdp
        elif self._offered_first:
            sdp = sdp or (early.sdp if early else None)
            event = Event.SUCCESS if sdp else Event.SUCCESS_BARE
        else:
            offer = self._theirs.sdp if self._theirs is not None else None
            sdp = sdp or offer
            event = Event.SUCCESS_OFFER if sdp else Event.SUCCESS_BARE
        if self.state in RINGING:
            self._timer.accepted(response, now)
        self._happened(event, now, 488, "the far end took the call without SDP", sdp)

    def _end_fork(self, response: Response, now: float) -> None:
        """One more far end has taken the call: it is told at once that it is over."""
        if len(self._acks) >= MAX_FORKS:
            return
        dialog = Dialog.from_response(self.invite, response, self._contact)
        self._other_dialogs[response.to.tag] = dialog
        self._send_ack(dialog, self.invite)
        reason = reason_header(200, "Call completed elsewhere")
        self._request("BYE", now, [reason], dialog=dialog)

    def _resent(self, before: Sent, sent: Sent) -> None:
        if before is self._sent_invite:
            self._sent_invite = sent
            self.invite = sent.request
            # Who rang before is not there any more, nor what was agreed with them.
            self._early.clear()
            self._other_dialogs.clear()
            self.dialog = None
            self._ours = Place.INVITE if self._offered_first else None
            self._theirs, self._agreed = None, False
        super()._resent(before, sent)

    def _finished(self, sent: Sent, response: Response, now: float, heard: bool = True) -> None:
        method = sent.request.method
        if sent is self._sent_invite:
            self._invite_failed(sent, response, now, heard)
        elif method == "BYE" and sent.dialog is self.dialog:
            self._happened(Event.BYE_DONE, now)
        elif method == "PRACK":
            self._settle(now)  # a far end that wants it asks again by its 18x
        else:
            super()._finished(sent, response, now, heard)

    def _invite_failed(self, sent: Sent, response: Response, now: float, heard: bool) -> None:
        status = response.status
        if not heard:
            text = "no response" if status == 408 else "the far end cannot be reached"
            if status == 503 and response.reason != NOT_REACHABLE:
                text += f": {response.reason}"
            by: EndedBy = "timeout" if status == 408 else "transport"
            self._happened(Event.FAILED, now, status, text, by=by)
        elif status == 422 and self.state in RINGING and self._timer.too_short(response):
            headers = Headers(sent.request.headers.items())
            number = sent.request.cseq.number + 1
            headers.set("CSeq", str(CSeq(number, "INVITE")))
            for name, value in self._timer.request_headers():
                headers.set(name, value)
            again = Request("INVITE", sent.request.uri, headers, sent.request.body)
            self._resent(sent, self._send(again, None, now))
        else:
            self._happened(Event.FAILURE, now, status, words(response), sdp_of(response))
