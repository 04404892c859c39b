"""Requests too long for UDP go by TCP, where the far end speaks it (RFC 3261 §18.1.1).

What is longer than a packet travels in fragments over UDP, and firewalls drop those. But a carrier
need not speak TCP: one try tells, and is remembered. A request that has not been heard by TCP goes
by UDP as it is, with the same branch: to whoever hears both it is one request.
"""

from collections.abc import Callable

from offhook.telephony.sip.messages.flow import Flow, TransportName
from offhook.telephony.sip.messages.message import Request
from offhook.telephony.sip.transactions.transaction import ClientTransaction

LARGE_BYTES = 1300
"""From here on, where nobody knows what the path carries."""
VIA_BYTES = 100
"""The Via that is still to come, roughly."""
ANSWER_S = 3.0
"""For a word by TCP, the connection included. A proxy says 100 after 0.2 s (§17.2.1); the caller
hears nothing meanwhile."""
AGAIN_S = 3600.0
"""Until a far end that spoke no TCP is tried again."""


class LargeRequests:
    """Chooses the way of requests to our trunks' servers, and knows another when it was wrong."""

    def __init__(
        self,
        is_target: Callable[[Flow], bool],
        flow_to: Callable[[TransportName, str, int], Flow],
    ) -> None:
        """`is_target`: whether a trunk's server is at the flow's far end. `flow_to`: the way to a
        numeric address."""
        self._is_target = is_target
        self._flow_to = flow_to
        self._silent_until: dict[tuple[str, int], float] = {}
        """Servers without TCP, and until when that is believed."""
        self._tries: dict[ClientTransaction, tuple[Flow, float]] = {}
        """Requests by TCP with no answer yet: the way by UDP, and when it is taken."""

    def way(self, request: Request, flow: Flow, now: float) -> Flow:
        """By TCP if the request is too long for `flow`, else that."""
        if flow.transport != "UDP" or not request.body or not self._is_target(flow):
            return flow
        if len(request.serialize()) + VIA_BYTES <= LARGE_BYTES:
            return flow
        if now < self._silent_until.get(flow.remote, 0.0):
            return flow
        return self._flow_to("TCP", *flow.remote)

    def begun(self, transaction: ClientTransaction, flow: Flow, now: float) -> None:
        """A request has gone by TCP that would have gone by `flow`."""
        self._tries[transaction] = flow, now + ANSWER_S

    def heard(self, transaction: ClientTransaction) -> None:
        """It has an answer."""
        self._tries.pop(transaction, None)

    def failed(self, transaction: ClientTransaction, now: float) -> Flow | None:
        """It was not heard: the way by which it goes now; None when it was none of these, or
        nobody waits for it any more."""
        flow, _ = self._tries.pop(transaction, (None, 0.0))
        if flow is None:
            return None
        silent = {remote: until for remote, until in self._silent_until.items() if until > now}
        self._silent_until = {**silent, flow.remote: now + AGAIN_S}
        return None if transaction.cancelled else flow

    def get_timer(self) -> float | None:
        return min((until for _, until in self._tries.values()), default=None)

    def overdue(self, now: float) -> list[ClientTransaction]:
        """Requests that have waited for long enough."""
        return [t for t, (_, until) in self._tries.items() if until <= now]
