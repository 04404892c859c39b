"""A request within a call that gets no response over UDP goes over the far end's other flows.

A NAT that has dropped a phone's binding swallows what is sent to the old port, without an error. So
the request is sent over one flow after another, with the same branch: a far end that it reaches
twice sees one request. 481 from a flow other than the first is somebody else's, and the next one is
tried. After the last one it is the first one's turn again, until the time of the transaction is up;
flows that appear meanwhile are tried as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.messages.message import Request, Response
from offhook.telephony.sip.transactions.transaction import TRANSACTION_S, ClientTransaction

SILENCE_S = 4.0
"""Time in s for a response over one flow; the request is sent four times in it (§17.1.1.2 and
§17.1.2.2 of RFC 3261)."""


class FarEnd(Protocol):
    """Whom a request is for."""

    def other_flows(self, request: Request) -> Sequence[Flow]:
        """Return the flows that may lead there, the best first."""

    def found(self, flow: Flow, silent: Sequence[Flow]) -> None:
        """Learn that it has answered over `flow`, after a request over the others was not
        answered."""


@dataclass(slots=True)
class _Attempt:
    far_end: FarEnd
    first: Flow
    until: float
    due: float
    tried: list[Flow] = field(default_factory=list)
    """Besides the first."""


class FlowFailover:
    """The unanswered requests, and the flows that each was sent over."""

    def __init__(self) -> None:
        self._attempts: dict[ClientTransaction, _Attempt] = {}

    def sent(self, transaction: ClientTransaction, far_end: FarEnd, now: float) -> None:
        """A request was sent over UDP."""
        self._attempts[transaction] = _Attempt(
            far_end, transaction.flow, now + TRANSACTION_S, now + SILENCE_S
        )

    def answered(
        self, transaction: ClientTransaction, response: Response, now: float
    ) -> Flow | None:
        """The request was answered. Returns the flow to send it over next if the response is
        somebody else's; None to accept it."""
        attempt = self._attempts.get(transaction)
        if attempt is None:
            return None
        tried = (attempt.first, *attempt.tried)
        by = next((f for f in tried if f.remote == transaction.answered_from), transaction.flow)
        if by != attempt.first and response.status == 481 and not transaction.cancelled:
            if by != transaction.flow:  # late, while the next one is tried
                return transaction.flow
            return self._next(attempt, transaction, now) or attempt.first
        del self._attempts[transaction]
        if by != attempt.first:
            attempt.far_end.found(by, [flow for flow in tried if flow != by])
        return None

    def failed(self, transaction: ClientTransaction, now: float) -> Flow | None:
        """The request could not be sent, or its time is up. Returns the flow to send it over next;
        None if there is no other."""
        attempt = self._attempts.get(transaction)
        way = None if attempt is None else self._next(attempt, transaction, now)
        if way is None:
            self._attempts.pop(transaction, None)
        return way

    def get_timer(self) -> float | None:
        return min((attempt.due for attempt in self._attempts.values()), default=None)

    def overdue(self, now: float) -> list[tuple[ClientTransaction, Flow | None]]:
        """Return the requests whose time over one flow is up, each with the next one; None if its
        time is up over all of them."""
        found: list[tuple[ClientTransaction, Flow | None]] = []
        for transaction, attempt in tuple(self._attempts.items()):
            if attempt.due > now:
                continue
            if transaction.cancelled:
                del self._attempts[transaction]
            elif now >= attempt.until:
                del self._attempts[transaction]
                found.append((transaction, None))
            elif (
                way := self._next(attempt, transaction, now) or attempt.first
            ) != transaction.flow:
                found.append((transaction, way))
        return found

    def _next(self, attempt: _Attempt, transaction: ClientTransaction, now: float) -> Flow | None:
        """Return a flow that was not tried yet, while there is time."""
        attempt.due = min(now + SILENCE_S, attempt.until)
        if now >= attempt.until or transaction.cancelled:
            return None
        for flow in attempt.far_end.other_flows(transaction.request):
            if flow != attempt.first and flow not in attempt.tried:
                attempt.tried.append(flow)
                return flow
        return None
