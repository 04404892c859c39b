"""The dial plan: trunk and request URI of outbound calls, caller and callee of inbound ones."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from offhook.media.leg import CallInfo
from offhook.telephony.sip.diversion import diverted_from
from offhook.telephony.sip.messages.grammar import SipError
from offhook.telephony.sip.messages.headers import NameAddr
from offhook.telephony.sip.messages.message import Request
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.sessions.ending import printable, shown
from offhook.telephony.sip.trunks.extension import PREFIX
from offhook.telephony.sip.trunks.routes import Conditions, route
from offhook.telephony.sip.trunks.trunks import SipSettings, Trunk, caller_of


@dataclass(frozen=True)
class Destination:
    """Where a call goes: to an agent, to the phones of an extension, or outside."""

    agent: str | None = None
    """Agent's name, "" for the default; None for no agent."""
    extension: str = ""
    outside: Trunk | None = None
    """The trunk over which it goes outside."""
    number: str = ""
    """The number there; "" for the one that was called."""
    status: int = 0
    """With which it is refused; 0 if it goes anywhere."""

    def to(self, number: str) -> "Destination":
        """Return the same with another number."""
        return replace(self, number=number)


def destination(
    settings: SipSettings,
    info: CallInfo,
    caller: Trunk | None,
    conditions: Conditions | None = None,
) -> Destination:
    """Return where a call goes. `caller` is who has proved to call.

    an extension calls an extension                     its phones
    an extension calls the number of messages           its voicemail
    somebody else does, or it has no voicemail          404
    a route matches                                     the route's agent, or its extension's
                                                        phones, or its refusal
    an extension calls a number, and may call outside   the extension's trunk
    there are no routes                                 the default agent
    an extension calls a number                         403
    anything else                                       404
    """
    own = caller.extension if caller is not None else ""
    if own and info.called in settings.extensions:
        return Destination(extension=info.called)
    if settings.messages and info.called == settings.messages:
        voicemail = settings.extensions[own].voicemail if own in settings.extensions else ""
        return Destination(voicemail) if voicemail else Destination(status=404)
    found = route(settings.routes, info, conditions)
    if found is not None:
        if found.refuse:
            return Destination(status=found.refuse)
        if found.extension:
            return Destination(extension=found.extension)
        return Destination(found.agent)
    outside = settings.extensions[own].outside if own in settings.extensions else ""
    is_number = bool(info.called) and set(info.called) <= _DIALLED
    if outside and is_number:
        return Destination(outside=outbound_trunk(settings.trunks, outside))
    if not settings.routes:
        return Destination("")
    return Destination(status=403 if own and is_number else 404)


_DIALLED = frozenset("+0123456789*#")


def extension_called(to: str, settings: SipSettings) -> str:
    """Return the extension that somebody is to be called at, "101" or "ext:101"; "" if it is none.
    Raises SipError for "ext:" and a number that is no extension."""
    number = to.strip().removeprefix(PREFIX)
    if number in settings.extensions:
        return number
    if to.strip().startswith(PREFIX):
        raise SipError(f"there is no extension {number!r}")
    return ""


def own_uri(number: str) -> Uri:
    """Return the target of calls to an extension: a URI without a host is one of our own."""
    return Uri("sip", user=number)


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


def incoming_info(request: Request, trunk: Trunk | None, settings: SipSettings) -> CallInfo:
    """Return what an INVITE says about the call, with the headers the trunk passes on. Who calls
    from an extension is known from the settings: its From may say anything."""
    names = trunk.headers if trunk is not None else ()
    headers = {name: printable(value) for name in names if (value := request.headers.get(name))}
    caller = caller_of(request, trunk)
    if trunk is not None and (extension := settings.extensions.get(trunk.extension)) is not None:
        caller = NameAddr(own_uri(trunk.extension), extension.name)
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
