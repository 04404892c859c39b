"""Challenges and credentials of digest authentication: parsing, formatting and hashing.

RFC 2617, RFC 7616 and the parts of RFC 8760 that apply to SIP. The parser is written by hand and
linear: the input comes from anybody, before authentication.
"""

import hashlib
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from offhook.telephony.sip.messages.grammar import SipError, end_of_quoted, is_token, quote, unquote

MAX_PARAMETERS = 32
"""Maximum parameters in a challenge or in credentials, of which RFC 7616 defines 13; with more the
challenge or the credentials are ignored."""

_HASHES: Mapping[str, Callable[[bytes], "hashlib._Hash"]] = {
    # a FIPS build of OpenSSL has no MD5 for security purposes
    "md5": partial(hashlib.md5, usedforsecurity=False),
    "sha-256": hashlib.sha256,
}
_STRENGTH = {"sha-256-sess": 3, "sha-256": 2, "md5-sess": 1, "md5": 0}
_CONTROLS = frozenset(map(chr, (*range(9), *range(10, 32), 127)))


def parse_parameters(value: str) -> tuple[str, dict[str, str]]:
    """Return scheme and parameters of a challenge or credentials, in linear time.

    Names are in lower case, values unquoted. Raises SipError if it is malformed or a parameter is
    repeated (RFC 3261 §20.7).
    """
    if not _CONTROLS.isdisjoint(value):
        raise SipError("control characters in a challenge or credentials")
    scheme, _, rest = value.replace("\t", " ").strip().partition(" ")
    if not is_token(scheme):
        raise SipError("a challenge or credentials without a scheme")
    parameters: dict[str, str] = {}
    at = _skip(rest, 0)
    while at < len(rest):
        equals = rest.find("=", at)
        name = rest[at:equals].strip().lower() if equals > 0 else ""
        if not is_token(name):
            raise SipError("a parameter of a challenge or of credentials is not name=value")
        if len(parameters) == MAX_PARAMETERS:
            raise SipError(f"a challenge or credentials with more than {MAX_PARAMETERS} parameters")
        if name in parameters:
            raise SipError(f"{name} is repeated in a challenge or credentials")
        at = _skip(rest, equals + 1)
        if rest.startswith('"', at):
            end = end_of_quoted(rest, at)
            parameters[name], at = unquote(rest[at:end]), end
        else:
            end = rest.find(",", at)
            end = len(rest) if end < 0 else end
            parameters[name], at = rest[at:end].strip(), end
        at = _skip(rest, at)
        if at < len(rest) and rest[at] != ",":
            raise SipError(f"no comma after {name} in a challenge or credentials")
        while at < len(rest) and rest[at] in ", ":
            at += 1
    return scheme, parameters


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] == " ":
        at += 1
    return at


@dataclass(frozen=True, slots=True)
class Challenge:
    """A challenge from a (WWW|Proxy)-Authenticate header (RFC 7616 §3.3)."""

    realm: str
    nonce: str
    algorithm: str = ""
    """As the server spells it; "" if none is given, which means MD5."""
    qop: tuple[str, ...] = ()
    opaque: str | None = None
    stale: bool = False

    @classmethod
    def parse(cls, value: str) -> "Challenge":
        """Parse a header value. Raises SipError unless it is a Digest challenge with realm and
        nonce."""
        scheme, parameters = parse_parameters(value)
        if scheme.lower() != "digest":
            raise SipError("a challenge of another scheme than Digest")
        if "realm" not in parameters or not parameters.get("nonce"):
            raise SipError("a challenge without a realm or a nonce")
        return cls(
            parameters["realm"],
            parameters["nonce"],
            parameters.get("algorithm", ""),
            tuple(q.strip().lower() for q in parameters.get("qop", "").split(",") if q.strip()),
            parameters.get("opaque"),
            parameters.get("stale", "").lower() == "true",
        )

    @property
    def answerable(self) -> bool:
        """Whether we support its algorithm and one of its qop values."""
        return _known(self.algorithm) and (not self.qop or bool(self._chosen_qop()))

    @property
    def strength(self) -> int:
        """Strength of its algorithm, to choose between answerable challenges; higher is better."""
        return _STRENGTH[self.algorithm.lower() or "md5"]

    def _chosen_qop(self) -> str:
        return next((q for q in ("auth", "auth-int") if q in self.qop), "")


@dataclass(frozen=True, slots=True)
class Credentials:
    """Credentials from an Authorization header (RFC 7616 §3.4)."""

    username: str
    realm: str
    uri: str
    nonce: str = field(repr=False)
    response: str = field(repr=False)
    algorithm: str = ""
    qop: str = ""
    nonce_count: str = ""
    cnonce: str = field(default="", repr=False)

    @classmethod
    def parse(cls, value: str) -> "Credentials":
        """Parse a header value. Raises SipError if it is not Digest or lacks a required
        parameter."""
        scheme, parameters = parse_parameters(value)
        if scheme.lower() != "digest":
            raise SipError("credentials of another scheme than Digest")
        try:
            required = [parameters[n] for n in ("username", "realm", "uri", "nonce", "response")]
        except KeyError as error:
            raise SipError(f"credentials without {error.args[0]}") from None
        optional = [parameters.get(n, "") for n in ("algorithm", "qop", "nc", "cnonce")]
        return cls(*required, *optional)


def answer(
    challenge: Challenge,
    method: str,
    uri: str,
    username: str,
    password: str,
    body: bytes = b"",
    nonce_count: int = 1,
    cnonce: str | None = None,
) -> str:
    """Return the Authorization header value that answers `challenge` (RFC 7616 §3.4).

    `cnonce` is random if None; with a -sess algorithm it must stay the same as long as the nonce
    does. Raises SipError if the challenge is not answerable.
    """
    if not challenge.answerable:
        raise SipError(f"cannot answer {challenge.algorithm or 'MD5'} with qop {challenge.qop}")
    qop = challenge._chosen_qop()
    count = f"{nonce_count:08x}"
    if cnonce is None:
        cnonce = secrets.token_hex(16)
    a1 = _a1(challenge.algorithm, username, challenge.realm, password, challenge.nonce, cnonce)
    a2 = _a2(challenge.algorithm, method, uri, qop, body)
    response = _response(challenge.algorithm, a1, challenge.nonce, count, cnonce, qop, a2)
    parts = [
        f"username={quote(username)}",
        f"realm={quote(challenge.realm)}",
        f"nonce={quote(challenge.nonce)}",
        f"uri={quote(uri)}",
        f'response="{response}"',
    ]
    if challenge.algorithm:
        parts.append(f"algorithm={challenge.algorithm}")
    if qop or _is_session(challenge.algorithm):
        parts.append(f"cnonce={quote(cnonce)}")
    if qop:
        parts += [f"qop={qop}", f"nc={count}"]
    if challenge.opaque is not None:
        parts.append(f"opaque={quote(challenge.opaque)}")
    return "Digest " + ", ".join(parts)


def _known(algorithm: str) -> bool:
    return (algorithm.lower() or "md5") in _STRENGTH


def _is_session(algorithm: str) -> bool:
    return algorithm.lower().endswith("-sess")


def _hash(algorithm: str, *parts: str | bytes) -> str:
    """Hex digest of the parts, joined by colons."""
    data = b":".join(
        part if isinstance(part, bytes) else part.encode("utf-8", "surrogateescape")
        for part in parts
    )
    return _HASHES[algorithm.lower().removesuffix("-sess") or "md5"](data).hexdigest()


def _a1(algorithm: str, username: str, realm: str, password: str, nonce: str, cnonce: str) -> str:
    a1 = _hash(algorithm, username, realm, password)
    return _hash(algorithm, a1, nonce, cnonce) if _is_session(algorithm) else a1


def _a2(algorithm: str, method: str, uri: str, qop: str, body: bytes) -> str:
    if qop == "auth-int":
        return _hash(algorithm, method, uri, _hash(algorithm, body))
    return _hash(algorithm, method, uri)


def _response(
    algorithm: str, a1: str, nonce: str, count: str, cnonce: str, qop: str, a2: str
) -> str:
    if qop:
        return _hash(algorithm, a1, nonce, count, cnonce, qop, a2)
    return _hash(algorithm, a1, nonce, a2)  # RFC 2069, for servers without qop


def expected_response(credentials: Credentials, method: str, password: str) -> str:
    """Return the correct response for these credentials, with qop auth or none and a supported
    algorithm (RFC 7616 §3.4.1)."""
    algorithm, nonce, cnonce = credentials.algorithm, credentials.nonce, credentials.cnonce
    a1 = _a1(algorithm, credentials.username, credentials.realm, password, nonce, cnonce)
    a2 = _a2(algorithm, method, credentials.uri, "", b"")
    count, qop = credentials.nonce_count, credentials.qop
    return _response(algorithm, a1, nonce, count, cnonce, qop, a2)
