"""Converts a client's audio to 16 kHz. Sans-io."""

from math import gcd

import numpy as np

from offhook.media.codecs.resample import Resampler
from offhook.media.pcm import RATE_IN, Pcm


class InputResampler:
    """Resamples streaming audio to 16 kHz in chunks of any size."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._step = max(1, rate // gcd(rate, RATE_IN))
        self.reset()

    def reset(self) -> None:
        """Resets the resampler: the next audio is not contiguous with the last."""
        self._rest = np.zeros(0, np.int16)
        self._resampler = Resampler(self._rate, RATE_IN) if self._rate != RATE_IN else None

    def process(self, pcm: Pcm) -> Pcm:
        """Returns the next samples at 16 kHz; a few may be retained until more arrive."""
        if self._resampler is None:
            return pcm
        waiting = np.concatenate((self._rest, pcm))
        whole = len(waiting) // self._step * self._step
        self._rest = waiting[whole:]
        return self._resampler.process(waiting[:whole])
