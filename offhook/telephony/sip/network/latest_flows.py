"""The UDP flows that an address was last seen at, while we have calls with it.

A phone behind a NAT that has given it another port may send nothing within its call: what it sends
besides, an OPTIONS, a REGISTER, a keep-alive, comes from the new port and shows where it is. Such a
request counts for a call if its Contact or its From is the far end's. A keep-alive says nothing
about its sender, so a flow that has only sent those may be another phone's behind the same NAT.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.messages.message import Request
from offhook.telephony.sip.messages.uri import Uri

MAX_FLOWS = 8
"""Limit of flows remembered of one address, the latest."""


@dataclass(frozen=True, slots=True)
class Party:
    """Who sends from a flow."""

    account: str
    """Address of record, without scheme and parameters."""
    device: str
    """Host and port of the Contact; "" if there was none."""

    @classmethod
    def of(cls, account: Uri, contact: Uri | None) -> "Party":
        named = f"{account.user or ''}@{account.host}".lower()
        return cls(named, "" if contact is None else f"{contact.host}:{contact.port or ''}".lower())

    @classmethod
    def of_request(cls, request: Request) -> "Party":
        return cls.of(request.from_.uri, next((c.uri for c in request.contacts), None))


class LatestFlows:
    """The flows of the addresses that calls are with, the latest last."""

    def __init__(self) -> None:
        self._addresses: dict[str, dict[Flow, Party | None]] = {}
        self._calls: Counter[str] = Counter()
        """Calls with each address."""

    def add(self, flow: Flow) -> None:
        """Remember the flows of this one's address: a call is with it, until `remove`."""
        if flow.transport == "UDP":
            host = flow.remote[0]
            self._calls[host] += 1
            _refresh(self._addresses.setdefault(host, {}), flow, None)

    def remove(self, flow: Flow) -> None:
        """Forget the flows of this one's address, unless other calls are with it."""
        if flow.transport == "UDP":
            host = flow.remote[0]
            self._calls[host] -= 1
            if not self._calls[host]:
                del self._calls[host], self._addresses[host]

    def seen(self, flow: Flow, party: Party | None) -> None:
        """Something has come by this flow; `party` is None for a keep-alive."""
        flows = self._addresses.get(flow.remote[0])
        if flows is not None and flow.transport == "UDP":
            _refresh(flows, flow, party)

    def is_known(self, flow: Flow) -> bool:
        """Return whether what comes by this flow is worth remembering."""
        return flow.remote[0] in self._addresses

    def later(self, flow: Flow, party: Party, unnamed: bool) -> list[Flow]:
        """Return the flows of the same address by which something has come after it last came by
        `flow`, and that are this party's: those of its Contact first, then those of its account,
        then with `unnamed` those that only keep-alives have come by; each the latest first."""
        ranks: dict[Flow, int] = {}
        for other, sender in self._reversed(flow):
            if sender is None:
                rank = 2 if unnamed else None
            elif party.device and sender.device == party.device:
                rank = 0
            else:
                rank = 1 if sender.account == party.account else None
            if rank is not None:
                ranks[other] = rank
        return sorted(ranks, key=lambda other: ranks[other])

    def _reversed(self, flow: Flow) -> Iterator[tuple[Flow, Party | None]]:
        for other, party in reversed(self._addresses.get(flow.remote[0], {}).items()):
            if other.remote == flow.remote:
                return
            yield other, party


def _refresh(flows: dict[Flow, Party | None], flow: Flow, party: Party | None) -> None:
    before = flows.pop(flow, None)
    flows[flow] = party or before
    if len(flows) > MAX_FLOWS:
        del flows[next(iter(flows))]
