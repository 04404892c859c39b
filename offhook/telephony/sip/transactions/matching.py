"""Transaction matching, response routing, and requests generated hop by hop."""

from hashlib import blake2b
from ipaddress import ip_address

from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.messages.grammar import with_raw_parameter
from offhook.telephony.sip.messages.headers import Headers
from offhook.telephony.sip.messages.message import Request, Response
from offhook.telephony.sip.transactions.transaction import Key

MAGIC_COOKIE = "z9hG4bK"
"""Prefix of a unique branch (RFC 3261 §8.1.1.7); without it the peer uses RFC 2543."""
DEFAULT_PORTS = {"UDP": 5060, "TCP": 5060, "TLS": 5061, "WS": 80, "WSS": 443}
MESSAGE_OVERHEAD_BYTES = 4096
"""Approximate size of a parsed message and its transaction beside the text."""


def has_cookie(request: Request) -> bool:
    return (request.via.branch or "").startswith(MAGIC_COOKIE)


def server_key(request: Request) -> Key:
    """Return the key that matches a request to its transaction (§17.2.3); an ACK has the INVITE's.
    The method is last."""
    via = request.via
    method = "INVITE" if request.method == "ACK" else request.method
    if has_cookie(request):
        return (via.branch or "", via.host, str(via.port or ""), method)
    # By RFC 2543 the ACK has our tag but the INVITE does not: the To tag is checked separately.
    cseq = request.cseq.number
    return (str(via), str(request.uri), request.from_.tag, request.call_id, str(cseq), method)


def identity(message: Request | Response) -> Key:
    """Return what identifies a request received by two paths (§8.2.2.2), and its responses
    (§8.2.6.2)."""
    return (message.call_id, message.from_.tag, str(message.cseq))


def steady_tag(key: Key, secret: bytes) -> str:
    """Return a To tag that is the same for each retransmission of a request without state
    (§8.2.7)."""
    text = repr(key).encode(errors="surrogateescape")
    return blake2b(text, key=secret, digest_size=8).hexdigest()


def stamp_via(request: Request, flow: Flow) -> Flow:
    """Record the source of a request in its topmost Via (§18.2.1, RFC 3581 §4) and return the flow
    for its response (§18.2.2).

    Over UDP without rport, that is the port in the Via. But if the Via's address differs from the
    source, there is a NAT that would drop such a response, so it goes back to the source. `maddr`
    is ignored: it would let a peer direct our responses at anybody.

    The sender matches its transaction by what it wrote, and some compare it as text, so everything
    else in the Vias stays unchanged (§8.2.6.2).
    """
    via = request.via
    top, *rest = request.headers.all("Via")
    host, port = flow.remote
    stamped, response_flow = top, flow
    if via.rport is not None:
        stamped = with_raw_parameter(stamped, "rport", str(port))
    elif not flow.reliable and (via.host == host or not is_address(via.host)):
        response_flow = Flow(flow.transport, (host, via.port or DEFAULT_PORTS["UDP"]), flow.local)
    if via.rport is not None or via.host != host:
        stamped = with_raw_parameter(stamped, "received", host)
    if stamped is not top:
        request.headers.set("Via", stamped, *rest)
    return response_flow


def is_address(host: str) -> bool:
    """Return whether `host` is a numeric address."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def weight(request: Request) -> int:
    """Return the approximate memory use of a request, in bytes."""
    text = sum(len(name) + len(value) for name, value in request.headers.items())
    return MESSAGE_OVERHEAD_BYTES + text + len(request.body)


def with_via(request: Request, via: str) -> Request:
    """Return a copy with another Via on top."""
    headers = request.headers.copy()
    headers.prepend("Via", via)
    return Request(request.method, request.uri, headers, request.body)


def hop_by_hop(request: Request, method: str, to: str) -> Request:
    """Return the ACK of a final response other than 2xx (§17.1.1.3), or the CANCEL (§9.1)."""
    headers = Headers()
    headers.add("Via", str(request.via))
    headers.add("Max-Forwards", "70")
    for route in request.headers.all("Route"):
        headers.add("Route", route)
    headers.add("From", request.headers.get("From") or "")
    headers.add("To", to)
    headers.add("Call-ID", request.call_id)
    headers.add("CSeq", f"{request.cseq.number} {method}")
    return Request(method, request.uri, headers)


def ack_of(request: Request, response: Response) -> Request:
    return hop_by_hop(request, "ACK", response.headers.get("To") or "")


def cancel_of(request: Request) -> Request:
    return hop_by_hop(request, "CANCEL", request.headers.get("To") or "")
