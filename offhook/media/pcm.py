"""The PCM used throughout the server: one-dimensional int16 mono numpy arrays of a known rate."""

import numpy as np
import numpy.typing as npt

Pcm = npt.NDArray[np.int16]

RATE_IN = 16_000
"""Hz of received audio: what libopus decodes to and every recognizer expects."""
RATE_OUT = 24_000
"""Hz of sent audio: what synthesizers produce and libopus encodes from."""
PACKET_MS = 20
SAMPLES_IN = RATE_IN * PACKET_MS // 1000
"""Samples in one inbound tick: 320."""
SAMPLES_OUT = RATE_OUT * PACKET_MS // 1000
"""Samples in one outbound packet: 480."""


def dbfs(pcm: Pcm) -> float:
    """Return the RMS level in dBFS; -96 for silence or an empty array."""
    if not len(pcm):
        return -96.0
    x = pcm.astype(np.float32)
    mean_square = float(np.dot(x, x)) / len(x)
    return max(-96.0, 10 * float(np.log10(mean_square / 32768**2 + 1e-12)))
