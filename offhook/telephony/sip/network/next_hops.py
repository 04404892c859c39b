"""The flows to the next hops of sessions: numeric ones at once, names once they are looked up."""

from collections.abc import Callable

from offhook.telephony.sip.messages.flow import Flow, TransportName
from offhook.telephony.sip.messages.uri import Uri

MAX_LOCATED = 1000
"""Limit of next-hop names whose addresses are cached; the oldest are dropped."""
MAX_LOOKUPS = 32
"""Limit of simultaneous look-ups; further ones are skipped, since far ends choose the names."""


class NextHops:
    """The next hops of all sessions of a user agent."""

    def __init__(
        self,
        flow_to: Callable[[TransportName, str, int], Flow],
        locate: Callable[[Uri], None],
    ) -> None:
        """`flow_to` returns the flow to a numeric address. `locate` starts a look-up, whose result
        is passed to `located`."""
        self._flow_to = flow_to
        self._locate = locate
        self._located: dict[str, Flow] = {}
        self._looked_up: set[str] = set()
        """Names being looked up."""

    def flow_to(self, transport: TransportName, remote: tuple[str, int]) -> Flow:
        """Return the flow to an address."""
        return self._flow_to(transport, *remote)

    def cached_flow(self, hop: Uri) -> Flow | None:
        """Return the flow to a name, if it has been looked up."""
        return self._located.get(_name(hop))

    def look_up(self, hop: Uri) -> Flow | None:
        """Return the flow to a name; if unknown, start a look-up."""
        name = _name(hop)
        known = self._located.get(name)
        if known is None and name not in self._looked_up and len(self._looked_up) < MAX_LOOKUPS:
            self._looked_up.add(name)
            self._locate(hop)
        return known

    def located(self, hop: Uri, flow: Flow | None) -> None:
        """Set the flow to a name; None if it was not found or is outdated: it is looked up again
        when needed."""
        name = _name(hop)
        self._looked_up.discard(name)
        if flow is None:
            self._located.pop(name, None)
            return
        if len(self._located) >= MAX_LOCATED:
            del self._located[next(iter(self._located))]
        self._located[name] = flow


def _name(hop: Uri) -> str:
    return f"{hop.scheme}:{hop.host}:{hop.port}:{hop.parameter('transport')}"
