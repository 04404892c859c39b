"""Finds tones that stay as they are: beeps, dial tones, fax machines, and those of an announcement.

Every 20 ms the spectrum of the last 40 ms is searched for one or two lines that have most of its
energy. A tone is there while the same lines are: a voice moves on within a few hundredths of a
second, and has more lines.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from offhook.media.pcm import PACKET_MS, RATE_IN, SAMPLES_IN, Pcm

WINDOW = 2 * SAMPLES_IN
"""Samples of a window: 40 ms, in which lines 50 Hz apart are two."""
BIN_HZ = RATE_IN / WINDOW
LOWEST_HZ, HIGHEST_HZ = 300.0, 2400.0
"""Frequencies among which tones are looked for."""
ONE_LINE, TWO_LINES = 0.72, 0.8
"""Least share of a window's energy that the lines of a tone have: 0.9 at 10 dB above noise, less
where a packet is lost."""
SECOND_LINE = 0.12
"""Least share of the weaker one of two lines; below it, there is one."""
STEADY_HZ = 14.0
"""Most that a line moves within a tone."""
STEADY_DB = 7.0
"""Most that the level of a tone moves."""
MIN_DBFS = -48.0
"""Least level of a tone in dB relative to a full-scale sine."""
GAP_TICKS = 2
"""Ticks without a tone that do not end it: a lost packet, a click."""

_HANN = np.hanning(WINDOW).astype(np.float32)
_FIRST, _LAST = int(LOWEST_HZ / BIN_HZ), int(HIGHEST_HZ / BIN_HZ)
_FLOOR = 10 ** (MIN_DBFS / 10) * 32768.0**2 / 2

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Tone:
    """A tone. Times are in ms since the first sample."""

    frequencies: tuple[float, ...]
    """In Hz, one or two, the lower one first."""
    began_ms: int
    ended_ms: int

    @property
    def lasted_ms(self) -> int:
        return self.ended_ms - self.began_ms

    def has(self, *frequencies: float, within: float = STEADY_HZ) -> bool:
        """Return whether these are its frequencies, give or take `within` Hz."""
        return len(frequencies) == len(self.frequencies) and all(
            abs(is_ - wanted) <= within
            for is_, wanted in zip(self.frequencies, frequencies, strict=True)
        )


class SteadyTones:
    """The tones of one call, 20 ms at a time."""

    def __init__(self) -> None:
        self.now_ms = 0
        self._window: Floats = np.zeros(WINDOW, np.float32)
        self._lines: tuple[float, ...] = ()
        """Of the tone in progress."""
        self._level = 0.0
        self._began_ms = self._seen_ms = 0
        self._missing = 0

    @property
    def sounding(self) -> Tone | None:
        """The tone in progress, so far; None if there is none."""
        return Tone(self._lines, self._began_ms, self._seen_ms) if self._lines else None

    def process(self, pcm: Pcm) -> Tone | None:
        """Take int16[320], 20 ms at 16 kHz; return a tone that has ended by now, or None."""
        self._window[:SAMPLES_IN] = self._window[SAMPLES_IN:]
        self._window[SAMPLES_IN:] = pcm
        self.now_ms += PACKET_MS
        lines, level = _lines_of(self._window)
        if self._lines and self._goes_on(lines, level):
            self._seen_ms, self._missing = self.now_ms, 0
            return None
        ended = None
        if self._lines:
            self._missing += 1
            if self._missing <= GAP_TICKS and not lines:
                return None
            ended, self._lines = self.sounding, ()
        if lines:
            self._lines, self._level, self._missing = lines, level, 0
            self._began_ms, self._seen_ms = self.now_ms - PACKET_MS, self.now_ms
        return ended

    def _goes_on(self, lines: tuple[float, ...], level: float) -> bool:
        return (
            len(lines) == len(self._lines)
            and abs(level - self._level) <= STEADY_DB
            and all(abs(a - b) <= STEADY_HZ for a, b in zip(lines, self._lines, strict=True))
        )


def _lines_of(window: Floats) -> tuple[tuple[float, ...], float]:
    """Return the frequencies in Hz of the one or two lines that a window consists of, and its level
    in dB; none if it consists of anything else."""
    energy = float(window @ window) / WINDOW
    if energy < _FLOOR:
        return (), 0.0
    spectrum = np.abs(np.fft.rfft(window * _HANN)).astype(np.float32) ** 2
    total = float(spectrum[4:].sum()) + 1e-6  # without what hums
    level = 10 * float(np.log10(energy))
    first, at = _strongest(spectrum)
    if first >= ONE_LINE * total:
        return (at,), level
    left = spectrum.copy()
    middle = round(at / BIN_HZ)
    left[max(0, middle - 2) : middle + 3] = 0.0
    second, other = _strongest(left)
    if second >= SECOND_LINE * total and first + second >= TWO_LINES * total:
        return (min(at, other), max(at, other)), level
    return (), level


def _strongest(spectrum: Floats) -> tuple[float, float]:
    """Return the energy of the strongest line, and its frequency in Hz."""
    at = _FIRST + int(spectrum[_FIRST : _LAST + 1].argmax())
    around = spectrum[at - 2 : at + 3]
    energy = float(around.sum())
    middle = float(around @ np.arange(at - 2, at + 3)) / (energy + 1e-6)
    return energy, middle * BIN_HZ
