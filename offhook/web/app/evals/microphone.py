"""What a microphone makes of a caller: quieter or louder, and with the noise behind it."""

import numpy as np
import numpy.typing as npt

from offhook.media.pcm import RATE_IN, Pcm
from offhook.web.app.evals.line_settings import LineSettings

NOISE_S = 4
"""Length in s of the noise, which then begins anew."""
LOW_HZ = 400
"""Above it the noise is weaker by 6 dB an octave, as that of traffic and fans is."""


class Microphone:
    """Changes 16 kHz sound packet by packet. The noise is the same in each call."""

    def __init__(self, settings: LineSettings) -> None:
        self._gain = 10 ** (settings.level / 20)
        self._noise = None if settings.noise is None else _noise(settings.noise)
        self._at = 0

    def process(self, pcm: Pcm) -> Pcm:
        """Returns what the microphone hears while the caller says this."""
        if self._noise is None and self._gain == 1:
            return pcm
        sound = pcm.astype(np.float64) * self._gain
        if self._noise is not None:
            places = np.arange(self._at, self._at + len(pcm)) % len(self._noise)
            self._at = int(places[-1]) + 1
            sound = sound + self._noise[places]
        heard: Pcm = np.clip(np.rint(sound), -32768, 32767).astype(np.int16)
        return heard


def _noise(dbfs: float) -> npt.NDArray[np.float64]:
    white = np.random.default_rng(1).standard_normal(NOISE_S * RATE_IN)
    spectrum = np.fft.rfft(white)
    hz = np.fft.rfftfreq(len(white), 1 / RATE_IN)
    shaped = np.fft.irfft(spectrum / np.maximum(hz / LOW_HZ, 1), len(white))
    scale = 32768 * 10 ** (dbfs / 20) / np.sqrt(np.mean(shaped**2))
    return np.asarray(shaped * scale, np.float64)
