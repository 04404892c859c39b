"""Where a message came from and where one goes: a transport and two addresses."""

from dataclasses import dataclass
from typing import Literal

TransportName = Literal["UDP", "TCP", "TLS", "WS", "WSS"]


@dataclass(frozen=True, slots=True)
class Flow:
    """A way to one peer (RFC 5626 §3): a pair of addresses, or one connection between them.

    Addresses are numeric, IPv6 without brackets. A stream transport without a connection yet has
    the id 0: sending on it opens one or takes one that is open to the same address.
    """

    transport: TransportName
    remote: tuple[str, int]
    local: tuple[str, int]
    connection: int = 0

    @property
    def reliable(self) -> bool:
        """The transport repeats and orders by itself: all but UDP."""
        return self.transport != "UDP"

    @property
    def secure(self) -> bool:
        """The bytes are encrypted on the way: TLS and WSS."""
        return self.transport in ("TLS", "WSS")
