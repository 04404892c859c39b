"""The sound of a room: who is heard, and how several voices become one. Sans-io, 20 ms at a time.

At most the three loudest are heard, so that the noise of many lines does not add up, and a voice
that is heard stays so until another is clearly louder. Their sum is limited instead of clipped.
"""

from collections.abc import Iterable

import numpy as np

from offhook.media import native
from offhook.media.codecs.resample import Resampler
from offhook.media.pcm import RATE_IN, RATE_OUT, Pcm

MAX_VOICES = 3
"""Voices heard at the same time; of more, the loudest."""
QUIET = 32768**2 * 10**-6.0
"""Mean square below which a line is silent: -60 dB of full scale."""
DECAY = 0.93
"""What remains after 20 ms of the level of a voice that has become silent, 16 dB a second: the
pauses between words do not take its place."""
STAYS = 2.0
"""How much louder, as a ratio of mean squares (3 dB), another voice must be to take the place of
one that is heard."""
CEILING = 32000
"""Largest magnitude of a sum."""
ATTACK_SAMPLES = 48
"""Within which the gain of a sum that would be larger is lowered: 2 ms at 24 kHz."""
RELEASE = 0.02
"""By how much the gain rises in 20 ms, so that it is 1 again within a second."""


def mean_square(sound: Pcm) -> float:
    """Return the mean square of a sound, to the last bit whoever computes it."""
    if native.used:
        return native.mean_square(sound)
    x = sound.astype(np.float64)  # the sum of whole numbers has no rounding
    return float(np.dot(x, x)) / len(x)


class Voice:
    """One source of sound in a room."""

    def __init__(self) -> None:
        self.sound: Pcm | None = None
        """Its 480 samples of this tick at 24 kHz; None while it is silent."""
        self.level = 0.0
        """Mean square of what it has said lately."""
        self._is_heard = False
        self._resampler = Resampler(RATE_IN, RATE_OUT)

    def receive(self, sound: Pcm) -> None:
        """Take 20 ms of a line at 16 kHz."""
        self._measure(sound)
        self.sound = self._resampler.process(sound) if self.level >= QUIET else None

    def say(self, sound: Pcm | None) -> None:
        """Take 20 ms at 24 kHz, or None."""
        if sound is not None:
            self._measure(sound)
        self.sound = sound

    def silence(self) -> None:
        """It is not heard in this tick, whatever it says."""
        self.sound, self.level, self._is_heard = None, 0.0, False

    def _measure(self, sound: Pcm) -> None:
        self.level = max(mean_square(sound), self.level * DECAY)

    @property
    def _rank(self) -> float:
        return self.level * STAYS if self._is_heard else self.level

    @staticmethod
    def loudest(voices: Iterable["Voice"]) -> list["Voice"]:
        """Return the voices that are heard in this tick."""
        speaking = [voice for voice in voices if voice.sound is not None]
        if len(speaking) > MAX_VOICES:
            speaking.sort(key=lambda voice: voice._rank, reverse=True)
            for voice in speaking[MAX_VOICES:]:
                voice._is_heard = False
            del speaking[MAX_VOICES:]
        for voice in speaking:
            voice._is_heard = True
        return speaking


class Limiter:
    """Adds the sounds that one member hears. Stateful: one per member."""

    def __init__(self) -> None:
        self._gain = 1.0

    def mix(self, sounds: list[Pcm]) -> Pcm | None:
        """Return the sum of sounds of one length, lowered as a whole where it would be too large;
        None if there are none. A single sound is returned as it is."""
        if not sounds:
            self._gain = 1.0
            return None
        if len(sounds) == 1 and self._gain == 1.0:
            return sounds[0]
        if self._gain == 1.0 and native.used:
            mixed = native.mix_unlimited(sounds, CEILING)
            if mixed is not None:
                return mixed
        total = sounds[0].astype(np.float32)
        for sound in sounds[1:]:
            total += sound
        peak = max(float(total.max()), -float(total.min()))
        before = self._gain
        self._gain = after = min(CEILING / peak if peak > CEILING else 1.0, before + RELEASE)
        if after < before:
            total[:ATTACK_SAMPLES] *= np.linspace(before / after, 1.0, ATTACK_SAMPLES)
            total *= after
            np.clip(total[:ATTACK_SAMPLES], -CEILING, CEILING, out=total[:ATTACK_SAMPLES])
        elif after < 1.0 or before < 1.0:
            total *= np.linspace(before, after, len(total))
        return total.astype(np.int16)
