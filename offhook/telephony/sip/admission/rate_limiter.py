"""Rate limits for unknown sources: token buckets per source address.

Scanners try thousands of numbers and passwords from one address, and floods come from forged
addresses. A source is an IPv4 address or an IPv6 /64, the smallest allocation to one customer (RFC
6177). The cost of a check does not depend on the number of sources, and memory is bounded.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from ipaddress import IPv6Address
from typing import Literal

from offhook.media.budget import Budget
from offhook.telephony.sip.bounded import remember
from offhook.telephony.sip.trunks.trunks import SipSettings, read_address

BURST_S = 3.0
"""Seconds of its rate that a source may use in one burst: a restarted PBX, a phone registering all
its lines."""
ANSWERS_PER_SECOND = 1.0
"""Refusals sent to a source over its rate. More would let a forged source address direct our
responses at a victim."""
MAX_FAILURES = 10
"""Wrong passwords that a source may send in a row; with more it gets no answers for PENALTY_S."""
FAILURE_DECAY_S = 30.0
"""Time in s after which one wrong password of a source is forgotten."""
PENALTY_S = 300.0
"""Time in s for which a source with more than MAX_FAILURES wrong passwords is ignored."""
MAX_SOURCES = 16_384
"""Sources with buckets, about 8 MB; beyond that the least recently seen one is forgotten, which
refills its buckets."""
MAX_OFFENDERS = 4_096
"""Sources with authentication failures, kept apart so that a flood of forged addresses cannot evict
them; beyond that the one whose last failure is the oldest is forgotten."""

RequestKind = Literal["request", "invite"]
""""invite" for an INVITE without credentials; "request" for everything else."""


class Verdict(Enum):
    PASS = auto()
    LIMIT = auto()
    """Over the limit: refuse with 503."""
    DROP = auto()
    """Send no response."""


@dataclass(slots=True)
class _Source:
    requests: Budget
    invites: Budget
    answers: Budget
    trusted: bool


@dataclass(slots=True)
class _Offender:
    at: float
    failures: float = 0.0
    until: float = 0.0
    """End of the penalty."""


class RateLimiter:
    """Checks every message before any other processing. Trunks' addresses are never limited."""

    def __init__(self, settings: SipSettings) -> None:
        self._trusted: frozenset[str] = frozenset()
        self._sources: OrderedDict[str, _Source] = OrderedDict()
        self._offenders: OrderedDict[str, _Offender] = OrderedDict()
        self._set(settings)

    def use(self, settings: SipSettings) -> None:
        """Apply other rates and trunks; all buckets are refilled."""
        self._set(settings)
        self._sources.clear()

    def _set(self, settings: SipSettings) -> None:
        self._requests_per_second = settings.requests_per_second
        self._invites_per_second = settings.invites_per_second
        # a rate under one per BURST_S must still let one through
        self._requests = max(1.0, settings.requests_per_second * BURST_S)
        self._invites = max(1.0, settings.invites_per_second * BURST_S)
        self._networks = [network for trunk in settings.trunks for network in trunk.networks]

    def trust(self, addresses: Iterable[str]) -> None:
        """Set the current addresses of the trunks' servers, which are not limited either."""
        self._trusted = frozenset(addresses)

    def check(self, source: str, kind: RequestKind, now: float) -> Verdict:
        """Count one request from `source`, a numeric address. Returns how to treat it."""
        key = _key(source)
        if source in self._trusted or key in self._trusted:
            return Verdict.PASS
        offender = self._offenders.get(key)
        if offender is not None and now < offender.until:
            return Verdict.DROP
        entry = self._sources.get(key)
        if entry is None:
            entry = _Source(
                Budget(self._requests_per_second, self._requests),
                Budget(self._invites_per_second, self._invites),
                Budget(ANSWERS_PER_SECOND, 1.0),
                self._in_networks(source),
            )
            remember(self._sources, key, entry, MAX_SOURCES)
        else:
            self._sources.move_to_end(key)
        return Verdict.PASS if entry.trusted else self._consume(entry, kind, now)

    def record_failure(self, source: str, now: float) -> None:
        """Count a wrong password from `source`; not for stale nonces or missing credentials."""
        key = _key(source)
        offender = self._offenders.get(key)
        if offender is None:
            offender = _Offender(now)
        forgotten = (now - offender.at) / FAILURE_DECAY_S
        offender.failures = max(0.0, offender.failures - forgotten) + 1
        offender.at = now
        if offender.failures > MAX_FAILURES:
            offender.until = now + PENALTY_S
            offender.failures = 0.0
        remember(self._offenders, key, offender, MAX_OFFENDERS)

    def __len__(self) -> int:
        """Number of sources remembered."""
        return len(self._sources) + len(self._offenders)

    def _consume(self, entry: _Source, kind: RequestKind, now: float) -> Verdict:
        passes = entry.requests.spend(1, now)
        if passes and (kind == "request" or entry.invites.spend(1, now)):
            return Verdict.PASS
        return Verdict.LIMIT if entry.answers.spend(1, now) else Verdict.DROP

    def _in_networks(self, source: str) -> bool:
        if not self._networks:
            return False
        address = read_address(source)
        return address is not None and any(address in network for network in self._networks)


def _key(source: str) -> str:
    """The address, with IPv6 reduced to its /64; anything that is not an address is its own key."""
    if ":" not in source:
        return source
    address = read_address(source)
    if isinstance(address, IPv6Address):
        return f"{int(address) >> 64:x}/64"
    return source if address is None else str(address)
