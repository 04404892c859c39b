"""Comfort noise for a far end that suppresses its silence (RFC 3389).

A packet gives the noise level and optionally its spectrum, as reflection coefficients of an
all-pole filter. Two seconds of noise with that spectrum are synthesized at once in the frequency
domain and played in a loop that joins seamlessly, so a tick costs one slice.
"""

from functools import cache, lru_cache
from random import Random

import numpy as np
import numpy.typing as npt
from numpy import fft  # loaded here, not in the first call

from offhook.media.pcm import RATE_IN, Pcm

LOOP_SAMPLES = 1 << 15
"""Samples of noise synthesized at once: 2 s, long enough that the repetition is not noticed."""
MAX_ORDER = 12
"""Coefficients used: senders give about ten, and the last of many matter little (RFC 3389 §3)."""
LEVEL_BITS = 0x7F
"""Mask of the first byte: the noise level in -dBov (RFC 3389 §3.1)."""
FULL_SCALE_RMS = 32767
"""Root mean square of 0 dBov: the loudest square wave."""
COEFFICIENT_STEP = 258 / 32768
COEFFICIENT_ZERO = 127
"""Byte value of a zero coefficient (RFC 3389 §3.2); the highest byte, 255, is reserved."""
MAX_CACHED_SPECTRA = 16
"""Spectra whose noise is cached, for all calls. Many senders give none and share the flat one."""
RESHAPE_SAMPLES = RATE_IN // 5
"""Samples between two changes of the spectrum: 200 ms, as each takes half a millisecond."""

SOUND_RATE = 8_000
"""Hz, assumed of a sender whose codec is not known."""

Float = npt.NDArray[np.float64]


@cache
def _white() -> npt.NDArray[np.complex128]:
    """A flat spectrum of unit power per bin with fixed random phases."""
    random = Random(3389).random
    phases = np.array([random() for _ in range(LOOP_SAMPLES // 2 + 1)])
    return np.asarray(np.exp(2j * np.pi * phases))


def _predictor(coefficients: bytes) -> Float:
    """The prediction filter A(z) of quantized reflection coefficients, by the step-up recursion."""
    predictor = np.array([1.0])
    for byte in coefficients:
        k = (min(byte, COEFFICIENT_ZERO * 2) - COEFFICIENT_ZERO) * COEFFICIENT_STEP
        longer = np.append(predictor, 0.0)
        predictor = longer + k * longer[::-1]
    return predictor


@lru_cache(maxsize=MAX_CACHED_SPECTRA)
def _shape(coefficients: bytes, sound_rate: int) -> npt.NDArray[np.float32]:
    """Noise with this spectrum, of unit power: LOOP_SAMPLES samples at 16 kHz."""
    lines = LOOP_SAMPLES // 2 * sound_rate // RATE_IN
    gain = 1 / np.abs(fft.rfft(_predictor(coefficients), 2 * lines)[1:lines])
    spectrum = np.zeros(LOOP_SAMPLES // 2 + 1, np.complex128)
    spectrum[1:lines] = _white()[1:lines] * gain
    sound = fft.irfft(spectrum)
    return np.asarray(sound / np.sqrt(np.mean(sound**2)), np.float32)


class ComfortNoise:
    """Generates the noise between one stream's talkspurts; silent until a packet gives a level."""

    def __init__(self) -> None:
        self._level = 0.0
        """Root mean square of the noise."""
        self._latest = self._playing = (b"", SOUND_RATE)
        """(Coefficients, sound rate in Hz) of the last packet, and of the noise now playing."""
        self._sound = _shape(*self._playing)
        self._position = 0
        self._until_shaped = 0
        """Samples to play before the spectrum may change again."""

    def update(self, payload: bytes, sound_rate: int = SOUND_RATE) -> None:
        """Apply the payload of a comfort noise packet (RFC 3389 §3). `sound_rate` is the sample
        rate of the sender's codec, 8000 or 16000 Hz. Never raises."""
        if payload:
            self._level = FULL_SCALE_RMS * 10 ** (-(payload[0] & LEVEL_BITS) / 20)
            self._latest = payload[1 : 1 + MAX_ORDER], sound_rate

    def next_samples(self, samples: int) -> Pcm:
        """Return the next `samples` samples of noise at 16 kHz, 320 at most."""
        if self._until_shaped > 0:
            self._until_shaped -= samples
        elif self._latest != self._playing:
            self._sound = _shape(*self._latest)
            self._playing = self._latest
            self._until_shaped = RESHAPE_SAMPLES
        start, end = self._position, self._position + samples
        self._position = end % LOOP_SAMPLES
        sound = self._sound[start:end]
        if end > LOOP_SAMPLES:
            sound = np.concatenate((sound, self._sound[: end - LOOP_SAMPLES]))
        return np.asarray(np.clip(np.rint(sound * self._level), -32768, 32767), np.int16)
