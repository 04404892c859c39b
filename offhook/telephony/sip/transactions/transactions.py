"""The state machines of all transactions of one process (RFC 3261 §17), CANCEL and ACK.

Sans-io: parsed messages and `now` (monotonic seconds) go in, events and bytes for flows come out.
After every call, drain `next_event` and `messages_to_send`, and call `handle_timer` when
`get_timer` says so.
"""

import secrets
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.messages.message import Message, Request, Response, respond
from offhook.telephony.sip.transactions.alarms import Alarms
from offhook.telephony.sip.transactions.matching import (
    MAGIC_COOKIE,
    ack_of,
    cancel_of,
    has_cookie,
    server_key,
    stamp_via,
    steady_tag,
    with_via,
)
from offhook.telephony.sip.transactions.transaction import (
    KEPT,
    Action,
    ClientTransaction,
    Event,
    Key,
    ServerTransaction,
    Timer,
    Transaction,
    TransactionState,
    response_event,
)
from offhook.telephony.sip.transactions.transaction_table import TransactionTable

RETRY_AFTER_S = 10
Lines = Iterable[tuple[str, str]]
"""Header fields to add."""


@dataclass(frozen=True, slots=True)
class RequestReceived:
    """A new request, to be answered with `respond`."""

    transaction: ServerTransaction
    request: Request
    flow: Flow


@dataclass(frozen=True, slots=True)
class AckReceived:
    """The ACK of a 2xx, or of an unknown transaction."""

    request: Request
    flow: Flow


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The caller cancelled an unanswered INVITE. The CANCEL got its 200; the INVITE still needs a
    487."""

    transaction: ServerTransaction
    request: Request
    """The CANCEL, for its Reason."""


@dataclass(frozen=True, slots=True)
class ResponseReceived:
    """A response to a request of ours; a 2xx to an INVITE each time it is received."""

    transaction: ClientTransaction
    response: Response


@dataclass(frozen=True, slots=True)
class Failed:
    """No final response will come; for a server transaction: the connection of an unanswered INVITE
    is gone."""

    transaction: ClientTransaction | ServerTransaction
    reason: Literal["timeout", "transport"]


TransactionEvent = RequestReceived | AckReceived | Cancelled | ResponseReceived | Failed


class Transactions:
    """Every client and server transaction of the process."""

    def __init__(self, sent_by: Callable[[Flow], str]) -> None:
        """`sent_by` returns our host:port for the Via of messages sent on a flow."""
        self.table = TransactionTable()
        self._sent_by = sent_by
        self._alarms = Alarms()
        self._events: deque[TransactionEvent] = deque()
        self._outbox: list[tuple[bytes, Flow]] = []
        self._secret = secrets.token_bytes(16)

    def __len__(self) -> int:
        return len(self.table)

    # --- from the network ---

    def receive(self, message: Message, flow: Flow, now: float) -> None:
        if isinstance(message, Request):
            self._receive_request(message, flow, now)
        elif isinstance(message, Response):
            self._receive_response(message, flow, now)

    def _receive_response(self, response: Response, flow: Flow, now: float) -> None:
        """Handle a response (§17.1.3, §18.1.2). Unmatched ones are dropped (RFC 6026 §7.2)."""
        if len(response.vias) != 1:
            return  # misrouted (§8.1.3.3)
        transaction = self.table.client(response)
        if transaction is None:
            return
        transaction.answered_from = flow.remote
        self._step(transaction, response_event(response), now, response)
        proceeding = transaction.state is TransactionState.PROCEEDING
        if proceeding and transaction.cancelled and Timer.CANCEL not in transaction.alarms:
            self._step(transaction, Event.CANCEL, now)  # the first provisional response

    def _receive_request(self, request: Request, flow: Flow, now: float) -> None:
        key = server_key(request)
        response_flow = stamp_via(request, flow)
        transaction = self.table.server(key)
        if request.method == "ACK":
            if transaction is None:
                self._events.append(AckReceived(request, flow))
            elif has_cookie(request) or request.to.tag == transaction.to_tag:
                self._step(transaction, Event.ACK, now, request)
        elif transaction is not None:
            self._step(transaction, Event.REQUEST, now)
        elif request.method == "CANCEL":
            self._receive_cancel(request, key, flow, response_flow, now)
        elif self.table.full:
            retry = [("Retry-After", str(RETRY_AFTER_S))]
            self._refuse(request, response_flow, 503, headers=retry)
        else:
            transaction = self.table.add_server(request, key, flow, response_flow)
            self._step(transaction, Event.START, now, request)

    def _receive_cancel(
        self,
        request: Request,
        key: Key,
        flow: Flow,
        response_flow: Flow,
        now: float,
    ) -> None:
        """Handle a CANCEL (§9.2). There is at most one per INVITE, so it needs no limit of its
        own."""
        invite = self.table.invite_of(key)
        if invite is None:
            self._refuse(request, response_flow, 481)
            return
        transaction = self.table.add_server(request, key, flow, response_flow)
        tag = invite.to_tag or steady_tag(key, self._secret)
        self._step(transaction, Event.SUCCESS, now, respond(request, 200, to_tag=tag))
        if invite.state is TransactionState.PROCEEDING:
            self._events.append(Cancelled(invite, request))

    def refuse(
        self, request: Request, flow: Flow, status: int, reason: str = "", headers: Lines = ()
    ) -> None:
        """Respond without a transaction (§8.2.7) to a request that is malformed or unwanted. An ACK
        is never answered. An empty reason means the standard phrase."""
        self._refuse(request, stamp_via(request, flow), status, reason, headers)

    def _refuse(
        self,
        request: Request,
        response_flow: Flow,
        status: int,
        reason: str = "",
        headers: Lines = (),
    ) -> None:
        if request.method != "ACK":
            tag = steady_tag((str(request.via), request.headers.get("CSeq") or ""), self._secret)
            response = respond(request, status, reason, to_tag=tag, headers=headers)
            self._outbox.append((response.serialize(), response_flow))

    def flow_failed(self, flow: Flow, now: float, why: str = "") -> None:
        """Handle a flow that failed: a message was not delivered, or its connection is gone; `why`
        says the reason. Responses lost over UDP are retransmitted with the request."""
        for transaction in self.table.on_flow(flow):
            transaction.broken = why
            if isinstance(transaction, ClientTransaction) or flow.reliable:
                self._step(transaction, Event.BROKEN, now)

    # --- from the user ---

    def send_request(self, request: Request, flow: Flow, now: float) -> ClientTransaction:
        """Send a request with our Via on top (§8.1.1.7, RFC 3581). The transaction's request has
        that Via; the one given is not changed."""
        branch = MAGIC_COOKIE + secrets.token_hex(12)
        sent = self._with_via(request, flow, branch)
        return self._start_client(sent, flow, branch, now)

    def resend(self, transaction: ClientTransaction, flow: Flow, now: float) -> None:
        """Restart an unanswered request on another flow with the same branch: it remains one
        request."""
        if transaction in self.table:
            for timer in tuple(transaction.alarms):
                transaction.stop(timer)
            self.table.remove(transaction)
        request, branch = transaction.request, transaction.key[0]
        headers = request.headers.copy()
        headers.remove("Via")
        bare = Request(request.method, request.uri, headers, request.body)
        transaction.request = self._with_via(bare, flow, branch)
        transaction.state, transaction.flow, transaction.broken = transaction.first, flow, ""
        self.table.add_client(transaction)
        self._step(transaction, Event.START, now, transaction.request)

    def time_out(self, transaction: ClientTransaction, now: float) -> None:
        """End the wait for a response to a request, as timer B or F does."""
        invite = transaction.first is TransactionState.CALLING
        self._step(transaction, Timer.B if invite else Timer.F, now)

    def send_once(self, request: Request, flow: Flow) -> None:
        """Send a request without a transaction, such as the ACK of a 2xx (§13.2.2.4): it is not
        retransmitted, and a response to it is ignored."""
        branch = MAGIC_COOKIE + secrets.token_hex(12)
        self._outbox.append((self._with_via(request, flow, branch).serialize(), flow))

    def cancel(self, transaction: ClientTransaction, now: float) -> None:
        """Cancel an INVITE (§9.1). Its final response, or Failed, still follows: 487 or, if the two
        crossed, whatever was sent before."""
        if not transaction.cancelled:
            self._step(transaction, Event.CANCEL, now)

    def respond(self, transaction: ServerTransaction, response: Response, now: float) -> None:
        """Send a response. Retransmission is automatic except for a 2xx to an INVITE: call this
        again with it until the ACK (§13.3.1.4)."""
        self._step(transaction, response_event(response), now, response)

    def _with_via(self, request: Request, flow: Flow, branch: str) -> Request:
        via = f"SIP/2.0/{flow.transport} {self._sent_by(flow)};branch={branch};rport"
        return with_via(request, via)

    # --- output ---

    def next_event(self) -> TransactionEvent | None:
        return self._events.popleft() if self._events else None

    def messages_to_send(self) -> list[tuple[bytes, Flow]]:
        messages, self._outbox = self._outbox, []
        return messages

    def get_timer(self) -> float | None:
        """When `handle_timer` is due, in monotonic seconds."""
        return self._alarms.get_timer()

    def handle_timer(self, now: float) -> None:
        while (alarm := self._alarms.pop_due(now)) is not None:
            if alarm.transaction is not None:
                self._step(alarm.transaction, alarm.timer, now)

    # --- the state machines ---

    def _start_client(
        self, request: Request, flow: Flow, branch: str, now: float, inner: bool = False
    ) -> ClientTransaction:
        transaction = ClientTransaction(request, flow, (branch, request.method))
        transaction.inner = inner
        self.table.add_client(transaction)
        self._step(transaction, Event.START, now, request)
        return transaction

    def _step(
        self,
        transaction: Transaction,
        event: Event | Timer,
        now: float,
        message: Message | None = None,
    ) -> None:
        """Apply an event by the transaction's table; without a row it is ignored."""
        row = transaction.table.get((transaction.state, event))
        if row is None:
            return
        fired = transaction.alarms.pop(event, None) if isinstance(event, Timer) else None
        state, actions = row
        if state is not transaction.state:
            transaction.state = state
            for timer in tuple(transaction.alarms):
                if (state, timer) not in KEPT:
                    transaction.stop(timer)
        for action in actions:
            if isinstance(action, Timer):
                if self._alarms.start(transaction, action, now):
                    self._step(transaction, action, now)
                self._alarms.clean_up(len(self))
            elif action is Action.RESTART_TIMER:
                assert fired is not None
                self._alarms.restart(transaction, fired, now)
                self._alarms.clean_up(len(self))
            else:
                self._perform(transaction, action, message, now)
        if state is TransactionState.TERMINATED:
            self.table.remove(transaction)

    def _perform(
        self, transaction: Transaction, action: Action, message: Message | None, now: float
    ) -> None:
        match action:
            case Action.SEND:
                assert message is not None
                self._send(transaction, message)
            case Action.REPEAT:
                if transaction.sent:
                    self._outbox.append((transaction.sent, _outgoing_flow(transaction)))
            case Action.PASS:
                assert message is not None
                self._deliver(transaction, message)
            case Action.ACK:
                assert isinstance(message, Response)
                self._send(transaction, ack_of(transaction.request, message))
            case Action.TRYING:
                self._send(transaction, respond(transaction.request, 100))
            case Action.CANCEL:
                assert isinstance(transaction, ClientTransaction)
                transaction.cancelled = True
                if transaction.state is TransactionState.PROCEEDING:
                    branch, request = transaction.key[0], cancel_of(transaction.request)
                    for name, value in transaction.cancel_headers:
                        request.headers.add(name, value)
                    self._start_client(request, transaction.flow, branch, now, inner=True)
            case Action.FAIL | Action.BREAK:
                assert isinstance(transaction, ClientTransaction | ServerTransaction)
                if not (isinstance(transaction, ClientTransaction) and transaction.inner):
                    timed_out = action is Action.FAIL
                    self._events.append(
                        Failed(transaction, "timeout" if timed_out else "transport")
                    )

    def _send(self, transaction: Transaction, message: Message) -> None:
        if isinstance(transaction, ServerTransaction):
            transaction.stop(Timer.TRYING)
            transaction.to_tag = message.to.tag or transaction.to_tag
        transaction.sent = message.serialize()
        self._outbox.append((transaction.sent, _outgoing_flow(transaction)))

    def _deliver(self, transaction: Transaction, message: Message) -> None:
        if isinstance(transaction, ServerTransaction):
            assert isinstance(message, Request)
            if message.method == "ACK":
                self._events.append(AckReceived(message, transaction.flow))
            else:
                self._events.append(RequestReceived(transaction, message, transaction.flow))
        elif isinstance(transaction, ClientTransaction) and not transaction.inner:
            assert isinstance(message, Response)
            self._events.append(ResponseReceived(transaction, message))


def _outgoing_flow(transaction: Transaction) -> Flow:
    if isinstance(transaction, ServerTransaction):
        return transaction.response_flow
    return transaction.flow
