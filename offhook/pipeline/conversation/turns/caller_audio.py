"""A caller's audio of the last seconds, without noise and searched for speech. Sans-io.

Positions are samples of what was received.
"""

from collections.abc import Callable

from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.conversation.events import CallerAmplified, Event, NoiseSuppressed
from offhook.pipeline.conversation.latency import VOICE_GAP_MS
from offhook.pipeline.conversation.turns.facts import Facts
from offhook.pipeline.speech.enhancement.enhancer import (
    CallerQuiet,
    EnhancementSettings,
    Enhancer,
    LineClean,
    LineNoisy,
)
from offhook.pipeline.speech.enhancement.noise import PRIMING_MS
from offhook.pipeline.speech.streams.recent_audio import RecentAudio
from offhook.pipeline.speech.vad.vad import (
    SpeechDetector,
    SpeechDismissed,
    SpeechEvent,
    SpeechStart,
    SpeechSuspected,
)

MS = RATE_IN // 1000


class CallerAudio:
    """The audio of one caller as the recognizer is to get it, and where speech is in it."""

    def __init__(
        self,
        settings: EnhancementSettings,
        recognizer_name: str,
        seconds: float,
        emit: Callable[[Event], None],
    ) -> None:
        """Keeps the last `seconds`. `recognizer_name` decides whether they are kept with the noise
        suppressed, see `Enhancer.suppresses_for`. `emit` receives what changes about the line."""
        self.detector = SpeechDetector()
        self.suspected = False
        """One VAD window scored high: speech may have started."""
        self.onset = 0
        """Position at which the last speech, or what was suspected to be, began."""
        self.end = 0
        """Position up to which audio was received."""
        self._memory = RecentAudio(seconds)
        self._enhancer = Enhancer(settings)
        self._keeps_suppressed = self._enhancer.suppresses_for(recognizer_name)
        self._emit = emit

    @property
    def end_ms(self) -> int:
        """The length of what was received: the time base of events."""
        return self.end // MS

    @property
    def gain(self) -> float:
        """The current gain in dB, for a quiet caller."""
        return self._enhancer.gain

    @property
    def gain_due(self) -> bool:
        """Whether a caller who seems to be quiet has begun to speak and the gain is not yet set."""
        return self._enhancer.learning

    def add(self, heard: Pcm) -> Pcm:
        """Add 20 ms; return them with the noise suppressed, if it is."""
        suppressed = self._enhancer.suppression.process(heard)
        self._memory.add(suppressed if self._keeps_suppressed else heard)
        self.end = self._memory.end
        return suppressed

    def slice(self, start: int, end: int) -> Pcm:
        """Return the audio between two positions, or as much of it as is kept."""
        return self._memory.slice(start, end)

    def until_now(self) -> Callable[[int], Pcm]:
        """Return what returns so many of the samples before this moment."""
        end = self.end
        return lambda samples: self.slice(end - samples, end)

    def amplify(self, pcm: Pcm, before: float | None = None) -> Pcm:
        """Return audio with the gain applied, which was `before` (dB) at the end of the audio
        before; None: as it is now."""
        enhancer = self._enhancer
        return enhancer.amplify(pcm, enhancer.gain if before is None else before)

    def receive_window(
        self, probability: float, level: float, end: int, *, may_be_echo: bool
    ) -> list[SpeechEvent]:
        """Process a window of amplified audio that ends at `end`: its speech probability 0..1 and
        its level in dBFS. What comes back of the agent is no quiet caller."""
        level -= self.gain
        for change in self._enhancer.window(probability, level, not may_be_echo):
            self._apply(change)
        self.detector.gain = 0.0 if may_be_echo else self.gain
        events = self.detector.window(probability, level, end)
        for event in events:
            match event:
                case SpeechSuspected(at_sample):
                    self.suspected, self.onset = True, at_sample
                case SpeechDismissed():
                    self.suspected = False
                case SpeechStart(at_sample):
                    self.suspected, self.onset = False, at_sample
        return events

    def _apply(self, change: LineNoisy | LineClean | CallerQuiet) -> None:
        now, at_ms = self.end, self.end_ms
        match change:
            case LineNoisy(noise):
                self._enhancer.suppression.start(self.slice(now - PRIMING_MS * MS, now))
                self._emit(NoiseSuppressed(at_ms, True, round(noise, 1)))
            case LineClean(noise):
                self._enhancer.suppression.stop()
                self._emit(NoiseSuppressed(at_ms, False, round(noise, 1)))
            case CallerQuiet(gain):
                self._emit(CallerAmplified(at_ms, round(gain, 1)))

    def update_facts(self, facts: Facts, echo_until: int) -> None:
        """State what is known of the caller's voice; up to `echo_until` it is, or may be, the
        agent's."""
        detector = self.detector
        facts.silence_ms = detector.silence_ms
        facts.voice = detector.speaking and facts.silence_ms <= VOICE_GAP_MS
        facts.suspected = self.suspected
        if detector.speaking:
            # Counted from the end of the echo, if the speech began with echo.
            voiced_until = detector.now - facts.silence_ms * MS
            facts.speech_ms = min(detector.speech_ms, max(0, (voiced_until - echo_until) // MS))

    def close(self) -> None:
        """Free the audio."""
        self._memory.close()
