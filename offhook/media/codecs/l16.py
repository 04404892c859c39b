"""L16 (RFC 3551 §4.5.11): 16-bit linear samples at 8, 16 or 24 kHz.

RTP sends them in network byte order; carriers that stream raw PCM mostly in the other.
"""

import numpy as np

from offhook.media.codecs.codec import CodecError
from offhook.media.codecs.conceal import Concealer
from offhook.media.codecs.resample import Resampler
from offhook.media.pcm import RATE_IN, RATE_OUT, Pcm

RATES = (8_000, 16_000, 24_000)
"""Hz of the sounds that can be decoded and encoded."""


def _order(big_endian: bool) -> np.dtype[np.int16]:
    return np.dtype(">i2" if big_endian else "<i2")


def _check(rate: int) -> None:
    if rate not in RATES:
        raise CodecError(f"l16: {rate} Hz is not one of {', '.join(map(str, RATES))}")


class L16Decoder:
    """One incoming stream of `rate` Hz to 16 kHz. Raises CodecError for a rate not in RATES."""

    def __init__(self, rate: int, big_endian: bool = False) -> None:
        _check(rate)
        self.clock_rate = rate
        self.sound_rate = min(rate, RATE_IN)
        self._order = _order(big_endian)
        self._resampler = None if rate == RATE_IN else Resampler(rate, RATE_IN)
        self._unit = 3 if rate == RATE_OUT else 1
        """Samples that the resampler takes at a time."""
        self._rest = np.zeros(0, np.int16)
        """Samples that were no whole unit: they go before the next."""
        self._concealer = Concealer()

    def decode(self, payload: bytes) -> Pcm:
        """Half a sample at the end is dropped."""
        if len(payload) < 2:
            raise CodecError(f"l16: {len(payload)} bytes are no sample")
        sound = np.frombuffer(payload, self._order, len(payload) // 2).astype(np.int16)
        if self._resampler is not None:
            sound = self._resampler.process(self._whole(sound))
        return self._concealer.heard(sound)

    def _whole(self, sound: Pcm) -> Pcm:
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
    """24 kHz to one stream of `rate` Hz. Raises CodecError for a rate not in RATES."""

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
        """L16 has no redundancy to spend bits on."""
