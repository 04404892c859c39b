"""The far end's requests within a session."""

from offhook.media.end_reason import End
from offhook.telephony.sip.messages.info import DTMF, DTMF_RELAY, TELEPHONE_EVENT, key_of
from offhook.telephony.sip.messages.message import Request, sdp_of
from offhook.telephony.sip.messages.recording_metadata import metadata_of
from offhook.telephony.sip.sessions.dialog_requests import ALLOWED, request_error
from offhook.telephony.sip.sessions.ending import reason_text
from offhook.telephony.sip.sessions.offers import Place
from offhook.telephony.sip.sessions.session_events import Dtmf, MetadataReceived
from offhook.telephony.sip.sessions.session_lifecycle import SessionLifecycle
from offhook.telephony.sip.sessions.session_responses import LATE_METHODS
from offhook.telephony.sip.sessions.session_table import OVER, Event, SessionState
from offhook.telephony.sip.transactions.transaction import ServerTransaction


class SessionRequests:
    """Hands each request of the far end to the part of the session that it concerns."""

    def __init__(self, life: SessionLifecycle) -> None:
        self._life = life

    def receive(self, request: Request, transaction: ServerTransaction, now: float) -> bool:
        """Handle a request with our tag in To. Returns whether it was in order, which shows where
        the far end is now."""
        requests = self._life.requests
        dialog, in_order = requests.dialog_with(request.from_.tag), False
        if dialog is None or (self._life.state in OVER and request.method not in LATE_METHODS):
            requests.respond(transaction, 481, now)
        elif not dialog.accept(request):
            requests.respond(transaction, 500, now, "Request Out of Order")  # §12.2.2
        elif (refusal := request_error(request, self._life.settings)) is not None:
            requests.respond(transaction, refusal[0], now, headers=refusal[1])
        else:
            in_order = True
            requests.learn_allow(request)
            if self._life.settings.recorder and request.method in ("INVITE", "UPDATE"):
                self._note_metadata(request)
            self._receive(request, transaction, now)
        self._life.advance(now)
        return in_order

    def _receive(self, request: Request, transaction: ServerTransaction, now: float) -> None:
        requests = self._life.requests
        match request.method:
            case "BYE":
                requests.respond(transaction, 200, now)
                dialog = requests.dialog
                if request.from_.tag == (dialog.remote.tag if dialog else ""):
                    self._life.apply(Event.BYE, now, 200, reason_text(request))
            case "INVITE":
                if self._life.success.cseq is not None and self._life.offers.ours is None:
                    # A new INVITE shows that our 2xx arrived: its ACK was lost or overtaken.
                    self._acknowledged(None, now)
                self._life.modification.receive_reinvite(request, transaction, now)
            case "UPDATE":
                self._life.modification.receive_update(request, transaction, now)
            case "PRACK":
                if self._life.incoming is None:
                    requests.respond(transaction, 481, now)
                elif not self._life.incoming.receive_prack(request, transaction, now):
                    self._life.apply(Event.REFUSE, now, 488, "")
            case "OPTIONS":
                requests.respond(transaction, 200, now, headers=[("Accept", "application/sdp")])
            case "INFO":
                self._receive_info(request, transaction, now)
            case "REFER" if self._life.state in (SessionState.ESTABLISHED, SessionState.ANSWERED):
                self._life.refers.receive_refer(request, transaction, now)
            case "REFER":
                requests.respond(transaction, 403, now)
            case "NOTIFY":
                self._life.refers.receive_notify(request, transaction, now)
            case _:
                requests.respond(transaction, 405, now, headers=[("Allow", ", ".join(ALLOWED))])

    def _note_metadata(self, request: Request) -> None:
        metadata = metadata_of(request)  # `request_error` has refused what cannot be read
        if metadata is not None:
            self._life.events.append(MetadataReceived(metadata))

    def _receive_info(self, request: Request, transaction: ServerTransaction, now: float) -> None:
        """Handle an INFO: a DTMF digit, or without a body a keep-alive (RFC 2976)."""
        digit = key_of(request)
        if digit is None:
            accept = [("Accept", f"{DTMF_RELAY}, {DTMF}, {TELEPHONE_EVENT}")]
            self._life.requests.respond(transaction, 415, now, headers=accept)
            return
        self._life.requests.respond(transaction, 200, now)
        if digit:
            self._life.events.append(Dtmf(digit))

    def receive_ack(self, request: Request, now: float) -> None:
        """Handle the ACK to our 2xx; repeated ones are ignored."""
        if self._life.success.cseq == request.cseq.number:
            self._acknowledged(sdp_of(request), now)
        self._life.advance(now)

    def _acknowledged(self, sdp: str | None, now: float) -> None:
        self._life.success.stop()
        due = self._life.offers.ours is Place.SUCCESS
        if self._life.state not in (SessionState.ANSWERED, SessionState.LEAVING):
            if due:
                self._life.offers.receive_answer(sdp)
            return
        if due:
            self._life.offers.ours = None
        if due and sdp is None:
            self._life.apply(Event.ACK_BARE, now, 488, End.FAR_END + " did not answer the offer")
        else:
            self._life.offers.agreed = True
            self._life.apply(Event.ACK, now, sdp=sdp if due else None)

    def cancelled(
        self, transaction: ServerTransaction, now: float, request: Request | None = None
    ) -> None:
        """Handle a CANCEL of an unanswered INVITE: of the call, or of the offer in a re-INVITE.
        `request` is the CANCEL, for its Reason."""
        theirs = self._life.offers.theirs
        if self._life.incoming is not None and transaction is self._life.incoming.transaction:
            text = reason_text(request) if request is not None else ""
            self._life.apply(Event.CANCEL, now, 487, text)
        elif theirs is not None and theirs.transaction is transaction:
            self._life.offers.theirs = None
            self._life.requests.respond(transaction, 487, now)
        self._life.advance(now)
