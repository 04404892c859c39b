"""Raises quiet speakers to an ordinary level. Sans-io.

The gain is set by the speaker's level and moves only while the speaker talks, so pauses do not
breathe. Ordinary and loud speakers are passed as they are, bit for bit.
"""

import numpy as np

from offhook.media.pcm import Pcm
from offhook.pipeline.speech.enhancement.levels import LineLevels

QUIET = -36.0
"""Level in dBFS below which a speaker is raised; callers are at -35 to -15..."""
NOT_QUIET = -32.0
"""...and above which no longer."""
TARGET = -20.0
MAX_GAIN = 30.0
"""dB: what a caller at -50 dBFS needs."""
DEAD_BAND = 3.0
"""Deviation in dB from the wanted gain that is left alone."""
STEP = 0.2
"""dB in a window of 32 ms: 6 dB a second. Only the first gain of a call is set at once."""
LOUD = -10.0
"""Level in dBFS after the gain which reduces it at once: somebody takes the phone nearer."""

_FULL_SCALE = np.iinfo(np.int16)


class AutomaticGain:
    """The gain of one line."""

    def __init__(self) -> None:
        self.db = 0.0
        self._first = True

    def window(self, levels: LineLevels, level: float) -> None:
        """Moves the gain after a window with the speaker's voice, at `level` in dBFS."""
        speech = levels.speech
        if speech is None:
            return
        wanted = 0.0
        if speech < (NOT_QUIET if self.db else QUIET):
            wanted = min(TARGET - speech, MAX_GAIN)
        if level + self.db > LOUD:
            self.db = max(0.0, LOUD - level)
        elif self._first and wanted:
            self.db, self._first = wanted, False
        elif not wanted:
            self.db = max(0.0, self.db - STEP)
        elif abs(wanted - self.db) > DEAD_BAND:
            self.db += STEP if wanted > self.db else -STEP


def amplified(pcm: Pcm, from_db: float, to_db: float) -> Pcm:
    """Returns the audio with a gain that goes from one value to another, limited to full scale; the
    same array if there is none."""
    if not from_db and not to_db:
        return pcm
    ends = 10 ** (from_db / 20), 10 ** (to_db / 20)
    gains = ends[1] if from_db == to_db else np.linspace(*ends, len(pcm))
    sound = np.clip(np.rint(pcm * gains), _FULL_SCALE.min, _FULL_SCALE.max)
    limited: Pcm = sound.astype(np.int16)
    return limited
