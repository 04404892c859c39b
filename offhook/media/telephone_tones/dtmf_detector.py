"""Finds DTMF digits in audio (ITU-T Q.23, Q.24), for lines that send them as tones only.

Every 10 ms the last 13 ms are fitted, by least squares, with the two tones of each digit. A digit
is there while its fit explains most of the energy, its two tones are about equally loud, and the
same digit was found in the windows before. Speech rarely sounds like that for the 40 ms that a
digit lasts at least (Q.24, annex A); where it does, the fit over the whole digit is the judge:
tones are steady, voices are not.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from offhook.media.pcm import RATE_IN, SAMPLES_IN, Pcm
from offhook.media.telephone_tones.dtmf import DIGITS
from offhook.media.telephone_tones.tones import COLUMNS, ROWS, digit_frequencies

HOP = RATE_IN // 100
"""Samples between two windows: 10 ms."""
WINDOW = RATE_IN * 13 // 1000
"""Samples of a window: short enough that a tone 1.5 % off (Q.24) still fits, long enough to tell
neighbouring tones apart."""
EXPLAINED = 0.65
"""Least fraction of a window's energy that a digit's two tones must explain."""
STEADY = {3: 0.85, 6: 0.7, 12: 0.7, 24: 0.7}
"""The same of the whole digit, for the best frequencies within OFFSETS, by the number of windows in
a row with the digit: those within a tone of 40 ms, the shortest allowed, and of 70 ms and longer,
which may have more noise or speech behind it."""
GAP_WINDOWS = 4
"""Windows in a row without the digit that end it: those of a pause of 40 ms (Q.24); a lost packet
makes fewer."""
MIN_DBFS = -42.0
"""Least level of a digit in dB relative to a full-scale sine, about -36 dBm0."""
TWIST_DB = (-11.0, 8.5)
"""Limits of the higher tone's level relative to the lower one's, in dB (Q.24: -8 to +4), with some
room for noise."""
LONGEST = WINDOW + 5 * HOP
"""Samples that are judged at once, the latest: 63 ms."""
OVERTONES = 0.0125
"""Most energy of both tones' second harmonics, relative to the tones: notes have more."""
OFFSETS = (-0.016, -0.012, -0.008, -0.004, 0.0, 0.004, 0.008, 0.012, 0.016)
"""Relative errors of a tone's frequency that are tried for the whole digit."""

Floats = NDArray[np.float32]


def _orthonormal(frequencies: tuple[float, ...], samples: int) -> Floats:
    """Return an orthonormal basis, float32[2 * n, samples], of sines of these frequencies."""
    angles = 2 * np.pi * np.arange(samples) / RATE_IN
    waves = [wave(f * angles) for f in frequencies for wave in (np.cos, np.sin)]
    return np.linalg.qr(np.array(waves).T)[0].T.astype(np.float32)


_PAIRS = np.array([digit_frequencies(digit) for digit in DIGITS])
_FITS = np.concatenate([_orthonormal((low, high), WINDOW) for low, high in _PAIRS])
"""Bases of all digits, four rows each, float32[64, WINDOW]."""
_TONES = {f: _orthonormal((f,), WINDOW) for f in (*ROWS, *COLUMNS)}
_LEAST = WINDOW / 2 * (32768 * 10 ** (MIN_DBFS / 20)) ** 2


class DtmfDetector:
    """Finds the digits in one call's audio, and takes their tones out of it.

    `on_digit` is called once per digit, 30 to 40 ms after its beginning.
    """

    def __init__(self, on_digit: Callable[[str], None]) -> None:
        self._on_digit = on_digit
        self._past: Floats = np.zeros(WINDOW - HOP, np.float32)
        self._tone: Floats = np.zeros(0, np.float32)
        """The sound of the digit so far, until it is certain."""
        self._candidate = ""
        """The digit of the last windows."""
        self._windows = 0
        """Windows in a row with the candidate."""
        self._absent = 0
        """Windows in a row without the digit that was reported."""
        self._digit = ""
        """The digit being heard, once reported."""

    def process(self, pcm: Pcm) -> Pcm:
        """Return int16[320], 20 ms at 16 kHz, as given, or silent where a digit is in it."""
        samples = np.concatenate((self._past, pcm.astype(np.float32)))
        toned = False
        for start in range(0, SAMPLES_IN, HOP):
            toned |= self._window(samples[start : start + WINDOW])
        self._past = samples[SAMPLES_IN:]
        return np.zeros_like(pcm) if toned else pcm

    def _window(self, window: Floats) -> bool:
        found = _digit_in(window)
        if self._digit:
            self._absent = 0 if found == self._digit else self._absent + 1
            if self._absent < GAP_WINDOWS:
                return not self._absent
            self._digit, self._absent = "", 0
        if found != self._candidate:
            self._candidate, self._windows = found, 0
            self._tone = window[:0]
        if not found:
            return False
        self._windows += 1
        latest = window if self._windows == 1 else window[-HOP:]
        self._tone = np.concatenate((self._tone, latest))[-LONGEST:]
        least = STEADY.get(self._windows)
        if least is not None and _are_tones(self._tone, found, least):
            self._digit = found
            self._on_digit(found)
        return True


def _digit_in(window: Floats) -> str:
    """Return the digit whose tones a window consists of; "" if there is none."""
    energy = float(window @ window)
    if energy < _LEAST:
        return ""
    fits = ((_FITS @ window) ** 2).reshape(len(DIGITS), 4).sum(1)
    best = int(fits.argmax())
    if fits[best] < EXPLAINED * energy:
        return ""
    low, high = _PAIRS[best]
    levels = [float(((_TONES[f] @ window) ** 2).sum()) for f in (low, high)]
    twist = 10 * math.log10(max(levels[1], 1.0) / max(levels[0], 1.0))
    return DIGITS[best] if TWIST_DB[0] <= twist <= TWIST_DB[1] else ""


def _are_tones(sound: Floats, digit: str, least: float) -> bool:
    """Return whether two unchanging tones, not far from the digit's, explain at least so much of
    the whole sound, and their overtones next to nothing."""
    tones = [_nearest(sound, frequency) for frequency in digit_frequencies(digit)]
    overtones = [2 * tone for tone in tones]
    fits = (_orthonormal((*tones, *overtones), len(sound)) @ sound) ** 2
    explained, beyond = float(fits[:4].sum()), float(fits[4:].sum())
    return explained >= least * float(sound @ sound) and beyond <= OVERTONES * explained


def _nearest(sound: Floats, frequency: float) -> float:
    """Return the frequency within OFFSETS that explains most of the sound."""

    def fit(tone: float) -> float:
        return float(((_orthonormal((tone,), len(sound)) @ sound) ** 2).sum())

    return max((frequency * (1 + offset) for offset in OFFSETS), key=fit)
