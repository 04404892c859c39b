"""When somebody speaks: probabilities and levels of 32 ms windows to starts and stops of speech.

The model says whether a window sounds like a voice, not whose. A second test keeps out the
television and the next table: a voice must also stand out of what the line has sounded like for
the last seconds. Sans-io; time is the sample count of the heard 16 kHz sound.
"""

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass

from offhook.media.pcm import RATE_IN

WINDOW = 512
_MS = RATE_IN // 1000


@dataclass(frozen=True)
class SpeechSettings:
    """Thresholds of `SpeechDetector`. Windows are 32 ms, levels dB."""

    start_probability: float = 0.5
    """The model's own working point: noise and clicks stay below it, and 39 coughs of 40."""
    start_windows: int = 2
    """One window above the threshold happens inside a breath; two in a row hardly."""
    suspect_probability: float = 0.7
    """One window this sure is worth a pause of the agent's voice, which costs nobody a word."""
    suspect_windows: int = 4
    """A suspicion not confirmed within 128 ms is dismissed: a longer pause would be noticed."""
    stop_probability: float = 0.35
    """Below the start, or one soft syllable would cut a sentence in two."""
    stop_windows: int = 6
    """192 ms: longer than the closure of a plosive, shorter than the pause after a sentence."""
    start_margin: float = 10.0
    """dB above the noise floor at which a voice is the caller's and not the room's."""
    stop_margin: float = 5.0
    """dB above the noise floor: less than at the start, because voices trail off."""
    quietest: float = -50.0
    """dBFS. Softer sound is line noise or crosstalk: callers arrive at -35 to -15."""


@dataclass(frozen=True)
class SpeechSuspected:
    """One window sounds like speech. `SpeechStart` or `SpeechDismissed` follows within 128 ms."""

    at_sample: int


@dataclass(frozen=True)
class SpeechDismissed:
    """What was suspected was no speech."""

    at_sample: int


@dataclass(frozen=True)
class SpeechStart:
    """Somebody speaks; `at_sample` is the estimated onset, some windows back."""

    at_sample: int


@dataclass(frozen=True)
class SpeechStop:
    """Nobody speaks any more; `at_sample` is the end of the last voiced window."""

    at_sample: int


SpeechEvent = SpeechSuspected | SpeechDismissed | SpeechStart | SpeechStop


class NoiseFloor:
    """The level the line falls back to: the 10th percentile of the last 4 s of windows.

    Running speech pauses for more than a tenth of the time, so a talker does not raise it; a
    steady noise or a babble of voices does, at the start of a call within half a second.
    """

    WINDOWS = 125
    FIRST = 16
    """Windows before the percentile means anything; until then the line counts as quiet."""
    LOWEST = -65.0
    """dBFS. A muted or suppressed line is digital silence; over that everything stands out."""

    def __init__(self) -> None:
        self.level = self.LOWEST
        self._levels: deque[float] = deque()
        self._sorted: list[float] = []

    def add(self, level: float) -> None:
        if len(self._levels) == self.WINDOWS:
            del self._sorted[bisect_left(self._sorted, self._levels.popleft())]
        self._levels.append(level)
        insort(self._sorted, level)
        known = len(self._sorted)
        if known >= self.FIRST:
            self.level = max(self._sorted[known // 10], self.LOWEST)


@dataclass
class _Window:
    start: int
    probability: float
    level: float


class SpeechDetector:
    """One caller's windows in, events out."""

    LOOK_BACK = 8
    """Windows (256 ms) searched for the onset, which the model notices late."""
    ONSET_RANGE = 25.0
    """dB below the loudest of them: softer than this is not yet the word."""

    def __init__(self, settings: SpeechSettings | None = None) -> None:
        self._settings = settings or SpeechSettings()
        self._floor = NoiseFloor()
        self._past: deque[_Window] = deque(maxlen=self.LOOK_BACK)
        self._run = 0
        self._suspected = 0
        self._now = 0
        self._onset = 0
        self._voiced_until = 0
        self.speaking = False

    @property
    def now(self) -> int:
        """Sample up to which windows were taken: the model may be late."""
        return self._now

    @property
    def silence_ms(self) -> int:
        """Since the last voiced window; 0 while it is the newest one. Counts from the first
        sample when nobody has spoken yet."""
        return (self._now - self._voiced_until) // _MS

    @property
    def speech_ms(self) -> int:
        """From the onset of the present utterance to its last voiced window; 0 in silence."""
        return (self._voiced_until - self._onset) // _MS if self.speaking else 0

    def window(self, probability: float, level: float, end_sample: int) -> list[SpeechEvent]:
        """Take the window that ends at `end_sample`: its chance of speech 0..1, level in dBFS."""
        self._now = end_sample
        self._past.append(_Window(end_sample - WINDOW, probability, level))
        events = (
            self._speaking(probability, level) if self.speaking else self._quiet(probability, level)
        )
        self._floor.add(level)
        return events

    def _quiet(self, probability: float, level: float) -> list[SpeechEvent]:
        settings = self._settings
        loud = level >= max(settings.quietest, self._floor.level + settings.start_margin)
        self._run = self._run + 1 if loud and probability >= settings.start_probability else 0
        if self._run >= settings.start_windows:
            self.speaking = True
            self._suspected = 0
            self._onset = self._find_onset()
            self._voiced_until = self._now
            return [SpeechStart(self._onset)]
        if self._suspected:
            self._suspected += 1
            sure = loud and probability >= settings.stop_probability
            if not sure or self._suspected > settings.suspect_windows:
                self._suspected = 0
                return [SpeechDismissed(self._now)]
        elif loud and probability >= settings.suspect_probability:
            self._suspected = 1
            return [SpeechSuspected(self._find_onset())]
        return []

    def _speaking(self, probability: float, level: float) -> list[SpeechEvent]:
        settings = self._settings
        heard = level >= self._floor.level + settings.stop_margin
        if heard and probability >= settings.stop_probability:
            self._voiced_until = self._now
        elif self._now - self._voiced_until >= settings.stop_windows * WINDOW:
            self.speaking = False
            self._run = 0
            return [SpeechStop(self._voiced_until)]
        return []

    def _find_onset(self) -> int:
        """The start of the earliest window of the unbroken rise that ends now."""
        onset = self._past[-1].start
        loudest = max(window.level for window in self._past)
        loud = max(self._floor.level + self._settings.stop_margin, loudest - self.ONSET_RANGE)
        for window in reversed(self._past):
            if window.level < loud or window.start < self._voiced_until:
                break
            onset = window.start
        return onset
