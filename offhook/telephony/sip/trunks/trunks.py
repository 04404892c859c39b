"""Trunks, routes and SIP settings; which trunk a call belongs to, and who is calling.

A trunk is a known far end: a provider we register with, a PBX that calls from its address, a phone
or browser that authenticates by digest. A route says which agent handles which calls.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Literal

from offhook.media.telephone_tones.tones import EU, US
from offhook.telephony.sip.capture.hep_settings import HepSettings
from offhook.telephony.sip.messages.grammar import SipError, is_token
from offhook.telephony.sip.messages.headers import NameAddr
from offhook.telephony.sip.messages.message import Request
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.trunks.extension import (
    PREFIX,
    Extension,
    check_number,
    trunk_name,
)
from offhook.telephony.sip.trunks.routes import Route

CODECS = ("opus", "g722", "pcmu", "pcma")
"""Codecs a trunk may use."""
OPTIONS_INTERVAL_S = 60
"""Default interval of OPTIONS to a trunk's server."""
TONES = {"eu": EU, "us": US}
"""Networks whose tones a caller may hear."""
RINGBACK: Literal["eu"] = "eu"
"""Default of what a caller hears while a transfer rings."""
MAX_IDENTITIES = 2
"""Values read of a P-Asserted-Identity (RFC 3325 §9.1); further ones are ignored."""
MIN_RECOVERY_S = 1.0
"""Lower limit of `recovery_seconds`, below which a slow event loop would lose its calls; a
configuration with less is refused."""
MAX_RECOVERY_S = 60.0
"""Maximum of `recovery_seconds`, after which no caller waits any longer; a configuration with more
is refused."""
MIN_SESSION_S = 90
"""Seconds, the shortest session interval allowed (RFC 4028 §5)."""

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
    """Username of our account there, or of a phone that calls us."""
    password: str = field(default="", repr=False)
    """Password for digest authentication."""
    realm: str = ""
    """The only realm that gets the password; "" for any."""
    server: str = ""
    """Host, host:port or sip: URI of the server; "" for a trunk that only calls us."""
    backup_servers: tuple[str, ...] = ()
    """Further servers, tried in this order after all addresses of `server`."""
    domain: str = ""
    """Host of From and To; "" for the server's host."""
    public_name: str = ""
    """Our host name in Contact, Via and From, for a far end that knows us by a name of our
    certificate; "" for our address in Contact and Via, and `domain` in From."""
    transport: Literal["UDP", "TCP", "TLS"] = "UDP"
    """Transport to the server."""
    register: bool = False
    """Whether we register with the server."""
    expires_seconds: int = 300
    """Registration expiry to request, in seconds."""
    caller_id: str = ""
    """Number or user presented to those we call; "" for the username."""
    caller_id_header: Literal["pai", "ppi", "diversion", "from"] | None = None
    """Header that presents it, or the original caller of a forwarded call. By default From for a
    trunk without a username, else P-Asserted-Identity; see `caller_identity`."""
    trust_identity: bool = False
    """Take the caller from P-Asserted-Identity (RFC 3325 §5), or Remote-Party-ID, and whose calls
    were forwarded to us from Diversion or History-Info: for a provider or PBX that verifies its
    callers."""
    codecs: tuple[str, ...] = CODECS
    """Codecs in order of preference."""
    srtp: Literal["off", "optional", "required"] = "optional"
    """Whether media is encrypted: never, if the far end can, or always."""
    webrtc: bool = False
    """Whether calls to the far end are offered with ICE and DTLS-SRTP, like a browser's; for
    its calls to us its own offer decides."""
    dtmf_tones: bool | None = None
    """Whether keys are heard as tones in the audio (ITU-T Q.23), besides telephone events and INFO.
    By default if the far end has not agreed to telephone events (RFC 4733), except with Opus, which
    garbles tones."""
    media_from: Literal["sdp", "anywhere"] = "sdp"
    """Whose first RTP packets are taken as the far end's: its SDP's, except behind a NAT; or always
    anybody's, for a provider whose media come from other hosts than its SDP says. Then a stranger
    who finds the port first gets the agent's voice."""
    media_timeout_seconds: float | None = None
    """Seconds without a packet, while the agent does not speak, after which a call ends; 0 for no
    limit. By default that of `[sip]`."""
    contact: Literal["as given", "source"] | None = None
    """Where requests within a call go if there is no proxy: to the far end's Contact, whatever it
    says, or to where its own requests come from. By default to the Contact, unless that is its
    address behind a NAT."""
    tls_verify: bool = True
    """Whether the server's certificate must be valid."""
    headers: tuple[str, ...] = ()
    """Headers of the INVITE that are passed on to the agent."""
    session_seconds: int = 1800
    """Session interval to request, in seconds (RFC 4028); 0 for none."""
    reinvites: bool = True
    """Whether the far end may be sent re-INVITEs; without them there is no hold and no session
    timer."""
    follow: bool = False
    """Whether the far end may transfer our side of a call to another number of this trunk (REFER):
    for a PBX whose users transfer calls. At a provider, strangers could place calls at our
    expense."""
    ringback: Literal["eu", "us", "off"] | Path = RINGBACK
    """What a caller hears while a transfer rings: the tone of Europe, of North America, nothing, or
    the sound of a file, such as music, again and again."""
    transfer: Literal["blind", "attended", "bridge"] = "blind"
    """How calls are transferred, see transfer_io.py."""
    reliable: bool = True
    """Use reliable provisional responses (RFC 3262) if the far end supports them."""
    options_seconds: int | None = None
    """Seconds between OPTIONS to the server; 0 sends none. By default 60."""
    redirects: bool = False
    """Whether a call that the server says has moved (3xx) is placed again, to the number it names,
    on this trunk: at our cost."""
    ready_probe: bool = False
    """Whether /readyz fails while the trunk is down: its registration has failed, or none of its
    servers responds."""
    failover_seconds: float = 2.0
    """Seconds without any response to a call after which the next of the trunk's servers is tried
    (RFC 3263 §4.3)."""
    machine_detection: Literal["off", "detect", "message"] | None = None
    """What is done about who answers the calls that we place here, if the one who places a call
    does not say: nothing, the agent is told, or a message is left on a machine. By default as the
    agent has it."""
    siprec: bool = False
    """Whether the far end may send us its calls to record (SIPREC, RFC 7866)."""
    max_calls: int = 0
    """Limit of this trunk's calls, inbound and outbound, beyond which inbound ones get 503 with
    Retry-After and outbound ones fail; 0 for only the global limit."""

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
        if not self.failover_seconds > 0:
            raise self._wrong(f"failover_seconds must be positive, not {self.failover_seconds}")
        for name in ("options_seconds", "max_calls", "media_timeout_seconds"):
            if (getattr(self, name) or 0) < 0:
                raise self._wrong(f"{name} must not be negative")
        _ = self.networks
        if self.server:
            _ = self.server_uris
        elif self.backup_servers:
            raise self._wrong("backup_servers needs a server")
        if self.webrtc and self.srtp == "off":
            raise self._wrong("webrtc always encrypts: srtp must not be off")

    def _check_values(self) -> None:
        for name in ("name", "username", "password", "realm", "server", "domain", "caller_id"):
            if not getattr(self, name).isprintable():
                raise self._wrong(f"{name} contains unprintable characters")
        if self.public_name and not _is_host_name(self.public_name):
            raise self._wrong(f"public_name must be a host name, not {self.public_name!r}")
        if self.transport not in ("UDP", "TCP", "TLS"):
            raise self._wrong(f"transport must be UDP, TCP or TLS, not {self.transport!r}")
        if self.transfer not in ("blind", "attended", "bridge"):
            raise self._wrong(f"transfer must be blind, attended or bridge, not {self.transfer!r}")
        if not isinstance(self.ringback, Path) and self.ringback not in (*TONES, "off"):
            raise self._wrong(f"ringback must be eu, us, off or a file, not {self.ringback!r}")
        if self.caller_id_header not in (None, "pai", "ppi", "diversion", "from"):
            raise self._wrong("caller_id_header must be pai, ppi, diversion or from")
        if self.machine_detection not in (None, "off", "detect", "message"):
            raise self._wrong("machine_detection must be off, detect or message")
        if self.contact not in (None, "as given", "source"):
            raise self._wrong(f"contact must be 'as given' or 'source', not {self.contact!r}")
        if self.srtp not in ("off", "optional", "required"):
            raise self._wrong(f"srtp must be off, optional or required, not {self.srtp!r}")
        if self.media_from not in ("sdp", "anywhere"):
            raise self._wrong(f"media_from must be sdp or anywhere, not {self.media_from!r}")
        if not self.codecs:
            raise self._wrong("codecs is empty")
        for codec in self.codecs:
            if codec not in CODECS:
                raise self._wrong(f"unknown codec {codec!r}: use {', '.join(CODECS)}")
        for header in self.headers:
            if not is_token(header):
                raise self._wrong(f"{header!r} is not a valid header name")

    def _wrong(self, what: str) -> SipError:
        return SipError(f"trunk {self.name!r}: {what}")

    @property
    def extension(self) -> str:
        """Number of the extension whose phones this is; "" for a trunk."""
        return self.name.removeprefix(PREFIX) if self.name.startswith(PREFIX) else ""

    @cached_property
    def networks(self) -> tuple[IpNetwork, ...]:
        """The parsed addresses."""
        try:
            return tuple(ip_network(address, strict=False) for address in self.addresses)
        except ValueError as error:
            raise self._wrong(f"addresses: {error}") from None

    @cached_property
    def server_uri(self) -> Uri:
        """URI of the server. Raises SipError if there is none, or it is not a host."""
        if not self.server:
            raise self._wrong("the trunk has no server")
        return self._uri_of("server", self.server)

    @cached_property
    def server_uris(self) -> tuple[Uri, ...]:
        """URIs of the server and of those after it, in the order to try. Raises SipError like
        `server_uri`."""
        backups = (self._uri_of("backup_servers", text) for text in self.backup_servers)
        return (self.server_uri, *backups)

    def _uri_of(self, setting: str, given: str) -> Uri:
        text = given
        if not text.lower().startswith(("sip:", "sips:")):
            # add the brackets a URI needs to a bare IPv6 address
            text = f"sip:[{text}]" if text.count(":") > 1 and "[" not in text else f"sip:{text}"
        try:
            uri = Uri.parse(text)
        except SipError as error:
            raise self._wrong(f"{setting}: {error}") from None
        if not uri.host:
            raise self._wrong(f"{setting}: {given!r} is not a host")
        return uri

    @property
    def host(self) -> str:
        """Host of From, To and the registrar's URI."""
        return self.domain or (self.server_uri.host if self.server else "")

    def is_host(self, host: str) -> bool:
        """Return whether requests to this host are the trunk's: its domain, or a server of it."""
        servers = {uri.host.lower() for uri in self.server_uris} if self.server else set()
        return host.lower() in servers | {self.host.lower()}

    @property
    def options_interval_s(self) -> int:
        """Seconds between OPTIONS to its server; 0 if none are sent."""
        if not self.server:
            return 0
        return OPTIONS_INTERVAL_S if self.options_seconds is None else self.options_seconds

    @property
    def registrar(self) -> Uri:
        """Request-URI of a REGISTER (RFC 3261 §10.2): the domain, without a user."""
        if self.domain:
            return Uri("sip", host=self.domain)
        return Uri("sip", host=self.server_uri.host, port=self.server_uri.port)

    @property
    def address_of_record(self) -> Uri:
        """Our address of record at this trunk (RFC 3261 §10.2)."""
        return Uri("sip", user=self.username or None, host=self.host)


def caller_identity(
    trunk: Trunk, number: str, name: str, host: str
) -> tuple[NameAddr, HeaderLines]:
    """Return the From of an outbound call on the trunk, and the headers that present the caller if
    that is not the account itself. `host` is used if the trunk has no domain.

    | caller_id_header | From        | header                                                   |
    |------------------|-------------|----------------------------------------------------------|
    | "pai"            | the account | P-Asserted-Identity: the number (RFC 3325 §9.1)          |
    | "ppi"            | the account | P-Preferred-Identity: the number (RFC 3325 §9.2)         |
    | "diversion"      | the account | Diversion: the number, for forwarded calls               |
    |                  |             | (RFC 5806 §4)                                            |
    | "from"           | the number  |                                                          |

    Registrars identify an account by the user in From, and would challenge an unknown number: so
    "pai" is the default with a username. An anonymous caller is never asserted: the account calls
    then.
    """
    host = trunk.public_name or trunk.host or host
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
    """Return the caller: what the trunk asserts, if it is trusted (RFC 3325 §5), else the From. Of
    a SIP and a telephone identity (§9.1) the first counts; a Remote-Party-ID, its predecessor, if
    there is no P-Asserted-Identity."""
    if trunk is not None and trunk.trust_identity:
        for name in ("P-Asserted-Identity", "Remote-Party-ID"):
            for value in request.headers.all(name, MAX_IDENTITIES):
                with suppress(SipError):
                    asserted = NameAddr.parse(value)
                    if (asserted.parameter("party") or "calling").lower() == "calling":
                        return asserted
    return request.from_


@dataclass(frozen=True)
class SipSettings:
    """Settings of the SIP endpoint. Raises SipError if they are inconsistent."""

    host: str = "127.0.0.1"
    """Address to listen on; "0.0.0.0" for all of IPv4, "::" for all of IPv6 and IPv4."""
    udp: int | None = 5060
    """Port of SIP over UDP. For every transport: None (`false` in the configuration) for none, 0
    for any free port."""
    tcp: int | None = 5060
    """Port of SIP over TCP."""
    tls: int | None = None
    """Port of SIP over TLS, usually 5061; needs a certificate."""
    ws: int | None = None
    """Port of SIP over WebSocket (RFC 7118)."""
    wss: int | None = None
    """Port of SIP over secure WebSocket; needs a certificate."""
    certificate: Path | None = None
    """Certificate chain (PEM) for tls and wss; also shown to servers of trunks that ask for one."""
    key: Path | None = None
    """The certificate's private key (PEM)."""
    authorities: Path | None = None
    """CA certificates (PEM) trusted for our trunks' servers, besides the system's."""
    public_address: str = ""
    """Public address for SDP and Contact behind NAT."""
    rtp_ports: tuple[int, int] = (16384, 32767)
    """First and last UDP port of media."""
    trunks: tuple[Trunk, ...] = ()
    routes: tuple[Route, ...] = ()
    """The first match wins; without routes, the default agent."""
    extensions: Mapping[str, Extension] = field(default_factory=dict)
    """Phones that register here, by the numbers at which they are called."""
    messages: str = ""
    """Number at which an extension hears the messages of its voicemail, such as "*97"; "" for
    none."""
    digest: tuple[Literal["SHA-256", "MD5"], ...] = ("MD5",)
    """Algorithms with which phones prove their passwords, in the order in which they are offered
    (RFC 8760). Some phones know only MD5, and some fail where anything else is offered as well."""
    unknown: Literal["drop", "refuse"] = "drop"
    """Response to INVITEs from unknown sources: none, or 403."""
    browsers: bool = False
    """Challenge INVITEs over WS and WSS like those of phones, not treat them as unknown."""
    allow_anonymous: bool = False
    """Accept calls from anybody, without a password: for a lab."""
    requests_per_second: float = 20.0
    """Limit of requests per second from one source address; one request a second beyond it gets
    503, and the others no response."""
    invites_per_second: float = 5.0
    """Limit of INVITEs per second from one source address; one a second beyond it gets 503, and the
    others no response."""
    trace_messages: int = 2000
    """Messages kept in memory for `offhook sip-trace`."""
    hep: HepSettings | None = None
    """Where copies of all SIP messages, without their secrets, and of RTCP reports go: a collector
    such as Homer."""
    media_timeout_seconds: float = 30.0
    """Seconds without a packet, while the agent does not speak, after which a call ends; 0 for no
    limit."""
    initial_media_timeout_seconds: float = 60.0
    """Seconds without a packet after the answer until a call ends."""
    ring_seconds: float = 60.0
    """How long an outbound call rings before it is cancelled, in seconds."""
    max_calls: int = 200
    """Limit of simultaneous SIP calls; beyond it callers get 503 with Retry-After."""
    recovery_seconds: float = 0.0
    """Seconds without a sign of life after which other servers with the same Redis (`redis` of
    `[server]`) continue the SIP calls of one, by re-INVITE; 0: never."""
    user_agent: str = "offhook"
    """Value of the User-Agent and Server headers."""

    def __post_init__(self) -> None:
        self._check_ports()
        self._check_names()
        if self.unknown not in ("drop", "refuse"):
            raise SipError(f"unknown must be drop or refuse, not {self.unknown!r}")
        if (self.tls is not None or self.wss is not None) and not (self.certificate and self.key):
            raise SipError("tls and wss need a certificate and its key")
        if (self.certificate is None) != (self.key is None):
            raise SipError("a certificate needs its key, and a key its certificate")
        for name in ("requests_per_second", "invites_per_second", "media_timeout_seconds"):
            if not getattr(self, name) > 0:
                raise SipError(f"{name} must be positive")
        for name in ("initial_media_timeout_seconds", "ring_seconds", "max_calls"):
            if not getattr(self, name) > 0:
                raise SipError(f"{name} must be positive")
        if self.recovery_seconds and not MIN_RECOVERY_S <= self.recovery_seconds <= MAX_RECOVERY_S:
            limits = f"{MIN_RECOVERY_S:g} to {MAX_RECOVERY_S:g}"
            raise SipError(f"recovery_seconds must be 0, or {limits}")
        if self.trace_messages < 0:
            raise SipError("trace_messages must not be negative")
        if not self.user_agent.isprintable():
            raise SipError("user_agent contains unprintable characters")

    def _check_ports(self) -> None:
        for name in ("udp", "tcp", "tls", "ws", "wss"):
            port = getattr(self, name)
            if port is not None and port not in _PORTS:
                raise SipError(f"{name} must be a port, not {port}")
        low, high = self.rtp_ports
        if not 1 <= low < high < 65536:
            raise SipError(f"rtp_ports must be a first and a last port, not {low} and {high}")

    @cached_property
    def phones(self) -> Mapping[str, Trunk]:
        """Each extension, by its number, as the trunk that its phones are."""
        return {
            number: Trunk(
                trunk_name(number),
                username=number,
                password=extension.password,
                caller_id_header="from",
                contact="source",
                transfer="bridge",
            )
            for number, extension in self.extensions.items()
        }

    @property
    def accounts(self) -> tuple[Trunk, ...]:
        """The trunks and the extensions."""
        return (*self.trunks, *self.phones.values())

    def _check_extensions(self) -> None:
        usernames = {trunk.username for trunk in self.trunks if trunk.password}
        with_server = {trunk.name for trunk in self.trunks if trunk.server}
        if not self.digest:
            raise SipError("digest is empty")
        for number, extension in self.extensions.items():
            check_number(number)
            if number in usernames:
                raise SipError(f"extension {number}: a trunk has the same username")
            if extension.outside and extension.outside not in with_server:
                named = f"no trunk with a server is called {extension.outside!r}"
                raise SipError(f"extension {number}: outside: {named}")
        if self.messages:
            check_number(self.messages)
        if self.messages in self.extensions:
            raise SipError(f"messages: {self.messages} is an extension")
        for route in self.routes:
            if route.extension and route.extension not in self.extensions:
                raise SipError(f"a route names an unknown extension {route.extension!r}")

    def _check_names(self) -> None:
        self._check_extensions()
        names = [trunk.name for trunk in self.trunks]
        if named := next((name for name in names if name.startswith(PREFIX)), ""):
            raise SipError(f"trunk {named!r}: {PREFIX} is of extensions")
        for trunk in self.trunks:
            if trunk.public_name and trunk.transport == "TLS" and self.certificate is None:
                needs = "public_name needs certificate and key of [sip], which prove it by TLS"
                raise SipError(f"trunk {trunk.name!r}: {needs}")
        for name in names:
            if names.count(name) > 1:
                raise SipError(f"two trunks are named {name!r}")
        for route in self.routes:
            if route.trunk and route.trunk not in names and not self._is_extension(route.trunk):
                raise SipError(f"a route names an unknown trunk {route.trunk!r}")

    def _is_extension(self, trunk: str) -> bool:
        return trunk.removeprefix(PREFIX) in self.extensions and trunk.startswith(PREFIX)


def read_address(text: str) -> IpAddress | None:
    """Return a numeric address without its zone, IPv4-mapped ones as IPv4; None if it is none."""
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
    """Return the trunk that calls from `source_ip`, by address alone, without a password.

    A trunk's server is one of its addresses: as given if numeric, else from `resolved` (trunk name
    → addresses). Of several trunks at one address (accounts at one provider) the order is: the one
    whose user is called, the one by whose name we are called, the one whose domain is in the
    request, the one with the narrowest network, the first.
    """
    source = read_address(source_ip)
    if source is None:
        return None
    best, best_rank = None, (False, False, False, -1)
    for trunk in trunks:
        widths = _widths(trunk, source, resolved)
        if not widths:
            continue
        hosts = (request.uri.host, request.from_.uri.host, request.to.uri.host)
        users = (request.uri.user, request.to.uri.user)
        rank = (
            bool(trunk.username) and trunk.username in users,
            bool(trunk.public_name) and trunk.public_name.lower() in hosts,
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
    """Return whether the address belongs to any trunk."""
    source = read_address(source_ip)
    return source is not None and any(_widths(trunk, source, resolved) for trunk in trunks)


def _widths(trunk: Trunk, source: IpAddress, resolved: Mapping[str, Collection[str]]) -> list[int]:
    """Lengths of the trunk's prefixes that contain the address."""
    widths = [n.prefixlen for n in trunk.networks if source in n]
    if str(source) in resolved.get(trunk.name, ()) or _is_server(trunk, source):
        widths.append(source.max_prefixlen)
    return widths


def by_username(trunks: Sequence[Trunk], username: str) -> Trunk | None:
    """Return the trunk with a password and this username; trunks that call us take precedence over
    those we register with. None if there is none."""
    found = [t for t in trunks if t.password and t.username == username]
    return min(found, key=lambda t: t.register, default=None)


def _is_server(trunk: Trunk, source: IpAddress) -> bool:
    if not trunk.server:
        return False
    return any(read_address(uri.host) == source for uri in trunk.server_uris)


def _is_host_name(text: str) -> bool:
    """Whether this is a host name of DNS (RFC 1123 §2.1) with a domain, and no address."""
    labels = text.split(".")
    return len(labels) > 1 and not labels[-1].isdigit() and all(map(_is_label, labels))


def _is_label(text: str) -> bool:
    plain = text.isascii() and text.replace("-", "").isalnum() and len(text) <= 63
    return plain and not (text.startswith("-") or text.endswith("-"))
