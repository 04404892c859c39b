"""Which servers each trunk has."""

from collections.abc import Sequence

from offhook.telephony.sip.messages.flow import Flow


class TrunkServers:
    """The flows to the servers of all trunks, as DNS returns them."""

    def __init__(self) -> None:
        self._flows: dict[str, Sequence[Flow]] = {}
        """By trunk, in the order to try."""

    def use(self, trunk: str, flows: Sequence[Flow]) -> Sequence[Flow]:
        """Set the flows to a trunk's servers and return them. If DNS returns the same servers in
        another order, as it may each time, they stay in theirs."""
        before = self._flows.get(trunk, ())
        self._flows[trunk] = before if set(flows) == set(before) else flows
        return self._flows[trunk]

    def of(self, trunk: str) -> Sequence[Flow]:
        """Return the flows to a trunk's servers, which have been set."""
        return self._flows[trunk]

    def is_server(self, flow: Flow) -> bool:
        """Return whether a trunk's server is at the flow's far end."""
        return any(f.remote == flow.remote for flows in self._flows.values() for f in flows)
