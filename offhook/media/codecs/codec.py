"""The codec interface: packets to 16 kHz PCM, and 24 kHz PCM to packets."""

from collections.abc import Collection
from typing import Protocol

from offhook.media.pcm import Pcm


class CodecError(ValueError):
    """A payload is not a valid packet of its codec."""


class Decoder(Protocol):
    """Decodes the payloads of one incoming stream, in order, to 16 kHz mono. Stateful."""

    clock_rate: int
    """RTP timestamp rate in Hz (RFC 3551 §4.5, RFC 7587 §4.1); the audio rate may differ."""
    sound_rate: int
    """Sample rate of the coded audio in Hz; it sets the bandwidth of the comfort noise."""

    def decode(self, payload: bytes) -> Pcm:
        """Decode one payload of any duration to 16 kHz mono. Raises CodecError if malformed."""

    def recover(self, following: bytes, samples: int) -> Pcm | None:
        """Return the lost packet before `following`, decoded from the redundancy `following`
        carries; None if the codec or this payload has none."""

    def conceal(self, samples: int) -> Pcm:
        """Synthesize `samples` samples for a lost packet, continuing the audio and fading out."""


class Encoder(Protocol):
    """Encodes 24 kHz mono to payloads. Stateful: one per stream."""

    clock_rate: int

    @property
    def packets_ms(self) -> Collection[int]:
        """Packet durations the encoder supports, in ms; 20 is always among them."""

    def encode(self, pcm: Pcm) -> bytes:
        """Encode one packet of contiguous samples, whose duration must be one of `packets_ms` (480
        samples for 20 ms)."""

    def set_loss(self, fraction: float) -> None:
        """Adapt to the loss the far end reports, 0..1. No-op for codecs that cannot."""
