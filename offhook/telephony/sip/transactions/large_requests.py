"""Requests too large for UDP use TCP, if the far end supports it (RFC 3261 §18.1.1).

Longer messages are fragmented over UDP, and firewalls drop fragments. But a carrier may not support
TCP: one attempt shows it, and is remembered. A request unanswered over TCP is sent over UDP with
the same branch: to a server that receives both it is one request.
"""

from collections.abc import Callable

from offhook.telephony.sip.messages.flow import Flow, TransportName
from offhook.telephony.sip.messages.message import Request
from offhook.telephony.sip.transactions.transaction import ClientTransaction

LARGE_BYTES = 1300
"""Size limit in bytes for UDP if the path MTU is unknown; a larger request with a body is sent over
TCP."""
VIA_BYTES = 100
"""Approximate size of the Via yet to be added."""
TCP_TIMEOUT_S = 3.0
"""Time limit in s for a response over TCP, connecting included; then the request is sent over UDP,
as are others to that server for a while. A proxy sends 100 after 0.2 s (§17.2.1); the caller hears
nothing meanwhile."""
TCP_RETRY_S = 3600.0
"""Time until TCP is tried again with a far end without it."""


class LargeRequests:
    """Chooses the flow of requests to our trunks' servers, and a fallback if it fails."""

    def __init__(
        self,
        is_target: Callable[[Flow], bool],
        flow_to: Callable[[TransportName, str, int], Flow],
    ) -> None:
        """`is_target` returns whether a trunk's server is at the flow's far end. `flow_to` returns
        the flow to a numeric address."""
        self._is_target = is_target
        self._flow_to = flow_to
        self._without_tcp_until: dict[tuple[str, int], float] = {}
        """Servers without TCP, and until when that is assumed."""
        self._tries: dict[ClientTransaction, tuple[Flow, float]] = {}
        """Unanswered requests over TCP: the UDP flow, and when to fall back to it."""

    def flow_for(self, request: Request, flow: Flow, now: float) -> Flow:
        """Return a TCP flow if the request is too large for `flow`, else `flow`."""
        if flow.transport != "UDP" or not request.body or not self._is_target(flow):
            return flow
        if len(request.serialize()) + VIA_BYTES <= LARGE_BYTES:
            return flow
        if now < self._without_tcp_until.get(flow.remote, 0.0):
            return flow
        return self._flow_to("TCP", *flow.remote)

    def sent_over_tcp(self, transaction: ClientTransaction, flow: Flow, now: float) -> None:
        """A request was sent over TCP instead of `flow`."""
        self._tries[transaction] = flow, now + TCP_TIMEOUT_S

    def answered(self, transaction: ClientTransaction) -> None:
        """The request was answered."""
        self._tries.pop(transaction, None)

    def failed(self, transaction: ClientTransaction, now: float) -> Flow | None:
        """The request was not answered. Returns the flow to fall back to; None if it was not sent
        over TCP, or is no longer wanted."""
        flow, _ = self._tries.pop(transaction, (None, 0.0))
        if flow is None:
            return None
        silent = {remote: until for remote, until in self._without_tcp_until.items() if until > now}
        self._without_tcp_until = {**silent, flow.remote: now + TCP_RETRY_S}
        return None if transaction.cancelled else flow

    def get_timer(self) -> float | None:
        return min((until for _, until in self._tries.values()), default=None)

    def overdue(self, now: float) -> list[ClientTransaction]:
        """Return the requests whose time for TCP is up."""
        return [t for t, (_, until) in self._tries.items() if until <= now]
