"""Rate conversion between the sound of a call and its codecs: 8 -> 16, 24 -> 8, 24 -> 16 kHz.

A linear-phase polyphase FIR. Each block of `down` input samples makes `up` output samples, each by
its own phase of one low-pass filter, so a block of blocks is one small matrix product and every
20 ms in gives exactly 20 ms out. The filter is a Kaiser-windowed sinc through the half-way point
of the band edge: flat to 0.85 of it, 60 dB down from 1.15 of it, so what little aliases or images
lies above the top of the telephone band (ITU-T G.712) or of G.722. That costs 1.5 ms of delay for
an edge of 4 kHz and 0.75 ms for 8 kHz.
"""

from functools import cache
from math import ceil, gcd

import numpy as np
import numpy.typing as npt

from offhook.media.pcm import Pcm

TRANSITION = 0.15
"""Half the width of the filter's transition, as a fraction of the band edge."""
STOPBAND_DB = 60.0

Float = npt.NDArray[np.float32]


@cache
def _low_pass(rate: int, edge: float) -> npt.NDArray[np.float64]:
    """Odd-length low-pass at `rate` Hz, -6 dB at `edge` Hz, by Kaiser's formulas."""
    half = ceil((STOPBAND_DB - 7.95) / (14.36 * 2 * TRANSITION * edge / rate) / 2)
    n = np.arange(-half, half + 1)
    window = np.kaiser(len(n), 0.1102 * (STOPBAND_DB - 8.7))
    return np.asarray(np.sinc(n * 2 * edge / rate) * window)


@cache
def _phases(up: int, down: int, rate_in: int) -> tuple[Float, int]:
    """The matrix that takes a window of input to `up` outputs, and the filter's delay in samples
    of `up * rate_in`.

    Output j of a block is the low-pass centred `delay` before sample `j * down` of the input
    raised to `up` times its rate. Each column is scaled to pass a constant exactly.
    """
    taps = _low_pass(up * rate_in, rate_in * min(1.0, up / down) / 2)
    history = ceil((len(taps) - 1) / up)
    matrix = np.zeros((history + down, up))
    for j in range(up):
        for i in range(history + down):
            k = j * down - (i - history) * up
            if 0 <= k < len(taps):
                matrix[i, j] = taps[k]
    return (matrix / matrix.sum(axis=0)).astype(np.float32), (len(taps) - 1) // 2


class Resampler:
    """One stream from `rate_in` to `rate_out` Hz. Stateful: blocks follow one another."""

    def __init__(self, rate_in: int, rate_out: int) -> None:
        divisor = gcd(rate_in, rate_out)
        self._up, self._down = rate_out // divisor, rate_in // divisor
        self._matrix, delay = _phases(self._up, self._down, rate_in)
        self._window = len(self._matrix)
        self._history = self._window - self._down
        self._buffer = np.zeros(self._history, np.float32)
        self.delay_ms = 1000 * delay / (self._up * rate_in)
        """Group delay, the same at every frequency."""

    def process(self, pcm: Pcm | Float) -> Pcm:
        """Any number of samples that is a multiple of `rate_in / gcd(rate_in, rate_out)` (3 from
        24 kHz, 1 from 8 kHz) to exactly as much time at the other rate."""
        blocks = len(pcm) // self._down
        if len(self._buffer) != self._history + len(pcm):
            history = self._buffer[-self._history :]
            self._buffer = np.empty(self._history + len(pcm), np.float32)
            self._buffer[: self._history] = history
        else:
            self._buffer[: self._history] = self._buffer[-self._history :]
        self._buffer[self._history :] = pcm
        windows = np.ndarray(
            (blocks, self._window), np.float32, self._buffer, 0, (4 * self._down, 4)
        )
        sound = np.ascontiguousarray(windows) @ self._matrix
        np.rint(sound, out=sound)
        np.clip(sound, -32768, 32767, out=sound)
        return sound.astype(np.int16).ravel()
