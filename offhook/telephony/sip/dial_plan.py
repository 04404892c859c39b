"""The dial plan: trunk and request URI of outbound calls, caller and callee of inbound ones."""

from collections.abc import Sequence

from offhook.media.leg import CallInfo
from offhook.telephony.sip.diversion import diverted_from
from offhook.telephony.sip.messages.grammar import SipError
from offhook.telephony.sip.messages.message import Request
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.sessions.ending import printable, shown
from offhook.telephony.sip.trunks.trunks import Trunk, caller_of


def request_uri(to: str, trunk: Trunk | None) -> Uri:
    """Return the request URI of a call: a SIP URI as given, a number at the trunk's host, with the
    transport that the server's URI names. Raises SipError."""
    to = to.strip()
    if to.lower().startswith(("sip:", "sips:")):
        return Uri.parse(to)
    number = to.removeprefix("tel:")
    if not number or trunk is None:
        raise SipError(f"{to!r} is neither a number nor a SIP URI")
    kept = "".join(c for c in number if c not in " -./()")
    if not all(c.isalnum() or c in "+*#_" for c in kept):
        raise SipError(f"{to!r} is not a number")
    server = trunk.server_uri if trunk.server else None
    if server is None or trunk.domain:
        return Uri("sip", user=kept, host=trunk.host)
    uri = Uri("sip", user=kept, host=trunk.host, port=server.port)
    transport = server.parameter("transport")
    return uri if transport is None else uri.with_parameter("transport", transport)


def outbound_trunk(trunks: Sequence[Trunk], name: str) -> Trunk:
    """Return the trunk called `name`, which must have a server; for "" the first that has one.
    Raises SipError."""
    there = [trunk for trunk in trunks if trunk.server]
    for trunk in there:
        if name in ("", trunk.name):
            return trunk
    names = ", ".join(trunk.name for trunk in there) or "none"
    wanted = f"called {name!r} " if name else ""
    raise SipError(f"no trunk {wanted}has a server for outbound calls (available: {names})")


def custom_header(name: str, value: str) -> tuple[str, str]:
    """Check a custom header. Raises SipError unless it is X-Something with a printable value."""
    if not name.lower().startswith("x-") or not name.replace("-", "").isalnum():
        raise SipError(f"{name!r}: only custom headers, X-Something, are allowed")
    if not value.isprintable():
        raise SipError(f"{name}: the value contains unprintable characters")
    return name, value


def incoming_info(request: Request, trunk: Trunk | None) -> CallInfo:
    """Return what an INVITE says about the call, with the headers the trunk passes on."""
    names = trunk.headers if trunk is not None else ()
    headers = {name: printable(value) for name in names if (value := request.headers.get(name))}
    caller = caller_of(request, trunk)
    trusted = trunk is not None and trunk.trust_identity
    diverted = diverted_from(request) if trusted else None
    return CallInfo(
        edge="sip",
        direction="inbound",
        caller=shown(caller.uri.number or caller.uri.host),
        caller_name=shown(caller.display_name),
        called=shown(request.uri.number or request.to.uri.number),
        diverted_from=shown(diverted.number or diverted.host) if diverted is not None else "",
        trunk=trunk.name if trunk is not None else "",
        headers=headers,
    )
