"""What transactions are found by, where responses go, and the requests that a hop makes itself."""

from ipaddress import ip_address

from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.messages.grammar import with_raw_parameter
from offhook.telephony.sip.messages.headers import Headers
from offhook.telephony.sip.messages.message import Request, Response
from offhook.telephony.sip.transactions.transaction import Key

MAGIC_COOKIE = "z9hG4bK"
"""What marks a branch as unique (RFC 3261 §8.1.1.7); without it the peer speaks RFC 2543."""
DEFAULT_PORTS = {"UDP": 5060, "TCP": 5060, "TLS": 5061, "WS": 80, "WSS": 443}
MESSAGE_OVERHEAD_BYTES = 4096
"""What a parsed message and its transaction weigh beside the text."""


def has_cookie(request: Request) -> bool:
    return (request.via.branch or "").startswith(MAGIC_COOKIE)


def server_key(request: Request) -> Key:
    """By what a request finds its transaction (§17.2.3); that of an ACK is the INVITE's. The
    method is last."""
    via = request.via
    method = "INVITE" if request.method == "ACK" else request.method
    if has_cookie(request):
        return (via.branch or "", via.host, str(via.port or ""), method)
    # RFC 2543 has no tag of ours in the INVITE but in its ACK: the To tag is looked at apart.
    cseq = request.cseq.number
    return (str(via), str(request.uri), request.from_.tag, request.call_id, str(cseq), method)


def identity(message: Request | Response) -> Key:
    """What one request has in common that came by two ways (§8.2.2.2), and with its responses
    (§8.2.6.2)."""
    return (message.call_id, message.from_.tag, str(message.cseq))


def stamp(request: Request, flow: Flow) -> Flow:
    """Note in the topmost Via where the request came from (§18.2.1, RFC 3581 §4) and say where its
    response goes (§18.2.2).

    Over UDP that is the port of the Via when there is no rport. But a Via with another address
    than the source's is behind a NAT that would not let such a response in, so that one goes back
    to the source. `maddr` is not followed: it would have us send to whomever the peer names.

    The sender finds its transaction by what it wrote there, and some compare it as text, so all
    else of the Vias stays as it came (§8.2.6.2).
    """
    via = request.via
    top, *rest = request.headers.all("Via")
    host, port = flow.remote
    stamped, way_back = top, flow
    if via.rport is not None:
        stamped = with_raw_parameter(stamped, "rport", str(port))
    elif not flow.reliable and (via.host == host or not is_address(via.host)):
        way_back = Flow(flow.transport, (host, via.port or DEFAULT_PORTS["UDP"]), flow.local)
    if via.rport is not None or via.host != host:
        stamped = with_raw_parameter(stamped, "received", host)
    if stamped is not top:
        request.headers.set("Via", stamped, *rest)
    return way_back


def is_address(host: str) -> bool:
    """Numeric, and not a name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def weight(request: Request) -> int:
    """Bytes that a request takes while it is kept, roughly."""
    text = sum(len(name) + len(value) for name, value in request.headers.items())
    return MESSAGE_OVERHEAD_BYTES + text + len(request.body)


def with_via(request: Request, via: str) -> Request:
    """The same with a Via on top."""
    headers = request.headers.copy()
    headers.prepend("Via", via)
    return Request(request.method, request.uri, headers, request.body)


def hop_by_hop(request: Request, method: str, to: str) -> Request:
    """The ACK of a final response that is no 2xx (§17.1.1.3), or the CANCEL (§9.1)."""
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
