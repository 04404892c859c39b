"""Sample rate conversion between call audio and codecs: 8 to 16, 24 to 8 and 24 to 16 kHz.

A linear-phase polyphase FIR filter. Each block of `down` input samples makes `up` output samples,
each by its own phase of one low-pass filter, so a packet is one small matrix product and 20 ms in
gives exactly 20 ms out. The filter is a Kaiser-windowed sinc, -6 dB at the band edge, flat to 0.85
of it and 60 dB down from 1.15 of it, so residual aliases and images lie above the top of the
telephone band (ITU-T G.712) or of G.722. The delay is 1.5 ms for an edge of 4 kHz and 0.75 ms for 8
kHz.
"""

from functools import cache
from math import ceil, gcd

import numpy as np
import numpy.typing as npt

from offhook.media import native
from offhook.media.pcm import Pcm

TRANSITION = 0.15
"""Half the width of the transition band, as a fraction of the band edge."""
STOPBAND_DB = 60.0
BLOCKS_PER_ROW = 8
"""Blocks per row of the matrix product, where their number allows. With one block per row every
block needs its own copy of the input window: 100 KB for 20 ms from 24 to 8 kHz, which for many
calls overflows the CPU cache. Longer rows multiply by more zeros."""

Float = npt.NDArray[np.float64]
"""Double precision, although single would save 0.8 of 4 us per 20 ms: the order of summation
depends on the matrix shape and the CPU, and in single precision that can change the rounding of a
sample. Doubles make the output independent of both, and of how it is cut into packets."""
_MIN, _MAX = -32768.0, 32767.0


@cache
def _low_pass(rate: int, edge: float) -> Float:
    """Odd-length low-pass filter at `rate` Hz, -6 dB at `edge` Hz, by Kaiser's formulas."""
    half = ceil((STOPBAND_DB - 7.95) / (14.36 * 2 * TRANSITION * edge / rate) / 2)
    n = np.arange(-half, half + 1)
    window = np.kaiser(len(n), 0.1102 * (STOPBAND_DB - 8.7))
    return np.asarray(np.sinc(n * 2 * edge / rate) * window)


@cache
def _phases(up: int, down: int, rate_in: int) -> tuple[Float, int]:
    """Return the matrix that maps a window of input to `up` outputs, and the filter delay in
    samples at `up * rate_in`.

    Output j of a block is the low-pass centred `delay` before input sample `j * down`, at `up`
    times the input rate. Each column is scaled to unity gain at DC.
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
def _rows(up: int, down: int, rate_in: int) -> Float:
    """The matrix of `_phases` with a row for each phase."""
    return np.ascontiguousarray(_phases(up, down, rate_in)[0].T)


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
    """Resamples one stream from `rate_in` to `rate_out` Hz. Stateful: one per stream."""

    def __init__(self, rate_in: int, rate_out: int) -> None:
        divisor = gcd(rate_in, rate_out)
        self._up, self._down = rate_out // divisor, rate_in // divisor
        self._rate_in = rate_in
        matrix, delay = _phases(self._up, self._down, rate_in)
        self._history = len(matrix) - self._down
        self._size = -1
        """Block length in samples that the buffers are made for."""
        self._make_buffers(0, np.zeros(self._history))
        self.delay_ms = 1000 * delay / (self._up * rate_in)
        """Group delay in ms, the same at every frequency."""
        self.compiled: native.Fir | None = None
        """The compiled filter, which then has the stream's state."""
        if native.used:
            rows = _rows(self._up, self._down, rate_in)
            self.compiled = native.Fir(rows, self._up, self._down)

    def process(self, pcm: Pcm) -> Pcm:
        """Resample a block whose length is a multiple of `rate_in / gcd(rate_in, rate_out)` samples
        (3 from 24 kHz, 1 from 8 kHz). Returns exactly the same duration at the other rate."""
        if self.compiled is not None:
            return self.compiled.process(pcm)
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
        np.maximum(sound, _MIN, out=sound)
        np.minimum(sound, _MAX, out=sound)
        return sound.astype(np.int16).ravel()

    def _make_buffers(self, size: int, history: Float) -> None:
        """Allocate the arrays for blocks of this size. Allocating them for each block would cost as
        much as the product."""
        blocks = size // self._down
        group = gcd(blocks, BLOCKS_PER_ROW)
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
