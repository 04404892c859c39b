"""Authentication of webhooks and stream connections: one function per provider.

Most providers sign the URL as they know it, which behind a proxy is not the URL that arrives here.
A request therefore comes with every URL it may have been sent to (`candidates`), and a signature
that matches any of them is accepted.

A signature does not prove that a request is new, so accepted ones are remembered (`Nonces`), and
the same request again is `Replayed`. Twilio's retries are identical to what they repeat, those of
others are signed anew; both get the answer that the first request got, see `answers`.
"""

import base64
import hashlib
import hmac
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_network
from urllib.parse import parse_qsl

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from offhook.telephony.carriers.auth.http_signature import HttpSignature, parse_signatures
from offhook.telephony.carriers.auth.json_web_token import is_numeric_date, verify_token
from offhook.telephony.carriers.settings import CarrierSettings, Provider
from offhook.telephony.sip.trunks.trunks import read_address

WINDOW_S = 300
"""Signatures with a timestamp are valid for this long, before and after: clocks differ."""
MAX_SEEN = 10_000
"""Requests remembered per carrier; beyond that the oldest is forgotten. Only verified requests are
remembered, so nobody but the provider can push one out."""
MAX_BODY_BYTES = 65536
"""Maximum body of a webhook; a longer one is refused with 403."""
MAX_FIELDS = 200
"""Maximum fields in a webhook's form, and in a query; a request with more is refused with 403 or
400."""

TOKEN_PARAMETER = "token"
"""Query parameter that carries `url_token`."""

Pairs = tuple[tuple[str, str], ...]

_AUTHORITY = re.compile(r"(\[[^]]*\]|[^:]*)(?::([0-9]+))?")
_TIMESTAMP = re.compile(r"[0-9]{1,12}")
_NO_HEADERS: Mapping[str, str] = {}
_AUDIOHOOK_COMPONENTS = frozenset(
    (
        "@request-target",
        "@authority",
        "audiohook-organization-id",
        "audiohook-session-id",
        "audiohook-correlation-id",
        "x-api-key",
    )
)


class Rejected(Exception):
    """The request is not authentic or not acceptable. The text is for the log, not for the peer."""


class Replayed(Rejected):
    """The request is authentic, but was accepted before."""


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """The parts of a webhook or stream upgrade request that its signature may cover."""

    method: str
    url_candidates: tuple[str, ...]
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Header fields by lower-case name."""
    body: bytes = field(default=b"", repr=False)
    query: Pairs = field(default=(), repr=False)
    form: Pairs = field(default=(), repr=False)
    """Fields of a form body; repeated names are kept."""
    peer: str = ""
    """Client's IP address; "" if a proxy we do not trust, or a web page, may have sent it."""

    @classmethod
    def read(
        cls,
        settings: CarrierSettings,
        method: str,
        scheme: str,
        host: str,
        path_qs: str,
        headers: Iterable[tuple[str, str]] = (),
        body: bytes = b"",
        peer: str = "",
        upgrade: bool = False,
    ) -> "SignedRequest":
        """Build it from an HTTP request: `path_qs` is the raw request target, `peer` the address of
        a client that is connected directly, else "". Raises Rejected if it is larger than any
        webhook."""
        joined: dict[str, str] = {}
        for name, value in headers:
            key = name.lower()
            joined[key] = f"{joined[key]}, {value.strip()}" if key in joined else value.strip()
        if len(body) > MAX_BODY_BYTES:
            raise Rejected(f"body of {len(body)} bytes is too large")
        kind = joined.get("content-type", "").partition(";")[0].strip().lower()
        is_form = kind == "application/x-www-form-urlencoded"
        if settings.trust_proxy and "x-forwarded-for" in joined:
            # the last entry is what our proxy saw; the client may have sent those before it
            peer = joined["x-forwarded-for"].rpartition(",")[2].strip()
        return cls(
            method.upper(),
            candidates(settings, scheme, host, path_qs, joined, upgrade),
            joined,
            body,
            _pairs(path_qs.partition("?")[2]),
            _pairs(body.decode(errors="replace")) if is_form else (),
            peer,
        )


class Nonces:
    """Remembers which signed requests of one carrier were accepted, at most MAX_SEEN."""

    def __init__(self) -> None:
        self._digests: dict[bytes, None] = {}

    def add(self, *texts: str) -> None:
        """Remember these texts. Raises Replayed if any of them was added before."""
        digests = [hashlib.sha256(_bytes(text)).digest()[:16] for text in texts]
        if any(digest in self._digests for digest in digests):
            raise Replayed("replayed request")
        self._digests.update(dict.fromkeys(digests))
        while len(self._digests) > MAX_SEEN:
            del self._digests[next(iter(self._digests))]


def candidates(
    settings: CarrierSettings,
    scheme: str,
    host: str,
    path_qs: str,
    headers: Mapping[str, str] = _NO_HEADERS,
    upgrade: bool = False,
) -> tuple[str, ...]:
    """Every URL the request may have been sent to, the likeliest first: with and without a port,
    with and without a trailing slash, and for an upgrade as wss as well as https."""
    if settings.public_url:
        scheme, _, rest = settings.public_url.rstrip("/").partition("://")
        host, slash, prefix = rest.partition("/")
        path_qs = slash + prefix + path_qs
    elif settings.trust_proxy:
        scheme = headers.get("x-forwarded-proto", "").partition(",")[0].strip() or scheme
        host = headers.get("x-forwarded-host", "").partition(",")[0].strip() or host
    secure = scheme.lower() in ("https", "wss")
    schemes = ["https" if secure else "http"]
    if upgrade:
        schemes.insert(0, "wss" if secure else "ws")
    path, question, query = path_qs.partition("?")
    other = path[:-1] if path.endswith("/") else path + "/"
    paths = (path_qs, other + question + query)
    urls = (f"{s}://{h}{p}" for s in schemes for h in _hosts(host, secure) for p in paths)
    return tuple(dict.fromkeys(urls))


def _hosts(authority: str, secure: bool) -> list[str]:
    """The authority as given, with its default port, and without a port: Twilio omits even one that
    is not the default."""
    found = _AUTHORITY.fullmatch(authority)
    if found is None:
        return [authority]
    name, port = found[1], found[2] or ("443" if secure else "80")
    hosts = [authority, name, f"{name}:{port}"]
    return [*hosts, *(host.lower() for host in hosts)]


def verify(settings: CarrierSettings, request: SignedRequest, now: float, seen: Nonces) -> None:
    """Raises Rejected unless the provider sent the request, and Replayed if it did so before. `now`
    is Unix time in seconds; `seen` belongs to this carrier."""
    if settings.insecure:
        # With an empty secret anybody could sign, so the signature is not checked at all.
        if not _is_loopback(request.peer):
            raise Rejected("insecure accepts requests from this machine only")
        return
    _CHECKS[settings.provider](settings, request, now, seen)


def is_listed(settings: CarrierSettings, peer: str) -> bool:
    """Return whether `peer` is one of the configured addresses, which need no password."""
    address = read_address(peer)
    return address is not None and any(
        address in ip_network(network, strict=False) for network in settings.addresses
    )


def url_token(settings: CarrierSettings) -> str:
    """Return the token our URLs carry as TOKEN_PARAMETER for providers that can neither sign nor
    send a password. It reveals nothing about the secret it is derived from."""
    text = f"offhook carrier {settings.name}"
    return hmac.digest(_bytes(settings.secret), _bytes(text), hashlib.sha256).hex()[:32]


def _twilio(settings: CarrierSettings, request: SignedRequest, now: float, seen: Nonces) -> None:
    """HMAC over the URL and the form fields sorted by name. For any other body the URL's query
    carries a hash of it."""
    given = _header(request, "x-twilio-signature")
    # Webhooks signed with a shared key instead of the auth token name their hash.
    settings_header = request.headers.get("x-twilio-webhooks-signature-settings", "")
    algorithm = hashlib.sha256 if "algorithm=HMAC_SHA256" in settings_header else hashlib.sha1
    if request.body and not request.form:
        digest = dict(request.query).get("bodySHA256", "")
        if not _equal(digest.lower(), hashlib.sha256(request.body).hexdigest()):
            raise Rejected("the body hash does not match")
    fields = "".join(name + value for name, value in sorted(set(request.form)))
    for url in request.url_candidates:
        made = hmac.digest(_bytes(settings.secret), _bytes(url + fields), algorithm)
        if _equal(given, base64.b64encode(made).decode()):
            seen.add(given)  # no nonce, but each call has its id, and each stream its ticket
            return
    raise _mismatch(settings, request)


def _telnyx(settings: CarrierSettings, request: SignedRequest, now: float, seen: Nonces) -> None:
    """Ed25519 over the time and the body. The URL is not covered, so it proves nothing."""
    given = _header(request, "telnyx-signature-ed25519")
    timestamp = _header(request, "telnyx-timestamp")
    if not _TIMESTAMP.fullmatch(timestamp):
        raise Rejected("telnyx-timestamp is not a timestamp")
    if not request.body:
        raise Rejected("an empty body is not signed: set Telnyx to POST")
    _check_age(float(timestamp), now)
    try:
        signature = base64.b64decode(given, validate=True)
        key = Ed25519PublicKey.from_public_bytes(base64.b64decode(settings.secret))
        key.verify(signature, _bytes(timestamp) + b"|" + request.body)
    except (ValueError, InvalidSignature):
        raise Rejected("the signature does not match Telnyx's public key") from None
    seen.add(f"{timestamp}|{hashlib.sha256(request.body).hexdigest()}")


def _plivo(settings: CarrierSettings, request: SignedRequest, now: float, seen: Nonces) -> None:
    """HMAC over URL, fields and a nonce (V3), by the account or its main account. Without a V3
    header, if the settings accept that: over URL and nonce alone (V2)."""
    version = "v3" if "x-plivo-signature-v3-nonce" in request.headers else "v2"
    if version == "v2" and not settings.signature_v2:
        raise Rejected("no x-plivo-signature-v3 header; V2 signs no fields: see signature_v2")
    nonce = _header(request, f"x-plivo-signature-{version}-nonce")
    names = (f"x-plivo-signature-{version}", f"x-plivo-signature-ma-{version}")
    given = [s.strip() for name in names for s in request.headers.get(name, "").split(",")]
    if not any(given):
        raise Rejected(f"no {names[0]} header")
    if request.body and not request.form:
        raise Rejected("a body that is not a form is not signed")
    for url in request.url_candidates:
        if version == "v3":
            text = f"{_plivo_base(url, request)}.{nonce}"
        else:
            text = url.partition("?")[0] + nonce
        made = hmac.digest(_bytes(settings.secret), _bytes(text), hashlib.sha256)
        expected = base64.b64encode(made).decode()
        if any([_equal(signature, expected) for signature in given]):
            break
    else:
        raise _mismatch(settings, request)
    # Both nonces: otherwise a V3 request could be replayed with its V2 signature alone.
    nonces = (request.headers.get(f"x-plivo-signature-{v}-nonce", "") for v in ("v2", "v3"))
    seen.add(*(set(nonces) - {""}))


def _plivo_base(url: str, request: SignedRequest) -> str:
    """Join the URL with its sorted query and the sorted fields, as Plivo's V3 signature does."""
    base = url.partition("?")[0]
    query = "&".join(f"{name}={value}" for name, value in sorted(request.query))
    if request.method == "GET" or not request.form:
        return f"{base}?{query}" if query else base
    fields = "".join(name + value for name, value in sorted(request.form))
    return f"{base}?{query}{'.' if query else ''}{fields}"


def _vonage(settings: CarrierSettings, request: SignedRequest, now: float, seen: Nonces) -> None:
    """A JWT (HS256) whose claims include a hash of the content."""
    scheme, _, token = _header(request, "authorization").partition(" ")
    if scheme.lower() != "bearer":
        raise Rejected("no signed token in Authorization")
    try:
        claims, signed = verify_token(token.strip(), _bytes(settings.secret))
    except ValueError as error:
        raise Rejected(str(error)) from None
    issued, expires = claims.get("iat"), claims.get("exp", now + 1)
    if not is_numeric_date(issued) or not is_numeric_date(expires):
        raise Rejected("the token has no issue time")
    _check_age(issued, now)
    if expires <= now:
        raise Rejected("the token has expired")
    application = claims.get("application_id", settings.account)
    if settings.account and application != settings.account:
        raise Rejected("the token is for another application")
    _check_payload(claims.get("payload_hash"), request)
    seen.add(signed)


def _check_payload(claimed: object, request: SignedRequest) -> None:
    content = request.body
    if not content and request.query:
        if claimed is None:
            raise Rejected("the query is not signed: set the webhook's method to POST")
        # for a GET the hash covers the query, written as JSON
        query = json.dumps(dict(request.query), separators=(",", ":"), ensure_ascii=False)
        content = _bytes(query)
    made = hashlib.sha256(content).hexdigest()
    if not isinstance(claimed, str) or not _equal(claimed.lower(), made):
        raise Rejected("the body hash does not match")


def _genesys(settings: CarrierSettings, request: SignedRequest, now: float, seen: Nonces) -> None:
    """HTTP message signature over the upgrade request, with the client secret."""
    if not _equal(_header(request, "x-api-key"), settings.api_key):
        raise Rejected("wrong API key")
    organization = request.headers.get("audiohook-organization-id", "")
    if settings.account and organization != settings.account:
        raise Rejected("wrong organization")
    headers = (_header(request, "signature-input"), _header(request, "signature"))
    try:
        signatures = parse_signatures(*headers)
    except ValueError as error:
        raise Rejected(str(error)) from None
    reason = ""
    for signature in signatures:
        try:
            _check_audiohook(settings, request, signature, now)
        except Rejected as error:
            reason = str(error)
            continue
        seen.add(str(signature.parameters["nonce"]))
        return
    raise Rejected(reason)


def _check_audiohook(
    settings: CarrierSettings, request: SignedRequest, signature: HttpSignature, now: float
) -> None:
    parameters = signature.parameters
    missing = _AUDIOHOOK_COMPONENTS.difference(signature.components)
    if missing:
        raise Rejected(f"the signature does not cover {', '.join(sorted(missing))}")
    unknown = [c for c in signature.components if c.startswith("@")]
    if not _AUDIOHOOK_COMPONENTS.issuperset(unknown):
        raise Rejected("the signature covers an unknown component")
    if parameters.get("alg", "hmac-sha256") != "hmac-sha256":
        raise Rejected("the signature algorithm is not hmac-sha256")
    if not _equal(str(parameters.get("keyid", "")), settings.api_key):
        raise Rejected("the signature has another key id")
    created, expires = parameters.get("created"), parameters.get("expires", now + 1)
    if not isinstance(created, int) or isinstance(expires, str):
        raise Rejected("the signature has no creation time")
    if not isinstance(parameters.get("nonce"), str):
        raise Rejected("the signature has no nonce")
    _check_age(created, now)
    if expires <= now:
        raise Rejected("the signature has expired")
    secret = base64.b64decode(settings.secret)
    for url in request.url_candidates:
        authority, slash, target = url.partition("://")[2].partition("/")
        values = {**request.headers, "@authority": authority, "@request-target": slash + target}
        try:
            if signature.verify(secret, values):
                return
        except KeyError as error:
            raise Rejected(f"the signature covers {error}, which the request lacks") from None
    raise _mismatch(settings, request)


def _password(settings: CarrierSettings, request: SignedRequest, now: float, seen: Nonces) -> None:
    """A password instead of a signature (RFC 7617), the URL token, or for Asterisk its address."""
    if settings.provider == "chan_websocket" and is_listed(settings, request.peer):
        return
    if not settings.secret:
        raise Rejected(f"{request.peer or 'an unknown address'} is not in addresses")
    if _equal(dict(request.query).get(TOKEN_PARAMETER, ""), url_token(settings)):
        return
    scheme, _, encoded = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        raise Rejected("neither a password nor a token")
    try:
        user, _, password = base64.b64decode(encoded, validate=True).partition(b":")
    except ValueError:
        raise Rejected("malformed Basic credentials") from None
    expected = settings.api_key if settings.provider == "exotel" else settings.account
    # compare both, so that timing does not reveal which one is wrong
    same_user = hmac.compare_digest(user, _bytes(expected))
    if not hmac.compare_digest(password, _bytes(settings.secret)) or not same_user:
        raise Rejected("wrong user or password")


def _address(settings: CarrierSettings, request: SignedRequest, now: float, seen: Nonces) -> None:
    if not is_listed(settings, request.peer):
        raise Rejected(f"{request.peer or 'an unknown address'} is not in addresses")


_CHECKS: Mapping[Provider, Callable[[CarrierSettings, SignedRequest, float, Nonces], None]] = {
    "twilio": _twilio,
    "telnyx": _telnyx,
    "plivo": _plivo,
    "vonage": _vonage,
    "exotel": _password,
    "genesys": _genesys,
    "audiosocket": _address,
    "chan_websocket": _password,
}


def _mismatch(settings: CarrierSettings, request: SignedRequest) -> Rejected:
    url = request.url_candidates[0].partition("?")[0] if request.url_candidates else "nothing"
    if settings.public_url:
        return Rejected(f"the signature does not match {url}")
    return Rejected(f"the signature does not match {url}: check public_url")


def _check_age(signed: float, now: float) -> None:
    if now - signed > WINDOW_S:
        raise Rejected(f"signed {now - signed:.0f} s ago")
    if signed - now > WINDOW_S:
        raise Rejected(f"signed {signed - now:.0f} s in the future")


def _header(request: SignedRequest, name: str) -> str:
    value = request.headers.get(name, "")
    if not value:
        raise Rejected(f"no {name} header")
    return value


def _pairs(text: str) -> Pairs:
    try:
        return tuple(parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FIELDS))
    except ValueError:
        raise Rejected(f"more than {MAX_FIELDS} fields") from None


def _is_loopback(peer: str) -> bool:
    address = read_address(peer)
    return address is not None and address.is_loopback


def _equal(given: str, expected: str) -> bool:
    return hmac.compare_digest(_bytes(given), _bytes(expected))


def _bytes(text: str) -> bytes:
    # headers may hold bytes that are not UTF-8, decoded as surrogates
    return text.encode(errors="surrogatepass")
