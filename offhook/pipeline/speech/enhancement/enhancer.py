"""What happens to a caller's audio before voice activity detection and recognition. Sans-io."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from offhook.media.pcm import Pcm
from offhook.pipeline.speech.engines import has_trait
from offhook.pipeline.speech.enhancement.gain import QUIET, AutomaticGain, amplified
from offhook.pipeline.speech.enhancement.levels import LineLevels
from offhook.pipeline.speech.enhancement.noise import LineState, NoiseDecision, NoiseSuppression

SuppressionMode = Literal["auto", "on", "off"]


@dataclass(frozen=True)
class EnhancementSettings:
    noise_suppression: SuppressionMode = "auto"
    """auto: on lines with steady noise, see `noise`. on: on every line, for every recognizer."""
    automatic_gain: bool = True
    """Raise quiet callers."""


@dataclass(frozen=True)
class LineNoisy:
    """The line became noisy: start the suppression."""

    noise: float
    """Level in dBFS."""


@dataclass(frozen=True)
class LineClean:
    """The line became clean: stop the suppression."""

    noise: float


@dataclass(frozen=True)
class CallerQuiet:
    """The caller is quiet and is now raised by `gain` dB."""

    gain: float


EnhancementEvent = LineNoisy | LineClean | CallerQuiet


class Enhancer:
    """Noise suppression and automatic gain of one call: audio goes through `suppress` tick by tick
    and then through `amplify`; the detector's windows decide about the audio after them."""

    def __init__(self, settings: EnhancementSettings) -> None:
        self.suppression = NoiseSuppression()
        self._settings = settings
        self._automatic = settings.noise_suppression == "auto"
        self._levels = LineLevels()
        self._decision = NoiseDecision()
        self._gain = AutomaticGain()
        if settings.noise_suppression == "on":
            self.suppression.start(np.zeros(0, np.int16))

    @property
    def gain(self) -> float:
        """The current gain in dB."""
        return self._gain.db

    @property
    def learning(self) -> bool:
        """Whether a caller who seems to be quiet has begun to speak and the gain is not yet set."""
        so_far, known = self._levels.speech_so_far, self._levels.speech
        return (
            self._settings.automatic_gain
            and so_far is not None
            and so_far < QUIET
            and known is None
        )

    def suppresses_for(self, recognizer: str) -> bool:
        """Returns whether the recognizer of this name is to get suppressed audio."""
        always = self._settings.noise_suppression == "on"
        return always or has_trait(recognizer, "wants noise suppressed")

    def amplify(self, pcm: Pcm, before: float) -> Pcm:
        """Applies the gain, which was `before` (dB) at the end of the audio before this."""
        return amplified(pcm, before, self._gain.db)

    def window(
        self, probability: float, level: float, learn_speech: bool
    ) -> list[EnhancementEvent]:
        """Processes a window of amplified audio: its speech probability 0..1 and its level in dBFS
        without the gain. `learn_speech` is False while a voice may be echo."""
        if not (self._automatic or self._settings.automatic_gain):
            return []
        if self.suppression.on:
            level = self.suppression.input_level
        voiced = self._levels.window(probability, level, learn_speech)
        events: list[EnhancementEvent] = []
        if self._automatic and self._decision.window(self._levels):
            noisy = self._decision.state is LineState.NOISY
            events.append((LineNoisy if noisy else LineClean)(self._levels.noise))
        if voiced and self._settings.automatic_gain:
            before = self._gain.db
            self._gain.window(self._levels, level)
            if self._gain.db and not before:
                events.append(CallerQuiet(self._gain.db))
        return events
