"""G.711 PCMU and PCMA (ITU-T G.711; RFC 3551 §4.5.14): one byte per sample at 8 kHz.

Both laws are table look-ups. The tables follow the arithmetic form of the Recommendation: a sign
bit, three bits of segment, four bits of step. Negative samples use their ones' complement, so that
the decision values are symmetric (ITU-T G.191).
"""

import numpy as np
import numpy.typing as npt

from offhook.media import native
from offhook.media.codecs.codec import CodecError
from offhook.media.codecs.conceal import new_concealer
from offhook.media.codecs.resample import Resampler
from offhook.media.pcm import RATE_IN, RATE_OUT, Pcm

CLOCK_RATE = 8_000

Table = npt.NDArray[np.uint8]
Levels = npt.NDArray[np.int16]

_ULAW_BIAS = 33
"""Makes every mu-law segment (14-bit samples) begin at a power of two."""


def _ulaw_levels() -> Levels:
    code = ~np.arange(256) & 0xFF
    segment, step = (code >> 4) & 7, code & 15
    magnitude = ((2 * step + _ULAW_BIAS) << segment) - _ULAW_BIAS
    return (np.where(code & 0x80, -magnitude, magnitude) * 4).astype(np.int16)


def _alaw_levels() -> Levels:
    code = np.arange(256) ^ 0x55  # alternate bits are inverted on the wire
    segment, step = (code >> 4) & 7, code & 15
    magnitude = np.where(segment, (2 * step + 33) << np.maximum(segment - 1, 0), 2 * step + 1)
    return (np.where(code & 0x80, magnitude, -magnitude) * 8).astype(np.int16)


def _magnitudes() -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """The magnitude (ones' complement) and the sign of every sample, indexed by its uint16 bits."""
    sample = np.arange(65536, dtype=np.uint16).view(np.int16).astype(np.int64)
    return np.where(sample < 0, ~sample, sample), sample < 0


def _ulaw_codes() -> Table:
    magnitude, negative = _magnitudes()
    biased = np.minimum((magnitude >> 2) + _ULAW_BIAS, 0x1FFF)
    segment = np.log2(biased).astype(np.int64) - 5
    step = (biased >> (segment + 1)) & 15
    return np.asarray(~(negative * 0x80 | segment << 4 | step) & 0xFF, np.uint8)


def _alaw_codes() -> Table:
    magnitude, negative = _magnitudes()
    magnitude >>= 4
    segment = np.maximum(np.log2(np.maximum(magnitude, 1)).astype(np.int64) - 3, 0)
    step = (magnitude >> np.maximum(segment - 1, 0)) & 15
    return np.asarray((~negative * 0x80 | segment << 4 | step) ^ 0x55, np.uint8)


ULAW_LEVELS = _ulaw_levels()
"""int16[256]: the sample of each PCMU code."""
ALAW_LEVELS = _alaw_levels()
"""int16[256]: the sample of each PCMA code."""
ULAW_CODES = _ulaw_codes()
"""uint8[65536]: the PCMU code of each int16 sample, indexed by its uint16 bits."""
ALAW_CODES = _alaw_codes()
"""uint8[65536]: the PCMA code of each int16 sample, indexed by its uint16 bits."""


class G711Decoder:
    """Decodes one G.711 stream to 16 kHz; subclasses give the law."""

    clock_rate = CLOCK_RATE
    sound_rate = CLOCK_RATE
    levels: Levels

    def __init__(self) -> None:
        self._resampler = Resampler(CLOCK_RATE, RATE_IN)
        self._concealer = new_concealer()
        self.compiled: native.G711Decoder | None = None
        """Does the same in one step."""
        if native.used:
            self.compiled = native.G711Decoder(
                self.levels, self._resampler.compiled, self._concealer
            )

    def decode(self, payload: bytes) -> Pcm:
        if not payload:
            raise CodecError("g711: empty payload")
        if self.compiled is not None:
            return self.compiled.decode(payload)
        sound = self.levels.take(np.frombuffer(payload, np.uint8))
        return self._concealer.process(self._resampler.process(sound))

    def recover(self, following: bytes, samples: int) -> Pcm | None:
        return None

    def conceal(self, samples: int) -> Pcm:
        return self._concealer.conceal(samples)


class PcmuDecoder(G711Decoder):
    levels = ULAW_LEVELS


class PcmaDecoder(G711Decoder):
    levels = ALAW_LEVELS


class G711Encoder:
    """Encodes 24 kHz to G.711, 8 bytes per ms; subclasses give the law."""

    clock_rate = CLOCK_RATE
    packets_ms = range(10, 61, 10)
    codes: Table

    def __init__(self) -> None:
        self._resampler = Resampler(RATE_OUT, CLOCK_RATE)
        self.compiled: native.G711Encoder | None = None
        """Does the same in one step."""
        if native.used:
            self.compiled = native.G711Encoder(self.codes, self._resampler.compiled)

    def encode(self, pcm: Pcm) -> bytes:
        if self.compiled is not None:
            return self.compiled.encode(pcm)
        return self.codes.take(self._resampler.process(pcm), mode="wrap").tobytes()

    def set_loss(self, fraction: float) -> None:
        """No-op: G.711 has no redundancy."""


class PcmuEncoder(G711Encoder):
    codes = ULAW_CODES


class PcmaEncoder(G711Encoder):
    codes = ALAW_CODES
