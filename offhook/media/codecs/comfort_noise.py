"""The background noise of a far end that leaves out its silence (RFC 3389).

A packet tells how loud the noise is and, if it wishes, its spectrum as reflection coefficients of
an all-pole filter. A few seconds of noise of that spectrum are made at once, in the frequency
domain, and played round and round: they join without a seam, and a tick costs a slice.
"""

from functools import cache, lru_cache
from random import Random

import numpy as np
import numpy.typing as npt
from numpy import fft  # loaded here, not in the first call

from offhook.media.pcm import RATE_IN, Pcm

ROUND = 1 << 15
"""Samples of noise made at once, 2 s: so long that no beat is heard in its repeating."""
MAX_ORDER = 12
"""Coefficients looked at: senders have ten or so, and the last of many matter little (RFC 3389
§3)."""
LEVEL_BITS = 0x7F
"""Of the first byte: the noise's level in -dBov (RFC 3389 §3.1)."""
OVERLOAD = 32767
"""Root mean square of 0 dBov: the loudest square wave."""
STEP = 258 / 32768
MIDDLE = 127
"""A coefficient from its byte (RFC 3389 §3.2); the highest, 255, is not one."""
SHAPES = 16
"""Spectra whose noise is kept, for all calls. Many senders tell none, and share the flat one."""
RESHAPE = RATE_IN // 5
"""Samples from one change of the spectrum to the next, 200 ms: each takes half a millisecond."""

SOUND_RATE = 8_000
"""Hz of a sender whose codec is not known."""

Float = npt.NDArray[np.float64]


@cache
def _white() -> npt.NDArray[np.complex128]:
    """A flat spectrum of random phases, the same for all: of unit power per line."""
    random = Random(3389).random
    phases = np.array([random() for _ in range(ROUND // 2 + 1)])
    return np.asarray(np.exp(2j * np.pi * phases))


def _predictor(coefficients: bytes) -> Float:
    """The prediction filter A(z) of quantised reflection coefficients: the step-up recursion."""
    predictor = np.array([1.0])
    for byte in coefficients:
        k = (min(byte, MIDDLE * 2) - MIDDLE) * STEP
        longer = np.append(predictor, 0.0)
        predictor = longer + k * longer[::-1]
    return predictor


@lru_cache(maxsize=SHAPES)
def _shape(coefficients: bytes, sound_rate: int) -> npt.NDArray[np.float32]:
    """ROUND samples of the noise with this spectrum, of unit power."""
    lines = ROUND // 2 * sound_rate // RATE_IN
    gain = 1 / np.abs(fft.rfft(_predictor(coefficients), 2 * lines)[1:lines])
    spectrum = np.zeros(ROUND // 2 + 1, np.complex128)
    spectrum[1:lines] = _white()[1:lines] * gain
    sound = fft.irfft(spectrum)
    return np.asarray(sound / np.sqrt(np.mean(sound**2)), np.float32)


class ComfortNoise:
    """The noise between one stream's packets of sound; silence before the first that tells."""

    def __init__(self) -> None:
        self._level = 0.0
        """Root mean square."""
        self._wanted = self._shown = (b"", SOUND_RATE)
        """Spectrum and rate last told, and those played."""
        self._sound = _shape(*self._shown)
        self._position = 0
        self._until_shaped = 0
        """Samples to be taken before the spectrum may change again."""

    def update(self, payload: bytes, sound_rate: int = SOUND_RATE) -> None:
        """Take what a packet tells, of sound that its sender knows at `sound_rate`, 8 or 16 kHz.
        Never raises."""
        if payload:
            self._level = OVERLOAD * 10 ** (-(payload[0] & LEVEL_BITS) / 20)
            self._wanted = payload[1 : 1 + MAX_ORDER], sound_rate

    def take(self, samples: int) -> Pcm:
        """The next `samples`, 320 at most."""
        if self._until_shaped > 0:
            self._until_shaped -= samples
        elif self._wanted != self._shown:
            self._sound = _shape(*self._wanted)
            self._shown = self._wanted
            self._until_shaped = RESHAPE
        start, end = self._position, self._position + samples
        self._position = end % ROUND
        sound = self._sound[start:end]
        if end > ROUND:
            sound = np.concatenate((sound, self._sound[: end - ROUND]))
        return np.asarray(np.clip(np.rint(sound * self._level), -32768, 32767), np.int16)
