"""Shares: how many lines and streams of a process one holder may have at a time.

A place is a line (a call, by whatever protocol) or a stream (a WebSocket of the speech API, or a
connection of another protocol of it). It is held by an address, by an API key, or by a client
secret or token, which is a caller's and counts beside its address. So that nobody takes all places
and says nothing, those that only wait are limited besides: nothing came from them that could be
answered.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address
from typing import Literal

from offhook.telephony.sip.trunks.trunks import read_address
from offhook.web.http.networks import Network, may_connect

WAITING_SHARE = 0.5
"""Share of the places that may wait at a time: callers who do not connect, and connections that
have sent nothing to answer. A further one gets the place of the one that waits the longest, if that
has waited for PATIENCE_S, or is refused with 503. Half of it for one address; more of that are
refused with 503."""
PATIENCE_S = 2.0
"""Time in s that a place may wait in any case, longer than browsers take to connect: while none of
them has waited for so long, the next one is refused."""
FEW = 2
"""Places that a share is at least, and that may wait at least."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a place."""

    kind: Literal["address", "key", "secret"]
    name: str
    """The address, an IPv6 one as its /64, the key's name, or the secret's or token's id."""
    limit: int = field(default=0, compare=False)
    """Places that it may hold by itself, as a secret says; 0: its share."""


Holders = frozenset[Holder]
"""Those who are counted for one place; none for somebody who may represent anyone, as a proxy."""
NOBODY: Holders = frozenset()


class ShareExceeded(Exception):
    """Raised for a holder that has all places that it may have; the message says what to do."""


@dataclass(frozen=True)
class Shares:
    """The shares of `[server]`."""

    per_address: float = 0.5
    per_key: float = 1.0

    def check(
        self, asking: Holders, held: Iterable[Collection[Holder]], places: int, what: str
    ) -> None:
        """Raises ShareExceeded if a holder who asks for a place has its share of the `places`.
        `held` are the holders of each place in use; `what` a place is, as "lines"."""
        if not asking:
            return
        in_use = list(held)
        for holder in asking:
            most = self.most(holder, places)
            if sum(holder in holders for holders in in_use) >= most:
                raise ShareExceeded(_words(holder, most, places, what))

    def most(self, holder: Holder, places: int) -> int:
        """Returns how many places the holder may have."""
        if holder.limit:
            return holder.limit
        return few_of(self.per_key if holder.kind == "key" else self.per_address, places)


def few_of(share: float, places: int) -> int:
    """Returns a share of the places, at least FEW."""
    return max(FEW, math.ceil(share * places))


def waiting_is_full(waiting: int, places: int) -> bool:
    """Returns whether no further place may wait."""
    return waiting >= few_of(WAITING_SHARE, places)


def makes_room(waited_s: float) -> bool:
    """Returns whether a place that waits for so long is given to somebody else who needs it."""
    return waited_s >= PATIENCE_S


def waits_too_often(asking: Holders, waiting: Iterable[Collection[Holder]], places: int) -> bool:
    """Returns whether an address that asks for a place has as many as it may that wait; `waiting`
    are the holders of those that do."""
    addresses = {holder for holder in asking if holder.kind == "address"}
    alike = sum(not addresses.isdisjoint(holders) for holders in waiting)
    return alike >= few_of(WAITING_SHARE / 2, places)


def _words(holder: Holder, most: int, places: int, what: str) -> str:
    match holder.kind:
        case "address":
            who, setting = holder.name, "share_per_address of [server]"
        case "key":
            who, setting = f"the key {holder.name!r}", "share_per_key of [server]"
        case "secret":
            words = f"this client secret or token has {most} {what} open, as many as it may"
            return f"{words}: close one, or ask for another with more max_sessions"
    words = f"{who} has {most} of {places} {what}, its share"
    return f"{words}: close one, or raise {setting}"


# --- addresses ---


def peer_name(address: str) -> str:
    """Returns what counts as one peer: an IPv4 address, the /64 of an IPv6 address, which is the
    smallest allocation to one customer (RFC 6177), or "" if it is none, as a Unix socket's."""
    read = read_address(address)
    if isinstance(read, IPv6Address):
        return f"{ip_address(int(read) >> 64 << 64)}/64"
    return "" if read is None else str(read)


def by_address(address: str) -> Holders:
    """Returns the holder of this address; nobody for this machine's, where a proxy may represent
    anyone, and for a Unix socket's."""
    read = read_address(address)
    if read is None or read.is_loopback:
        return NOBODY
    return frozenset((Holder("address", peer_name(address)),))


def caller_address(peer: str, forwarded_for: Sequence[str], proxies: Sequence[Network]) -> str:
    """Returns the address of the caller for whom `peer` connects. If that is this machine, or one
    of the proxies, it is the last one in X-Forwarded-For that is neither: each proxy appends whom
    it got the request from, and what comes before may be invented. Empty if there is none: the
    proxy may represent anyone. `forwarded_for` are the values of all X-Forwarded-For headers."""
    named = [name for value in forwarded_for for name in value.split(",")]
    for text in (*named, peer)[::-1]:
        address = read_address(_bare(text))
        if address is None and text:
            return ""
        if address is not None and not may_connect(str(address), proxies):
            return str(address)
    return ""


def _bare(text: str) -> str:
    """Returns an address without brackets and port."""
    text = text.strip()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text
