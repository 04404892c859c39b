"""The way in through a NAT, kept open: a packet every so often to whom we want to hear from.

RFC 5626 §3.5.1 and §4.4: two line breaks are no message, and every SIP server passes them over.
"""

from collections.abc import Iterable

from offhook.telephony.sip.messages.flow import Flow

KEEP_ALIVE = b"\r\n\r\n"
KEEP_ALIVE_S = 25.0
"""Between two: many NATs forget a way over UDP after 30 s of silence (RFC 5626 §4.4.2 draws from
24 to 29 s)."""


class KeepAlives:
    """Which flows are kept open, and which is due."""

    def __init__(self) -> None:
        self._due: dict[Flow, float] = {}

    def use(self, flows: Iterable[Flow], now: float) -> None:
        """These, and no others. One that is kept open already goes on as it was."""
        self._due = {flow: self._due.get(flow, now + KEEP_ALIVE_S) for flow in flows}

    def get_timer(self) -> float | None:
        return min(self._due.values(), default=None)

    def take_due(self, now: float) -> list[Flow]:
        """To whom to send one now."""
        due = [flow for flow, at in self._due.items() if at <= now]
        self._due.update(dict.fromkeys(due, now + KEEP_ALIVE_S))
        return due
