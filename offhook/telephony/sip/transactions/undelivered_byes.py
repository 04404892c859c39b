"""A BYE whose connection is gone, or silent, goes over the next one from the same address.

Nobody can connect to a browser (RFC 7118 §5) or to a phone behind a NAT, and a client that has
reconnected during a call may send nothing in it: without our BYE it would stay in the call. A
connection that a NAT has forgotten is not closed, so silence counts too. Whose connection is whose
is unknown, so each one gets the BYE; clients without that call answer 481.
No other request is sent in this way: it would tell a stranger behind the same NAT the tags of a
call that goes on.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.messages.message import Request
from offhook.telephony.sip.transactions.flow_failover import SILENCE_S
from offhook.telephony.sip.transactions.transaction import ClientTransaction

TIMEOUT_S = 32.0
"""Time in s in which a client has to reconnect (Timer F of RFC 3261 §17.1.2.2)."""
INTERVAL_S = 0.5
"""Interval in s at which new connections are looked for."""
MAX_WAITING = 1000
"""Limit of BYEs that wait; beyond it the oldest is given up."""


@dataclass(slots=True)
class _Waiting:
    flow: Flow
    """The one that it was sent over."""
    until: float
    due: float
    tried: set[Flow] = field(default_factory=set)


class UndeliveredByes:
    """The BYEs that wait for another connection of their far ends."""

    def __init__(self, later_flows: Callable[[Flow], Sequence[Flow]]) -> None:
        """`later_flows` returns the flows of the connections that were opened to us from the same
        address and by the same transport as a flow, and after it."""
        self._later_flows = later_flows
        self._waiting: dict[ClientTransaction, _Waiting] = {}

    def sent(self, transaction: ClientTransaction, now: float) -> None:
        """A request was sent: if it is a BYE over a connection, it goes over others too unless it
        is answered."""
        if transaction.request.method != "BYE" or not transaction.flow.reliable:
            return
        due = now + SILENCE_S
        self._waiting[transaction] = _Waiting(transaction.flow, due + TIMEOUT_S, due)
        if len(self._waiting) > MAX_WAITING:
            del self._waiting[next(iter(self._waiting))]

    def failed(self, transaction: ClientTransaction, now: float) -> None:
        """Its connection is gone, or its time is up."""
        if (waiting := self._waiting.get(transaction)) is not None:
            waiting.due = min(waiting.due, now)

    def answered(self, transaction: ClientTransaction) -> None:
        self._waiting.pop(transaction, None)

    def get_timer(self) -> float | None:
        return min((bye.due for bye in self._waiting.values()), default=None)

    def due(self, now: float) -> list[tuple[Request, Flow]]:
        """Return what to send now: each BYE over each connection only once."""
        found: list[tuple[Request, Flow]] = []
        for transaction, bye in tuple(self._waiting.items()):
            if bye.due > now:
                continue
            fresh = [flow for flow in self._later_flows(bye.flow) if flow not in bye.tried]
            bye.tried.update(fresh)
            if fresh:
                request = _without_via(transaction.request)
                found += [(request, flow) for flow in fresh]
            bye.due = now + INTERVAL_S
            if bye.due > bye.until:
                del self._waiting[transaction]
        return found


def _without_via(request: Request) -> Request:
    headers = request.headers.copy()
    headers.remove("Via")
    return Request(request.method, request.uri, headers, request.body)
