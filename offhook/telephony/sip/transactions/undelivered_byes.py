"""A BYE whose connection is gone goes over the next one from the same address.

Nobody can connect to a browser (RFC 7118 §5) or to a phone behind a NAT, and a client that has
reconnected during a call may send nothing in it: without our BYE it would stay in the call. Whose
connection is whose is unknown, so each one gets the BYE; clients without that call answer 481.
No other request is sent in this way: it would tell a stranger behind the same NAT the tags of a
call that goes on.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.messages.message import Request
from offhook.telephony.sip.transactions.transaction import ClientTransaction

TIMEOUT_S = 32.0
"""Time in s in which a client has to reconnect (Timer F of RFC 3261 §17.1.2.2)."""
INTERVAL_S = 0.5
"""Interval in s at which new connections are looked for."""
MAX_WAITING = 100
"""Limit of BYEs that wait; beyond it the oldest is given up."""


@dataclass(slots=True)
class _Waiting:
    request: Request
    """Without Via."""
    flow: Flow
    """The one that is gone."""
    until: float
    due: float
    tried: set[Flow] = field(default_factory=set)


class UndeliveredByes:
    """The BYEs that wait for another connection of their far ends."""

    def __init__(self, later_flows: Callable[[Flow], Sequence[Flow]]) -> None:
        """`later_flows` returns the flows of the connections that were opened to us from the same
        address and by the same transport as a flow, and after it."""
        self._later_flows = later_flows
        self._waiting: deque[_Waiting] = deque(maxlen=MAX_WAITING)

    def add(self, transaction: ClientTransaction, now: float) -> None:
        """Keep a request that was not delivered, if it is a BYE over a connection."""
        request, flow = transaction.request, transaction.flow
        if request.method != "BYE" or not flow.reliable:
            return
        headers = request.headers.copy()
        headers.remove("Via")
        bare = Request(request.method, request.uri, headers, request.body)
        self._waiting.append(_Waiting(bare, flow, now + TIMEOUT_S, now))

    def get_timer(self) -> float | None:
        return min((bye.due for bye in self._waiting), default=None)

    def due(self, now: float) -> list[tuple[Request, Flow]]:
        """Return what to send now: each BYE over each connection only once."""
        found: list[tuple[Request, Flow]] = []
        for bye in tuple(self._waiting):
            if bye.due > now:
                continue
            fresh = [flow for flow in self._later_flows(bye.flow) if flow not in bye.tried]
            bye.tried.update(fresh)
            found += [(bye.request, flow) for flow in fresh]
            bye.due = now + INTERVAL_S
            if bye.due > bye.until:
                self._waiting.remove(bye)
        return found
