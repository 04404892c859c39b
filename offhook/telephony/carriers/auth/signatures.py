"""What all providers' authentication of webhooks and stream connections shares.

Most providers sign the URL as they know it, which behind a proxy is not the URL that arrives here.
A request therefore comes with every URL it may have been sent to (`candidates`), and a signature
that matches any of them is accepted.

A signature does not prove that a request is new, so accepted ones are remembered (`Nonces`), and
the same request again is `Replayed`. Some providers' retries are identical to what they repeat,
those of others are signed anew; both get the answer that the first request got, see `answers`.
"""

import base64
import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_network
from urllib.parse import parse_qsl

from offhook.telephony.carriers.settings import CarrierSettings
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
_NO_HEADERS: Mapping[str, str] = {}


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

    def header(self, name: str) -> str:
        """Return a header field by its lower-case name. Raises Rejected if there is none."""
        value = self.headers.get(name, "")
        if not value:
            raise Rejected(f"no {name} header")
        return value

    def mismatch(self, settings: CarrierSettings) -> Rejected:
        """Return what to raise when the signature matches none of the URLs."""
        url = self.url_candidates[0].partition("?")[0] if self.url_candidates else "nothing"
        hint = "" if settings.public_url else ": check public_url"
        return Rejected(f"the signature does not match {url}{hint}")


class Nonces:
    """Remembers which signed requests of one carrier were accepted, at most MAX_SEEN."""

    def __init__(self) -> None:
        self._digests: dict[bytes, None] = {}

    def add(self, *texts: str) -> None:
        """Remember these texts. Raises Replayed if any of them was added before."""
        digests = [hashlib.sha256(utf8(text)).digest()[:16] for text in texts]
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
    """The authority as given, with its default port, and without a port: some omit even one that is
    not the default."""
    found = _AUTHORITY.fullmatch(authority)
    if found is None:
        return [authority]
    name, port = found[1], found[2] or ("443" if secure else "80")
    hosts = [authority, name, f"{name}:{port}"]
    return [*hosts, *(host.lower() for host in hosts)]


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
    return hmac.digest(utf8(settings.secret), utf8(text), hashlib.sha256).hex()[:32]


def check_password(settings: CarrierSettings, request: SignedRequest, user: str) -> None:
    """Check the `url_token`, or the user and the secret as a password (RFC 7617). Raises
    Rejected."""
    if equal(dict(request.query).get(TOKEN_PARAMETER, ""), url_token(settings)):
        return
    scheme, _, encoded = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        raise Rejected("neither a password nor a token")
    try:
        given, _, password = base64.b64decode(encoded, validate=True).partition(b":")
    except ValueError:
        raise Rejected("malformed Basic credentials") from None
    # compare both, so that timing does not reveal which one is wrong
    same_user = hmac.compare_digest(given, utf8(user))
    if not hmac.compare_digest(password, utf8(settings.secret)) or not same_user:
        raise Rejected("wrong user or password")


def check_address(settings: CarrierSettings, request: SignedRequest) -> None:
    """Check that the client has one of the configured addresses. Raises Rejected."""
    if not is_listed(settings, request.peer):
        raise Rejected(f"{request.peer or 'an unknown address'} is not in addresses")


def check_age(signed: float, now: float) -> None:
    """Check a signature's time against WINDOW_S, both in Unix time. Raises Rejected."""
    if now - signed > WINDOW_S:
        raise Rejected(f"signed {now - signed:.0f} s ago")
    if signed - now > WINDOW_S:
        raise Rejected(f"signed {signed - now:.0f} s in the future")


def _pairs(text: str) -> Pairs:
    try:
        return tuple(parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FIELDS))
    except ValueError:
        raise Rejected(f"more than {MAX_FIELDS} fields") from None


def is_loopback(peer: str) -> bool:
    address = read_address(peer)
    return address is not None and address.is_loopback


def equal(given: str, expected: str) -> bool:
    """Return whether two texts are the same, in a time that reveals nothing about them."""
    return hmac.compare_digest(utf8(given), utf8(expected))


def utf8(text: str) -> bytes:
    """Return the bytes of a text."""
    # headers may hold bytes that are not UTF-8, decoded as surrogates
    return text.encode(errors="surrogatepass")
