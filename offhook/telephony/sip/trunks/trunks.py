"""Trunks, routes and the settings of the SIP edge, which of them a call belongs to, and who calls.

A trunk is a far end we know: a provider we register with, a PBX that calls us from its address, a
phone or a browser that proves itself by digest. A route says which agent takes which call.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Literal, Protocol

from offhook.telephony.sip.messages.grammar import SipError, is_token
from offhook.telephony.sip.messages.headers import NameAddr
from offhook.telephony.sip.messages.message import Request
from offhook.telephony.sip.messages.uri import Uri

CODECS = ("opus", "g722", "pcmu", "pcma")
"""Names of the codecs a trunk may carry."""
OPTIONS_S = 60
"""Between two questions whether a trunk's server is there."""
MAX_IDENTITIES = 2
"""Values of a P-Asserted-Identity (RFC 3325 §9.1)."""
MIN_SESSION_S = 90
"""s, the shortest session interval there is (RFC 4028 §5)."""

_NO_ADDRESSES: Mapping[str, Collection[str]] = {}
_PORTS = range(65536)

HeaderLines = Sequence[tuple[str, str]]
IpAddress = IPv4Address | IPv6Address
IpNetwork = IPv4Network | IPv6Network


@dataclass(frozen=True)
class Trunk:
    """A far end we know. SipError when the values do not fit together."""

    name: str
    """The trunk's name in routes, logs and metrics."""
    addresses: tuple[str, ...] = ()
    """IP addresses and networks (CIDR) whose calls need no password."""
    username: str = ""
    """User of our account there, or of a phone that calls us."""
    password: str = field(default="", repr=False)
    """Password for digest authentication."""
    realm: str = ""
    """The realm we give the password to; "" for whichever asks."""
    server: str = ""
    """Host, host:port or sip: URI of what we send to; "" for a trunk that only calls us."""
    domain: str = ""
    """Host of From and To; "" for the server's host."""
    transport: Literal["UDP", "TCP", "TLS"] = "UDP"
    """Transport to the server."""
    register: bool = False
    """Whether we register with the server."""
    expires_seconds: int = 300
    """s, the registration's life that we ask for."""
    caller_id: str = ""
    """Number or user shown to those we call; "" for the username."""
    caller_id_header: Literal["pai", "ppi", "diversion", "from"] | None = None
    """Where that stands, or the number of somebody whose call we pass on. None: in From for a trunk
    without a username, else as with "pai"; see `presented`."""
    trust_identity: bool = False
    """Its P-Asserted-Identity is the caller (RFC 3325 §5): for a provider or a PBX that asks who
    calls before it says so."""
    codecs: tuple[str, ...] = CODECS
    """In order of preference."""
    srtp: Literal["off", "optional", "required"] = "optional"
    """Whether media is encrypted: never, if the far end can, or always."""
    tls_verify: bool = True
    """Whether the server's certificate has to be valid."""
    headers: tuple[str, ...] = ()
    """Names of the INVITE's headers that are handed to the agent."""
    session_seconds: int = 1800
    """s, the session interval we ask for (RFC 4028); 0 for none."""
    follow: bool = False
    """A far end may send our side of a call on to another number of this trunk (REFER): for a PBX
    whose people transfer calls. Who is at the other end of a provider's trunk would call at our
    cost."""
    transfer: Literal["blind", "attended", "bridge"] = "blind"
    """How calls are given to somebody else, see transfer_io.py."""
    reliable: bool = True
    """Provisional responses are acknowledged (RFC 3262) where the far end supports it."""
    options_seconds: int | None = None
    """s between two questions (OPTIONS) whether the server is there; 0 asks nothing. None asks
    every OPTIONS_S those that we do not register with."""
    max_calls: int = 0
    """Lines of this trunk, both ways; 0 for no limit but that of all calls."""

    def __post_init__(self) -> None:
        if not self.name:
            raise SipError("a trunk needs a name")
        self._check_values()
        if self.register and not (self.server and self.username):
            raise self._wrong("register needs a server and a username")
        if self.password and not self.username:
            raise self._wrong("a password needs a username")
        if not self.expires_seconds > 0:
            raise self._wrong(f"expires_seconds must be positive, not {self.expires_seconds}")
        if self.session_seconds and self.session_seconds < MIN_SESSION_S:
            raise self._wrong(f"session_seconds must be 0 or at least {MIN_SESSION_S}")
        for name in ("options_seconds", "max_calls"):
            if (getattr(self, name) or 0) < 0:
                raise self._wrong(f"{name} must not be negative")
        _ = self.networks
        if self.server:
            _ = self.server_uri

    def _check_values(self) -> None:
        for name in ("name", "username", "password", "realm", "server", "domain", "caller_id"):
            if not getattr(self, name).isprintable():
                raise self._wrong(f"{name} has characters that cannot be printed")
        if self.transport not in ("UDP", "TCP", "TLS"):
            raise self._wrong(f"transport is UDP, TCP or TLS, not {self.transport!r}")
        if self.transfer not in ("blind", "attended", "bridge"):
            raise self._wrong(f"transfer is blind, attended or bridge, not {self.transfer!r}")
        if self.caller_id_header not in (None, "pai", "ppi", "diversion", "from"):
            wrong = (
                f"caller_id_header is pai, ppi, diversion or from, not {self.caller_id_header!r}"
            )
            raise self._wrong(wrong)
        if self.srtp not in ("off", "optional", "required"):
            raise self._wrong(f"srtp is off, optional or required, not {self.srtp!r}")
        if not self.codecs:
            raise self._wrong("codecs names no codec")
        for codec in self.codecs:
            if codec not in CODECS:
                raise self._wrong(f"no codec is called {codec!r}; there are {', '.join(CODECS)}")
        for header in self.headers:
            if not is_token(header):
                raise self._wrong(f"{header!r} is not the name of a header")

    def _wrong(self, what: str) -> SipError:
        return SipError(f"trunk {self.name!r}: {what}")

    @cached_property
    def networks(self) -> tuple[IpNetwork, ...]:
        """The addresses, read."""
        try:
            return tuple(ip_network(address, strict=False) for address in self.addresses)
        except ValueError as error:
            raise self._wrong(f"addresses: {error}") from None

    @cached_property
    def server_uri(self) -> Uri:
        """What we send to. SipError when there is no server, or it is not a host."""
        text = self.server
        if not text:
            raise self._wrong("there is no server to send to")
        if not text.lower().startswith(("sip:", "sips:")):
            # a bare IPv6 address is given without the brackets that a URI wants
            text = f"sip:[{text}]" if text.count(":") > 1 and "[" not in text else f"sip:{text}"
        try:
            uri = Uri.parse(text)
        except SipError as error:
            raise self._wrong(f"server: {error}") from None
        if not uri.host:
            raise self._wrong(f"server: {self.server!r} is not a host")
        return uri

    @property
    def host(self) -> str:
        """Host of From, To and the registrar's URI."""
        return self.domain or (self.server_uri.host if self.server else "")

    @property
    def watch_s(self) -> int:
        """s between two questions whether its server is there; 0 when none are asked."""
        if not self.server:
            return 0
        if self.options_seconds is not None:
            return self.options_seconds
        return 0 if self.register else OPTIONS_S

    @property
    def registrar(self) -> Uri:
        """Request-URI of a REGISTER (RFC 3261 §10.2): the domain, without a user."""
        if self.domain:
            return Uri("sip", host=self.domain)
        return Uri("sip", host=self.server_uri.host, port=self.server_uri.port)

    @property
    def address_of_record(self) -> Uri:
        """Who we are at this trunk (RFC 3261 §10.2)."""
        return Uri("sip", user=self.username or None, host=self.host)


def presented(trunk: Trunk, number: str, name: str, host: str) -> tuple[NameAddr, HeaderLines]:
    """From of a call that we place at the trunk, and the header fields that show who calls when
    that is not the account itself. `host` stands for ours where the trunk has no domain.

    | caller_id_header | From        | besides                                                  |
    |------------------|-------------|----------------------------------------------------------|
    | "pai"            | the account | P-Asserted-Identity: the number (RFC 3325 §9.1)          |
    | "ppi"            | the account | P-Preferred-Identity: the number (RFC 3325 §9.2)         |
    | "diversion"      | the account | Diversion: the number, whose call is passed on           |
    |                  |             | (RFC 5806 §4)                                            |
    | "from"           | the number  |                                                          |

    Registrars know an account by the user in From, and ask for another's password when a stranger's
    number stands there: so with a username the first is what is done. Nobody is asserted to be
    anonymous: then the account calls.
    """
    host = trunk.host or host
    account = Uri("sip", user=trunk.username or number or None, host=host)
    if number.lower() in ("", "anonymous", trunk.username.lower()):
        return NameAddr(account, name), ()
    caller = NameAddr(Uri("sip", user=number, host=host), name)
    match trunk.caller_id_header or ("pai" if trunk.username else "from"):
        case "pai":
            return NameAddr(account, name), [("P-Asserted-Identity", str(caller))]
        case "ppi":
            return NameAddr(account, name), [("P-Preferred-Identity", str(caller))]
        case "diversion":
            by = NameAddr(caller.uri)
            return NameAddr(account, name), [("Diversion", f"{by};reason=unknown;counter=1")]
        case _:
            return caller, ()


def caller_of(request: Request, trunk: Trunk | None) -> NameAddr:
    """Who calls: what the trunk asserts, where it is trusted to (RFC 3325 §5), else who the caller
    says it is. Of a SIP and a telephone identity (§9.1) the first counts."""
    if trunk is not None and trunk.trust_identity:
        for value in request.headers.all("P-Asserted-Identity", MAX_IDENTITIES):
            with suppress(SipError):
                return NameAddr.parse(value)
    return request.from_


@dataclass(frozen=True)
class Route:
    """Calls that fit every pattern given go to `agent`. Patterns are globs, case does not count."""

    agent: str = ""
    """"" for the default agent."""
    called: str = ""
    """"" for any."""
    caller: str = ""
    trunk: str = ""
    """The trunk's name; "" for any."""
    header: str = ""
    """"X-Name: pattern" over a header of the INVITE that the trunk hands on."""

    def __post_init__(self) -> None:
        if self.header and not is_token(self.header.partition(":")[0].strip()):
            raise SipError(f'a route\'s header is "Name: pattern", not {self.header!r}')
        if self.header and ":" not in self.header:
            raise SipError(f"a route's header needs a pattern after {self.header!r} and a colon")


@dataclass(frozen=True)
class SipSettings:
    """What the SIP edge does. SipError when the values do not fit together."""

    host: str = "127.0.0.1"
    """An address of this machine; "0.0.0.0" for all of IPv4, "::" for all of IPv6 and IPv4."""
    udp: int | None = 5060
    """Port of SIP over UDP. Of every transport: None (`false` in the configuration) for none, 0 for
    any free port."""
    tcp: int | None = 5060
    """Port of SIP over TCP."""
    tls: int | None = None
    """Port of SIP over TLS, usually 5061; needs a certificate."""
    ws: int | None = None
    """Port of SIP over WebSocket (RFC 7118)."""
    wss: int | None = None
    """Port of SIP over secure WebSocket; needs a certificate."""
    certificate: Path | None = None
    """Certificate chain (PEM) for tls and wss."""
    key: Path | None = None
    """The certificate's private key (PEM)."""
    authorities: Path | None = None
    """Certificates (PEM) of those who sign for our trunks' servers, besides the system's."""
    public_address: str = ""
    """Address in SDP and Contact when it is not `host`'s: behind NAT."""
    rtp_ports: tuple[int, int] = (16384, 32767)
    """First and last UDP port of media."""
    trunks: tuple[Trunk, ...] = ()
    routes: tuple[Route, ...] = ()
    """The first that fits a call wins; none: the default agent."""
    unknown: Literal["drop", "refuse"] = "drop"
    """What happens to INVITEs of nobody we know: no answer at all, or 403."""
    browsers: bool = False
    """INVITEs over WS and WSS are challenged like those of phones, not treated as unknown."""
    allow_anonymous: bool = False
    """Everybody may call, without a password: a lab."""
    requests_per_second: float = 20.0
    """Requests of one source address."""
    invites_per_second: float = 5.0
    """INVITEs of one source address."""
    trace_messages: int = 2000
    """Messages kept in memory for `offhook sip-trace`."""
    media_timeout_seconds: float = 30.0
    """s without a packet after which a call in which sound was heard ends."""
    initial_media_timeout_seconds: float = 60.0
    """s without a packet after the answer."""
    ring_seconds: float = 60.0
    """How long an outgoing call rings before it is given up, in seconds."""
    max_calls: int = 200
    """Calls of phones at a time; beyond it callers get 503 with Retry-After."""
    user_agent: str = "offhook"

    """Value of the User-Agent and Server headers."""

    def __post_init__(self) -> None:
        self._check_ports()
        self._check_names()
        if self.unknown not in ("drop", "refuse"):
            raise SipError(f"unknown is drop or refuse, not {self.unknown!r}")
        if (self.tls is not None or self.wss is not None) and not (self.certificate and self.key):
            raise SipError("tls and wss need a certificate and its key")
        for name in ("requests_per_second", "invites_per_second", "media_timeout_seconds"):
            if not getattr(self, name) > 0:
                raise SipError(f"{name} must be positive")
        for name in ("initial_media_timeout_seconds", "ring_seconds", "max_calls"):
            if not getattr(self, name) > 0:
                raise SipError(f"{name} must be positive")
        if self.trace_messages < 0:
            raise SipError("trace_messages must not be negative")
        if not self.user_agent.isprintable():
            raise SipError("user_agent has characters that cannot be printed")

    def _check_ports(self) -> None:
        for name in ("udp", "tcp", "tls", "ws", "wss"):
            port = getattr(self, name)
            if port is not None and port not in _PORTS:
                raise SipError(f"{name} is a port, not {port}")
        low, high = self.rtp_ports
        if not 1 <= low < high < 65536:
            raise SipError(f"rtp_ports is a first and a last port, not {low} and {high}")

    def _check_names(self) -> None:
        names = [trunk.name for trunk in self.trunks]
        for name in names:
            if names.count(name) > 1:
                raise SipError(f"two trunks are called {name!r}")
        for route in self.routes:
            if route.trunk and route.trunk not in names:
                raise SipError(f"a route names the trunk {route.trunk!r}, which is not there")


class RoutedCall(Protocol):
    """What a route looks at."""

    @property
    def called(self) -> str: ...
    @property
    def caller(self) -> str: ...
    @property
    def trunk(self) -> str: ...
    @property
    def headers(self) -> Mapping[str, str]: ...


def read_address(text: str) -> IpAddress | None:
    """A numeric address, without its zone, IPv4 as such also when it comes mapped into IPv6."""
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def identify(
    trunks: Sequence[Trunk],
    source_ip: str,
    request: Request,
    resolved: Mapping[str, Collection[str]] = _NO_ADDRESSES,
) -> Trunk | None:
    """The trunk that calls from `source_ip`, by its addresses alone: no password is looked at.

    A trunk's server is one of its addresses: as it is when it is numeric, else as in `resolved`
    (trunk name → addresses). Of several trunks behind one address (accounts at one provider) it is
    the one whose user is called, then the one whose domain stands in the request, then the one
    with the narrowest network, then the first.
    """
    source = read_address(source_ip)
    if source is None:
        return None
    best, best_rank = None, (False, False, -1)
    for trunk in trunks:
        widths = _widths(trunk, source, resolved)
        if not widths:
            continue
        hosts = (request.uri.host, request.from_.uri.host, request.to.uri.host)
        users = (request.uri.user, request.to.uri.user)
        rank = (
            bool(trunk.username) and trunk.username in users,
            bool(trunk.host) and trunk.host.lower() in hosts,
            max(widths),
        )
        if best is None or rank > best_rank:
            best, best_rank = trunk, rank
    return best


def is_known(
    trunks: Sequence[Trunk],
    source_ip: str,
    resolved: Mapping[str, Collection[str]] = _NO_ADDRESSES,
) -> bool:
    """Whether the address is any trunk's."""
    source = read_address(source_ip)
    return source is not None and any(_widths(trunk, source, resolved) for trunk in trunks)


def _widths(trunk: Trunk, source: IpAddress, resolved: Mapping[str, Collection[str]]) -> list[int]:
    """Lengths of the trunk's prefixes that the address is in."""
    widths = [n.prefixlen for n in trunk.networks if source in n]
    if str(source) in resolved.get(trunk.name, ()) or _is_server(trunk, source):
        widths.append(source.max_prefixlen)
    return widths


def by_username(trunks: Sequence[Trunk], username: str) -> Trunk | None:
    """The trunk whose digest credentials are `username`'s; those that call us go before those
    that we register with. None when no trunk with a password has that name."""
    found = [t for t in trunks if t.password and t.username == username]
    return min(found, key=lambda t: t.register, default=None)


def route(routes: Sequence[Route], call: RoutedCall) -> Route | None:
    """The first route that fits the call."""
    for candidate in routes:
        if (
            _fits(candidate.called, call.called)
            and _fits(candidate.caller, call.caller)
            and candidate.trunk in ("", call.trunk)
            and _header_fits(candidate.header, call.headers)
        ):
            return candidate
    return None


def _fits(pattern: str, text: str) -> bool:
    return not pattern or fnmatchcase(text.lower(), pattern.lower())


def _header_fits(rule: str, headers: Mapping[str, str]) -> bool:
    name, _, pattern = rule.partition(":")
    wanted = name.strip().lower()
    return not wanted or any(
        _fits(pattern.strip(), value) for key, value in headers.items() if key.lower() == wanted
    )


def _is_server(trunk: Trunk, source: IpAddress) -> bool:
    if not trunk.server:
        return False
    return read_address(trunk.server_uri.host) == source
