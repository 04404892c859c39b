"""Tones of the telephone network as 24 kHz PCM: how a call goes on (ITU-T E.180), and keys (Q.23).

Frequencies and cadences are those of North America and of the plan that most of Europe shares;
networks differ by some milliseconds and all are understood.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from offhook.media.dtmf import TONE_TICKS, KeyTick
from offhook.media.pcm import PACKET_MS, RATE_OUT, SAMPLES_OUT, Pcm

FULL_SCALE_DBM0 = 3.14
"""dBm0 of a sine that just reaches full scale (ITU-T G.711)."""
TONE_DBM0 = -10.0
"""Of the whole of a tone (E.180 §2: -10 ± 5)."""
LOW_DBM0 = -9.0
HIGH_DBM0 = -7.0
"""Of a key's two tones: the higher one is louder, for lines lose more of it (ITU-T Q.23, Q.24)."""
RAMP_SAMPLES = RATE_OUT * 3 // 1000
"""A tone rises and falls within 3 ms, lest it click; receivers allow for 5 (ITU-T Q.24)."""

ROWS = (697, 770, 852, 941)
COLUMNS = (1209, 1336, 1477, 1633)
_KEYS = "123A456B789C*0#D"


@dataclass(frozen=True)
class Segment:
    """Frequencies in Hz that sound together for `ms`, a multiple of 10; none: silence."""

    frequencies: tuple[int, ...]
    ms: int


Cadence = tuple[Segment, ...]


@dataclass(frozen=True)
class Tones:
    """A network's tones; each goes round for as long as it is played."""

    ringback: Cadence
    busy: Cadence
    congestion: Cadence
    """No line is free, also called reorder."""
    special_information: Cadence
    """Before a recorded message: the call cannot be completed."""


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
    """Sines of dBm0 by Hz, rising and falling at the ends."""
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
def _round(cadence: Cadence) -> Pcm:
    """Once through a cadence."""
    segments = []
    for segment in cadence:
        share = 10 * np.log10(max(1, len(segment.frequencies)))
        levels = dict.fromkeys(segment.frequencies, TONE_DBM0 - share)
        segments.append(_sines(levels, RATE_OUT * segment.ms // 1000))
    return np.concatenate(segments)


def play(cadence: Cadence) -> Iterator[Pcm]:
    """The tone from its beginning, 20 ms (480 samples) at a time, without end."""
    sound = _round(cadence)
    position = 0
    while True:
        yield np.take(sound, np.arange(position, position + SAMPLES_OUT), mode="wrap")
        position = (position + SAMPLES_OUT) % len(sound)


@cache
def _key(digit: str) -> Pcm:
    row, column = divmod(_KEYS.index(digit), 4)
    levels = {ROWS[row]: LOW_DBM0, COLUMNS[column]: HIGH_DBM0}
    return _sines(levels, TONE_TICKS * RATE_OUT * PACKET_MS // 1000)


def dtmf(key: KeyTick) -> Pcm | None:
    """These 20 ms of a key's tones; None in the pause after them."""
    if key.tick >= TONE_TICKS:
        return None
    start = key.tick * SAMPLES_OUT
    return _key(key.digit)[start : start + SAMPLES_OUT]
