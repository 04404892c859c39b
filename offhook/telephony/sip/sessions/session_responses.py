"""The responses to a session's requests, and requests that get none."""

from offhook.media.end_reason import End
from offhook.telephony.sip.messages.message import Response, respond
from offhook.telephony.sip.sessions.dialog_requests import PendingRequest
from offhook.telephony.sip.sessions.ending import shown
from offhook.telephony.sip.sessions.outgoing_invite import NOT_REACHABLE
from offhook.telephony.sip.sessions.session_lifecycle import SessionLifecycle
from offhook.telephony.sip.sessions.session_modification import DIALOG_GONE
from offhook.telephony.sip.sessions.session_table import OVER, Event, SessionState
from offhook.telephony.sip.transactions.transaction import ClientTransaction, ServerTransaction

LATE_METHODS = ("BYE", "NOTIFY")
"""Requests still meaningful after the end of the call."""


class SessionResponses:
    """Hands each response to the part of the session whose request it is to."""

    def __init__(self, life: SessionLifecycle) -> None:
        self.any = False
        """Whether the far end has responded to anything."""
        self._life = life

    def receive(self, transaction: ClientTransaction, response: Response, now: float) -> None:
        requests = self._life.requests
        sent = requests.sent.get(transaction.key)
        requests.learn_allow(response)
        self._life.response_deadline, self.any = None, True
        if response.status < 200:
            if sent is not None and sent.dialog is None and self._life.outgoing is not None:
                self._life.outgoing.receive_provisional(sent, response, now)
        elif response.status < 300 and transaction.request.method == "INVITE":
            requests.sent.pop(transaction.key, None)
            self._receive_success(sent, response, now)
        elif sent is not None:
            del requests.sent[transaction.key]
            if not self._retry(sent, response, now):
                self._receive_final(sent, response, now)
        self._life.advance(now)

    def failed(
        self, transaction: ClientTransaction | ServerTransaction, reason: str, now: float
    ) -> None:
        """Handle a request of ours that gets no final response (RFC 3261 §8.1.3.1): "timeout" or
        "transport"; or one of theirs whose connection was lost before our response."""
        sent = self._life.requests.sent.pop(transaction.key, None)
        theirs = self._life.offers.theirs
        if sent is not None:
            status, phrase = 408, ""
            if reason != "timeout":
                status, phrase = 503, shown(transaction.broken) or NOT_REACHABLE
            stand_in = respond(sent.request, status, phrase)
            self._receive_final(sent, stand_in, now, received=False)
        elif self._life.incoming is not None and transaction is self._life.incoming.transaction:
            self._life.apply(Event.FAILED, now, 503, End.CONNECTION_LOST, by="transport")
        elif theirs is not None and theirs.transaction is transaction:
            self._life.offers.theirs = None
        self._life.advance(now)

    def _retry(self, sent: PendingRequest, response: Response, now: float) -> bool:
        """Resend a challenged request with credentials. Returns whether it was resent."""
        if self._life.state in OVER and sent.request.method not in LATE_METHODS:
            return False
        again = self._life.requests.retry(sent, response, now)
        if again is None:
            return False
        if sent.dialog is None and self._life.outgoing is not None:
            self._life.outgoing.resent(again)
        else:
            self._life.modification.resent(sent, again)
        return True

    def _receive_success(self, sent: PendingRequest | None, response: Response, now: float) -> None:
        """Handle a 2xx to an INVITE of ours; `sent` is None from the second on."""
        outgoing, dialog = self._life.outgoing, self._life.requests.dialog
        if sent is not None and sent.dialog is None and outgoing is not None:
            outgoing.receive_success(response, now)
        elif self._life.requests.repeat_ack(response):
            pass
        elif sent is not None:
            self._life.modification.receive_success(sent, response, now)
        elif outgoing is not None:
            ours = dialog is not None and dialog.remote.tag == response.to.tag
            if not (ours and self._life.state is SessionState.OFFERED):  # our answer is awaited
                outgoing.end_fork(response, now)

    def _receive_final(
        self, sent: PendingRequest, response: Response, now: float, received: bool = True
    ) -> None:
        """Handle a final response other than a 2xx to an INVITE. `received`: see
        SessionModification."""
        match sent.request.method:
            case "INVITE" if sent.dialog is None and self._life.outgoing is not None:
                self._life.outgoing.receive_failure(sent, response, now, received)
            case "INVITE" | "UPDATE":
                self._life.modification.receive_final(sent, response, now, received)
            case "BYE" if sent.dialog is self._life.requests.dialog:
                self._life.apply(Event.BYE_DONE, now)
            case "REFER":
                self._life.refers.receive_response(response, now)
            case "INFO" if response.status == 481:
                self._life.apply(Event.GONE, now, 481, DIALOG_GONE)
            case "NOTIFY" if response.status >= 300:
                self._life.refers.notify_failed()
