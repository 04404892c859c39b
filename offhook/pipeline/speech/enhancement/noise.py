"""Suppresses the noise of calls that need it. Sans-io.

The suppressor is WebRTC's. In steady noise 10 dB below the speech, turns end in time again and
PocketSphinx is spared a tenth to a quarter of its errors; at 20 dB it may cost words, and among
voices it takes those for the speaker (docs/embedded.md has the figures). So each call is measured:
suppression starts when the speaker is hardly louder than a steady noise, and ends when that is
over.
"""

from enum import Enum, auto
from typing import TYPE_CHECKING

import numpy as np

from offhook.media.pcm import SAMPLES_IN, Pcm, dbfs
from offhook.pipeline.speech.enhancement.levels import LineLevels

if TYPE_CHECKING:
    from pywebrtc_audio import NoiseSuppressor

STRENGTH = 1
"""WebRTC's second of four, 12 dB. Of 192 words PocketSphinx gets 65.6, 54.7 and 64.1 % wrong in
10 dB of street noise without, with 12 and with 18 dB; in fan noise 66.1, 53.1 and 59.4 %."""
PRIMING_MS = 500
"""Earlier audio from which the suppressor learns the noise when it starts; takes half a
millisecond."""
USUAL_SPEECH = -26.0
"""Level in dBFS assumed of a speaker before the first words."""
FAINT = -60.0
"""Level in dBFS up to which noise is none, however quiet the speaker."""
NOISY_SNR = 13.0
"""Estimated ratio in dB of speech to noise below which a line becomes noisy..."""
CLEAN_SNR = 17.0
"""...and above which it becomes clean."""
STEADY_BABBLE = 0.4
"""`LineLevels.babble` below which noise is steady enough to start: 0.01 before the first word..."""
VOICES_BABBLE = 0.75
"""...and above which it is voices: at 10 dB speech in steady noise comes to 0.5, babble to 0.9."""
NOISY_WINDOWS = 16
"""Windows (0.5 s) in a row that make a line noisy,"""
CLEAN_WINDOWS = 63
"""and those (2 s) that make it clean: a pause in the noise is no end of it."""


class LineState(Enum):
    CLEAN = auto()
    NOISY = auto()


class NoiseDecision:
    """Whether a line is to be suppressed: two states, each left once enough windows in a row argue
    for the other."""

    def __init__(self) -> None:
        self.state = LineState.CLEAN
        self._against = 0
        """Consecutive windows that argue against the state."""

    def window(self, levels: LineLevels) -> bool:
        """Returns whether the state changes with this window, after which `levels` are given."""
        if not levels.noise_known:
            return False
        speech = levels.speech
        snr = (USUAL_SPEECH if speech is None else speech) - levels.noise
        if self.state is LineState.CLEAN:
            steady = levels.noise > FAINT and levels.babble < STEADY_BABBLE
            against = steady and snr < NOISY_SNR
            enough, other = NOISY_WINDOWS, LineState.NOISY
        else:
            steady = levels.noise > FAINT and levels.babble < VOICES_BABBLE
            against = not steady or snr > CLEAN_SNR
            enough, other = CLEAN_WINDOWS, LineState.CLEAN
        self._against = self._against + 1 if against else 0
        if self._against < enough:
            return False
        self.state, self._against = other, 0
        return True


_FADE = np.linspace(0, 1, SAMPLES_IN, dtype=np.float32)


class NoiseSuppression:
    """The suppressor of one line, which exists only while it is on: 18 KB, 0.1 % of a core. Its
    output is 6 ms late. It fades in and out within a tick."""

    def __init__(self) -> None:
        self.input_level = -96.0
        """Level in dBFS of the last tick before suppression; only while on."""
        self._suppressor: NoiseSuppressor | None = None
        self._fading = 0
        """1 while it fades in, -1 while it fades out."""

    @property
    def on(self) -> bool:
        return self._suppressor is not None and self._fading >= 0

    def start(self, before: Pcm) -> None:
        """Suppresses from the next tick on; `before` is the audio up to it, of any length."""
        # Not at the head of the file: most edges never need it.
        from pywebrtc_audio import NoiseSuppressor

        self._suppressor = NoiseSuppressor(16_000, 1, STRENGTH)
        whole = len(before) // SAMPLES_IN * SAMPLES_IN
        if whole:
            self._suppressor.process(before[-whole:])
        self._fading = 1

    def stop(self) -> None:
        """Fades out within the next tick."""
        self._fading = -1

    def process(self, pcm: Pcm) -> Pcm:
        """Suppresses a tick of 320 samples; returns it as it is while off."""
        if self._suppressor is None:
            return pcm
        self.input_level = dbfs(pcm)
        clean: Pcm = self._suppressor.process(pcm)
        if self._fading:
            share = _FADE if self._fading > 0 else 1 - _FADE
            clean = np.rint(clean * share + pcm * (1 - share)).astype(np.int16)
            if self._fading < 0:
                self._suppressor = None
            self._fading = 0
        return clean
