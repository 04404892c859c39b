"""Levels of a line: its noise, its speaker, and whether its noise is itself voices. Sans-io.

Fed with the speech probability and the level of 32 ms windows, as the voice activity detection
reports them.
"""

from math import log10

NOISE_PROBABILITY = 0.1
"""Windows below this speech probability are noise: street, fan and white noise have 0.004 to 0.014
on average, babble has hardly any such windows."""
VOICE_PROBABILITY = 0.5
VOICE_MARGIN = 6.0
"""Level in dB above the noise from which a voice is the speaker's."""
NOISE_RANGE = 4.0
"""Windows up to so many dB above the noise level show whether the noise is voices."""
LOWEST = -65.0
"""Minimum noise level in dBFS: lower differences are those between digital silences."""
NOISE_WINDOWS = 32
"""Windows (1 s) over which the noise level is averaged,"""
SPEECH_WINDOWS = 64
"""those (2 s of voice) over which the speaker's is,"""
BABBLE_WINDOWS = 125
"""and those (4 s) over which the background is judged, longer than a sentence."""
KNOWN_WINDOWS = 8
"""Windows of voice (256 ms) from which the speaker's level is known."""
OTHER_RANGE = 12.0
"""A voice so many dB below the speaker's is hardly the speaker's..."""
OTHER_WEIGHT = 0.1
"""...and counts so much less."""


class LineLevels:
    """Running estimates for one call. Levels are in dBFS."""

    def __init__(self) -> None:
        self.noise = LOWEST
        self.babble = 0.0
        """Mean speech probability, 0..1, of the windows that are no louder than the noise."""
        self._noise_windows = 0
        self._babble_windows = 0
        self._speech_power = 0.0
        self._speech_windows = 0

    @property
    def noise_known(self) -> bool:
        """Whether the estimates of the noise average their full second."""
        return self._noise_windows >= NOISE_WINDOWS

    @property
    def speech(self) -> float | None:
        """Level of the speaker, the mean power of voiced windows; None until it is known."""
        return self.speech_so_far if self._speech_windows >= KNOWN_WINDOWS else None

    @property
    def speech_so_far(self) -> float | None:
        """As `speech`, from the first window on."""
        return 10 * log10(self._speech_power) if self._speech_windows else None

    def window(self, probability: float, level: float, learn_speech: bool) -> bool:
        """Adds a window. Its voice counts as the speaker's only with `learn_speech`: False while it
        may be echo. Returns whether it did."""
        if probability < NOISE_PROBABILITY:
            self._noise_windows = min(self._noise_windows + 1, NOISE_WINDOWS)
            self.noise += (max(level, LOWEST) - self.noise) / self._noise_windows
        if level < self.noise + NOISE_RANGE:
            self._babble_windows = min(self._babble_windows + 1, BABBLE_WINDOWS)
            self.babble += (probability - self.babble) / self._babble_windows
        voice = probability >= VOICE_PROBABILITY and level >= self.noise + VOICE_MARGIN
        if not (voice and learn_speech):
            return False
        before = self.speech
        self._speech_windows = min(self._speech_windows + 1, SPEECH_WINDOWS)
        weight = 1 / self._speech_windows
        if before is not None and level < before - OTHER_RANGE:
            weight *= OTHER_WEIGHT
        self._speech_power += (10 ** (level / 10) - self._speech_power) * weight
        return True
