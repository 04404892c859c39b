"""The network between a caller and a server, made worse."""

from dataclasses import dataclass, field
from random import Random


@dataclass
class Way:
    """Impairments of the network between a caller and the server, the same in both directions."""

    loss: float = 0.0
    """Share of the packets, 0..1, dropped at random. A stream over TCP has none."""
    jitter_ms: float = 0.0
    """Every packet is delayed by up to this."""
    chance: Random = field(default_factory=Random)

    def loses(self) -> bool:
        return self.loss > 0 and self.chance.random() < self.loss

    def delay_s(self) -> float:
        return self.chance.uniform(0, self.jitter_ms) / 1000 if self.jitter_ms else 0.0
