"""Tones of the telephone network as 24 kHz PCM: call progress (ITU-T E.180) and DTMF (Q.23).

Frequencies and cadences are those of North America and of the plan most of Europe shares; networks
differ by some milliseconds, and all are understood.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from offhook.media.pcm import PACKET_MS, RATE_OUT, SAMPLES_OUT, Pcm
from offhook.media.telephone_tones.dtmf import TONE_TICKS, DtmfTick

FULL_SCALE_DBM0 = 3.14
"""Level in dBm0 of a full-scale sine (ITU-T G.711)."""
TONE_DBM0 = -10.0
"""Total level of a call progress tone (E.180 §2: -10 ± 5)."""
LOW_DBM0 = -9.0
HIGH_DBM0 = -7.0
"""Levels of a digit's two tones; lines attenuate the higher one more (ITU-T Q.23, Q.24)."""
RAMP_SAMPLES = RATE_OUT * 3 // 1000
"""Tones fade in and out over 3 ms to avoid clicks; receivers allow for 5 (ITU-T Q.24)."""

ROWS = (697, 770, 852, 941)
COLUMNS = (1209, 1336, 1477, 1633)
_KEYS = "123A456B789C*0#D"


@dataclass(frozen=True)
class Segment:
    """Frequencies in Hz that sound together for `ms`, a multiple of 10; none is silence."""

    frequencies: tuple[int, ...]
    ms: int


Cadence = tuple[Segment, ...]


@dataclass(frozen=True)
class Tones:
    """A network's call progress tones; each repeats for as long as it is played."""

    ringback: Cadence
    busy: Cadence
    congestion: Cadence
    """No circuit is available; also called reorder."""
    special_information: Cadence
    """Played before a recorded message: the call cannot be completed."""


def _cadence(frequencies: tuple[int, ...], on_ms: int, off_ms: int) -> Cadence:
    return Segment(frequencies, on_ms), Segment((), off_ms)


_SPECIAL_INFORMATION = (
    *(Segment((frequency,), 330) for frequency in (950, 1400, 1800)),
    Segment((), 1000),
)
US = Tones(
    ringback=_cadence((440, 480), 2000, 4000),
    busy=_cadence((480, 620), 500, 500),
    congestion=_cadence((480, 620), 250, 250),
    special_information=_SPECIAL_INFORMATION,
)
EU = Tones(
    ringback=_cadence((425,), 1000, 4000),
    busy=_cadence((425,), 500, 500),
    congestion=_cadence((425,), 250, 250),
    special_information=_SPECIAL_INFORMATION,
)


def _sines(levels: dict[int, float], samples: int) -> Pcm:
    """The sum of sines, given as level in dBm0 by frequency in Hz, with faded ends."""
    at = np.arange(samples) / RATE_OUT
    sound = np.zeros(samples)
    for frequency, level in levels.items():
        peak = 32767 * 10 ** ((level - FULL_SCALE_DBM0) / 20)
        sound += peak * np.sin(2 * np.pi * frequency * at)
    ramp = 0.5 - 0.5 * np.cos(np.pi * (np.arange(RAMP_SAMPLES) + 0.5) / RAMP_SAMPLES)
    sound[:RAMP_SAMPLES] *= ramp
    sound[-RAMP_SAMPLES:] *= ramp[::-1]
    return np.rint(sound).astype(np.int16)


@cache
def sound_of(cadence: Cadence) -> Pcm:
    """One repetition of a cadence."""
    segments = []
    for segment in cadence:
        share = 10 * np.log10(max(1, len(segment.frequencies)))
        levels = dict.fromkeys(segment.frequencies, TONE_DBM0 - share)
        segments.append(_sines(levels, RATE_OUT * segment.ms // 1000))
    return np.concatenate(segments)


def play(cadence: Cadence) -> Iterator[Pcm]:
    """Yield the tone from its beginning, 20 ms (480 samples) at a time, without end."""
    return repeat(sound_of(cadence))


def repeat(sound: Pcm) -> Iterator[Pcm]:
    """Yield a sound of any length again and again, 20 ms (480 samples) at a time, without end."""
    position = 0
    while True:
        yield np.take(sound, np.arange(position, position + SAMPLES_OUT), mode="wrap")
        position = (position + SAMPLES_OUT) % len(sound)


def digit_frequencies(digit: str) -> tuple[int, int]:
    """Return the frequencies of a DTMF digit in Hz, the lower one first (ITU-T Q.23)."""
    row, column = divmod(_KEYS.index(digit), 4)
    return ROWS[row], COLUMNS[column]


@cache
def _digit_tones(digit: str) -> Pcm:
    low, high = digit_frequencies(digit)
    levels = {low: LOW_DBM0, high: HIGH_DBM0}
    return _sines(levels, TONE_TICKS * RATE_OUT * PACKET_MS // 1000)


def dtmf(key: DtmfTick) -> Pcm | None:
    """Return this tick of a digit's tones, 480 samples; None in the silence after them."""
    if key.tick >= TONE_TICKS:
        return None
    start = key.tick * SAMPLES_OUT
    return _digit_tones(key.digit)[start : start + SAMPLES_OUT]
