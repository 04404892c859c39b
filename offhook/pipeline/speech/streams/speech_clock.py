"""Measures from audio alone how much speech has passed, with a clock driven by syllables.

Half of it is the time with audible sound, half the number of syllables: rises and falls of the
energy around the first formants (after Mermelstein, JASA 58, 1975, and de Jong & Wempe, Behavior
Research Methods 41, 2009). Time alone is too slow for a fast voice, syllables alone miss merged
ones; together they err less than either.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from offhook.media.pcm import RATE_OUT, Pcm

BLOCK = 10
"""Samples averaged into one; the difference of the averages passes about 300 to 1200 Hz."""
BLOCKS = 24
"""Blocks in a frame of 10 ms."""
SMOOTH = 9
"""Frames of the window that smooths the energy before syllables are counted."""
DIP_DB = 2.0
"""Minimum dip between two syllables."""
SYLLABLE_RANGE_DB = 25.0
"""Maximum distance of a syllable below the recent maximum."""
SYLLABLE_MS = 215.0
"""Speech time per syllable, as if the clock were driven by syllables alone."""
SHORT_GAP_MS = 50
"""Gaps up to this long still belong to speech, e.g. the closure of a stop."""
PAUSE_MS = 120
QUIETEST_DB, LOUDEST_DB = 38.0, 20.0
"""Range of the silence threshold below the recent maximum, chosen by the noise level."""
NOISE_SHARE = 0.3
"""Position of the silence threshold between noise and speech level, as a share in dB."""
FLOOR_DB = 50.0
"""Floor as 10·log10 of a mean square: speech exceeds -40 dBFS somewhere."""
FALL_DB = 0.0065
RISE_DB = 0.05
"""Decay of the maximum and of the noise level, in dB per frame."""

_WINDOW = np.hanning(SMOOTH + 2)[1:-1] / np.hanning(SMOOTH + 2).sum()
Float = npt.NDArray[np.float32]


class SpeechClock:
    """The speech clock of one reply; for a voice at `speed` it counts time at normal speed."""

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

    def feed(self, pcm: Pcm) -> tuple[float, float | None]:
        """Returns the ms of speech in a piece of 24 kHz audio, and how many of them precede a pause
        that it completes (None if it completes none)."""
        return self.feed_parts(pcm, len(pcm))[0] if len(pcm) else (0.0, None)

    def feed_parts(self, pcm: Pcm, size: int) -> list[tuple[float, float | None]]:
        """Adds a piece of audio and returns for each `size` samples of it what `feed` would."""
        ends = [*range(len(self._rest) + size, len(self._rest) + len(pcm), size)]
        if len(self._rest):
            pcm = np.concatenate([self._rest, pcm])
        ends.append(len(pcm))
        frames = len(pcm) // self._frame
        self._rest = pcm[frames * self._frame :]
        loud: list[float] = []
        syllabic: list[float] = []
        if frames:
            sound = pcm[: frames * self._frame].astype(np.float32)
            loud, syllabic = self._levels(sound, frames)
        found, begin = [], 0
        for end in (end // self._frame for end in ends):
            found.append(self._advance(loud[begin:end], syllabic[begin:end]))
            begin = end
        return found

    def _advance(
        self, loud: Sequence[float], syllabic: Sequence[float]
    ) -> tuple[float, float | None]:
        """Returns what `feed` does, for frames with these levels."""
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
        """Returns per frame the level in dB, and the smoothed level used for syllables."""
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
        """Returns whether a pause has just become long enough."""
        # Comparisons instead of min() and max(), which take most of the time of these two methods.
        loudest = self._loudest - FALL_DB
        loudest = level if level > loudest else loudest
        self._loudest = loudest = FLOOR_DB if loudest < FLOOR_DB else loudest
        noise = self._noise + RISE_DB
        self._noise = noise = level if level < noise else noise
        quiet = noise + NOISE_SHARE * (loudest - noise)
        lowest, highest = loudest - QUIETEST_DB, loudest - LOUDEST_DB
        quiet = lowest if quiet < lowest else highest if quiet > highest else quiet
        if level > quiet:
            self._quiet_ms = 0.0
            self._started = True
            return False
        before = self._quiet_ms
        self._quiet_ms += self._frame_ms
        return before < PAUSE_MS - 1e-6 <= self._quiet_ms

    def _syllable(self, level: float) -> bool:
        """Returns whether a syllable has just passed its peak."""
        loudest = self._loudest_syllable - FALL_DB
        self._loudest_syllable = loudest = level if level > loudest else loudest
        turn = self._turn
        if self._rising:
            if level > turn:
                self._turn = level
                return False
            if level > turn - DIP_DB:
                return False
            self._rising, self._turn = False, level
            return turn > loudest - SYLLABLE_RANGE_DB
        if level < turn:
            self._turn = level
        elif level > turn + DIP_DB:
            self._rising, self._turn = True, level
        return False
