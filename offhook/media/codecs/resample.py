"""Rate conversion between the sound of a call and its codecs: 8 -> 16, 24 -> 8, 24 -> 16 kHz.

A linear-phase polyphase FIR. Each block of `down` input samples makes `up` output samples, each by
its own phase of one low-pass filter, so a packet is one small matrix product and every 20 ms in
gives exactly 20 ms out. The filter is a Kaiser-windowed sinc through the half-way point
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
GROUP = 8
"""Blocks to a row of the product, where their number allows it. One block a row asks for a window
of input to be copied for each: 100 KB of it for 20 ms from 24 to 8 kHz, for every call, which the
processor's cache does not hold for many. Longer rows multiply by more zeros."""

Float = npt.NDArray[np.float64]
"""Doubles, though floats would take 0.8 us less of 4 for 20 ms: how a product is summed depends on
its shape and on the processor, and in floats that is enough to round a sample to its neighbour. So
the sound depends on neither, nor on how it is cut into packets."""
_LEAST, _MOST = -32768.0, 32767.0


@cache
def _low_pass(rate: int, edge: float) -> Float:
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
    return matrix / matrix.sum(axis=0), (len(taps) - 1) // 2


@cache
def _grouped(up: int, down: int, rate_in: int, group: int) -> Float:
    """The matrix of `_phases` for `group` blocks at once."""
    matrix, _ = _phases(up, down, rate_in)
    window = len(matrix)
    grouped = np.zeros((window + (group - 1) * down, group * up))
    for i in range(group):
        grouped[i * down : i * down + window, i * up : (i + 1) * up] = matrix
    return grouped


class Resampler:
    """One stream from `rate_in` to `rate_out` Hz. Stateful: blocks follow one another."""

    def __init__(self, rate_in: int, rate_out: int) -> None:
        divisor = gcd(rate_in, rate_out)
        self._up, self._down = rate_out // divisor, rate_in // divisor
        self._rate_in = rate_in
        matrix, delay = _phases(self._up, self._down, rate_in)
        self._history = len(matrix) - self._down
        self._size = -1
        """Samples of the blocks that the buffers are made for."""
        self._make_buffers(0, np.zeros(self._history))
        self.delay_ms = 1000 * delay / (self._up * rate_in)
        """Group delay, the same at every frequency."""

    def process(self, pcm: Pcm | Float) -> Pcm:
        """Any number of samples that is a multiple of `rate_in / gcd(rate_in, rate_out)` (3 from
        24 kHz, 1 from 8 kHz) to exactly as much time at the other rate."""
        if len(pcm) != self._size:
            self._make_buffers(len(pcm), self._last.copy())
        else:
            self._before[:] = self._last
        self._new[:] = pcm
        self._packed[...] = self._windows
        sound = self._sound
        np.dot(self._packed, self._matrix, out=sound)
        np.rint(sound, out=sound)
        # np.clip does the same in twice the time.
        np.maximum(sound, _LEAST, out=sound)
        np.minimum(sound, _MOST, out=sound)
        return sound.astype(np.int16).ravel()

    def _make_buffers(self, size: int, history: Float) -> None:
        """What every block of this many samples is worked out in: making views and arrays anew
        would cost as much as the product."""
        blocks = size // self._down
        group = gcd(blocks, GROUP)
        self._matrix = _grouped(self._up, self._down, self._rate_in, group)
        self._size = size
        buffer = np.empty(self._history + size)
        self._before, self._new = buffer[: self._history], buffer[self._history :]
        self._last = buffer[len(buffer) - self._history :]
        self._before[:] = history
        shape, strides = (blocks // group, len(self._matrix)), (8 * self._down * group, 8)
        self._windows: Float = np.ndarray(shape, np.float64, buffer, 0, strides)
        self._packed = np.empty(shape)
        self._sound = np.empty((blocks // group, group * self._up))
