"""Sends the messages of a user agent, and counts them: requests over the flow that fits their size,
responses with and without a transaction."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from offhook.telephony.sip.messages.flow import Flow, TransportName
from offhook.telephony.sip.messages.message import Request, Response, respond
from offhook.telephony.sip.transactions.flow_failover import FarEnd, FlowFailover
from offhook.telephony.sip.transactions.large_requests import LargeRequests
from offhook.telephony.sip.transactions.transaction import ClientTransaction, ServerTransaction
from offhook.telephony.sip.transactions.transactions import Lines, Transactions
from offhook.telephony.sip.transactions.undelivered_byes import UndeliveredByes


@dataclass
class MessageCounters:
    """Message counters since the start, for metrics."""

    requests: dict[str, int] = field(default_factory=dict)
    """Received, by method."""
    responses: dict[str, int] = field(default_factory=dict)
    """Sent and received, by class such as "4xx"."""
    malformed: int = 0
    """Messages that could not be parsed."""

    def add_request(self, method: str) -> None:
        self.requests[method] = self.requests.get(method, 0) + 1

    def add_response(self, status: int) -> None:
        kind = f"{status // 100}xx"
        self.responses[kind] = self.responses.get(kind, 0) + 1


class MessageSender:
    """Sends over one user agent's transactions."""

    def __init__(
        self,
        transactions: Transactions,
        counts: MessageCounters,
        is_target: Callable[[Flow], bool],
        flow_to: Callable[[TransportName, str, int], Flow],
        later_flows: Callable[[Flow], Sequence[Flow]],
    ) -> None:
        """`is_target` returns whether a trunk's server is at the flow's far end. `flow_to` returns
        the flow to a numeric address, `later_flows` those of connections opened to us from the same
        address as a flow, and after it."""
        self._transactions = transactions
        self._counts = counts
        self._large = LargeRequests(is_target, flow_to)
        self._byes = UndeliveredByes(later_flows)
        self._failover = FlowFailover()

    def request(
        self, request: Request, flow: Flow, now: float, far_end: FarEnd | None = None
    ) -> ClientTransaction:
        """Send a request: over TCP if it is too large for `flow`, and over other flows of `far_end`
        if that is silent."""
        way = self._large.flow_for(request, flow, now)
        transaction = self._transactions.send_request(request, way, now)
        if way != flow:
            self._large.sent_over_tcp(transaction, flow, now)
        elif far_end is not None and not flow.reliable:
            self._failover.sent(transaction, far_end, now)
        self._byes.sent(transaction, now)
        return transaction

    def ack(self, request: Request, flow: Flow) -> None:
        self._transactions.send_once(request, flow)

    def cancel(self, transaction: ClientTransaction, now: float) -> None:
        self._transactions.cancel(transaction, now)

    def respond(self, transaction: ServerTransaction, response: Response, now: float) -> None:
        self._counts.add_response(response.status)
        self._transactions.respond(transaction, response, now)

    def reply(
        self, transaction: ServerTransaction, status: int, now: float, headers: Lines = ()
    ) -> None:
        """Respond to a request for which there is no session."""
        tag = secrets.token_hex(8)
        response = respond(transaction.request, status, to_tag=tag, headers=headers)
        self.respond(transaction, response, now)

    def respond_stateless(
        self, request: Request, flow: Flow, status: int, reason: str = "", headers: Lines = ()
    ) -> None:
        """Send a response without a transaction (RFC 3261 §8.2.7)."""
        self._counts.add_response(status)
        self._transactions.refuse(request, flow, status, reason, headers)

    # --- fallback ---

    def answered(self, transaction: ClientTransaction, response: Response, now: float) -> bool:
        """The request was answered. Returns whether to accept the response: else it was somebody
        else's, and the request goes on over another flow."""
        self._large.answered(transaction)
        self._byes.answered(transaction)
        way = self._failover.answered(transaction, response, now)
        if way is not None:
            self._transactions.resend(transaction, way, now)
        return way is None

    def fall_back(self, transaction: ClientTransaction, now: float) -> bool:
        """Resend an unanswered request over another flow. Returns whether there is one, from which
        a response can be expected."""
        way = self._large.failed(transaction, now) or self._failover.failed(transaction, now)
        if way is not None:
            self._transactions.resend(transaction, way, now)
        else:
            self._byes.failed(transaction, now)
            self._send_byes(now)
        return way is not None

    def get_timer(self) -> float | None:
        parts = self._large, self._byes, self._failover
        timers = (part.get_timer() for part in parts)
        return min((t for t in timers if t is not None), default=None)

    def handle_timer(self, now: float) -> None:
        for transaction in self._large.overdue(now):
            self.fall_back(transaction, now)
        for transaction, way in self._failover.overdue(now):
            if way is None:
                self._transactions.time_out(transaction, now)
            else:
                self._transactions.resend(transaction, way, now)
        self._send_byes(now)

    def _send_byes(self, now: float) -> None:
        for request, flow in self._byes.due(now):
            self._transactions.send_once(request, flow)
