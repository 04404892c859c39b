"""What every codec offers: packets to 16 kHz PCM, 24 kHz PCM to packets."""

from typing import Protocol

from offhook.media.pcm import Pcm


class CodecError(ValueError):
    """A payload is not a valid packet of its codec."""


class Decoder(Protocol):
    """Payloads of one incoming stream, in order, to 16 kHz mono. Stateful: one per stream."""

    clock_rate: int
    """Hz of the RTP timestamp (RFC 3551 §4.5, RFC 7587 §4.1), not of the sound."""

    def decode(self, payload: bytes) -> Pcm:
        """Decode one payload of any frame length. Raises CodecError if it is malformed."""

    def recover(self, following: bytes, samples: int) -> Pcm | None:
        """The lost packet before `following`, from the redundancy `following` carries; None when
        the codec or this payload has none."""

    def conceal(self, samples: int) -> Pcm:
        """Invent `samples` samples for a lost packet, continuing what was heard and fading."""


class Encoder(Protocol):
    """24 kHz mono, 20 ms at a time, to payloads. Stateful: one per stream."""

    clock_rate: int

    def encode(self, pcm: Pcm) -> bytes:
        """Encode exactly 480 samples."""

    def set_loss(self, fraction: float) -> None:
        """Adapt to the loss the far end reports, 0..1. No-op where the codec cannot."""
