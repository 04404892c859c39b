"""A captured packet: what pcap files and HEP collectors are given."""

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

from offhook.telephony.sip.messages.flow import TransportName

Address = tuple[str, int]
"""Numeric IP address and port."""


@dataclass(frozen=True, slots=True)
class Captured:
    """One packet, with the addresses it was sent between."""

    time: float
    """Seconds since 1970."""
    transport: TransportName
    source: Address
    destination: Address
    payload: bytes
    """What the transport carries: of TLS and WebSockets, without these."""


def hosts_of(packet: Captured) -> tuple[IPv4Address, IPv4Address] | tuple[IPv6Address, IPv6Address]:
    """Return source and destination; if their families differ both as IPv6, IPv4-mapped (RFC 4291
    §2.5.5.2)."""
    source, destination = (
        ip_address(host.partition("%")[0]) for host, _ in (packet.source, packet.destination)
    )
    if isinstance(source, IPv4Address) and isinstance(destination, IPv4Address):
        return source, destination
    return _as_ipv6(source), _as_ipv6(destination)


def _as_ipv6(address: IPv4Address | IPv6Address) -> IPv6Address:
    if isinstance(address, IPv6Address):
        return address
    return IPv6Address(b"\x00" * 10 + b"\xff\xff" + address.packed)
