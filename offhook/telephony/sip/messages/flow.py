"""Flows: the transport and addresses by which a message arrived or is sent."""

from dataclasses import dataclass
from typing import Literal

TransportName = Literal["UDP", "TCP", "TLS", "WS", "WSS"]


@dataclass(frozen=True, slots=True)
class Flow:
    """A path to one peer (RFC 5626 §3): a pair of addresses, or one connection between them.

    Addresses are numeric, IPv6 without brackets. A stream transport not yet connected has id 0:
    sending opens a connection or uses an open one to the same address.
    """

    transport: TransportName
    remote: tuple[str, int]
    local: tuple[str, int]
    connection: int = 0
    extension: str = ""
    """The extension whose desk this is, proved before the first message: whoever opened the
    connection has signed in. "" for all others, whose messages have to prove it."""

    @property
    def reliable(self) -> bool:
        """Whether the transport retransmits and orders by itself: all but UDP."""
        return self.transport != "UDP"

    @property
    def secure(self) -> bool:
        """Whether the transport is encrypted: TLS and WSS."""
        return self.transport in ("TLS", "WSS")
