"""The route of one session's requests (RFC 3261 §8.1.2, §12.2.1.1).

a connection that is up, or a browser's      that connection (RFC 5923, RFC 7118)
the next hop is an address                   that address
the next hop is a name                       its resolved address; until then the source of the
                                             far end's INVITE
an address that the far end has in its Via
too, and does not send from; or has left;
or nearer to us than the source of its       that source
packets, or of another private network, or
of the other IP version

The last rule reaches phones behind a NAT, which give their private address (RFC 3581 §4: `received`
is not what their Via says). It also keeps a far end from directing us at services of our own
machine or network, which are private too. A trunk's `contact` decides otherwise. The source is that
of the last request in order, so that a phone is followed to its next connection.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)

from offhook.telephony.sip.messages.flow import Flow, TransportName
from offhook.telephony.sip.messages.message import Request, Response
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.network.next_hops import NextHops
from offhook.telephony.sip.sessions.session import Session
from offhook.telephony.sip.transactions.message_sender import MessageSender
from offhook.telephony.sip.transactions.transaction import ClientTransaction, Key, ServerTransaction
from offhook.telephony.sip.trunks.trunks import Trunk

DEFAULT_PORTS: Mapping[str, int] = {"UDP": 5060, "TCP": 5060, "TLS": 5061, "WS": 80, "WSS": 443}
"""Default ports (RFC 3261 §18.1.1, RFC 7118 §5.2)."""


PRIVATE = tuple(
    ip_network(text)
    for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")
)
"""Private addresses (RFC 1918, RFC 6598, RFC 4193). Who has one and sends from another of these is
behind a NAT."""
MAX_LEFT = 4
"""Places remembered that a far end has left; a Contact of an older one is taken at its word."""


class SessionRoute:
    """Sends one session's messages. `session` is set with its first request or response."""

    def __init__(
        self,
        sender: MessageSender,
        hops: NextHops,
        flow: Flow,
        trunk: Trunk | None,
    ) -> None:
        """`flow` is the flow of the INVITE; later, where the far end moved."""
        self.flow = flow
        self.trunk = trunk
        self.lost = False
        """The connection of `flow` is gone."""
        self.claimed = ""
        """The far end's address as its last request says (RFC 3261 §18.1.1: sent-by)."""
        self._left: deque[tuple[str, int]] = deque(maxlen=MAX_LEFT)
        """Where the far end sent from before."""
        self.session: Session | None = None
        self.invite: Key | None = None
        """Key of the INVITE's transaction, for an inbound call."""
        self.wake_at: float | None = None
        """When the session is next to be woken; None if it is not scheduled."""
        self._sender = sender
        self._hops = hops

    @property
    def of(self) -> Session:
        """The session, which exists from its first message on."""
        assert self.session is not None
        return self.session

    def request(self, request: Request, hop: Uri, now: float) -> ClientTransaction:
        return self._sender.request(request, self._flow_for(request, hop), now)

    def ack(self, request: Request, hop: Uri) -> None:
        self._sender.ack(request, self._flow_for(request, hop))

    def respond(self, transaction: ServerTransaction, response: Response, now: float) -> None:
        self._sender.respond(transaction, response, now)

    def cancel(self, transaction: ClientTransaction, now: float) -> None:
        self._sender.cancel(transaction, now)

    def _flow_for(self, request: Request, hop: Uri) -> Flow:
        if not request.to.tag:  # the INVITE itself
            return self.flow
        if self.flow.connection and not self.lost:
            return self.flow
        address = _numeric(hop.host)
        if address is None:
            way = self._hops.look_up(hop)
            return way if way is not None and self._may_lead_to(way.remote[0]) else self.flow
        transport = transport_of(hop, self.flow.transport)
        if transport not in ("UDP", "TCP", "TLS"):  # a browser cannot be connected to
            return self.flow
        if not self._is_reachable(address):
            return self.flow
        remote = (address, hop.port or DEFAULT_PORTS[transport])
        as_given = self.trunk is not None and self.trunk.contact == "as given"
        if remote in self._left and not (self.lost or as_given):  # where a NAT had it
            return self.flow
        if transport == self.flow.transport:
            return replace(self.flow, remote=remote, connection=0)
        return self._hops.flow_to(transport, remote)

    @property
    def behind_nat(self) -> bool:
        """Whether the far end is reached over UDP, and only while a NAT remembers it."""
        dialog = self.session.dialog if self.session is not None else None
        address = _numeric(dialog.next_hop.host) if dialog is not None else None
        return (
            self.flow.transport == "UDP" and address is not None and not self._is_reachable(address)
        )

    def _is_reachable(self, address: str) -> bool:
        """Whether a request may go to the address of a next hop: a phone's own, behind a NAT, leads
        nowhere, or to somebody else."""
        match self.trunk.contact if self.trunk is not None else None:
            case "as given":
                return True
            case "source":
                return False
        behind_nat = address == self.claimed != self.flow.remote[0]
        return not behind_nat and self._may_lead_to(address)

    def _may_lead_to(self, address: str) -> bool:
        theirs, source = ip_address(address), ip_address(self.flow.remote[0])
        if theirs.version != source.version or _distance(theirs) < max(0, _distance(source)):
            return False
        networks = {_private_network(theirs), _private_network(source)} - {None}
        return len(networks) < 2

    def follow(self, request: Request, flow: Flow) -> None:
        """Follow the far end to where it has sent a request of the call from: another port or
        connection after a NAT, a network or a browser's WebSocket has dropped the one before. A
        phone on UDP that uses a connection for one long request (RFC 3261 §18.1.1) is still
        there."""
        self.claimed = _numeric(request.vias[0].host) or ""
        contact = next((c.uri for c in request.contacts), request.from_.uri)
        if self.flow.transport == "UDP" != flow.transport == transport_of(contact, "UDP"):
            self._left.clear()
        elif self.flow.transport == "UDP" and flow.reliable:
            return
        if flow.remote != self.flow.remote:
            self._left.append(self.flow.remote)
        if flow.remote in self._left:
            self._left.remove(flow.remote)
        self.move(flow)

    def connection_lost(self) -> None:
        """The connection of `flow` is gone: look up where the requests go now, as the far end may
        well accept another."""
        self.lost = True
        dialog = self.of.dialog
        connectable = self.flow.transport in ("TCP", "TLS")
        if dialog is not None and connectable and not is_numeric(dialog.next_hop.host):
            self._hops.look_up(dialog.next_hop)

    # --- access_policy.Call ---

    def is_from(self, source: str) -> bool:
        """Return whether the far end is at this address: it called from there, was called there, or
        is sent its requests there."""
        if source == self.flow.remote[0]:
            return True
        dialog = self.session.dialog if self.session is not None else None
        if dialog is None:
            return False
        address = _numeric(dialog.next_hop.host)
        if address is not None:
            return address == source
        way = self._hops.cached_flow(dialog.next_hop)
        return way is not None and way.remote[0] == source

    def move(self, flow: Flow) -> None:
        """Move the far end to another flow."""
        self.flow, self.lost = flow, False


def flow_address(hop: Uri, usual: TransportName) -> tuple[str, int] | None:
    """Return the address and port of a next hop; None if it is a name."""
    address = _numeric(hop.host)
    return (
        None if address is None else (address, hop.port or DEFAULT_PORTS[transport_of(hop, usual)])
    )


def transport_of(uri: Uri, usual: TransportName) -> TransportName:
    """Return the transport to reach a URI: the one it names (RFC 3261 §19.1.1), or `usual`."""
    named = (uri.parameter("transport") or "").upper()
    if uri.scheme == "sips" or (named == "TCP" and usual == "TLS"):
        return "TLS"
    for transport in ("UDP", "TCP", "TLS", "WS", "WSS"):
        if named == transport:
            return transport
    return usual


def is_numeric(host: str) -> bool:
    """Return whether a next hop's host is an address."""
    return _numeric(host) is not None


def _numeric(host: str) -> str | None:
    try:
        return str(ip_address(host))
    except ValueError:
        return None


def _private_network(address: IPv4Address | IPv6Address) -> IPv4Network | IPv6Network | None:
    """The private addresses that this one is of; None if it is of none."""
    return next((network for network in PRIVATE if address in network), None)


def _distance(address: IPv4Address | IPv6Address) -> int:
    """Distance of an address: 0 this machine, 1 this link, 2 a private network, 3 global; -1 for no
    unicast address."""
    if address.is_multicast or address.is_unspecified or str(address) == "255.255.255.255":
        return -1
    if address.is_loopback:
        return 0
    if address.is_link_local:
        return 1
    return 3 if address.is_global else 2
