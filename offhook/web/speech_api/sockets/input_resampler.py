"""Sound of a client at any rate to 16 kHz. Sans-io."""

from math import gcd

import numpy as np

from offhook.media.codecs.resample import Resampler
from offhook.media.pcm import RATE_IN, Pcm


class InputResampler:
    """Sound at the client's rate to 16 kHz, in whatever pieces it comes."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._step = max(1, rate // gcd(rate, RATE_IN))
        self.forget()

    def forget(self) -> None:
        """The next sound does not follow the last."""
        self._rest = np.zeros(0, np.int16)
        self._resampler = Resampler(self._rate, RATE_IN) if self._rate != RATE_IN else None

    def hear(self, pcm: Pcm) -> Pcm:
        if self._resampler is None:
            return pcm
        waiting = np.concatenate((self._rest, pcm))
        whole = len(waiting) // self._step * self._step
        self._rest = waiting[whole:]
        return self._resampler.process(waiting[:whole])
