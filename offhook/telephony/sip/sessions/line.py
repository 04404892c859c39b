"""The way from one session to its far end: where its requests go (RFC 3261 §8.1.2, §12.2.1.1).

a connection that is up, or a browser's      by that connection (RFC 5923, RFC 7118)
the next hop is an address                   there
the next hop is a name                       where it was found to be; until then where the
                                             far end's INVITE came from
that is nearer to us than where its owner's
packets come from, or of the other IP        where they come from

The last is how phones behind a NAT are reached: they name their private address. It also keeps a
far end from having us talk to services of our own machine or network, which are private too.
"""

from collections.abc import Mapping
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Protocol

from offhook.telephony.sip.messages.flow import Flow, TransportName
from offhook.telephony.sip.messages.message import Request, Response
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.sessions.session import Session
from offhook.telephony.sip.transactions.transaction import ClientTransaction, Key, ServerTransaction
from offhook.telephony.sip.trunks.trunks import Trunk

DEFAULT_PORTS: Mapping[str, int] = {"UDP": 5060, "TCP": 5060, "TLS": 5061, "WS": 80, "WSS": 443}
"""RFC 3261 §18.1.1, RFC 7118 §5.2."""


class Office(Protocol):
    """What lines share: the user agent."""

    def send_request(self, request: Request, flow: Flow, now: float) -> ClientTransaction: ...
    def send_ack(self, request: Request, flow: Flow) -> None: ...
    def respond(self, transaction: ServerTransaction, response: Response, now: float) -> None: ...
    def cancel(self, transaction: ClientTransaction, now: float) -> None: ...
    def where(self, hop: Uri) -> Flow | None: ...
    def found(self, hop: Uri) -> Flow | None: ...
    def flow_to(self, transport: TransportName, remote: tuple[str, int]) -> Flow: ...


class Line:
    """What a session sends through. `session` is there from its first request or answer on."""

    def __init__(
        self,
        office: Office,
        flow: Flow,
        trunk: Trunk | None,
    ) -> None:
        """`flow`: the way of the INVITE; later where the far end has moved to."""
        self.flow = flow
        self.trunk = trunk
        self.lost = False
        """The connection of `flow` is gone."""
        self.session: Session | None = None
        self.invite: Key | None = None
        """The transaction of the INVITE, when it came from the far end."""
        self.due: float | None = None
        """When the session is to be woken, as far as anybody waits for it."""
        self._office = office

    @property
    def of(self) -> Session:
        """The session, which is there from its first message on."""
        assert self.session is not None
        return self.session

    def request(self, request: Request, hop: Uri, now: float) -> ClientTransaction:
        return self._office.send_request(request, self._way(request, hop), now)

    def ack(self, request: Request, hop: Uri) -> None:
        self._office.send_ack(request, self._way(request, hop))

    def respond(self, transaction: ServerTransaction, response: Response, now: float) -> None:
        self._office.respond(transaction, response, now)

    def cancel(self, transaction: ClientTransaction, now: float) -> None:
        self._office.cancel(transaction, now)

    def _way(self, request: Request, hop: Uri) -> Flow:
        if not request.to.tag:  # where the call was placed to
            return self.flow
        if self.flow.connection and not self.lost:
            return self.flow
        address = _numeric(hop.host)
        if address is None:
            way = self._office.where(hop)
            return way if way is not None and self._may_lead_to(way.remote[0]) else self.flow
        transport = transport_of(hop, self.flow.transport)
        if transport not in ("UDP", "TCP", "TLS"):  # a browser cannot be called back
            return self.flow
        if not self._may_lead_to(address):
            return self.flow
        remote = (address, hop.port or DEFAULT_PORTS[transport])
        if transport == self.flow.transport:
            return replace(self.flow, remote=remote, connection=0)
        return self._office.flow_to(transport, remote)

    def _may_lead_to(self, address: str) -> bool:
        theirs, source = ip_address(address), ip_address(self.flow.remote[0])
        return theirs.version == source.version and _distance(theirs) >= max(0, _distance(source))

    # --- what the gate asks (gate.Call) ---

    def is_from(self, source: str) -> bool:
        """Whether the far end is at this address: it called from there, was called there, or has
        its requests sent there."""
        if source == self.flow.remote[0]:
            return True
        dialog = self.session.dialog if self.session is not None else None
        if dialog is None:
            return False
        address = _numeric(dialog.next_hop.host)
        if address is not None:
            return address == source
        way = self._office.found(dialog.next_hop)
        return way is not None and way.remote[0] == source

    def move(self, flow: Flow) -> None:
        """The far end is there now."""
        self.flow, self.lost = flow, False


def transport_of(uri: Uri, usual: TransportName) -> TransportName:
    """What a next hop is reached by: its own word (RFC 3261 §19.1.1), or `usual`."""
    named = (uri.parameter("transport") or "").upper()
    if uri.scheme == "sips" or (named == "TCP" and usual == "TLS"):
        return "TLS"
    for transport in ("UDP", "TCP", "TLS", "WS", "WSS"):
        if named == transport:
            return transport
    return usual


def _numeric(host: str) -> str | None:
    try:
        return str(ip_address(host))
    except ValueError:
        return None


def _distance(address: IPv4Address | IPv6Address) -> int:
    """How far from us: 0 this machine, 1 this link, 2 a private network, 3 the world; -1 for what
    is nobody's address."""
    if address.is_multicast or address.is_unspecified or str(address) == "255.255.255.255":
        return -1
    if address.is_loopback:
        return 0
    if address.is_link_local:
        return 1
    return 3 if address.is_global else 2
