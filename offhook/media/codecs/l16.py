"""L16 (RFC 3551 §4.5.11): 16-bit linear PCM at 8, 16 or 24 kHz.

RTP sends it in network byte order; carriers that stream raw PCM mostly use little-endian.
"""

import numpy as np

from offhook.media.codecs.codec import CodecError
from offhook.media.codecs.conceal import new_concealer
from offhook.media.codecs.resample import Resampler
from offhook.media.pcm import RATE_IN, RATE_OUT, Pcm

RATES = (8_000, 16_000, 24_000)
"""Sample rates in Hz that can be decoded and encoded."""


def _order(big_endian: bool) -> np.dtype[np.int16]:
    return np.dtype(">i2" if big_endian else "<i2")


def _check(rate: int) -> None:
    if rate not in RATES:
        raise CodecError(f"l16: sample rate {rate} Hz is not one of {', '.join(map(str, RATES))}")


class L16Decoder:
    """Decodes one L16 stream of `rate` Hz to 16 kHz. Raises CodecError for a rate not in RATES."""

    def __init__(self, rate: int, big_endian: bool = False) -> None:
        _check(rate)
        self.clock_rate = rate
        self.sound_rate = min(rate, RATE_IN)
        self._order = _order(big_endian)
        self._resampler = None if rate == RATE_IN else Resampler(rate, RATE_IN)
        self._unit = 3 if rate == RATE_OUT else 1
        """The resampler accepts multiples of this many samples."""
        self._rest = np.zeros(0, np.int16)
        """Samples left over from an incomplete unit; they precede the next payload."""
        self._concealer = new_concealer()

    def decode(self, payload: bytes) -> Pcm:
        """Decode one payload; an odd trailing byte is dropped. Raises CodecError if empty."""
        if len(payload) < 2:
            raise CodecError(f"l16: {len(payload)} byte payload is shorter than one sample")
        sound = np.frombuffer(payload, self._order, len(payload) // 2).astype(np.int16)
        if self._resampler is not None:
            sound = self._resampler.process(self._align(sound))
        return self._concealer.process(sound)

    def _align(self, sound: Pcm) -> Pcm:
        if len(self._rest):
            sound = np.concatenate((self._rest, sound))
        whole = len(sound) - len(sound) % self._unit
        self._rest = sound[whole:]
        return sound[:whole]

    def recover(self, following: bytes, samples: int) -> Pcm | None:
        return None

    def conceal(self, samples: int) -> Pcm:
        return self._concealer.conceal(samples)


class L16Encoder:
    """Encodes 24 kHz to one L16 stream of `rate` Hz. Raises CodecError for a rate not in RATES."""

    packets_ms = range(10, 201, 10)

    def __init__(self, rate: int, big_endian: bool = False) -> None:
        _check(rate)
        self.clock_rate = rate
        self._order = _order(big_endian)
        self._resampler = None if rate == RATE_OUT else Resampler(RATE_OUT, rate)

    def encode(self, pcm: Pcm) -> bytes:
        sound = pcm if self._resampler is None else self._resampler.process(pcm)
        return sound.astype(self._order, copy=False).tobytes()

    def set_loss(self, fraction: float) -> None:
        """No-op: L16 has no redundancy."""
