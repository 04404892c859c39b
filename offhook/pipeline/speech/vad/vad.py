"""Detects starts and stops of speech from probabilities and levels of 32 ms windows.

The model detects any voice. To exclude a television or people nearby, a voice must also stand out
from the line's level of the last seconds. Sans-io; time is the sample count of the 16 kHz audio.
"""

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass

from offhook.media.pcm import RATE_IN

WINDOW = 512
_MS = RATE_IN // 1000


@dataclass(frozen=True)
class SpeechSettings:
    """Thresholds of `SpeechDetector`. Windows are 32 ms, levels in dB."""

    start_probability: float = 0.5
    """The model's default threshold: noise, clicks and 39 of 40 coughs stay below it."""
    start_windows: int = 2
    """One window above the threshold occurs within a breath, two in a row rarely do."""
    suspect_probability: float = 0.7
    """A single window of this probability justifies pausing the agent's voice, which loses
    nothing."""
    suspect_windows: int = 4
    """A suspicion not confirmed within 128 ms is dismissed: a longer pause would be noticeable."""
    stop_probability: float = 0.35
    """Below the start threshold, since otherwise one soft syllable would split a sentence."""
    stop_windows: int = 6
    """192 ms: longer than the closure of a plosive, shorter than the pause after a sentence."""
    start_margin: float = 10.0
    """Level in dB above the noise floor from which a voice is the caller's rather than the
    room's."""
    stop_margin: float = 5.0
    """Level in dB above the noise floor; lower than at the start, because voices trail off."""
    quietest: float = -50.0
    """Level in dBFS below which sound is line noise or crosstalk; callers are at -35 to -15."""


@dataclass(frozen=True)
class SpeechSuspected:
    """One window sounds like speech; `SpeechStart` or `SpeechDismissed` follows within 128 ms."""

    at_sample: int


@dataclass(frozen=True)
class SpeechDismissed:
    """The suspected sound was not speech."""

    at_sample: int


@dataclass(frozen=True)
class SpeechStart:
    """Speech has started; `at_sample` is the estimated onset, some windows ago."""

    at_sample: int


@dataclass(frozen=True)
class SpeechStop:
    """Speech has stopped; `at_sample` is the end of the last voiced window."""

    at_sample: int


SpeechEvent = SpeechSuspected | SpeechDismissed | SpeechStart | SpeechStop


class NoiseFloor:
    """The noise level of the line: the 10th percentile of the last 4 s of windows.

    Running speech pauses for more than a tenth of the time, so a speaker does not raise it; steady
    noise or babble does, within half a second at the start of a call.
    """

    WINDOWS = 125
    FIRST = 16
    """Windows before the percentile is meaningful; until then the line counts as quiet."""
    LOWEST = -65.0
    """Minimum level in dBFS: a muted or suppressed line is digital silence, from which everything
    stands out."""

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
    """Turns one caller's windows into events."""

    LOOK_BACK = 8
    """Windows (256 ms) searched for the onset, which the model detects late."""
    ONSET_RANGE = 25.0
    """Range in dB below the loudest of them; softer windows are before the onset."""

    def __init__(self, settings: SpeechSettings | None = None) -> None:
        self._settings = settings or SpeechSettings()
        self.gain = 0.0
        """Gain in dB of the line, for a quiet caller: so much lower is `quietest`."""
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
        """Sample up to which windows have been processed; the model may lag."""
        return self._now

    @property
    def silence_ms(self) -> int:
        """Silence in ms since the last voiced window, 0 if that is the newest one; since the first
        sample if nobody has spoken yet."""
        return (self._now - self._voiced_until) // _MS

    @property
    def speech_ms(self) -> int:
        """Speech in ms from the onset of the current utterance to its last voiced window; 0 in
        silence."""
        return (self._voiced_until - self._onset) // _MS if self.speaking else 0

    def window(self, probability: float, level: float, end_sample: int) -> list[SpeechEvent]:
        """Processes the window that ends at `end_sample`, with its speech probability 0..1 and
        level in dBFS."""
        self._now = end_sample
        self._past.append(_Window(end_sample - WINDOW, probability, level))
        events = (
            self._speaking(probability, level) if self.speaking else self._quiet(probability, level)
        )
        self._floor.add(level)
        return events

    def _quiet(self, probability: float, level: float) -> list[SpeechEvent]:
        settings = self._settings
        quietest = settings.quietest - self.gain
        loud = level >= max(quietest, self._floor.level + settings.start_margin)
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
        """Returns the start of the earliest window of the continuous rise that ends now."""
        onset = self._past[-1].start
        loudest = max(window.level for window in self._past)
        loud = max(self._floor.level + self._settings.stop_margin, loudest - self.ONSET_RANGE)
        for window in reversed(self._past):
            if window.level < loud or window.start < self._voiced_until:
                break
            onset = window.start
        return onset
