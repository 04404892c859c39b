"""A HEP collector, as the configuration names it."""

from dataclasses import dataclass, field

from offhook.telephony.sip.messages.grammar import SipError, parse_host_port

DEFAULT_PORT = 9060
"""Of collectors."""
MAX_AGENT_ID = 2**32 - 1
"""Largest id of a capture agent, which has four bytes; a configuration with more is refused."""


@dataclass(frozen=True)
class HepSettings:
    """A collector and how this server is known there. Raises SipError."""

    collector: str
    """host or host:port of the collector, which takes HEP 3 over UDP; 9060 is the default port."""
    agent_id: int = 1
    """Capture agent id, which tells the servers of one collector apart."""
    auth_key: str = field(default="", repr=False)
    """Authentication key, where the collector asks for one. HEP over UDP is not encrypted, the key
    included."""

    def __post_init__(self) -> None:
        _ = self.address
        if not 0 <= self.agent_id <= MAX_AGENT_ID:
            raise SipError(f"hep: agent_id must be 0 to {MAX_AGENT_ID}, not {self.agent_id}")

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the collector. Raises SipError."""
        try:
            host, port = parse_host_port(self.collector)
        except SipError as error:
            raise SipError(f"hep: collector: {error}") from error
        return host, DEFAULT_PORT if port is None else port
