"""NAT keep-alives: a packet at intervals to servers we need to be reachable from.

RFC 5626 §3.5.1 and §4.4: two line breaks are not a message, and every SIP server ignores them.
"""

from collections.abc import Iterable

from offhook.telephony.sip.messages.flow import Flow

KEEP_ALIVE = b"\r\n\r\n"
KEEP_ALIVE_INTERVAL_S = 25.0
"""Interval: many NATs drop a UDP binding after 30 s of silence (RFC 5626 §4.4.2 uses 24 to 29
s)."""


class KeepAlives:
    """The flows kept alive, and when each is due."""

    def __init__(self) -> None:
        self._due: dict[Flow, float] = {}

    def use(self, flows: Iterable[Flow], now: float) -> None:
        """Keep these flows alive, and no others. Known ones keep their schedule."""
        self._due = {flow: self._due.get(flow, now + KEEP_ALIVE_INTERVAL_S) for flow in flows}

    def get_timer(self) -> float | None:
        return min(self._due.values(), default=None)

    def pop_due(self, now: float) -> list[Flow]:
        """Return the flows to send a keep-alive to now."""
        due = [flow for flow, at in self._due.items() if at <= now]
        self._due.update(dict.fromkeys(due, now + KEEP_ALIVE_INTERVAL_S))
        return due
