"""Networks whose machines may use a protocol that has no keys."""

from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

Network = IPv4Network | IPv6Network

PRIVATE: tuple[Network, ...] = tuple(
    map(
        ip_network,
        (
            *("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"),  # RFC 1918
            "100.64.0.0/10",  # RFC 6598, which VPNs use
            *("127.0.0.0/8", "::1/128"),
            *("169.254.0.0/16", "fe80::/10"),
            "fc00::/7",  # RFC 4193
        ),
    )
)
"""Addresses that the internet does not route."""


def private_network(text: str) -> Network:
    """Parses a network such as "192.168.1.0/24" or a single address. Raises ValueError, also if the
    internet routes any of its addresses."""
    network = ip_network(text)
    if not any(_is_within(network, private) for private in PRIVATE):
        raise ValueError(f"{text} is not a private network, as 192.168.1.0/24")
    return network


def may_connect(peer: str, networks: Iterable[Network]) -> bool:
    """Returns whether the address is of this machine or in one of the networks."""
    address = ip_address(peer)
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_loopback or any(address in network for network in networks)


def _is_within(one: Network, other: Network) -> bool:
    if isinstance(one, IPv4Network):
        return isinstance(other, IPv4Network) and one.subnet_of(other)
    return isinstance(other, IPv6Network) and one.subnet_of(other)
