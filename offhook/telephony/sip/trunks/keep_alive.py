"""NAT keep-alives: a packet at intervals to servers we need to be reachable from, and to phones
behind a NAT that we are in a call with: ours is otherwise silent until it ends.

RFC 5626 §3.5.1 and §4.4: two line breaks are not a message, and every server and phone ignores
them.
"""

from collections.abc import Callable, Collection, Iterable

from offhook.telephony.sip.messages.flow import Flow

KEEP_ALIVE = b"\r\n\r\n"
KEEP_ALIVE_INTERVAL_S = 25.0
"""Interval: many NATs drop a UDP binding after 30 s of silence (RFC 5626 §4.4.2 uses 24 to 29
s)."""

MIN_MESSAGE_BYTES = 16
"""Shorter datagrams are keep-alives of phones behind a NAT: line breaks, zeros, "jaK"."""


def is_keep_alive(data: bytes) -> bool:
    """Return whether a peer has sent a keep-alive and no message."""
    return len(data) < MIN_MESSAGE_BYTES or not data.strip(b"\r\n\0")


class KeepAlives:
    """The flows kept alive, and when each is due; those of calls are due together."""

    def __init__(
        self,
        calls: Callable[[], int] = lambda: 0,
        flows_of_calls: Callable[[], Collection[Flow]] = tuple,
    ) -> None:
        """`calls` returns how many calls there are, `flows_of_calls` the flows of those that a NAT
        may cut off."""
        self._due: dict[Flow, float] = {}
        self._calls, self._flows_of_calls = calls, flows_of_calls
        self._calls_due: float | None = None

    def use(self, flows: Iterable[Flow], now: float) -> None:
        """Keep these flows alive, and no others. Known ones keep their schedule."""
        self._due = {flow: self._due.get(flow, now + KEEP_ALIVE_INTERVAL_S) for flow in flows}

    def get_timer(self) -> float | None:
        times = (*self._due.values(), self._calls_due)
        return min((t for t in times if t is not None), default=None)

    def pop_due(self, now: float) -> list[Flow]:
        """Return the flows to send a keep-alive to now."""
        due = [flow for flow, at in self._due.items() if at <= now]
        self._due.update(dict.fromkeys(due, now + KEEP_ALIVE_INTERVAL_S))
        if not self._calls():
            self._calls_due = None
        elif self._calls_due is None or self._calls_due <= now:
            due += self._flows_of_calls() if self._calls_due is not None else ()
            self._calls_due = now + KEEP_ALIVE_INTERVAL_S
        return due
