"""What every codec offers: packets to 16 kHz PCM, 24 kHz PCM to packets."""

from collections.abc import Collection
from typing import Protocol

from offhook.media.pcm import Pcm


class CodecError(ValueError):
    """A payload is not a valid packet of its codec."""


class Decoder(Protocol):
    """Payloads of one incoming stream, in order, to 16 kHz mono. Stateful: one per stream."""

    clock_rate: int
    """Hz of the RTP timestamp (RFC 3551 §4.5, RFC 7587 §4.1), not of the sound."""
    sound_rate: int
    """Hz of the sound coded: comfort noise beside it has its band."""

    def decode(self, payload: bytes) -> Pcm:
        """Decode one payload of any frame length. Raises CodecError if it is malformed."""

    def recover(self, following: bytes, samples: int) -> Pcm | None:
        """The lost packet before `following`, from the redundancy `following` carries; None when
        the codec or this payload has none."""

    def conceal(self, samples: int) -> Pcm:
        """Invent `samples` samples for a lost packet, continuing what was heard and fading."""


class Encoder(Protocol):
    """24 kHz mono to payloads. Stateful: one per stream."""

    clock_rate: int

    @property
    def packets_ms(self) -> Collection[int]:
        """ms of sound that one payload can hold; 20 among them."""

    def encode(self, pcm: Pcm) -> bytes:
        """Encode exactly the samples of one of `packets_ms`, contiguous: 480 for 20 ms."""

    def set_loss(self, fraction: float) -> None:
        """Adapt to the loss the far end reports, 0..1. No-op where the codec cannot."""
