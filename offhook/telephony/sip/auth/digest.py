"""Digest authentication, both sides: RFC 3261 §22, with the algorithms of RFC 8760.

The client answers whatever challenges a response carries and remembers them, so that the next
request brings its credentials along. The server keeps nothing per nonce it hands out: a nonce says
itself when it was made and that it is ours. Only what was used with a right password is kept, so
that nobody can use it twice.
"""

import hmac
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from offhook.telephony.sip.auth.credentials import Challenge, Credentials, answer, expected_response
from offhook.telephony.sip.bounded import remember
from offhook.telephony.sip.messages.grammar import SipError, quote
from offhook.telephony.sip.messages.headers import CSeq
from offhook.telephony.sip.messages.message import Request, Response

MAX_ROUNDS = 3
"""Answers to challenges for one request; a far end that asks for more is not going to agree."""
MAX_REALMS = 8
"""Realms a client remembers a nonce of; the one heard of longest ago is forgotten beyond that."""
MAX_CHAINS = 64
"""Requests of a client that may be waiting for the verdict on their credentials at once."""
MAX_NONCES = 4096
"""Nonces in use that a server remembers; beyond that the oldest one, and all older, are stale."""
NONCE_COUNT_WINDOW = 64
"""How far behind the highest one a nonce count may come and still be told from a repeated one:
requests of one client overtake one another on UDP."""

_HEX = frozenset("0123456789abcdef")
_PAIRS = (("WWW-Authenticate", "Authorization"), ("Proxy-Authenticate", "Proxy-Authorization"))


class _Realm(NamedTuple):
    """One protection space: the header that carries its credentials, and its realm."""

    header: str
    realm: str


@dataclass(slots=True)
class _Nonce:
    challenge: Challenge
    cnonce: str = field(repr=False)
    count: int = 0


@dataclass(slots=True)
class _Chain:
    """What has been answered on behalf of one request."""

    rounds: int = 0
    answered: set[_Realm] = field(default_factory=set)


class DigestClient:
    """Answers the challenges of one far end. `realm`: the only one that gets the password; "" any.

    One client serves one registration or one call; it holds the nonces, not the requests.
    """

    def __init__(self, username: str, password: str, realm: str = "") -> None:
        self._username = username
        self._password = password
        self._realm = realm
        self._nonces: OrderedDict[_Realm, _Nonce] = OrderedDict()
        self._chains: OrderedDict[tuple[str, int, str], _Chain] = OrderedDict()

    def authorize(self, response: Response, request: Request) -> Request | None:
        """`request` once more, with the answer to the challenges of its 401 or 407 `response`.

        CSeq counts up and Via is gone (RFC 3261 §22.2). None: asking again is no use. The
        credentials just given were refused although their nonce was not stale, no challenge is
        of a realm and an algorithm we know, or there were MAX_ROUNDS of them.
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
        self._put(again, _realms_of(request) | challenges.keys())
        remember(self._chains, (again.call_id, cseq.number + 1, again.method), chain, MAX_CHAINS)
        return again

    def preempt(self, request: Request) -> None:
        """Puts credentials for every realm heard of on a new request (RFC 3261 §22.2)."""
        self._put(request, set(self._nonces))

    def _challenges(self, response: Response) -> dict[_Realm, Challenge]:
        """The strongest answerable challenge of each realm that may have the password."""
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

    def _put(self, request: Request, realms: set[_Realm]) -> None:
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
    """The realms whose credentials are on a request; we wrote them, so they can be read."""
    return {
        _Realm(giving, Credentials.parse(value).realm)
        for _, giving in _PAIRS
        for value in request.headers.all(giving)
    }


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a request's credentials are good."""

    ok: bool
    username: str = ""
    """The user proved when ok, else the one claimed; "" when there were no credentials."""
    stale: bool = False
    """The nonce is too old, used already, or not from us: the challenge that follows says so, and
    the client answers without asking anybody."""


class DigestServer:
    """Challenges requests and checks the answers (RFC 3261 §22.1, RFC 8760 §2.3).

    A nonce is the time it was made, some random bytes and an HMAC over both and the address it was
    given to, with a key that lives as long as the process. `algorithms` are offered in this order,
    each in a header of its own, which RFC 8760 §2.4 bids clients to choose from. But JsSIP and sipp
    look at the first one only and know MD5 alone, and baresip 1.0 fails when SHA-256 stands
    anywhere: so that is not offered unless it is asked for.
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
        self._nobodys_password = secrets.token_hex(16)
        self._used: OrderedDict[str, _Used] = OrderedDict()
        self._stale_until = 0  # nonces made at or before this time, in ms, are stale

    def challenge(
        self, request: Request, now: float, stale: bool = False, source: str = ""
    ) -> list[tuple[str, str]]:
        """Headers for a 401 to `request`, which came from the address `source`; `stale` as the
        verdict on it says."""
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
        """Judges the credentials for our realm of a request from the address `source`. A user
        without a password never gets in.

        Of a nonce that was not given to that address nothing is said of the password: else
        passwords could be guessed with it in the name of others (RFC 7616 §3.3 allows that).

        The uri of the credentials is not compared with the Request-URI: proxies on the way
        rewrite that (RFC 3261 §22.4), and nothing is signed that could be used a second time.
        """
        credentials = self._credentials(request)
        if credentials is None:
            return Verdict(False)
        made = self._made_at(credentials.nonce, source)
        if made is None:
            return Verdict(False, credentials.username, stale=True)
        # An unknown user costs what a wrong password costs, so that the time tells nothing.
        password = password_of(credentials.username)
        expected = expected_response(
            credentials, request.method, password or self._nobodys_password
        )
        given = credentials.response.lower().encode("utf-8", "surrogateescape")
        right = hmac.compare_digest(expected.encode(), given)
        if not (right and password):
            return Verdict(False, credentials.username)
        fresh = self._use(credentials, made, now)
        return Verdict(fresh, credentials.username, stale=not fresh)

    def claimed(self, request: Request) -> str:
        """The user named by the credentials that `check` looks at, and by no others; "" without."""
        credentials = self._credentials(request)
        return "" if credentials is None else credentials.username

    def _credentials(self, request: Request) -> Credentials | None:
        """The first that are for us."""
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
        """ms of our clock when we made the nonce for `source`; None when we did not."""
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
        """Marks this nonce and nonce count as used; False when they may not be used (any more)."""
        if made <= self._stale_until:
            return False
        if now * 1000 - made > self._nonce_s * 1000:
            return False
        # without qop there is no count: such a nonce is good for one request
        count = _count_of(credentials) if credentials.qop else 1
        used = self._used.get(credentials.nonce)
        if used is None:
            used = self._used[credentials.nonce] = _Used(made)
            self._forget(now)
        return used.mark(count)

    def _forget(self, now: float) -> None:
        """Drops nonces too old to be used. Beyond MAX_NONCES live ones go too, and with them every
        nonce as old, lest one that was forgotten be taken for unused."""
        while self._used:
            oldest = next(iter(self._used.values()))
            old = now * 1000 - oldest.made > self._nonce_s * 1000
            if not old and len(self._used) <= MAX_NONCES:
                return
            self._used.popitem(last=False)
            if not old:
                self._stale_until = max(self._stale_until, oldest.made)


@dataclass(slots=True)
class _Used:
    """Which counts of one nonce have come."""

    made: int
    highest: int = 0
    seen: int = 0
    """Bit n: highest - n has come."""

    def mark(self, count: int) -> bool:
        """False when `count` has come before, or is too far back to tell."""
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
    """The nonce count; 0, which is never good, when it is none."""
    text = credentials.nonce_count
    if len(text) > 8 or not set(text.lower()) <= _HEX:
        return 0
    return int(text or "0", 16)
