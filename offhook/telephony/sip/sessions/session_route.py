"""The route of one session's requests (RFC 3261 §8.1.2, §12.2.1.1).

a connection that is up, or a browser's      that connection (RFC 5923, RFC 7118)
the next hop is an address                   that address
the next hop is a name                       its resolved address; until then the source of the
                                             far end's INVITE
the far end's Contact, and its Via names
another address than it sends from, or
another port, and asks for responses at
the one it sends from (rport)
a proxy's address that is in its Via too,    the source of the far end's requests
and does not send from there
an address that the far end has left, or
that did not answer; or nearer to us than
the source, or of another private network,
or of the other IP version

The last two reach phones behind a NAT, which give their private address (RFC 3581 §4: `received`
and `rport` are not what their Via says); it may look near, as of the network that we are in too.
They also keep a far end from directing us at services of our own machine or network, which are
private too. A trunk's `contact` decides otherwise. The source is that of the last request in order,
so that a phone is followed to its next connection.

What is not answered over UDP is sent elsewhere, one after another: see `other_flows`.
"""

from collections import deque
from collections.abc import Mapping, Sequence
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
from offhook.telephony.sip.messages.headers import Via
from offhook.telephony.sip.messages.message import Request, Response
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.network.latest_flows import LatestFlows, Party
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
        flows: LatestFlows,
        flow: Flow,
        trunk: Trunk | None,
    ) -> None:
        """`flow` is the flow of the INVITE; later, where the far end moved."""
        self.flow = flow
        self.trunk = trunk
        self.lost = False
        """The connection of `flow` is gone."""
        self._claimed: Via | None = None
        """Where the far end's last request says it is (RFC 3261 §18.1.1: sent-by)."""
        self._direct = True
        """It has come without a proxy in between."""
        self._left: deque[tuple[str, int]] = deque(maxlen=MAX_LEFT)
        """Where the far end sent from before."""
        self._silent: deque[tuple[str, int]] = deque(maxlen=MAX_LEFT)
        """Where a request was not answered that was answered elsewhere."""
        self.session: Session | None = None
        self.invite: Key | None = None
        """Key of the INVITE's transaction, for an inbound call."""
        self.wake_at: float | None = None
        """When the session is next to be woken; None if it is not scheduled."""
        self._sender = sender
        self._hops = hops
        self._flows = flows
        flows.add(flow)

    @property
    def of(self) -> Session:
        """The session, which exists from its first message on."""
        assert self.session is not None
        return self.session

    def request(self, request: Request, hop: Uri, now: float) -> ClientTransaction:
        inside = self if request.to.tag else None
        return self._sender.request(request, self._flow_for(request, hop), now, inside)

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
        if address is not None and not self._is_reachable(address):
            return self.flow
        way = self._way_to(hop)
        if way is None or way.remote in self._silent:
            return self.flow
        as_given = self.trunk is not None and self.trunk.contact == "as given"
        if address is not None and way.remote in self._left and not (self.lost or as_given):
            return self.flow  # a NAT had it there
        return way

    def _way_to(self, hop: Uri) -> Flow | None:
        """Return the flow to a next hop, if it is known and can be sent to."""
        address = _numeric(hop.host)
        if address is None:
            way = self._hops.look_up(hop)
            return way if way is not None and self._may_lead_to(way.remote[0]) else None
        transport = transport_of(hop, self.flow.transport)
        if transport not in ("UDP", "TCP", "TLS"):  # a browser cannot be connected to
            return None
        remote = (address, hop.port or DEFAULT_PORTS[transport])
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
        return not self._is_masked(address) and self._may_lead_to(address)

    def _is_masked(self, address: str) -> bool:
        """Whether the far end's last request shows that a NAT changes the address of a next hop:
        that of the next hop itself, or of the far end, whose Contact it is."""
        via = self._claimed
        host = None if via is None else _numeric(via.host)
        if via is None or host is None:
            return False
        port = via.port or DEFAULT_PORTS["UDP"]
        symmetric = self.flow.transport == "UDP" and via.rport is not None
        source = self.flow.remote if symmetric else (self.flow.remote[0], port)
        return (host, port) != source and (self._direct or host == address)

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
        vias = request.vias
        self._claimed, self._direct = vias[0], len(vias) == 1
        contact = next((c.uri for c in request.contacts), request.from_.uri)
        if self.flow.transport == "UDP" != flow.transport == transport_of(contact, "UDP"):
            self._left.clear()
        elif self.flow.transport == "UDP" and flow.reliable:
            return
        if flow.remote != self.flow.remote:
            self._left.append(self.flow.remote)
        self._is_at(flow)

    def _is_at(self, flow: Flow) -> None:
        for elsewhere in (self._left, self._silent):
            if flow.remote in elsewhere:
                elsewhere.remove(flow.remote)
        self.move(flow)

    def connection_lost(self) -> None:
        """The connection of `flow` is gone: look up where the requests go now, as the far end may
        well accept another."""
        self.lost = True
        dialog = self.of.dialog
        connectable = self.flow.transport in ("TCP", "TLS")
        if dialog is not None and connectable and not is_numeric(dialog.next_hop.host):
            self._hops.look_up(dialog.next_hop)

    # --- flow_failover.FarEnd ---

    def other_flows(self, request: Request) -> Sequence[Flow]:
        """Return where to send a request that is not answered: to the Contact, to the source of the
        far end's requests, and to where it was last seen at that address. A stranger behind the
        same NAT must not learn the tags of a call that goes on, so only a BYE goes to a Contact
        that may be another's, or to a flow that is nobody's by name."""
        session = self.session
        if session is None or session.dialog is None:
            return ()
        bye, dialog = request.method == "BYE", session.dialog
        found = [self.flow]
        way = self._way_to(session.life.requests.next_hop(request))
        if way is not None and self._may_try(way.remote[0], bye):
            found.insert(0, way)
        party = Party.of(dialog.remote.uri, dialog.remote_target)
        return [*found, *self._flows.later(self.flow, party, unnamed=bye)]

    def _may_try(self, address: str, bye: bool) -> bool:
        last_resort = bye and (self.trunk is None or self.trunk.contact != "source")
        return self._is_reachable(address) or (last_resort and self._may_lead_to(address))

    def found(self, flow: Flow, silent: Sequence[Flow]) -> None:
        """The far end has answered over `flow`, and not over the others."""
        if self.session is None:
            return  # it is over
        self._silent.extend(other.remote for other in reversed(silent))
        self._is_at(flow)

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
        before, self.flow, self.lost = self.flow, flow, False
        self._flows.add(flow)
        self._flows.remove(before)

    def end(self) -> None:
        """The session is over."""
        self.session = self.wake_at = None
        self._flows.remove(self.flow)


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
