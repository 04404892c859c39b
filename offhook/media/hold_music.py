"""Quiet music for callers who wait, made here: plucked notes of a pentatonic scale, endlessly."""

from functools import cache

import numpy as np

from offhook.media.pcm import RATE_OUT, Pcm

NOTE_S = 0.5
"""Time in s from one note to the next."""
DECAY_S = 0.55
"""Time in s in which a note falls to 37 % of its level, so that each sounds into the next."""
PEAK = 2600
"""Of a note at its beginning, about -22 dBFS: quieter than speech."""
_MELODY_HZ = (
    *(261.6, 392.0, 523.3, 440.0, 392.0, 329.6, 392.0, 293.7),
    *(220.0, 329.6, 440.0, 392.0, 329.6, 261.6, 293.7, 329.6),
)


@cache
def hold_music() -> Pcm:
    """Returns 8 s at 24 kHz that can be repeated without a break."""
    step = round(NOTE_S * RATE_OUT)
    at = np.arange(4 * step) / RATE_OUT
    sound = np.zeros(len(_MELODY_HZ) * step)
    attack = np.minimum(1, at / 0.01)
    for count, hz in enumerate(_MELODY_HZ):
        tone = np.sin(2 * np.pi * hz * at) + 0.3 * np.sin(4 * np.pi * hz * at)
        note = PEAK * attack * np.exp(-at / DECAY_S) * tone
        where = (count * step + np.arange(len(at))) % len(sound)
        sound[where] += note
    return np.rint(sound).astype(np.int16)
