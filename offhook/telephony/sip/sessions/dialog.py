"""Dialogs (RFC 3261 §12): the lasting peer-to-peer relationship of two user agents.

A dialog identifies the call at both ends, counts their requests and knows the route to the far end.
What the dialog is for (here always an INVITE and its consequences) is up to the session.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

from offhook.telephony.sip.messages.grammar import (
    SipError,
    format_host_port,
    parse_host_port,
    parse_port,
)
from offhook.telephony.sip.messages.headers import Headers, NameAddr
from offhook.telephony.sip.messages.message import Message, Request, Response
from offhook.telephony.sip.messages.uri import Uri

MAX_FORWARDS = "70"
"""Initial Max-Forwards (RFC 3261 §8.1.1.6)."""
MAX_ROUTES = 32
"""Limit of proxies in a route set; more are dropped. Every request carries the whole set, so its
length must not be up to the peer."""
FIRST_CSEQ = 1
TARGET_REFRESH = frozenset({"INVITE", "UPDATE", "SUBSCRIBE", "NOTIFY", "REFER"})
"""Requests that carry our Contact (RFC 3261 §12.2, RFC 3311 §5.1, RFC 3515 §2.2, RFC 6665 §3.1)."""


class DialogId(NamedTuple):
    """Identifies a dialog at our end (RFC 3261 §12)."""

    call_id: str
    local_tag: str
    remote_tag: str


@dataclass(slots=True)
class Dialog:
    """One dialog, from our end."""

    call_id: str
    local: NameAddr
    """From of our requests, with our tag."""
    remote: NameAddr
    """To of our requests; without a tag if the far end gave none (RFC 2543)."""
    local_contact: Uri
    remote_target: Uri
    """Where requests go: the far end's Contact."""
    route_set: tuple[NameAddr, ...]
    """The proxies in between, nearest first."""
    local_cseq: int
    """CSeq of our last request."""
    remote_cseq: int | None
    """CSeq of the far end's last request; None before the first."""

    @classmethod
    def from_request(cls, request: Request, local_tag: str, local_contact: Uri) -> "Dialog":
        """Create the callee's dialog (RFC 3261 §12.1.1). If the Contact is missing, as allowed
        before RFC 3261, or not a SIP URI, From is used; if both are tel: URIs, as from some
        gateways, requests go to the source of the INVITE."""
        return cls(
            call_id=request.call_id,
            local=request.to.with_parameter("tag", local_tag),
            remote=request.from_,
            local_contact=local_contact,
            remote_target=_target(request, _sender(request)),
            route_set=_routes(request.record_routes),
            local_cseq=FIRST_CSEQ - 1,
            remote_cseq=request.cseq.number,
        )

    @classmethod
    def from_response(cls, request: Request, response: Response, local_contact: Uri) -> "Dialog":
        """Create the caller's dialog (RFC 3261 §12.1.2)."""
        return cls(
            call_id=request.call_id,
            local=request.from_,
            remote=response.to,
            local_contact=local_contact,
            remote_target=_target(response, request.uri),
            route_set=_routes_of(response),
            local_cseq=request.cseq.number,
            remote_cseq=None,
        )

    @property
    def id(self) -> DialogId:
        return DialogId(self.call_id, self.local.tag, self.remote.tag)

    @property
    def replaces(self) -> str:
        """Value of a Replaces header with which somebody can take our place in this dialog (RFC
        3891 §4: the tags are named as the far end sees them)."""
        to_tag, from_tag = self.remote.tag or "0", self.local.tag or "0"
        return f"{self.call_id};to-tag={to_tag};from-tag={from_tag}"

    @property
    def next_hop(self) -> Uri:
        """Where to send requests: the first proxy or the far end itself (RFC 3261 §8.1.2)."""
        return self.route_set[0].uri if self.route_set else self.remote_target

    def confirm(self, response: Response) -> None:
        """Apply the 2xx: its route set and Contact count, whatever the provisional response said
        (RFC 3261 §13.2.2.4)."""
        self.remote = response.to
        self.route_set = _routes_of(response)
        self.refresh_target(response)

    def refresh_target(self, message: Message) -> None:
        """Apply the far end's new Contact, if present (RFC 3261 §12.2)."""
        self.remote_target = _target(message, self.remote_target)

    def accept(self, request: Request) -> bool:
        """Return whether the request is in order (RFC 3261 §12.2.2), and if so count it.

        A repeated number is out of order too: retransmissions never get here, so it is another
        request. BYE is always accepted: a far end that miscounts may still hang up.
        """
        number = request.cseq.number
        if self.remote_cseq is not None and number <= self.remote_cseq:
            return request.method == "BYE"
        self.remote_cseq = number
        return True

    def request(
        self,
        method: str,
        headers: Sequence[tuple[str, str]] = (),
        body: bytes = b"",
        content_type: str = "",
    ) -> Request:
        """Return the next request within the dialog, without a Via (RFC 3261 §12.2.1.1)."""
        self.local_cseq += 1
        return self._request(method, self.local_cseq, headers, body, content_type)

    def ack(
        self, invite: Request, headers: Sequence[tuple[str, str]] = (), sdp: str | None = None
    ) -> Request:
        """Return the ACK to a 2xx (RFC 3261 §13.2.2.4), with the CSeq number and credentials
        (§22.1) of the INVITE."""
        credentials = [
            (name, value)
            for name, value in invite.headers.items()
            if name in ("Authorization", "Proxy-Authorization")
        ]
        body, content_type = sdp_body(sdp)
        return self._request(
            "ACK", invite.cseq.number, [*credentials, *headers], body, content_type
        )

    def renumbered(self, request: Request) -> Request:
        """Return the same request with the next CSeq: after a challenge, or with other headers."""
        self.local_cseq += 1
        headers = Headers(request.headers.items())
        headers.set("CSeq", f"{self.local_cseq} {request.method}")
        return Request(request.method, request.uri, headers, request.body)

    def _request(
        self,
        method: str,
        number: int,
        headers: Sequence[tuple[str, str]],
        body: bytes,
        content_type: str,
    ) -> Request:
        target, routes = self._route()
        fields: list[tuple[str, str]] = [
            ("Max-Forwards", MAX_FORWARDS),
            *(("Route", str(route)) for route in routes),
            ("From", str(self.local)),
            ("To", str(self.remote)),
            ("Call-ID", self.call_id),
            ("CSeq", f"{number} {method}"),
        ]
        if method in TARGET_REFRESH:
            fields.append(("Contact", f"<{self.local_contact}>"))
        fields.extend(headers)
        if body:
            fields.append(("Content-Type", content_type))
        return Request(method, target, Headers(fields), body)

    def _route(self) -> tuple[Uri, tuple[NameAddr, ...]]:
        """Request-URI and Route headers (RFC 3261 §12.2.1.1). A strict router (RFC 2543) expects
        itself in the Request-URI and the far end at the end of the list."""
        if not self.route_set or self.route_set[0].uri.parameter("lr") is not None:
            return self.remote_target, self.route_set
        first = replace(self.route_set[0].uri.without_parameter("method"), headers=())
        return first, (*self.route_set[1:], NameAddr(self.remote_target))


def sdp_body(sdp: str | None) -> tuple[bytes, str]:
    """Return body and content type of a message that carries `sdp`."""
    return (sdp.encode("utf-8", "surrogateescape"), "application/sdp") if sdp else (b"", "")


def _target(message: Message, otherwise: Uri) -> Uri:
    """The Contact as a Request-URI, without headers and method (RFC 3261 §19.1.1)."""
    contacts = message.contacts
    uri = contacts[0].uri if contacts else otherwise
    if not _can_be_sent_to(uri):
        uri = otherwise
    return replace(uri.without_parameter("method"), headers=())


def _sender(request: Request) -> Uri:
    """The From URI; if it is a tel: URI, the host of the last Via, which is the far end's own."""
    from_, via = request.from_.uri, request.vias[-1]
    if from_.scheme != "tel":
        return from_
    host, port = via.host, via.port
    with suppress(SipError):  # a proxy may have written anything
        port = parse_port(via.rport) if via.rport else port
        host, _ = parse_host_port(format_host_port(via.received or host, None))
    uri = Uri("sip", user=from_.number or None, host=host, port=port)
    return uri if via.transport == "UDP" else uri.with_parameter("transport", via.transport.lower())


def _can_be_sent_to(uri: Uri) -> bool:
    return uri.scheme in ("sip", "sips") and bool(uri.host)


def _routes_of(response: Response) -> tuple[NameAddr, ...]:
    """The route set of a response: Record-Route lists the far end's proxies first."""
    return _routes(list(reversed(response.record_routes)))


def _routes(recorded: list[NameAddr]) -> tuple[NameAddr, ...]:
    """The SIP URIs among the Record-Routes; others cannot be routed to (RFC 3261 §20.30)."""
    usable = (route for route in recorded if route.uri.scheme in ("sip", "sips"))
    return tuple(islice(usable, MAX_ROUTES))
