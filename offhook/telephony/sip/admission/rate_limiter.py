"""How much of a stranger's noise is listened to: token buckets per source address.

Scanners try thousands of numbers and passwords from one address, and floods come from addresses
that are made up. A source is an IPv4 address or an IPv6 /64, the least that one customer gets
(RFC 6177). Looking at one message costs the same however many sources there are, and what is
remembered of them is bounded.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from ipaddress import IPv6Address
from typing import Literal

from offhook.telephony.sip.bounded import remember
from offhook.telephony.sip.trunks.trunks import SipSettings, read_address

BURST_S = 3.0
"""s of its rate that a source may use at once: a PBX that has been restarted, a phone that sets up
all its lines."""
ANSWERS_PER_SECOND = 1.0
"""Refusals to a source that is over its rate. With more, whoever forges the source address would
have us send to it."""
FAILURES = 10
"""Wrong passwords that a source may send in a row..."""
FAILURE_S = 30.0
"""...and s after which one of them is forgotten."""
PENALTY_S = 300.0
"""s in which a source with more is not heard at all."""
MAX_SOURCES = 16_384
"""Sources with buckets; the one heard of longest ago is forgotten beyond that, which gives it full
buckets again. About 4 MB."""
MAX_OFFENDERS = 4_096
"""Sources with wrong passwords to their name. They are kept apart, so that a flood of made-up
addresses does not wash them out."""

RequestKind = Literal["request", "invite"]
"""An "invite" is one that brings no proof of who sends it; everything else is a "request"."""


class Verdict(Enum):
    PASS = auto()
    LIMIT = auto()
    """Too many: refuse, with 503."""
    DROP = auto()
    """Do not answer."""


@dataclass(slots=True)
class _Source:
    """Tokens left in its buckets at time `at`."""

    at: float
    requests: float
    invites: float
    answers: float
    trusted: bool


@dataclass(slots=True)
class _Offender:
    at: float
    failures: float = 0.0
    until: float = 0.0
    """End of the penalty."""


class RateLimiter:
    """Judges every message before anything is done for it. Trunks' addresses are never limited."""

    def __init__(self, settings: SipSettings) -> None:
        self._trusted: frozenset[str] = frozenset()
        self._sources: OrderedDict[str, _Source] = OrderedDict()
        self._offenders: OrderedDict[str, _Offender] = OrderedDict()
        self._set(settings)

    def use(self, settings: SipSettings) -> None:
        """Other rates and trunks; buckets are full again."""
        self._set(settings)
        self._sources.clear()

    def _set(self, settings: SipSettings) -> None:
        self._requests_per_second = settings.requests_per_second
        self._invites_per_second = settings.invites_per_second
        # a rate under one a BURST_S must still let one through
        self._requests = max(1.0, settings.requests_per_second * BURST_S)
        self._invites = max(1.0, settings.invites_per_second * BURST_S)
        self._networks = [network for trunk in settings.trunks for network in trunk.networks]

    def trust(self, addresses: Iterable[str]) -> None:
        """The addresses that the trunks' servers have now: these are not limited either."""
        self._trusted = frozenset(addresses)

    def check(self, source: str, kind: RequestKind, now: float) -> Verdict:
        """Counts one request of `source`, a numeric address, and says what to do with it."""
        key = _key(source)
        if source in self._trusted or key in self._trusted:
            return Verdict.PASS
        offender = self._offenders.get(key)
        if offender is not None and now < offender.until:
            return Verdict.DROP
        entry = self._sources.get(key)
        if entry is None:
            trusted = self._in_networks(source)
            entry = _Source(now, self._requests, self._invites, 1.0, trusted)
            remember(self._sources, key, entry, MAX_SOURCES)
        else:
            self._sources.move_to_end(key)
        return Verdict.PASS if entry.trusted else self._take(entry, kind, now)

    def failed(self, source: str, now: float) -> None:
        """`source` gave a wrong password. Not for stale nonces, not for missing credentials."""
        key = _key(source)
        offender = self._offenders.get(key)
        if offender is None:
            offender = _Offender(now)
        forgotten = (now - offender.at) / FAILURE_S
        offender.failures = max(0.0, offender.failures - forgotten) + 1
        offender.at = now
        if offender.failures > FAILURES:
            offender.until = now + PENALTY_S
            offender.failures = 0.0
        remember(self._offenders, key, offender, MAX_OFFENDERS)

    def __len__(self) -> int:
        """Sources remembered."""
        return len(self._sources) + len(self._offenders)

    def _take(self, entry: _Source, kind: RequestKind, now: float) -> Verdict:
        passed = now - entry.at
        entry.at = now
        entry.requests = min(self._requests, entry.requests + passed * self._requests_per_second)
        entry.invites = min(self._invites, entry.invites + passed * self._invites_per_second)
        entry.answers = min(1.0, entry.answers + passed * ANSWERS_PER_SECOND)
        if entry.requests >= 1 and (kind == "request" or entry.invites >= 1):
            entry.requests -= 1
            if kind == "invite":
                entry.invites -= 1
            return Verdict.PASS
        if entry.answers >= 1:
            entry.answers -= 1
            return Verdict.LIMIT
        return Verdict.DROP

    def _in_networks(self, source: str) -> bool:
        if not self._networks:
            return False
        address = read_address(source)
        return address is not None and any(address in network for network in self._networks)


def _key(source: str) -> str:
    """The address, an IPv6 one cut to its /64; what is no address stands for itself."""
    if ":" not in source:
        return source
    address = read_address(source)
    if isinstance(address, IPv6Address):
        return f"{int(address) >> 64:x}/64"
    return source if address is None else str(address)
