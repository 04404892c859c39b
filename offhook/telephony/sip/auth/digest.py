"""Digest authentication, client and server: RFC 3261 §22, with the algorithms of RFC 8760.

The client answers the challenges in a response and remembers them, so that the next request carries
credentials at once. The server keeps no state for nonces it issues: a nonce carries its creation
time and a signature. Only nonces used with a right password are stored, to prevent replay.
"""

import hmac
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from offhook.telephony.sip.auth.credentials import Challenge, Credentials, answer, expected_response
from offhook.telephony.sip.bounded import remember
from offhook.telephony.sip.messages.grammar import SipError, quote
from offhook.telephony.sip.messages.headers import CSeq
from offhook.telephony.sip.messages.message import Request, Response

MAX_ROUNDS = 3
"""Challenges answered for one request; after that the request has failed, as the server will not
accept it."""
MAX_REALMS = 8
"""Realms whose nonces a client remembers; the least recently seen is forgotten beyond that."""
MAX_CHAINS = 64
"""Requests of a client that may await the result of their credentials at once; beyond that the
oldest is forgotten, and its next challenge counts as its first."""
MAX_NONCES = 4096
"""Nonces in use that a server remembers; beyond that the oldest, and all as old, become stale."""
NONCE_COUNT_WINDOW = 64
"""How far a nonce count may lag behind the highest and still be recognized as unused: requests may
be reordered over UDP."""

_HEX = frozenset("0123456789abcdef")
_PAIRS = (("WWW-Authenticate", "Authorization"), ("Proxy-Authenticate", "Proxy-Authorization"))


class _Realm(NamedTuple):
    """A protection space: the header that carries its credentials, and its realm."""

    header: str
    realm: str


@dataclass(slots=True)
class _Nonce:
    challenge: Challenge
    cnonce: str = field(repr=False)
    count: int = 0


@dataclass(slots=True)
class _Chain:
    """The challenges answered on behalf of one request."""

    rounds: int = 0
    answered: set[_Realm] = field(default_factory=set)


def unknown_algorithms(response: Response) -> str:
    """Return the algorithms that a 401 or 407 asks for, "AKAv1-MD5", if none is supported here; ""
    if one is, or if it has no Digest challenge."""
    challenges = []
    for asking, _ in _PAIRS:
        for value in response.headers.all(asking):
            with suppress(SipError):
                challenges.append(Challenge.parse(value))
    if any(challenge.answerable for challenge in challenges):
        return ""
    return ", ".join(c.algorithm or f"qop {'/'.join(c.qop)}" for c in challenges)


class DigestClient:
    """Answers the challenges of one far end. The password is only sent for `realm`; "" means any.

    One client serves one registration or one call; it stores nonces, not requests.
    """

    def __init__(self, username: str, password: str, realm: str = "") -> None:
        self._username = username
        self._password = password
        self._realm = realm
        self._nonces: OrderedDict[_Realm, _Nonce] = OrderedDict()
        self._chains: OrderedDict[tuple[str, int, str], _Chain] = OrderedDict()

    def authorize(self, response: Response, request: Request) -> Request | None:
        """Return `request` with credentials for the challenges of its 401 or 407 `response`.

        CSeq is incremented and Via removed (RFC 3261 §22.2). Returns None if retrying is pointless:
        the credentials were just refused with a nonce that is not stale, no challenge has a realm
        and algorithm we can use, or MAX_ROUNDS is reached.
        """
        cseq = request.cseq
        chain = self._chains.pop((request.call_id, cseq.number, request.method), _Chain())
        challenges = self._challenges(response)
        if not challenges or chain.rounds >= MAX_ROUNDS:
            return None
        for realm, challenge in challenges.items():
            if realm in chain.answered and not challenge.stale:
                return None
        chain.rounds += 1
        chain.answered |= challenges.keys()
        for realm, challenge in challenges.items():
            remember(self._nonces, realm, _Nonce(challenge, secrets.token_hex(16)), MAX_REALMS)
        again = Request(request.method, request.uri, request.headers.copy(), request.body)
        again.headers.remove("Via")
        again.headers.set("CSeq", str(CSeq(cseq.number + 1, cseq.method)))
        self._add_credentials(again, _realms_of(request) | challenges.keys())
        remember(self._chains, (again.call_id, cseq.number + 1, again.method), chain, MAX_CHAINS)
        return again

    def preempt(self, request: Request) -> None:
        """Add credentials for every known realm to a new request (RFC 3261 §22.2)."""
        self._add_credentials(request, set(self._nonces))

    def _challenges(self, response: Response) -> dict[_Realm, Challenge]:
        """The strongest answerable challenge of each realm that may receive the password."""
        best: dict[_Realm, Challenge] = {}
        for asking, giving in _PAIRS:
            for value in response.headers.all(asking):
                try:
                    challenge = Challenge.parse(value)
                except SipError:
                    continue
                realm = _Realm(giving, challenge.realm)
                if not challenge.answerable or self._realm not in ("", challenge.realm):
                    continue
                if realm not in best or challenge.strength > best[realm].strength:
                    best[realm] = challenge
        return best

    def _add_credentials(self, request: Request, realms: set[_Realm]) -> None:
        for _, giving in _PAIRS:
            request.headers.remove(giving)
        for realm, nonce in self._nonces.items():
            if realm not in realms:
                continue
            nonce.count += 1
            value = answer(
                nonce.challenge,
                request.method,
                str(request.uri),
                self._username,
                self._password,
                request.body,
                nonce.count,
                nonce.cnonce,
            )
            request.headers.add(realm.header, value)


def _realms_of(request: Request) -> set[_Realm]:
    """The realms whose credentials are on a request, which we wrote ourselves."""
    return {
        _Realm(giving, Credentials.parse(value).realm)
        for _, giving in _PAIRS
        for value in request.headers.all(giving)
    }


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of checking a request's credentials."""

    ok: bool
    username: str = ""
    """The authenticated user if ok, else the one claimed; "" without credentials."""
    stale: bool = False
    """The nonce is expired, already used, or not ours: the next challenge says so, and the client
    retries without asking the user."""


class DigestServer:
    """Challenges requests and checks the credentials (RFC 3261 §22.1, RFC 8760 §2.3).

    A nonce consists of its creation time, random bytes, and an HMAC over both and the address it
    was given to, with a key that lives as long as the process. `algorithms` are offered in this
    order, each in its own header, from which clients should choose (RFC 8760 §2.4). But JsSIP and
    sipp read only the first and support only MD5, and baresip 1.0 fails if SHA-256 is present at
    all: so SHA-256 is offered only on request.
    """

    def __init__(
        self,
        realm: str,
        algorithms: Sequence[str] = ("MD5",),
        nonce_s: float = 30,
    ) -> None:
        self._realm = realm
        self._algorithms = tuple(algorithms)
        self._nonce_s = nonce_s
        self._key = secrets.token_bytes(32)
        self._dummy_password = secrets.token_hex(16)
        self._used: OrderedDict[str, _NonceUse] = OrderedDict()
        self._stale_until = 0  # nonces created at or before this time, in ms, are stale

    def challenge(
        self, request: Request, now: float, stale: bool = False, source: str = ""
    ) -> list[tuple[str, str]]:
        """Return the headers of a 401 to `request`, which came from the address `source`; pass
        `stale` from the verdict on it."""
        nonce = self._make_nonce(source, now)
        return [
            (
                "WWW-Authenticate",
                f'Digest realm={quote(self._realm)}, nonce="{nonce}", algorithm={algorithm}, '
                f'qop="auth"' + (", stale=true" if stale else ""),
            )
            for algorithm in self._algorithms
        ]

    def check(
        self,
        request: Request,
        password_of: Callable[[str], str | None],
        now: float,
        source: str = "",
    ) -> Verdict:
        """Check a request's credentials for our realm; `source` is the address it came from. A user
        without a password is never accepted.

        For a nonce issued to another address nothing is revealed about the password: otherwise it
        could be used to guess passwords in somebody else's name (RFC 7616 §3.3 allows this).

        The uri of the credentials is not compared with the Request-URI: proxies rewrite the latter
        (RFC 3261 §22.4), and credentials cannot be reused anyway.
        """
        credentials = self._credentials(request)
        if credentials is None:
            return Verdict(False)
        made = self._made_at(credentials.nonce, source)
        if made is None:
            return Verdict(False, credentials.username, stale=True)
        # An unknown user costs as much as a wrong password, so that timing reveals nothing.
        password = password_of(credentials.username)
        expected = expected_response(credentials, request.method, password or self._dummy_password)
        given = credentials.response.lower().encode("utf-8", "surrogateescape")
        right = hmac.compare_digest(expected.encode(), given)
        if not (right and password):
            return Verdict(False, credentials.username)
        fresh = self._use(credentials, made, now)
        return Verdict(fresh, credentials.username, stale=not fresh)

    def claimed_username(self, request: Request) -> str:
        """Return the user named by the credentials that `check` examines; "" without
        credentials."""
        credentials = self._credentials(request)
        return "" if credentials is None else credentials.username

    def _credentials(self, request: Request) -> Credentials | None:
        """The first credentials for our realm."""
        offered = {algorithm.lower() for algorithm in self._algorithms}
        for value in request.headers.all("Authorization"):
            try:
                credentials = Credentials.parse(value)
            except SipError:
                continue
            if (
                credentials.realm == self._realm
                and (credentials.algorithm.lower() or "md5") in offered
                and credentials.qop.lower() in ("", "auth")
            ):
                return credentials
        return None

    def _make_nonce(self, source: str, now: float) -> str:
        made = int(now * 1000).to_bytes(8, "big") + secrets.token_bytes(8)
        return urlsafe_b64encode(made + self._signature(made, source)).decode()

    def _signature(self, made: bytes, source: str) -> bytes:
        return hmac.digest(self._key, made + f"{source} {self._realm}".encode(), "sha256")[:16]

    def _made_at(self, nonce: str, source: str) -> int | None:
        """Creation time of the nonce in ms of our clock; None if we did not issue it to
        `source`."""
        try:
            data = urlsafe_b64decode(nonce)
        except (Base64Error, ValueError):
            return None
        if len(data) != 32:
            return None
        if not hmac.compare_digest(data[16:], self._signature(data[:16], source)):
            return None
        return int.from_bytes(data[:8], "big")

    def _use(self, credentials: Credentials, made: int, now: float) -> bool:
        """Mark the nonce and nonce count as used. Returns False if they may not be used (any
        more)."""
        if made <= self._stale_until:
            return False
        if now * 1000 - made > self._nonce_s * 1000:
            return False
        # without qop there is no count: such a nonce is valid for one request
        count = _count_of(credentials) if credentials.qop else 1
        used = self._used.get(credentials.nonce)
        if used is None:
            used = self._used[credentials.nonce] = _NonceUse(made)
            self._expire(now)
        return used.mark(count)

    def _expire(self, now: float) -> None:
        """Drop expired nonces. Beyond MAX_NONCES valid ones go too, and all as old become stale,
        lest a forgotten one pass as unused."""
        while self._used:
            oldest = next(iter(self._used.values()))
            old = now * 1000 - oldest.made > self._nonce_s * 1000
            if not old and len(self._used) <= MAX_NONCES:
                return
            self._used.popitem(last=False)
            if not old:
                self._stale_until = max(self._stale_until, oldest.made)


@dataclass(slots=True)
class _NonceUse:
    """The nonce counts used with one nonce."""

    made: int
    highest: int = 0
    seen: int = 0
    """Bit n: highest - n has been used."""

    def mark(self, count: int) -> bool:
        """Mark `count` as used. Returns False if it was used before or is too far back to tell."""
        if count > self.highest:
            ahead = min(count - self.highest, NONCE_COUNT_WINDOW)
            self.seen = (self.seen << ahead | 1) & ((1 << NONCE_COUNT_WINDOW) - 1)
            self.highest = count
            return True
        behind = self.highest - count
        if count < 1 or behind >= NONCE_COUNT_WINDOW or self.seen >> behind & 1:
            return False
        self.seen |= 1 << behind
        return True


def _count_of(credentials: Credentials) -> int:
    """The nonce count; 0, which is never valid, if it is malformed."""
    text = credentials.nonce_count
    if len(text) > 8 or not set(text.lower()) <= _HEX:
        return 0
    return int(text or "0", 16)
