"""Who is called by what: the trunk and the request URI of calls we place, and what is known of the
caller and the callee of calls that come in."""

from collections.abc import Sequence

from offhook.media.leg import CallInfo
from offhook.telephony.sip.messages.grammar import SipError
from offhook.telephony.sip.messages.message import Request
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.sessions.ending import printable, shown
from offhook.telephony.sip.trunks.trunks import Trunk, caller_of


def request_uri(to: str, trunk: Trunk | None) -> Uri:
    """The request URI of a call: a SIP URI as it is, a number at the host of the trunk. Raises
    SipError."""
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
    port = server.port if server is not None and not trunk.domain else None
    return Uri("sip", user=kept, host=trunk.host, port=port)


def outbound_trunk(trunks: Sequence[Trunk], name: str) -> Trunk:
    """The trunk called `name` that has a server, or the first one for "". Raises SipError."""
    there = [trunk for trunk in trunks if trunk.server]
    for trunk in there:
        if name in ("", trunk.name):
            return trunk
    names = ", ".join(trunk.name for trunk in there) or "none"
    wanted = f"called {name!r} " if name else ""
    raise SipError(f"no trunk {wanted}has a server to call through (there: {names})")


def custom_header(name: str, value: str) -> tuple[str, str]:
    """A header of the caller's own. Raises SipError for what would be more than that."""
    if not name.lower().startswith("x-") or not name.replace("-", "").isalnum():
        raise SipError(f"{name!r}: only headers of your own, X-Something, can be given")
    if not value.isprintable():
        raise SipError(f"{name}: the value has characters that cannot be printed")
    return name, value


def incoming_info(request: Request, trunk: Trunk | None) -> CallInfo:
    """What an INVITE says of the call; of its headers those that the trunk hands on."""
    names = trunk.headers if trunk is not None else ()
    headers = {name: printable(value) for name in names if (value := request.headers.get(name))}
    caller = caller_of(request, trunk)
    return CallInfo(
        edge="sip",
        direction="inbound",
        caller=shown(caller.uri.number or caller.uri.host),
        caller_name=shown(caller.display_name),
        called=shown(request.uri.number or request.to.uri.number),
        trunk=trunk.name if trunk is not None else "",
        headers=headers,
    )
