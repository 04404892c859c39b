"""How much speech has gone by, from the sound alone: a clock that runs with the syllables.

Half of it is the time in which something is heard, half the number of syllables: the rises and
falls of the energy around the first formants (after Mermelstein, JASA 58, 1975, and de Jong &
Wempe, Behavior Research Methods 41, 2009). Time alone runs slow on a fast voice, syllables alone
miss those that run into each other; together they err less than either.
"""

import numpy as np
import numpy.typing as npt

from offhook.media.pcm import RATE_OUT, Pcm

BLOCK = 10
"""Samples averaged to one; the difference of the averages passes about 300 to 1200 Hz."""
BLOCKS = 24
"""In a frame: 10 ms."""
SMOOTH = 9
"""Frames under the window that smooths the energy before syllables are counted."""
DIP_DB = 2.0
"""Between two syllables."""
SYLLABLE_RANGE_DB = 25.0
"""A syllable is at most this far under the loudest of late."""
SYLLABLE_MS = 215.0
"""What a syllable moves the clock, were the clock syllables alone."""
SHORT_GAP_MS = 50
"""Quiet this long still belongs to the speech: a stop before it bursts."""
PAUSE_MS = 120
QUIETEST_DB, LOUDEST_DB = 38.0, 20.0
"""Below the loudest of late: the threshold of quiet lies between, by the noise there is."""
NOISE_SHARE = 0.3
"""Of the way from the noise up to the speech, in dB: the threshold of quiet."""
FLOOR_DB = 50.0
"""Of 10·log10 of a mean square: speech is louder than -40 dBFS somewhere."""
FALL_DB = 0.0065
RISE_DB = 0.05
"""A frame: how fast the loudest is forgotten, and the noise."""

_WINDOW = np.hanning(SMOOTH + 2)[1:-1] / np.hanning(SMOOTH + 2).sum()
Float = npt.NDArray[np.float32]


class SpeechClock:
    """Of one reply. Of a voice made `speed` times faster it tells the time at its own speed."""

    def __init__(self, speed: float = 1.0) -> None:
        self._block = max(1, round(BLOCK / speed))
        self._frame = self._block * BLOCKS
        self._frame_ms = self._frame * speed * 1000 / RATE_OUT
        self._rest = np.empty(0, np.int16)
        self._last = np.float32(0)
        self._energies = np.zeros(SMOOTH - 1, np.float32)
        self._loudest = 0.0
        self._noise = 99.0
        self._quiet_ms = 2.0 * PAUSE_MS
        self._started = False
        self._rising = True
        self._turn = -99.0
        self._loudest_syllable = -99.0

    def hear(self, pcm: Pcm) -> tuple[float, float | None]:
        """Milliseconds of speech in the piece (24 kHz), and how many of them were before a pause
        that it completes; None where it completes none."""
        if len(self._rest):
            pcm = np.concatenate([self._rest, pcm])
        frames = len(pcm) // self._frame
        self._rest = pcm[frames * self._frame :]
        if not frames:
            return 0.0, None
        loud, syllabic = self._levels(pcm[: frames * self._frame].astype(np.float32), frames)
        ms, before_pause = 0.0, None
        for level, syllable_level in zip(loud, syllabic, strict=True):
            pause = self._pauses(level)
            if not self._started:
                continue
            if self._quiet_ms <= SHORT_GAP_MS:
                ms += self._frame_ms / 2
            if self._syllable(syllable_level):
                ms += SYLLABLE_MS / 2
            if pause:
                before_pause = ms
        return ms, before_pause

    def _levels(self, sound: Float, frames: int) -> tuple[list[float], list[float]]:
        """Of each frame, in dB: all of it, and smoothly what syllables are made of."""
        rows = sound.reshape(frames, self._frame)
        powers = np.einsum("ij,ij->i", rows, rows) / self._frame
        averages = np.empty(frames * BLOCKS + 1, np.float32)
        averages[0] = self._last
        np.einsum("ij->i", sound.reshape(-1, self._block), out=averages[1:])
        self._last = averages[-1]
        steps = ((averages[1:] - averages[:-1]) / self._block).reshape(frames, BLOCKS)
        energies = np.concatenate([self._energies, np.einsum("ij,ij->i", steps, steps) / BLOCKS])
        self._energies = energies[frames:]
        levels = np.concatenate([powers + 1, np.convolve(energies, _WINDOW, "valid") + 0.1])
        decibels: list[float] = (10 * np.log10(levels)).tolist()
        return decibels[:frames], decibels[frames:]

    def _pauses(self, level: float) -> bool:
        """Whether a pause has just become long enough to be one."""
        self._loudest = max(self._loudest - FALL_DB, level, FLOOR_DB)
        self._noise = min(self._noise + RISE_DB, level)
        quiet = self._noise + NOISE_SHARE * (self._loudest - self._noise)
        quiet = min(max(quiet, self._loudest - QUIETEST_DB), self._loudest - LOUDEST_DB)
        if level > quiet:
            self._quiet_ms = 0.0
            self._started = True
            return False
        before = self._quiet_ms
        self._quiet_ms += self._frame_ms
        return before < PAUSE_MS - 1e-6 <= self._quiet_ms

    def _syllable(self, level: float) -> bool:
        """Whether a syllable has just passed its loudest."""
        self._loudest_syllable = max(self._loudest_syllable - FALL_DB, level)
        if self._rising:
            self._turn = max(self._turn, level)
            if level > self._turn - DIP_DB:
                return False
            passed = self._turn > self._loudest_syllable - SYLLABLE_RANGE_DB
            self._rising, self._turn = False, level
            return passed
        self._turn = min(self._turn, level)
        if level > self._turn + DIP_DB:
            self._rising, self._turn = True, level
        return False
