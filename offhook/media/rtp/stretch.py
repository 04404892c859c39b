"""Time-scale modification: plays 16 kHz speech slightly faster or slower at the same pitch.

Waveform-similarity overlap-add (Verhelst & Roelands, ICASSP 1993): one pitch period, found by
normalized autocorrelation, is cross-faded away or repeated, only where the audio resembles itself
one period later or is nearly silent.
"""

import numpy as np
import numpy.typing as npt

from offhook.media.pcm import Pcm

OVERLAP = 128
"""Samples of one cross-fade, and of the segment compared: 8 ms."""
MIN_PERIOD = 40
"""Samples: 2.5 ms, a voice of 400 Hz."""
MAX_PERIOD = 240
"""Samples: 15 ms, a voice of 67 Hz."""
GOOD_FIT = 0.9
"""Normalized correlation from which a repetition is inaudible."""
SILENCE_RMS = 100.0
"""Root-mean-square sample value, -50 dBFS, below which any cut is inaudible."""

_FADE_IN = np.arange(OVERLAP) / OVERLAP
_FADE_OUT = 1 - _FADE_IN

_Float = npt.NDArray[np.float64]


def accelerate(pcm: Pcm, most: int, fit: float = GOOD_FIT) -> tuple[Pcm, int]:
    """Shorten `pcm` by one pitch period of at most `most` samples, or by `most` samples where it is
    nearly silent. The first and last samples are kept, so it joins its neighbours. Returns the
    audio and the number of samples removed, 0 if no period correlates by `fit`, 0..1."""
    x = pcm.astype(np.float64)
    period = _period(x, most, most, fit)
    if not period:
        return pcm, 0
    out = np.empty(len(pcm) - period, np.int16)
    out[:OVERLAP] = _cross_fade(x[:OVERLAP], x[period : period + OVERLAP])
    out[OVERLAP:] = pcm[period + OVERLAP :]
    return out, period


def expand(pcm: Pcm, wanted: int, fit: float = GOOD_FIT) -> tuple[Pcm, int]:
    """Lengthen `pcm` by one pitch period of any length, or by `wanted` samples where it is nearly
    silent. Returns the audio and the number of samples added, as `accelerate` does."""
    x = pcm.astype(np.float64)
    period = _period(x, MAX_PERIOD, wanted, fit)
    if not period:
        return pcm, 0
    out = np.empty(len(pcm) + period, np.int16)
    out[:period] = pcm[:period]
    out[period : period + OVERLAP] = _cross_fade(x[period : period + OVERLAP], x[:OVERLAP])
    out[period + OVERLAP :] = pcm[OVERLAP:]
    return out, period


def _period(x: _Float, longest: int, if_silent: int, fit: float) -> int:
    """Samples after which `x` repeats its beginning; 0 if it does not within `longest`."""
    room = len(x) - OVERLAP
    if np.dot(x, x) < SILENCE_RMS**2 * len(x):
        return max(0, min(if_silent, room))
    longest = min(longest, room, MAX_PERIOD)
    if longest < MIN_PERIOD:
        return 0
    template, later = x[:OVERLAP], x[MIN_PERIOD : longest + OVERLAP]
    products = np.correlate(later, template, "valid")
    energy = np.cumsum(later * later)
    energies = energy[OVERLAP - 1 :].copy()
    energies[1:] -= energy[:-OVERLAP]
    fits = products / np.sqrt(energies * np.dot(template, template) + 1.0)
    best = int(np.argmax(fits))
    return MIN_PERIOD + best if fits[best] >= fit else 0


def _cross_fade(out: _Float, into: _Float) -> _Float:
    mixed: _Float = np.rint(out * _FADE_OUT + into * _FADE_IN)
    return mixed
