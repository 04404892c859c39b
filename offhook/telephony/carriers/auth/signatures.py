"""Who may post a webhook and open a stream: the signatures of the providers, one function each.

Most sign the URL by their own idea of it, which is not what arrives here when a proxy stands in
between. So a request comes with every URL it may have been sent to (`candidates`), and one that
fits is enough: whoever cannot sign cannot sign any of them.

A signature says who speaks, not that he says it for the first time. What was accepted once is
remembered (`Seen`) where the provider's signatures differ from request to request. Twilio's do
not, and its second tries are the same bytes: there the stream's ticket is what is used up.
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
from offhook.telephony.carriers.auth.json_web_token import is_time, read_token
from offhook.telephony.carriers.settings import CarrierSettings, Provider
from offhook.telephony.sip.trunks.trunks import read_address

WINDOW_S = 300
"""A signature with a time of its own is good for so long, in both directions: clocks differ."""
MAX_SEEN = 10_000
"""Requests remembered of one carrier; then the oldest is forgotten. Only what was signed is
remembered, so nobody but the provider can push anything out."""
MAX_BODY_BYTES = 65536
"""Of a webhook."""
MAX_FIELDS = 200
"""Of a webhook's form, and of a query."""

TOKEN_PARAMETER = "token"
"""Of a URL's query, see url_token."""

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


class Refused(Exception):
    """The request is not from whom it says. The text is for our log; the peer is told nothing."""


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """A webhook, or the upgrade that opens a stream, as its signature sees it."""

    method: str
    url_candidates: tuple[str, ...]
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Names in lower case."""
    body: bytes = field(default=b"", repr=False)
    query: Pairs = field(default=(), repr=False)
    form: Pairs = field(default=(), repr=False)
    """Of a body that is a form; repeated names stay."""
    peer: str = ""
    """IP address of who asks; "" when somebody we do not know stands in between."""

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
        """From what a server knows of a request: `path_qs` is the target as it came, not decoded,
        `peer` the socket's. Refused when it is larger than any webhook is."""
        joined: dict[str, str] = {}
        for name, value in headers:
            key = name.lower()
            joined[key] = f"{joined[key]}, {value.strip()}" if key in joined else value.strip()
        if len(body) > MAX_BODY_BYTES:
            raise Refused(f"a body of {len(body)} bytes")
        kind = joined.get("content-type", "").partition(";")[0].strip().lower()
        is_form = kind == "application/x-www-form-urlencoded"
        if settings.trust_proxy and "x-forwarded-for" in joined:
            # the last is what our proxy saw; those before it are what it was told
            peer = joined["x-forwarded-for"].rpartition(",")[2].strip()
        elif "x-forwarded-for" in joined or "forwarded" in joined:
            peer = ""
        return cls(
            method.upper(),
            candidates(settings, scheme, host, path_qs, joined, upgrade),
            joined,
            body,
            _pairs(path_qs.partition("?")[2]),
            _pairs(body.decode(errors="replace")) if is_form else (),
            peer,
        )


class Seen:
    """What one carrier has signed and we have taken. Bounded by MAX_SEEN."""

    def __init__(self) -> None:
        self._digests: dict[bytes, None] = {}

    def add(self, *texts: str) -> None:
        """Refused when one of them was added before."""
        digests = [hashlib.sha256(_bytes(text)).digest()[:16] for text in texts]
        if any(digest in self._digests for digest in digests):
            raise Refused("it was sent before")
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
    with and without a slash at the end, and for an upgrade as wss as well as https."""
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
    """As it is, with the port that goes without saying, and without any: Twilio leaves out even
    one that has to be said."""
    found = _AUTHORITY.fullmatch(authority)
    if found is None:
        return [authority]
    name, port = found[1], found[2] or ("443" if secure else "80")
    hosts = [authority, name, f"{name}:{port}"]
    return [*hosts, *(host.lower() for host in hosts)]


def verify(settings: CarrierSettings, request: SignedRequest, now: float, seen: Seen) -> None:
    """Refused unless the provider sent it. `now` is the time of day in s, `seen` this carrier's."""
    if settings.insecure:
        # An empty secret would be anybody's to sign with, so nothing is verified here, either.
        if not _is_loopback(request.peer):
            raise Refused("insecure takes requests of this machine only")
        return
    _CHECKS[settings.provider](settings, request, now, seen)


def is_listed(settings: CarrierSettings, peer: str) -> bool:
    """Whether `peer` is one of the addresses that need no password."""
    address = read_address(peer)
    return address is not None and any(
        address in ip_network(network, strict=False) for network in settings.addresses
    )


def url_token(settings: CarrierSettings) -> str:
    """What a URL of ours carries as TOKEN_PARAMETER where the provider can neither sign nor send a
    password. It says nothing about the secret it is made of."""
    text = f"offhook carrier {settings.name}"
    return hmac.digest(_bytes(settings.secret), _bytes(text), hashlib.sha256).hex()[:32]


def _twilio(settings: CarrierSettings, request: SignedRequest, now: float, seen: Seen) -> None:
    """HMAC over the URL and the form's fields in order of their names. With any other body the URL
    has the body's hash in its query."""
    given = _header(request, "x-twilio-signature")
    # Webhooks signed with a shared key, not the auth token, say with which hash.
    told = request.headers.get("x-twilio-webhooks-signature-settings", "")
    algorithm = hashlib.sha256 if "algorithm=HMAC_SHA256" in told else hashlib.sha1
    if request.body and not request.form:
        digest = dict(request.query).get("bodySHA256", "")
        if not _same(digest.lower(), hashlib.sha256(request.body).hexdigest()):
            raise Refused("the body is not the one that was signed")
    fields = "".join(name + value for name, value in sorted(set(request.form)))
    for url in request.url_candidates:
        made = hmac.digest(_bytes(settings.secret), _bytes(url + fields), algorithm)
        if _same(given, base64.b64encode(made).decode()):
            return
    raise _mismatch(settings, request)


def _telnyx(settings: CarrierSettings, request: SignedRequest, now: float, seen: Seen) -> None:
    """Ed25519 over the time and the body; not over the URL, so what stands there is no evidence."""
    given = _header(request, "telnyx-signature-ed25519")
    timestamp = _header(request, "telnyx-timestamp")
    if not _TIMESTAMP.fullmatch(timestamp):
        raise Refused("telnyx-timestamp is not a time")
    if not request.body:
        raise Refused("nothing in it is signed: Telnyx must be told to POST")
    _check_age(float(timestamp), now)
    try:
        signature = base64.b64decode(given, validate=True)
        key = Ed25519PublicKey.from_public_bytes(base64.b64decode(settings.secret))
        key.verify(signature, _bytes(timestamp) + b"|" + request.body)
    except (ValueError, InvalidSignature):
        raise Refused("the signature is not of Telnyx's key") from None
    seen.add(f"{timestamp}|{hashlib.sha256(request.body).hexdigest()}")


def _plivo(settings: CarrierSettings, request: SignedRequest, now: float, seen: Seen) -> None:
    """HMAC over URL, fields and a nonce (V3), by the account and by the main account above it.
    Where there is no V3: over URL and nonce alone (V2)."""
    version = "v3" if "x-plivo-signature-v3-nonce" in request.headers else "v2"
    nonce = _header(request, f"x-plivo-signature-{version}-nonce")
    names = (f"x-plivo-signature-{version}", f"x-plivo-signature-ma-{version}")
    given = [s.strip() for name in names for s in request.headers.get(name, "").split(",")]
    if not any(given):
        raise Refused(f"no {names[0]} header")
    if request.body and not request.form:
        raise Refused("its body is not a form: it is not signed")
    for url in request.url_candidates:
        if version == "v3":
            text = f"{_plivo_base(url, request)}.{nonce}"
        else:
            text = url.partition("?")[0] + nonce
        made = hmac.digest(_bytes(settings.secret), _bytes(text), hashlib.sha256)
        expected = base64.b64encode(made).decode()
        if any([_same(signature, expected) for signature in given]):
            break
    else:
        raise _mismatch(settings, request)
    # Both nonces: else what came with V3 could come once more, with its V2 alone.
    nonces = (request.headers.get(f"x-plivo-signature-{v}-nonce", "") for v in ("v2", "v3"))
    seen.add(*(set(nonces) - {""}))


def _plivo_base(url: str, request: SignedRequest) -> str:
    """The URL with its query in order, then the fields in order, run together."""
    base = url.partition("?")[0]
    query = "&".join(f"{name}={value}" for name, value in sorted(request.query))
    if request.method == "GET" or not request.form:
        return f"{base}?{query}" if query else base
    fields = "".join(name + value for name, value in sorted(request.form))
    return f"{base}?{query}{'.' if query else ''}{fields}"


def _vonage(settings: CarrierSettings, request: SignedRequest, now: float, seen: Seen) -> None:
    """A JWT (HS256) with a hash of the content among its claims."""
    scheme, _, token = _header(request, "authorization").partition(" ")
    if scheme.lower() != "bearer":
        raise Refused("no signed token in Authorization")
    try:
        claims, signed = read_token(token.strip(), _bytes(settings.secret))
    except ValueError as error:
        raise Refused(str(error)) from None
    issued, expires = claims.get("iat"), claims.get("exp", now + 1)
    if not is_time(issued) or not is_time(expires):
        raise Refused("the token has no time")
    _check_age(issued, now)
    if expires <= now:
        raise Refused("the token has expired")
    application = claims.get("application_id", settings.account)
    if settings.account and application != settings.account:
        raise Refused("the token is for another application")
    _check_payload(claims.get("payload_hash"), request)
    seen.add(signed)


def _check_payload(claimed: object, request: SignedRequest) -> None:
    if claimed is None and not request.body:
        return
    contents = [request.body]
    if not request.body:  # of a GET it is the query that is hashed, written as JSON
        query = json.dumps(dict(request.query), separators=(",", ":"), ensure_ascii=False)
        contents.append(_bytes(query))
    hashes = [hashlib.sha256(content).hexdigest() for content in contents]
    if not isinstance(claimed, str) or not any(_same(claimed.lower(), h) for h in hashes):
        raise Refused("the body is not the one that was signed")


def _genesys(settings: CarrierSettings, request: SignedRequest, now: float, seen: Seen) -> None:
    """HTTP message signature over the upgrade, with the client secret."""
    if not _same(_header(request, "x-api-key"), settings.api_key):
        raise Refused("another API key")
    organization = request.headers.get("audiohook-organization-id", "")
    if settings.account and organization != settings.account:
        raise Refused("another organization")
    headers = (_header(request, "signature-input"), _header(request, "signature"))
    try:
        signatures = parse_signatures(*headers)
    except ValueError as error:
        raise Refused(str(error)) from None
    reason = ""
    for signature in signatures:
        try:
            _check_audiohook(settings, request, signature, now)
        except Refused as error:
            reason = str(error)
            continue
        seen.add(str(signature.parameters["nonce"]))
        return
    raise Refused(reason)


def _check_audiohook(
    settings: CarrierSettings, request: SignedRequest, signature: HttpSignature, now: float
) -> None:
    parameters = signature.parameters
    missing = _AUDIOHOOK_COMPONENTS.difference(signature.components)
    if missing:
        raise Refused(f"the signature does not cover {', '.join(sorted(missing))}")
    unknown = [c for c in signature.components if c.startswith("@")]
    if not _AUDIOHOOK_COMPONENTS.issuperset(unknown):
        raise Refused("the signature covers what is not known here")
    if parameters.get("alg", "hmac-sha256") != "hmac-sha256":
        raise Refused("the signature is not made with hmac-sha256")
    if not _same(str(parameters.get("keyid", "")), settings.api_key):
        raise Refused("the signature is made with another key")
    created, expires = parameters.get("created"), parameters.get("expires", now + 1)
    if not isinstance(created, int) or isinstance(expires, str):
        raise Refused("the signature has no time")
    if not isinstance(parameters.get("nonce"), str):
        raise Refused("the signature has no nonce")
    _check_age(created, now)
    if expires <= now:
        raise Refused("the signature has expired")
    secret = base64.b64decode(settings.secret)
    for url in request.url_candidates:
        authority, slash, target = url.partition("://")[2].partition("/")
        values = {**request.headers, "@authority": authority, "@request-target": slash + target}
        try:
            if signature.is_of(secret, values):
                return
        except KeyError as error:
            raise Refused(f"the signature covers {error}, which is not there") from None
    raise _mismatch(settings, request)


def _password(settings: CarrierSettings, request: SignedRequest, now: float, seen: Seen) -> None:
    """No signature: a password (RFC 7617), the token in the URL, or for Asterisk its address."""
    if settings.provider == "chan_websocket" and is_listed(settings, request.peer):
        return
    if not settings.secret:
        raise Refused(f"{request.peer or 'an unknown address'} is not one of the addresses")
    if _same(dict(request.query).get(TOKEN_PARAMETER, ""), url_token(settings)):
        return
    scheme, _, encoded = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        raise Refused("neither a password nor a token")
    try:
        user, _, password = base64.b64decode(encoded, validate=True).partition(b":")
    except ValueError:
        raise Refused("the password cannot be read") from None
    expected = settings.api_key if settings.provider == "exotel" else settings.account
    # both are compared, so that the time does not tell which of them is wrong
    same_user = hmac.compare_digest(user, _bytes(expected))
    if not hmac.compare_digest(password, _bytes(settings.secret)) or not same_user:
        raise Refused("a wrong user or password")


def _address(settings: CarrierSettings, request: SignedRequest, now: float, seen: Seen) -> None:
    if not is_listed(settings, request.peer):
        raise Refused(f"{request.peer or 'an unknown address'} is not one of the addresses")


_CHECKS: Mapping[Provider, Callable[[CarrierSettings, SignedRequest, float, Seen], None]] = {
    "twilio": _twilio,
    "telnyx": _telnyx,
    "plivo": _plivo,
    "vonage": _vonage,
    "exotel": _password,
    "genesys": _genesys,
    "audiosocket": _address,
    "chan_websocket": _password,
}


def _mismatch(settings: CarrierSettings, request: SignedRequest) -> Refused:
    url = request.url_candidates[0].partition("?")[0] if request.url_candidates else "nothing"
    if settings.public_url:
        return Refused(f"the signature does not fit {url}")
    return Refused(f"the signature does not fit {url}; is public_url what the provider calls?")


def _check_age(signed: float, now: float) -> None:
    if now - signed > WINDOW_S:
        raise Refused(f"it was signed {now - signed:.0f} s ago")
    if signed - now > WINDOW_S:
        raise Refused(f"it was signed {signed - now:.0f} s in the future")


def _header(request: SignedRequest, name: str) -> str:
    value = request.headers.get(name, "")
    if not value:
        raise Refused(f"no {name} header")
    return value


def _pairs(text: str) -> Pairs:
    try:
        return tuple(parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FIELDS))
    except ValueError:
        raise Refused(f"more than {MAX_FIELDS} fields") from None


def _is_loopback(peer: str) -> bool:
    address = read_address(peer)
    return address is not None and address.is_loopback


def _same(given: str, expected: str) -> bool:
    return hmac.compare_digest(_bytes(given), _bytes(expected))


def _bytes(text: str) -> bytes:
    # headers may hold bytes that are not UTF-8; they stand there as surrogates
    return text.encode(errors="surrogatepass")
