"""Access control: the first thing every server checks in a request.

There are two roles: *callers* make their call and use the speech API; the *operator* dials out,
lists, traces and ends calls. A table maps routes to roles, and `AccessPolicy.admit` decides whether
a request may use one.

A web page can send requests to servers that its author cannot reach, on this machine or behind the
same router. Such requests are recognized by the Origin header and, against DNS rebinding, by the
Host header. A proxied request has the proxy's address, so a request with any sign of a proxy is
never considered local: whether it came directly is decided by `Head.proxied` alone.
"""

import base64
import hmac
import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256
from ipaddress import IPv6Address, ip_address
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from offhook.web.http.networks import Network
from offhook.web.http.session_cookie import (
    DESK_COOKIE,
    cookie_in,
    desk_session,
    is_session_of,
)

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")

Scope = Literal["call", "speech"]
SCOPES: tuple[Scope, ...] = ("call", "speech")


class Role(Enum):
    """Who may use a route."""

    PROBE = "probe"
    """Everyone, unconditionally: health probes of orchestrators and load balancers."""
    PUBLIC = "public"
    """Everyone who uses a valid host name of the server."""
    CALL = "call"
    """Callers."""
    SPEECH = "speech"
    """Programs that use the speech API."""
    REALTIME = "realtime"
    """Realtime sessions: callers, programs that use the speech API, and holders of a client secret;
    `Grant.scopes` says which kind of session the request may open."""
    CONTROL = "control"
    """Programs that make client secrets and decide on calls: the owner of the API key or of the
    operator's. Without either key, only the operator's own machine and user."""
    METRICS = "metrics"
    """PUBLIC or the key's owner, depending on `AccessPolicy.metrics`."""
    OPERATOR = "operator"
    RECORDS = "records"
    """The operator; who has the reader's key may look, and change nothing."""
    SESSION = "session"
    """Whoever knows the URL of a session, which cannot be guessed, of WHIP or WHEP: mediamtx's
    pages send their key only with the request that creates it, and a token may expire before its
    end. So does a page that leaves its Realtime call: what it sends last has no headers."""
    DESK = "desk"
    """Whoever has signed in with an extension's number and password: the desk of that extension,
    which `Grant.extension` names."""
    CARRIER = "carrier"
    """Carriers, authenticated by signature, ticket or address; see `AccessPolicy.check_carrier`."""


ROUTES: Mapping[str, Role] = {
    "healthz": Role.PROBE,
    "readyz": Role.PROBE,
    "workers": Role.PROBE,
    "health": Role.PROBE,
    "": Role.PUBLIC,  # the page
    "page": Role.PUBLIC,
    "embed.js": Role.PUBLIC,
    "status": Role.PUBLIC,
    "metrics": Role.METRICS,
    "start": Role.CALL,
    "api": Role.CALL,
    "sessions": Role.CALL,
    "whip": Role.CALL,
    "whep": Role.CALL,
    "whip/{room}/{session}": Role.SESSION,
    "whep/{room}/{session}": Role.SESSION,
    "v1": Role.SPEECH,
    "v1/realtime": Role.REALTIME,
    "v1/realtime/client_secrets": Role.CONTROL,
    "v1/realtime/calls": Role.REALTIME,
    "v1/realtime/calls/{call}": Role.CONTROL,
    "v1/realtime/calls/{call}/leave": Role.SESSION,
    "ws": Role.SPEECH,
    "openapi.json": Role.SPEECH,
    "calls": Role.RECORDS,
    "calls/forget": Role.OPERATOR,
    "calls/{call}/recording": Role.OPERATOR,
    "console": Role.PUBLIC,  # the files; what they show is at /calls
    "desk": Role.PUBLIC,  # the files, and signing in
    "desk/sip": Role.DESK,
    "desk/events": Role.DESK,
    "desk/calls": Role.DESK,
    "desk/queues": Role.DESK,
    "sip": Role.OPERATOR,
    "tokens": Role.OPERATOR,
    "campaigns": Role.RECORDS,
    "do-not-call": Role.RECORDS,
    "trunks": Role.RECORDS,
    "extensions": Role.RECORDS,
    "queues": Role.RECORDS,
    "queues/{name}/members": Role.OPERATOR,
    "engines": Role.RECORDS,
    "agents": Role.RECORDS,
    "builder": Role.OPERATOR,
    "voicemails": Role.RECORDS,
    "carriers": Role.CARRIER,
}
"""Roles by the beginning of a route's path; the longest applies."""
SCOPES_OF: Mapping[Role, frozenset[Scope]] = {
    Role.SPEECH: frozenset(("speech",)),
    Role.REALTIME: frozenset(SCOPES),
}
"""The scopes of which one is required; of other roles, "call"."""

OF_TENANTS = frozenset(
    (
        *("/calls", "/calls/events", "/calls/numbers", "/calls/forget", "/tokens"),
        *("/calls/{call}", "/calls/{call}/events", "/calls/{call}/record"),
        *("/calls/{call}/timeline", "/calls/{call}/export", "/calls/{call}/scenario"),
        *("/calls/{call}/recording", "/calls/{call}/agent"),
        *("/calls/{call}/members", "/calls/{call}/members/{member}"),
        *("/campaigns", "/campaigns/{campaign}", "/campaigns/{campaign}/recipients"),
        *("/campaigns/{campaign}/report.csv", "/voicemails", "/voicemails/{call}"),
        *("/do-not-call", "/do-not-call/{number}", "/trunks", "/extensions", "/agents"),
        *("/queues", "/queues/{name}", "/queues/{name}/members"),
    )
)
"""The operator's routes that the keys of tenants reach too, each for what is the tenant's own. Any
other, a new one too, is refused to them."""

SAFE = ("GET", "HEAD")
"""Methods that change nothing."""
KEY_PROTOCOL = "openai-insecure-api-key."
"""Pages cannot send headers with a WebSocket, so OpenAI's clients send the key as a subprotocol."""
TOKEN_PREFIX = "offhook_"
SECRET_PREFIX = "ek_"
"""Prefix of client secrets, which clients for OpenAI's API check for."""
TOKEN_PURPOSE = b"offhook: tokens of callers"
CLIENT_HEADERS = frozenset(
    (
        # RFC 9110, 9111 and 9112; not those that intermediaries add, as Via and Forwarded
        *("host", "connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade"),
        *("user-agent", "authorization", "cookie", "referer", "from", "origin", "date", "range"),
        *("expect", "cache-control", "pragma", "accept", "digest", "want-digest", "priority"),
        # browsers: Fetch, Client Hints, server-sent events, WebSockets and their extensions
        *("dnt", "save-data", "device-memory", "dpr", "width", "viewport-width", "rtt", "ect"),
        *("downlink", "upgrade-insecure-requests", "last-event-id", "purpose", "service-worker"),
        *("available-dictionary", "dictionary-id", "x-requested-with", "x-client-data"),
        # programs: OpenAI's SDKs and what is built on them, MCP, tracing, Prometheus
        *("idempotency-key", "x-idempotency-key", "x-api-key", "api-key", "x-title"),
        *("http-referer", "x-client-request-id", "x-request-id", "postman-token"),
        *("traceparent", "tracestate", "baggage", "sentry-trace", "b3"),
    )
)
"""Header fields that browsers and programs send by themselves, in lower case."""
CLIENT_PREFIXES = (
    *("accept-", "content-", "if-", "sec-", "access-control-request-"),
    *("x-stainless-", "openai-", "x-openai-", "mcp-", "x-prometheus-", "x-openwebui-"),
    *("offhook-", "x-offhook-"),  # of our own processes
)
MAX_TOKEN_S = 86_400
"""Maximum lifetime of a token in s; a request for a longer one is refused with 400."""
USUAL_SESSIONS = 3
"""Lines, and streams of each kind, that the holder of one token or client secret may have at a time
in a process: a page has one, and after it was loaded anew for some seconds another."""
MAX_VARIABLES_BYTES = 2000
"""Maximum size of the variables of a token, as JSON; a request for more is refused with 400. The
token is sent in a header."""
MAX_SESSIONS = 256
"""Maximum of `max_sessions` that a token or client secret may be requested with; more is refused
with 400."""
MAX_PORT = 65_535
"""Largest port number in a Host header; a header with a larger one names no host of ours."""
EXPOSED = "*, Location, ETag, Link, Accept-Patch"
"""Headers that pages of other sites may read: all, and by name for browsers that know no "*"."""
PREFLIGHT_S = 600
"""Time in s that a browser may cache a preflight response."""

_HOST = re.compile(
    r"(?:\[(?P<ipv6>[0-9a-fA-F:.]+)\]|(?P<name>[A-Za-z0-9._~!$&'()*+,;=%-]+))"
    r"(?::(?P<port>[0-9]{0,5}))?"
)


class Refusal(Exception):
    """Raised to refuse a request with `status`; the message says what would be accepted."""

    def __init__(self, status: Literal[401, 403, 409], message: str, code: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        """OpenAI's error code, if there is one."""

    @property
    def headers(self) -> dict[str, str]:
        """WWW-Authenticate, see RFC 9110 §11.6.1."""
        return {"WWW-Authenticate": "Bearer"} if self.status == 401 else {}


@dataclass(frozen=True, slots=True)
class Head:
    """A request without its body; `headers` is case-insensitive."""

    method: str
    peer: str
    """The peer's IP address; empty for a Unix socket."""
    headers: Mapping[str, str]
    for_proxy: bool = False
    """Whether its first line is what proxies send or get: of HTTP/1.0, with a whole URL."""
    same_user: Callable[[], bool] = lambda: True
    """Whether a peer on this machine is the same user or root; called only when needed."""

    @property
    def host(self) -> str:
        return self.headers.get("Host", "")

    @property
    def origin(self) -> str:
        return self.headers.get("Origin", "")

    @property
    def preflight(self) -> bool:
        """Whether this is a CORS preflight, which carries no key."""
        return self.method == "OPTIONS" and "Access-Control-Request-Method" in self.headers

    @property
    def proxied(self) -> str:
        """What shows, or may show, that a proxy passed the request on; "" if it came directly."""
        return self.sign_of_proxy()

    def sign_of_proxy(self, own: tuple[str, ...] = ()) -> str:
        """Returns `proxied` for a client whose own header fields have names that begin so, in lower
        case.

        There is no end of headers by which proxies tell who asked them, so the known ones are those
        of clients, and any other counts as a proxy's. A program that adds one of its own needs a
        key, or a name of the server. nginx before 1.29.7 leaves a sign even without headers: by
        default it speaks HTTP/1.0, which no browser does."""
        if self.for_proxy:
            return "HTTP/1.0 or a URL in its first line"
        for name in map(str.lower, self.headers):
            if name not in CLIENT_HEADERS and not name.startswith((*CLIENT_PREFIXES, *own)):
                return name[:80]
        return ""

    @property
    def key(self) -> str:
        """The bearer token; empty if there is none."""
        scheme, _, given = self.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer":  # the scheme is case-insensitive (RFC 9110 §11.1)
            return given.strip(" ")
        offered = self.headers.get("Sec-WebSocket-Protocol", "").split(",")
        keys = [name.strip() for name in offered if name.strip().startswith(KEY_PROTOCOL)]
        return keys[0].removeprefix(KEY_PROTOCOL) if keys else ""


@dataclass(frozen=True, slots=True)
class Key:
    """A caller's key."""

    name: str
    """Name in logs and metrics."""
    secret: str = field(repr=False)
    scopes: frozenset[Scope] = frozenset(SCOPES)


@dataclass(frozen=True, slots=True)
class TenantKeys:
    """The keys of one of several customers."""

    tenant: str
    key: str = field(default="", repr=False)
    reader_key: str = field(default="", repr=False)

    @property
    def by_role(self) -> Sequence[tuple[Literal["admin", "reader"], str]]:
        return ("admin", self.key), ("reader", self.reader_key)


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """Who has a key of the operator's kind: of the server, or of one of its tenants."""

    role: Literal["admin", "reader"]
    tenant: str = ""
    """Whose calls and so on the key is for; "" for everybody's."""


@dataclass(frozen=True, slots=True)
class Grant:
    """An admitted request: the name of its key ("" without one), and the agent it is restricted to
    ("" for any)."""

    key: str = ""
    agent: str = ""
    scopes: frozenset[Scope] = frozenset(SCOPES)
    secret: "Token | None" = None
    """The client secret that was sent: it opens sessions with its own agent only, "" being
    [agent], and the session's frozen fields cannot be changed."""
    token: "Token | None" = None
    """The token or client secret that was sent, a caller's temporary key."""
    extension: str = ""
    """The extension whose desk asks."""
    expires_at: int = 0
    """When that desk's session ends, wall-clock time in s."""
    tenant: str = ""
    """Whose calls and so on the operator's routes are restricted to; "" for everybody's."""

    @property
    def variables(self) -> Mapping[str, str]:
        """Returns the variables for the agent that the caller's token carries."""
        return {} if self.token is None else self.token.variables


@dataclass(frozen=True)
class AccessPolicy:
    """The access rules of one server."""

    local: bool = True
    """Whether only this machine can connect."""
    names: frozenset[str] = frozenset()
    """Host names of the server besides localhost and its addresses, in lower case."""
    origins: frozenset[str] = frozenset()
    """Origins of other sites whose pages may call."""
    keys: tuple[Key, ...] = ()
    admin_key: str = field(default="", repr=False)
    desks: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The passwords of the extensions, by number, with which desks are signed in to."""
    reader_key: str = field(default="", repr=False)
    """Key of those who may look at calls, but neither listen to them nor change anything."""
    tenants: tuple[TenantKeys, ...] = ()
    admin_listen: str = ""
    """Separate address of the operator's routes, if any."""
    metrics: Role = Role.PUBLIC
    proxies: tuple[Network, ...] = ()
    """Networks of the proxies in front, besides this machine: their X-Forwarded-For names the
    caller."""
    secret_called: Callable[[str, float], "Token | None"] = field(
        default=lambda text, now: None, repr=False
    )
    """Looks up a client secret at a wall-clock time in s; None for one that is unknown or has
    expired."""
    carrier_hosts: frozenset[str] = frozenset()
    """Host names, host or host:port, used by carriers."""
    key_setting: str = "[server] api_key"
    """Name of the setting for the callers' key, for messages; empty if there is none. The next two
    likewise."""
    names_setting: str = "[server] names"
    origins_setting: str = "[server] origins"

    # --- what a request may use ---

    def role_of(self, path: str, otherwise: Role = Role.OPERATOR) -> Role:
        """Returns the role of a route such as "/calls/{call}"; `otherwise` applies to paths not in
        the table."""
        name = path.removeprefix("/")
        while name and name not in ROUTES:
            name = name.rpartition("/")[0]
        # "" is the page, not the beginning of every path
        role = ROUTES[name] if name or path in ("", "/") else otherwise
        return self.metrics if role is Role.METRICS else role

    def admit(
        self, role: Role, head: Head, now: float, *, admin: bool = False, path: str = ""
    ) -> Grant:
        """Admits a request or raises Refusal. `now` is wall-clock time in s; `admin` means that the
        request came to `admin_listen`; `path` is the route's, such as "/calls/{call}"."""
        if role is Role.PROBE:
            return Grant()
        if role is not Role.PUBLIC:
            self._check_origin(role, head)
        if role in (Role.OPERATOR, Role.RECORDS):
            reads = role is Role.RECORDS and head.method in SAFE
            self._check_door(admin)
            grant = self._admit_operator(head, now, reads=reads)
            if grant.tenant and path not in OF_TENANTS:
                words = "this route is the operator's alone: a tenant's key does not reach it"
                raise Refusal(403, words, "insufficient_scope")
            return grant
        if role is Role.CONTROL:
            return self._admit_control(head)
        if role is Role.DESK:
            return self._admit_desk(head, now)
        keyed = any(not _scopes_of(role).isdisjoint(key.scopes) for key in self.keys)
        if not keyed:
            self._check_name(head)
        if role is Role.PUBLIC or head.preflight:
            return Grant()
        return self.grant(role, head, now, keyed)

    def grant(self, role: Role, head: Head, now: float, keyed: bool) -> Grant:
        """Returns what the request's key grants; with `keyed`, a key is required. Raises
        Refusal."""
        if role is Role.SESSION:
            return Grant()
        given, scopes = head.key, _scopes_of(role)
        if given.startswith(TOKEN_PREFIX) and self.admin_key:
            token = read_token(self.admin_key, given, now)
            if scopes.isdisjoint(token.scopes):
                wanted = " or ".join(sorted(scopes))
                raise Refusal(403, f"this token is not for {wanted}", "insufficient_scope")
            name = f"token {token.agent}".strip()
            return Grant(name, token.agent, frozenset(token.scopes), token=token)
        if given.startswith(SECRET_PREFIX):
            secret = self.secret_called(given, now) if role is Role.REALTIME else None
            if secret is None:
                words = "this client secret is not valid here: it is unknown or has expired"
                raise Refusal(401, words, "invalid_api_key")
            name = f"client secret {secret.agent}".strip()
            return Grant(name, secret.agent, frozenset(secret.scopes), secret, secret)
        for key in self.keys:
            if not scopes.isdisjoint(key.scopes) and _same(given, key.secret):
                return Grant(key.name, scopes=key.scopes)
        if self.admin_key and _same(given, self.admin_key):
            return Grant("admin")
        if keyed:
            raise Refusal(401, "a valid API key is required as a bearer token", "invalid_api_key")
        return Grant()

    def check_carrier(self, head: Head) -> None:
        """Raises Refusal for a web page; a carrier's Origin, if sent, is our own."""
        own = head.origin.partition("://")[2] in self.carrier_hosts
        if is_foreign(head.origin, head.host) and not own:
            raise Refusal(403, "a page in a browser asks")

    def is_own(self, authority: str) -> bool:
        """Returns whether a Host header names this server. With DNS rebinding a page sends its own
        name from its visitor's address, so the address proves nothing."""
        name = host_name(authority)
        return (
            name == "localhost"
            or name in self.names
            or authority in self.carrier_hosts
            or _is_address(name)
        )

    # --- the parts of it ---

    def _check_door(self, admin: bool) -> None:
        if self.admin_listen and not admin:
            raise Refusal(403, f"the operator's routes are at {self.admin_listen} ([server])")

    def _admit_operator(self, head: Head, now: float, *, reads: bool) -> Grant:
        if self.admin_key:
            holder = self.key_holder(head, now)
            if holder is not None and (reads or holder.role == "admin"):
                return Grant(holder.role, tenant=holder.tenant)
            if holder is not None:
                words = "the reader's key only shows calls: this needs the operator's"
                raise Refusal(403, words, "insufficient_scope")
            readers = (
                ", or the reader's ([server] reader_key)," if reads and self.reader_key else ""
            )
            words = (
                f"the operator's key ([server] admin_key){readers} is required as a bearer token"
            )
            raise Refusal(401, words, "invalid_api_key")
        why = self._not_the_operator(head)
        if why:
            raise Refusal(
                403,
                f"without a key the operator's routes answer only to this machine, and {why}: "
                "set [server] admin_key",
            )
        return Grant()

    def key_holder(self, head: Head, now: float) -> KeyHolder | None:
        """Returns whose key, or session of the console, a request has; None for nobody's. A
        session changes something only from a page of ours, as its Origin says."""
        given, cookie = head.key, cookie_in(head.headers)
        if head.method not in SAFE and not head.origin:
            cookie = ""
        for keys in (TenantKeys("", self.admin_key, self.reader_key), *self.tenants):
            for role, key in keys.by_role:
                if key and (_same(given, key) or (cookie and is_session_of(key, cookie, now))):
                    return KeyHolder(role, keys.tenant)
        return None

    def desk_of(self, head: Head, now: float) -> tuple[str, int]:
        """Returns the extension whose desk has signed in, and when its session ends; "" and 0 for
        none. A session changes something only from a page of ours, as its Origin says."""
        cookie = cookie_in(head.headers, DESK_COOKIE)
        if head.method not in SAFE and not head.origin:
            cookie = ""
        return desk_session(self.desks, cookie, now)

    def _admit_desk(self, head: Head, now: float) -> Grant:
        number, expires_at = self.desk_of(head, now)
        if not number:
            self._check_name(head)
            raise Refusal(401, "sign in at /desk with an extension's number and password")
        return Grant(f"desk {number}", extension=number, expires_at=expires_at)

    def _admit_control(self, head: Head) -> Grant:
        """A token or client secret is a caller's, who must not make more of them or decide on the
        calls of others; keys of the speech API are not for calls."""
        keys = [key for key in self.keys if "call" in key.scopes]
        for key in keys:
            if _same(head.key, key.secret):
                return Grant(key.name)
        if self.admin_key and _same(head.key, self.admin_key):
            return Grant("admin")
        if keys or self.admin_key:
            words = "the API key ([server] api_key), or the operator's, is required"
            raise Refusal(401, f"{words} as a bearer token", "invalid_api_key")
        temporary = head.key.startswith((TOKEN_PREFIX, SECRET_PREFIX))
        why = "this key is a caller's" if temporary else self._not_this_user(head)
        if why:
            raise Refusal(
                403,
                f"without a key this route answers only to this machine, and {why}: "
                "set [server] api_key",
            )
        return Grant()

    def _not_the_operator(self, head: Head) -> str:
        """Returns why a request without a key is not the operator's; empty if it may be."""
        return "this request carries another key" if head.key else self._not_this_user(head)

    def _not_this_user(self, head: Head) -> str:
        """Returns why a request does not come directly from this user; empty if it may."""
        if head.proxied:
            return f"this request came through a proxy, to judge by {head.proxied!r}"
        if head.peer and not is_loopback(head.peer):
            return f"{head.peer} is another"
        if not is_loopback(host_name(head.host)):
            return f"by its Host header this request is for {head.host[:80]!r}"
        if not head.same_user():
            return "this connection is another user's"
        return ""

    def _check_origin(self, role: Role, head: Head) -> None:
        origin = head.origin
        if not is_foreign(origin, head.host):
            return
        if role in (Role.OPERATOR, Role.RECORDS, Role.CONTROL, Role.DESK):
            raise Refusal(403, "a page of another site may not use this route")
        if origin not in self.origins:
            words = f"a page of {origin[:80]} may not use this server"
            if self.origins_setting:
                words += f", unless it is one of {self.origins_setting}"
            raise Refusal(403, words)

    def _check_name(self, head: Head) -> None:
        if not self.is_own(head.host):
            words = f"this server is not called {(host_name(head.host) or head.host)[:80]!r}"
            raise Refusal(403, f"{words}: reach it by its address, or set {self._settings()}")
        if self.local and head.proxied and host_name(head.host) not in self.names:
            words = f"this request came through a proxy, to judge by {head.proxied!r}"
            words += ", and the server answers only to this machine"
            raise Refusal(403, f"{words}: set {self._settings()}")

    def _settings(self) -> str:
        return " or ".join(filter(None, (self.names_setting, self.key_setting)))

    # --- pages of other sites (https://fetch.spec.whatwg.org/#http-cors-protocol) ---

    def cors_headers(self, head: Head) -> dict[str, str]:
        """Returns the CORS headers of any response to a caller."""
        if not self.origins:
            return {}
        if head.origin not in self.origins:
            return {"Vary": "Origin"}
        return {
            "Vary": "Origin",
            "Access-Control-Allow-Origin": head.origin,
            "Access-Control-Expose-Headers": EXPOSED,
        }

    def preflight_headers(self, head: Head) -> dict[str, str]:
        """Returns the additional headers of a preflight response."""
        wanted = head.headers.get("Access-Control-Request-Headers", "")
        return {
            "Access-Control-Allow-Methods": "GET, POST, PATCH, DELETE, OPTIONS",
            "Access-Control-Allow-Headers": wanted,
            "Access-Control-Max-Age": str(PREFLIGHT_S),
        }


# --- tokens ---


@dataclass(frozen=True, slots=True)
class Token:
    """What a token or client secret grants until `expires_at`, wall-clock time in s."""

    scopes: tuple[Scope, ...]
    agent: str
    expires_at: int
    session: Mapping[str, Any] | None = field(default=None, repr=False)
    """The Realtime session object of a client secret."""
    id: str = field(default="", compare=False)
    """Of this token or client secret alone."""
    max_sessions: int = USUAL_SESSIONS
    """Lines, and streams of each kind, that its holder may have at a time."""
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables for the agents of its holder's calls."""


class TokenRequestError(ValueError):
    """Raised for an invalid body of `POST /tokens`; the message names the field."""


class TokenRequest(BaseModel):
    """The body of `POST /tokens`."""

    model_config = ConfigDict(extra="forbid")

    scope: tuple[Scope, ...] = Field(("call",), min_length=1, max_length=len(SCOPES))
    agent: str = ""
    """Name of [agents.NAME] to which calls are restricted; "" for [agent]."""
    ttl_seconds: int = Field(600, ge=1, le=MAX_TOKEN_S)
    max_sessions: int = Field(USUAL_SESSIONS, ge=1, le=MAX_SESSIONS)
    """Lines, and streams of each kind, that the token's holder may have at a time."""
    variables: dict[str, str] = {}
    """Variables for the agents of the holder's calls, who can read them and not change them."""

    @field_validator("variables")
    @classmethod
    def _fit_a_header(cls, variables: dict[str, str]) -> dict[str, str]:
        if len(json.dumps(variables)) > MAX_VARIABLES_BYTES:
            raise ValueError(f"over {MAX_VARIABLES_BYTES} bytes as JSON")
        return variables


def parse_token_request(body: bytes) -> TokenRequest:
    """Parses the body. Raises TokenRequestError."""
    try:
        return TokenRequest.model_validate_json(body)
    except ValidationError as error:
        faults = (f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        words = "; ".join(f.removeprefix(": ") for f in faults)
        raise TokenRequestError(words.replace("Value error, ", "")) from error


def issue_token(admin_key: str, token: Token) -> str:
    """Issues a token that every process with the key can verify without storing it."""
    claims = {
        "scope": token.scopes,
        "agent": token.agent,
        "exp": token.expires_at,
        "sessions": token.max_sessions,
        "variables": token.variables,
        "id": secrets.token_hex(8),
    }
    body = _base64(json.dumps(claims, separators=(",", ":")).encode())
    return f"{TOKEN_PREFIX}{body}.{_base64(_signature(admin_key, body))}"


def read_token(admin_key: str, text: str, now: float) -> Token:
    """Verifies a token. Raises Refusal if it is not issued with this key or has expired."""
    body, _, signature = text.removeprefix(TOKEN_PREFIX).partition(".")
    if not _same(signature, _base64(_signature(admin_key, body))):
        raise Refusal(401, "this token was not issued by this server", "invalid_api_key")
    claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    token = Token(
        tuple(claims["scope"]),
        claims["agent"],
        claims["exp"],
        id=claims["id"],
        max_sessions=claims.get("sessions", USUAL_SESSIONS),  # older servers issue none, nor these
        variables=claims.get("variables", {}),
    )
    if token.expires_at <= now:
        raise Refusal(401, "this token has expired", "invalid_api_key")
    return token


def _signature(admin_key: str, body: str) -> bytes:
    derived = hmac.digest(admin_key.encode(), TOKEN_PURPOSE, sha256)
    return hmac.digest(derived, body.encode(errors="surrogateescape"), sha256)


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


# --- names and addresses ---


def is_foreign(origin: str, host: str) -> bool:
    """Returns whether a browser says (Origin) that the requesting page is of another site than the
    server (Host). Other programs send no Origin."""
    return bool(origin) and origin.partition("://")[2] != host


def host_name(authority: str) -> str:
    """Returns the host of a Host header in lower case, without port and brackets; "" if it is not
    host[:port] (RFC 9110 §7.2, RFC 3986 §3.2.2), as with a user name or anything after an IPv6
    address."""
    found = _HOST.fullmatch(authority)
    if found is None or int(found["port"] or 0) > MAX_PORT:
        return ""
    if found["ipv6"] is None:
        return found["name"].lower()
    try:
        return str(IPv6Address(found["ipv6"]))
    except ValueError:
        return ""


def is_loopback(name: str) -> bool:
    """Returns whether a name or IP address is a loopback one."""
    if name == "localhost":
        return True
    try:
        address = ip_address(name)
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _scopes_of(role: Role) -> frozenset[Scope]:
    return SCOPES_OF.get(role, frozenset(("call",)))


def _same(given: str, expected: str) -> bool:
    """Compares in constant time."""
    # A header may contain any bytes, which aiohttp decodes to surrogates if they are not UTF-8, and
    # JSON any surrogates.
    return hmac.compare_digest(given.encode(errors="surrogatepass"), expected.encode())
