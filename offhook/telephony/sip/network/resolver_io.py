"""Resolves SIP URIs by RFC 3263 with NAPTR, SRV and address records, through dnspython."""

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal

import dns.asyncresolver
import dns.exception
import dns.resolver

from offhook.telephony.sip.messages.uri import Uri

ClientTransport = Literal["UDP", "TCP", "TLS"]

RESOLVE_TIMEOUT_S = 8.0
"""Time limit in s of all queries for one URI, as the caller hears nothing meanwhile; then the call
or registration has failed."""
QUERY_TIMEOUT_S = 2.5
"""Time limit in s of one query, over all name servers, as a domain needs three in a row; then it
counts as without records, and the others decide."""
NAME_SERVER_TIMEOUT_S = 1.0
"""Time limit in s of one name server's answer; then the next one is asked."""
CACHE_ANSWERS = 1000
"""Maximum answers of name servers that are cached; the least recently used is dropped."""
MAX_TARGETS = 16
"""Maximum targets for one URI, as each is tried for seconds; further ones are not tried."""
MAX_SERVICES = 8
"""Maximum NAPTR and SRV records followed per name, the best first; the others are ignored."""
HOSTS = Path("/etc/hosts")

DEFAULT_PORTS: dict[ClientTransport, int] = {"UDP": 5060, "TCP": 5060, "TLS": 5061}
NAPTR_SERVICES: dict[str, ClientTransport] = {"SIP+D2U": "UDP", "SIP+D2T": "TCP", "SIPS+D2T": "TLS"}
"""NAPTR services by transport (RFC 3263 §4.1)."""
SRV_NAMES: dict[ClientTransport, str] = {
    "UDP": "_sip._udp",
    "TCP": "_sip._tcp",
    "TLS": "_sips._tcp",
}


class ResolveError(Exception):
    """The URI cannot be resolved; the message says why."""


@dataclass(frozen=True, slots=True)
class Target:
    """One address to send to."""

    transport: ClientTransport
    host: str
    """Numeric address."""
    port: int
    server_name: str
    """Name a TLS certificate must match: the URI's domain (RFC 5922 §4), not what DNS returned."""


@dataclass(frozen=True, slots=True)
class _Place:
    """A host and port whose address is not yet resolved."""

    transport: ClientTransport
    host: str
    port: int


class Resolver:
    """Queries the system's name servers, or the given ones, and caches answers for their TTL."""

    def __init__(self, nameservers: Sequence[str] = (), port: int = 53) -> None:
        self._nameservers = nameservers
        self._port = port
        self._dns: dns.asyncresolver.Resolver | None = None

    async def resolve(self, uri: Uri, default_transport: ClientTransport = "UDP") -> list[Target]:
        """Return the targets for a request to the URI, in the order to try (RFC 3263 §4), never
        empty.

        `default_transport` applies if neither the URI nor DNS says; if it is TLS, only TLS is ever
        chosen. Names in /etc/hosts are not queried. Raises ResolveError.
        """
        host = uri.parameter("maddr") or uri.host
        if uri.scheme not in ("sip", "sips") or not host:
            raise ResolveError(f"a {uri.scheme}: URI has no host")
        try:
            async with asyncio.timeout(RESOLVE_TIMEOUT_S):
                places = await self._places(uri, host, default_transport)
                targets = await self._targets(places, uri.host)
        except TimeoutError:
            raise ResolveError(f"DNS queries for {host} timed out") from None
        if not targets:
            raise ResolveError(f"DNS has no address for {host}")
        return targets

    async def _places(
        self, uri: Uri, host: str, default_transport: ClientTransport
    ) -> list[_Place]:
        """Choose transports and hosts (§4.1, §4.2), without addresses."""
        secure = uri.scheme == "sips" or default_transport == "TLS"
        transport = _transport_of(uri, secure)
        wanted: list[ClientTransport]
        if _is_numeric(host) or uri.port is not None:
            chosen = transport or ("TLS" if secure else default_transport)
            return [_Place(chosen, host, uri.port or DEFAULT_PORTS[chosen])]
        if transport is not None:
            wanted = [transport]
        elif secure:
            wanted = ["TLS"]
        else:
            wanted = [default_transport, *(t for t in DEFAULT_PORTS if t != default_transport)]
        places = None if transport else await self._by_naptr(host, wanted)
        if places is None:
            asked = [self._services(t, f"{SRV_NAMES[t]}.{host}") for t in wanted]
            places = _joined(await asyncio.gather(*asked))
        if places is None:
            places = [_Place(wanted[0], host, DEFAULT_PORTS[wanted[0]])]
        return places

    async def _by_naptr(self, host: str, wanted: Sequence[ClientTransport]) -> list[_Place] | None:
        """The services of a domain, in its own order (§4.1); None without NAPTR records."""
        records = []
        for record in await self._query(host, "NAPTR"):
            transport = NAPTR_SERVICES.get(record.service.decode("latin-1").upper())
            if transport is not None and transport in wanted and record.flags.lower() == b"s":
                name = record.replacement.to_text(omit_final_dot=True)
                records.append((record.order, record.preference, transport, name))
        records.sort(key=lambda r: r[:2])
        return _joined([await self._services(t, name) for *_, t, name in records[:MAX_SERVICES]])

    async def _services(self, transport: ClientTransport, name: str) -> list[_Place] | None:
        """The SRV targets of a service; None without records. A record for "." means that the
        service does not exist (RFC 2782)."""
        records = await self._query(name, "SRV")
        if not records:
            return None
        ordered = srv_order([(r.priority, r.weight, r) for r in records])[:MAX_SERVICES]
        found = [(r.target.to_text(omit_final_dot=True).lower(), r.port) for r in ordered]
        return [_Place(transport, host, port) for host, port in found if host not in ("", ".", "@")]

    async def _targets(self, places: Sequence[_Place], server_name: str) -> list[Target]:
        places = places[:MAX_TARGETS]
        found = await asyncio.gather(*(self._addresses(place.host) for place in places))
        targets = {  # in order, without duplicates
            Target(place.transport, address, place.port, server_name): None
            for place, addresses in zip(places, found, strict=True)
            for address in addresses
        }
        return list(targets)[:MAX_TARGETS]

    async def _addresses(self, host: str) -> list[str]:
        """The addresses of a host, IPv4 first: that is what trunks usually work with."""
        if _is_numeric(host):
            return [host]
        if listed := _from_hosts_file(host):
            return listed
        v4, v6 = await asyncio.gather(self._query(host, "A"), self._query(host, "AAAA"))
        return [record.address for record in (*v4, *v6)]

    async def _query(self, name: str, kind: str) -> list[Any]:
        """The records of one name; none if there are none or the query failed."""
        try:
            resolver = self._dns_resolver()
            answer = await resolver.resolve(
                name, kind, raise_on_no_answer=False, search="." not in name
            )
        except dns.exception.DNSException:
            # NXDOMAIN, a refusal, a timeout, an invalid name: continue with what else there is.
            return []
        return list(answer)

    def _dns_resolver(self) -> dns.asyncresolver.Resolver:
        """Raises DNSException if the system has no DNS configuration."""
        if self._dns is None:
            self._dns = dns.asyncresolver.Resolver(configure=not self._nameservers)
            if self._nameservers:
                self._dns.nameservers = list(self._nameservers)
                self._dns.port = self._port
            self._dns.cache = dns.resolver.LRUCache(CACHE_ANSWERS)
            self._dns.timeout = NAME_SERVER_TIMEOUT_S
            self._dns.lifetime = QUERY_TIMEOUT_S
        return self._dns


def srv_order(
    records: Sequence[tuple[int, int, Any]], choose: Callable[[int], int] | None = None
) -> list[Any]:
    """Return the records in the order to try (RFC 2782): by priority, then drawn by weight.
    `choose(n)` returns a number from 0 to n, inclusive."""
    choose = choose or (lambda most: random.randint(0, most))
    ordered = []
    for priority in sorted({record[0] for record in records}):
        # Records with weight 0 come first, so that they have a small chance.
        rest = sorted((r for r in records if r[0] == priority), key=lambda r: r[1] > 0)
        while rest:
            at = choose(sum(weight for _, weight, _ in rest))
            for i, (_, weight, record) in enumerate(rest):
                at -= weight
                if at <= 0:
                    ordered.append(record)
                    del rest[i]
                    break
    return ordered


def _joined(found: Iterable[list[_Place] | None]) -> list[_Place] | None:
    """All lists joined in order; None if all are None."""
    lists = [places for places in found if places is not None]
    return [place for places in lists for place in places] if lists else None


def _transport_of(uri: Uri, secure: bool) -> ClientTransport | None:
    """The transport the URI names. Raises ResolveError if we cannot use it."""
    named = (uri.parameter("transport") or "").upper()
    if named == "":
        return None
    if named == "TLS" or (named == "TCP" and secure):
        return "TLS"
    if named == "TCP":
        return "TCP"
    if named == "UDP" and not secure:
        return "UDP"
    raise ResolveError(f"cannot reach a {uri.scheme}: URI over {named[:8]}")


def _is_numeric(host: str) -> bool:
    with suppress(ValueError):
        return bool(ip_address(host))
    return False


def _from_hosts_file(host: str) -> list[str]:
    with suppress(OSError):
        lines = HOSTS.read_text(errors="replace").splitlines()
        fields = [line.partition("#")[0].lower().split() for line in lines]
        return [f[0] for f in fields if host in f[1:] and _is_numeric(f[0])][:MAX_TARGETS]
    return []
