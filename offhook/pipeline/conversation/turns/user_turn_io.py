"""User-turn detection of one call: feeds turn.py with facts on every tick and carries out its
actions.

Each 20 ms tick feeds the VAD (batched over all calls) and the echo detector; speech goes to the
recognizer in larger chunks with a short pre-roll; then the turn table is stepped. Noise suppression
and gain come before VAD and recognizer; the echo detector, like a recording, gets the line's own
audio. Playout is controlled directly at the leg, not by queued frames.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic

import numpy as np
from loguru import logger

from offhook.media.leg import Leg
from offhook.media.pcm import PACKET_MS, RATE_IN, SAMPLES_IN, Pcm
from offhook.media.tasks_io import end_all
from offhook.pipeline.conversation.digits import Digits, as_text
from offhook.pipeline.conversation.events import (
    CallerAmplified,
    CallerPartial,
    CallerTurn,
    Dtmf,
    Event,
    Interrupted,
    NoiseSuppressed,
    PlayoutPaused,
    PlayoutResumed,
    SpeechStarted,
    TurnDiscarded,
)
from offhook.pipeline.conversation.latency import TurnStopwatch
from offhook.pipeline.conversation.reply import Reply
from offhook.pipeline.conversation.sentences import USUAL_LANGUAGE, Occasion
from offhook.pipeline.conversation.turns.echo_gate import EchoGate
from offhook.pipeline.conversation.turns.end_questions_io import EndQuestions, TurnAnswerer
from offhook.pipeline.conversation.turns.pace import Pace
from offhook.pipeline.conversation.turns.turn import (
    Action,
    Facts,
    Transition,
    Turn,
    TurnSettings,
    TurnState,
    answer_silence,
    end_silence,
)
from offhook.pipeline.conversation.turns.turn_audio import TurnAudio
from offhook.pipeline.speech.enhancement.enhancer import (
    CallerQuiet,
    EnhancementSettings,
    Enhancer,
    LineClean,
    LineNoisy,
)
from offhook.pipeline.speech.enhancement.noise import PRIMING_MS
from offhook.pipeline.speech.recognizer import Final, Partial, RecognizerStream
from offhook.pipeline.speech.streams.recent_audio import RecentAudio
from offhook.pipeline.speech.vad.smart_turn_io import SECONDS, SharedTurnModel
from offhook.pipeline.speech.vad.vad import (
    SpeechDetector,
    SpeechDismissed,
    SpeechStart,
    SpeechSuspected,
)
from offhook.pipeline.speech.vad.vad_io import VadBatch

MS = RATE_IN // 1000
PRE_ROLL_MS = 320
"""ms of audio before the detected onset that the recognizer also gets, since detection lags."""
PRE_ROLL_ECHO_MS = 120
"""Pre-roll in ms after echo of the agent, whose last words would otherwise be transcribed too."""
PARTIAL_MS = 200
"""Minimum interval in ms between partial transcripts: faster ones are hard to read and cost
messages."""
MANUAL_TURN_S = 120
"""Maximum length in s of a turn that only a program ends; a longer one starts anew, so that a line
that is open for hours is bounded."""
FEED_MS = 100
"""Chunk length in ms of audio fed to the recognizer."""
GAIN_LATE_MS = 1000
"""Audio in ms that waits while the gain for a quiet caller is being found, 0.3 s of voice: the
recognizer would take a rise of 20 dB within the first word for another sound."""
GOES_ON_MS = 1000
"""ms after a turn's end within which whatever the caller says is more of that turn, also if the
first words of the answer are heard."""
TAKEN_BACK_MS = 3000
"""ms after a turn's end within which a caller who goes on before the answer is heard continues that
turn."""
WORDS_LATE_MS = 4000
"""Wait in ms after which a final transcript counts as late, for example when a recognizer hangs or
loads; the caller then hears an apology."""
VOICE_GAP_MS = 100
"""ms of silence at which the turn's clock starts; the VAD waits longer before it ends speech."""

OVER_THE_AGENT = (TurnState.SUSPECTED, TurnState.JUDGING)
"""States in which the caller may be speaking over the agent."""

_SILENCE = np.zeros(SAMPLES_IN, np.int16)


@dataclass
class TurnDetection:
    """The VAD and end-of-turn models shared by all calls of a process, and their settings."""

    vad: VadBatch
    model: SharedTurnModel | None
    """Says whether turns are over; None: the words and silence alone do."""
    settings: TurnSettings = field(default_factory=TurnSettings)
    enhancement: EnhancementSettings = field(default_factory=EnhancementSettings)
    answers: Counter[TurnAnswerer] = field(default_factory=Counter)
    """Questions whether turns were over, by who answered."""
    ask_engine: bool = True
    """Whether a recognizer's engine that judges turns is asked first."""

    async def close(self) -> None:
        if self.model is not None:
            await self.model.close()
        self.vad.close()


class UserTurnListener:
    """Receives the results of user-turn detection. Each method does nothing unless overridden."""

    def on_words(self, text: str) -> None:
        """The transcript of the turn so far changed; it is not final."""

    def on_keys(self) -> None:
        """The first key of a turn was pressed."""

    def on_pause(self, text: str) -> None:
        """The turn may be over; `text` is its transcript so far."""

    def on_resume(self) -> None:
        """The turn is not over, after a pause, or is no turn."""

    def on_commit(self, text: str) -> None:
        """The turn is over; `text` is its transcript, for the agent to answer."""

    def on_interrupt(self) -> None:
        """The agent's reply was cancelled."""


class UserAudioListener:
    """Receives the audio of the user's turns, as the recognizer does. Each method does nothing
    unless overridden."""

    def on_audio(self, pcm: Pcm) -> None:
        """More audio of the turn, 16 kHz, with a short pre-roll before its speech."""

    def on_discard(self) -> None:
        """The audio since the last commit belongs to no turn."""

    def on_commit(self, text: str) -> None:
        """The turn is over; `text` is its transcript, with the keys pressed in it."""


class UserTurnController:
    """Detects the user's turns on one leg; runs on the event loop only."""

    def __init__(
        self,
        leg: Leg,
        turn_detection: TurnDetection,
        recognizer: RecognizerStream,
        emit: Callable[[Event], None],
        excuse: Callable[[Occasion], None],
        recognizer_name: str = "",
    ) -> None:
        """`emit` receives the call's events. `excuse` speaks a sentence to the caller: WAIT while
        the transcript is late, NOT_HEARD when no words were recognized. `recognizer_name` decides
        whether it gets suppressed audio, see `Enhancer.suppresses_for`."""
        self.listener = UserTurnListener()
        self.audio_listener = UserAudioListener()
        self.watch = TurnStopwatch(0, 0)
        """Stopwatch of the current turn."""
        self.reply = Reply()
        """State of the agent's reply, updated by the transport."""
        self.language = ""
        """Language code of the caller's last words, such as "en"; empty before any."""
        self.pace = Pace()
        """What this caller's pauses have taught."""
        self.digits = Digits()
        """Key entry of the caller; its times are positions on the line."""
        self.interruptible = True
        """Whether the caller can interrupt the agent."""
        self._manual = False
        self._committing = False
        """A program ended the turn, whose final transcript is due."""
        self._settings = turn_detection.settings
        self._leg = leg
        self._emit = emit
        self._excuse = excuse
        self._recognizer = recognizer
        self._turn = Turn(self._settings)
        self._facts = Facts(echo=self._is_echo, agent_left_ms=self._agent_left_ms)
        self._detector = SpeechDetector()
        self._echo = EchoGate()
        self._enhancer = Enhancer(turn_detection.enhancement)
        self._recognizes_suppressed = self._enhancer.suppresses_for(recognizer_name)
        self._fed_gain: float | None = None
        """Gain in dB at the end of the utterance's audio so far; None before any."""
        self._end = EndQuestions(
            leg.call_id,
            recognizer,
            turn_detection.model,
            turn_detection.answers,
            turn_detection.ask_engine,
        )
        self._memory = RecentAudio(max(SECONDS, self._end.window_s))
        self._turn_audio = TurnAudio(recognizer)
        self._suspected = False
        self._onset = 0
        self._fed_until: int | None = None
        """Sample position up to which the recognizer was fed; None between utterances."""
        self._fed_from = 0
        """Sample position from which it was fed the last utterance."""
        self._manual_from = 0
        """Sample position at which the manual turn began."""
        self._fed_end = 0
        """End of the last finished utterance in samples, before which nothing is fed again; audio
        of a cancelled one may be."""
        self._final_at = 0.0
        self._asked_at = 0
        """Sample position at which the final transcript was requested."""
        self._told_at = 0
        self._finals_due = 0
        """Finals to come of finished utterances; further ones to come are stale."""
        self._stale_finals = 0
        """Outstanding final transcripts of cancelled utterances, which are ignored."""
        self._away = False
        self._keyed = ""
        """Complete key entries not yet handed over."""
        self._pressed_at = 0
        self._agent_began = -(10**9)
        """Sample position at which the agent last began to speak while nobody did."""
        self._heard_from: int | None = None
        """Sample position before which the answer is not heard; None if it may be."""
        self._committed_at = 0
        """Sample position at which the last turn was committed."""
        self._turn_end = -(10**9)
        """Sample position at which the last turn's speech ended."""
        self._committed = ""
        """Text of the last turn, with what was taken back before."""
        self._turns = 0
        self._vad = turn_detection.vad.open(self._voice_window)
        self._stop_listening = leg.listen(self._tick)
        self._reader = asyncio.create_task(self._read_words(), name=f"words {leg.call_id}")

    async def close(self) -> None:
        self._stop_listening()
        self._vad.close()
        self._reader.cancel()
        try:
            await self._recognizer.close()
        finally:
            await end_all(lambda: (self._reader, *self._end.tasks))
        # The rest of a call has reference cycles and waits for the garbage collector; free its
        # audio now. A program may still interrupt: the call is not over yet.
        self._memory.close()
        self._echo.close()

    @property
    def heard_ms(self) -> int:
        """The length of what was received: the time base of events."""
        return self._ms(self._memory.end)

    @property
    def state(self) -> TurnState:
        return self._turn.state

    @property
    def awaits_an_answer(self) -> bool:
        """Whether the recognizer or the end-of-turn model is about to say something of the audio so
        far; more of it may be spoken meanwhile, but not be read ahead."""
        return self._finals_due > 0 or self.asks_for_the_end

    @property
    def asks_for_the_end(self) -> bool:
        """Whether the end-of-turn model, or the recognizer's engine as one, is about to answer."""
        return self._end.open

    @property
    def away(self) -> bool:
        """Whether the line is on hold or being transferred: input counts as silence, keys are
        ignored and playout is paused."""
        return self._away

    @away.setter
    def away(self, away: bool) -> None:
        self._away = away
        if away:
            self._leg.playout.pause()
        else:
            self._leg.playout.resume()

    def press(self, key: str) -> None:
        """Process a key pressed by the caller."""
        at_ms = self._ms(self._memory.end)
        self._emit(Dtmf(at_ms, key))
        if not self._away and self.digits.press(key, at_ms):
            self._pressed_at = at_ms

    # --- for an agent that takes the place of another ---

    async def change(
        self, audio_listener: UserAudioListener, recognizer: RecognizerStream | None
    ) -> None:
        """Give the audio of turns to another listener, and with `recognizer` have that recognize
        them, each from the beginning of the utterance in progress. The stream before is closed."""
        self.audio_listener = audio_listener
        if recognizer is None:
            if self._fed_until is not None:
                self.audio_listener.on_audio(self._memory.slice(self._fed_from, self._fed_until))
            return
        before, self._recognizer = self._recognizer, recognizer
        self._end.ask_of(recognizer)
        self._turn_audio = TurnAudio(recognizer)
        self._reader.cancel()
        self._reader = asyncio.create_task(self._read_words(), name=f"words {self._leg.call_id}")
        self._stale_finals, self.language = 0, ""
        unfinished, due = self._fed_until is not None, self._finals_due > 0
        self._finals_due = 0
        if unfinished or due:
            self._fed_until, self._fed_gain = self._fed_from, None
            self._feed_rest()
        if due and not unfinished:
            self._finish_utterance()
        await before.close()

    # --- turns as a program wants them ---

    def configure(self, settings: TurnSettings, *, manual: bool = False) -> None:
        """Change how turns end: by `settings`, or with `manual` by `commit` alone. A turn in
        progress is discarded if that changes."""
        if (settings, manual) != (self._settings, self._manual):
            self._settings, self._manual = settings, manual
            self._turn = Turn(settings)
            self.clear()

    def commit(self) -> None:
        """End the turn now: its transcript is reported once it is final."""
        self._committing = True
        self._finish_utterance()
        self._manual_from = self._memory.end
        if not self._finals_due:
            self._commit(monotonic())

    def clear(self) -> None:
        """Discard the turn in progress."""
        self._reset_turn()
        self._manual_from = self._memory.end

    # --- the tick ---

    def _tick(self, heard: Pcm, said: Pcm | None, now: float) -> None:
        if self._leg.idle:
            return
        if self._away:
            heard = _SILENCE
        suppressed = self._enhancer.suppression.process(heard)
        self._memory.add(suppressed if self._recognizes_suppressed else heard)
        if self._manual:
            self._gather_keys()
            self._feed_manual_turn()
            return
        quiet = not (self._detector.speaking or self._suspected)
        self._echo.add(heard, said, self._memory.end, quiet=quiet)
        if said is not None and self._turn.state is TurnState.LISTENING:
            self._agent_began = self._memory.end
        self._vad.feed(self._enhancer.amplify(suppressed, self._enhancer.gain))
        if self._leg.hurries:
            self._vad.catch_up()
        self._feed()
        self._gather_keys()
        self._state_facts()
        self._notice_late_words()
        row = self._turn.step(self._facts, PACKET_MS)
        if row is not None:
            self._carry_out(row, now)
        if self._heard_from is not None:
            self._hold_answer(self._heard_from)

    def _voice_window(self, probability: float, level: float, end_sample: int) -> None:
        level -= self._enhancer.gain
        may_be_echo = self._echo.may_return
        for change in self._enhancer.window(probability, level, not may_be_echo):
            self._apply(change)
        # What comes back of the agent is no quiet caller.
        self._detector.gain = 0.0 if may_be_echo else self._enhancer.gain
        for event in self._detector.window(probability, level, end_sample):
            match event:
                case SpeechSuspected(at_sample):
                    self._end.prepare()
                    self._suspected = True
                    self._onset = at_sample
                    if self._turn.state not in OVER_THE_AGENT:
                        self._facts.speech_ms = 0  # earlier speech does not count
                case SpeechDismissed():
                    self._suspected = False
                case SpeechStart(at_sample):
                    self._suspected = False
                    self._onset = at_sample
                    if not self._agent_is_speaking():
                        self._emit(SpeechStarted(self._ms(at_sample)))

    def _apply(self, change: LineNoisy | LineClean | CallerQuiet) -> None:
        now, at_ms = self._memory.end, self._ms(self._memory.end)
        match change:
            case LineNoisy(noise):
                self._enhancer.suppression.start(self._memory.slice(now - PRIMING_MS * MS, now))
                self._emit(NoiseSuppressed(at_ms, True, round(noise, 1)))
            case LineClean(noise):
                self._enhancer.suppression.stop()
                self._emit(NoiseSuppressed(at_ms, False, round(noise, 1)))
            case CallerQuiet(gain):
                self._emit(CallerAmplified(at_ms, round(gain, 1)))

    def _state_facts(self) -> None:
        facts, detector = self._facts, self._detector
        facts.voice = detector.speaking and detector.silence_ms <= VOICE_GAP_MS
        facts.suspected = self._suspected
        facts.echo_free = self._echo.is_free
        facts.first = self._onset < self._agent_began
        unheard_ms = self._ms(self._memory.end - self._committed_at)
        facts.unheard = self._echo.sent_at < self._committed_at and unheard_ms < GOES_ON_MS
        if detector.speaking:
            # Counted from the end of the echo, if the speech began with echo.
            voiced_until = detector.now - detector.silence_ms * MS
            callers = voiced_until - self._echo.over_since
            facts.speech_ms = min(detector.speech_ms, max(0, self._ms(callers)))
        facts.silence_ms = detector.silence_ms
        facts.asked, facts.language = self.reply.last, self.language or USUAL_LANGUAGE
        facts.learned_ms = self.pace.wait_ms
        facts.keying, facts.keyed = self.digits.collecting, bool(self._keyed)
        facts.words_due = self._finals_due > 0
        facts.agent_speaking = self.interruptible and self._agent_is_speaking()
        facts.agent_busy = self.interruptible and self.reply.busy
        since = max(self._echo.sent_at, self._committed_at)
        facts.agent_silent_ms = (self._memory.end - since) // MS
        if self._finals_due or self._turn.state is TurnState.SUSPECTED:
            facts.agent_said = self.reply.recent()
            facts.agent_asks = self.reply.asks
        if facts.voice and self._turn.state in (TurnState.LISTENING, TurnState.HEARING):
            facts.end_probability = None
            self._end.withdraw()

    def _agent_left_ms(self) -> int | None:
        return self._leg.playout.audible_left_ms

    def _agent_is_speaking(self) -> bool:
        return self._leg.playout.speaking

    def _is_echo(self) -> bool:
        # Only audio that the VAD has processed, which may lag on a busy machine.
        suspected = self._turn.state in OVER_THE_AGENT
        speaking = self._agent_is_speaking()
        echo = self._echo.is_echo(self._detector.now, speaking=speaking, suspected=suspected)
        self._facts.no_echo_ms = self._echo.no_echo_ms
        return echo

    def _hold_answer(self, until: int) -> None:
        playout = self._leg.playout
        if self._turn.state is TurnState.REPLYING and self._memory.end < until:
            playout.pause()
            return
        self._heard_from = None
        if not (self._turn.state in OVER_THE_AGENT or self._away or self._leg.held):
            playout.resume()

    def _forget_no_echo(self) -> None:
        self._facts.no_echo_ms = self._echo.no_echo_ms = 0

    def _pause(self) -> None:
        self._leg.playout.pause()
        if not self._facts.echo_free:
            self._echo.pause()

    # --- keys ---

    def _gather_keys(self) -> None:
        self.digits.handle_timer(self._ms(self._memory.end))
        while (keys := self.digits.next_entry()) is not None:
            self._keyed = _join(self._keyed, as_text(keys))

    # --- words ---

    def _feed(self) -> None:
        """Feed new audio to the recognizer while there is speech that may be the caller's."""
        listening = self._turn.state in (TurnState.HEARING, TurnState.SUSPECTED)
        ending = self._turn.state is TurnState.ENDING and not self._turn.finished
        if not (listening or ending):
            return
        if self._fed_until is None:
            if not (self._facts.voice or self._facts.suspected):
                return
            self._fed_until = max(
                self._fed_end,
                self._onset - PRE_ROLL_MS * MS,
                self._echo.sure_until - PRE_ROLL_ECHO_MS * MS,
            )
            self._fed_from, self._fed_gain = self._fed_until, None
            self._turn_audio.clear()
            if self._turn.had_floor or self._turn.state is not TurnState.SUSPECTED:
                self._keep_final()
            self._facts.text, self._facts.final = "", False
        unfed = self._memory.end - self._fed_until
        if unfed >= (GAIN_LATE_MS if self._enhancer.learning else FEED_MS) * MS:
            self._feed_rest()

    def _feed_manual_turn(self) -> None:
        if self._finals_due:
            return
        if self._fed_until is None:
            self._fed_until = self._manual_from
        if self._memory.end - self._manual_from > MANUAL_TURN_S * RATE_IN:
            self.clear()
        elif self._memory.end - self._fed_until >= FEED_MS * MS:
            self._feed_rest()

    def _feed_rest(self) -> None:
        if self._fed_until is not None and self._memory.end > self._fed_until:
            pcm = self._memory.slice(self._fed_until, self._memory.end)
            gain = self._enhancer.gain
            pcm = self._enhancer.amplify(pcm, gain if self._fed_gain is None else self._fed_gain)
            self._fed_gain = gain
            self._recognizer.feed(pcm)
            self._turn_audio.add(pcm)
            self.audio_listener.on_audio(pcm)
            self._fed_until = self._memory.end

    def _notice_late_words(self) -> None:
        facts = self._facts
        if (
            self._finals_due
            and not facts.excused
            and self._turn.state is TurnState.ENDING
            and self._memory.end - self._asked_at >= WORDS_LATE_MS * MS
        ):
            facts.excused = True
            self._excuse(Occasion.WAIT)

    def _finish_utterance(self) -> None:
        if self._fed_until is None:
            if not (self._finals_due or self._facts.final):  # nothing was fed: no transcript comes
                self._facts.text, self._facts.final = "", True
            return
        self._feed_rest()
        self._fed_end, self._fed_until = self._fed_until, None
        self._finals_due += 1
        self._asked_at = self._memory.end
        self._recognizer.finish()

    def _cancel_utterance(self) -> None:
        if self._fed_until is not None:
            self._recognizer.cancel()
        self._stale_finals += self._finals_due
        self._finals_due = 0
        self._turn_audio.clear()
        if not self._facts.turn_text:  # else the words before are part of the turn
            self.audio_listener.on_discard()
        self._fed_until = None
        self._facts.text, self._facts.final = "", False

    async def _read_words(self) -> None:
        async for event in self._recognizer.events():
            if isinstance(event, Final) and event.text:
                self.language = event.language
            match event:
                case Partial() if self._fed_until is not None or self._finals_due:
                    if self._stale_finals == 0 and event.text != self._facts.text:
                        self._facts.text = event.text
                        if self._memory.end - self._told_at >= PARTIAL_MS * MS:
                            self._emit_words(event.text)
                case Final() if self._stale_finals:
                    self._stale_finals -= 1
                case Final(continues=True):
                    self._facts.turn_text = _join(self._facts.turn_text, event.text)
                case Final() if self._fed_until is not None or self._finals_due > 1:
                    # The caller continued after the pause: the final transcript becomes part of the
                    # turn.
                    self._facts.turn_text = _join(self._facts.turn_text, event.text)
                    self._finals_due = max(0, self._finals_due - 1)
                case Final() if self._finals_due:
                    self._finals_due = 0
                    self._final_at = monotonic()
                    text = self._turn_audio.text if event.lost else event.text
                    self._facts.text, self._facts.final = text, True
                    if text:
                        self._emit_words(text)
                    elif event.lost and not self._facts.turn_text and self._expects_words():
                        self._facts.excused = True
                        self._excuse(Occasion.NOT_HEARD)
                    if self._committing:
                        self._commit(self._final_at)

    def _expects_words(self) -> bool:
        """Whether the caller is expected to have said something, and not only over the agent."""
        return self._committing or self._turn.state in (TurnState.HEARING, TurnState.ENDING)

    def _emit_words(self, text: str) -> None:
        if self._turn.state in (TurnState.SUSPECTED, TurnState.JUDGING, TurnState.SPEAKING):
            return
        whole = _join(self._facts.turn_text, text)
        if whole:
            self._told_at = self._memory.end
            self._emit(CallerPartial(self._ms(self._memory.end), whole))
            self.listener.on_words(whole)

    # --- actions ---

    def _carry_out(self, row: Transition, now: float) -> None:
        logger.trace("{}: {} ({})", self._leg.call_id, row.then, row.why)
        for action in row.actions:
            match action:
                case Action.LOWER:
                    self._leg.playout.lower()
                case Action.PAUSE:
                    self._pause()
                    if row.state is not TurnState.SUSPECTED:
                        began = self._ms(self._onset)
                        self._emit(PlayoutPaused(self._ms(self._memory.end), began))
                case Action.RESUME:
                    self._forget_no_echo()
                    if not self._away:
                        self._leg.playout.resume()
                    self._emit(PlayoutResumed(self._ms(self._memory.end), self._facts.text))
                case Action.INTERRUPT:
                    self.interrupt()
                case Action.ASK_END:
                    self._check_end_of_turn()
                case Action.FINISH:
                    self._finish_utterance()
                case Action.CANCEL:
                    self._facts.turn_text = ""  # of the same sound
                    self._cancel_utterance()
                case Action.THINK:
                    self.listener.on_pause(self._facts.words)
                case Action.COMMIT:
                    self._commit(now)
                case Action.DISCARD:
                    self._reset_turn()
                    self.listener.on_resume()
                    self._emit(TurnDiscarded(self._ms(self._memory.end)))
        speaks = (TurnState.HEARING, TurnState.ENDING)
        if row.state is TurnState.ENDING and row.then is TurnState.HEARING:
            self.pace.pause(self._turn.pause_ms)
            self._facts.paused_ms = max(self._facts.paused_ms, self._turn.pause_ms)
            self._go_on()
        elif row.then in speaks and row.state not in speaks:
            self.pace.cut_off(self._ms(self._onset - self._turn_end))
        elif row.then is TurnState.KEYING and row.state is not TurnState.KEYING:
            self.listener.on_keys()

    def _go_on(self) -> None:
        """Continue the turn: the caller kept speaking."""
        facts = self._facts
        # Of what was heard before its last utterance, the final would be taken back as well.
        ended = self._fed_until is None and self._finals_due <= 1
        if ended and (withdrawn := self._turn_audio.feed_again(facts.text)) is not None:
            self._stale_finals += self._finals_due - withdrawn
            self._finals_due = 0
            self._fed_until, facts.final = self._fed_end, False
        else:
            self._keep_final()
        facts.excused = False
        facts.end_probability = None
        self._end.withdraw()
        self.listener.on_resume()

    def _keep_final(self) -> None:
        """Add the final transcript of an utterance to the turn."""
        facts = self._facts
        if facts.final:
            facts.turn_text = _join(facts.turn_text, facts.text)
            facts.text, facts.final = "", False

    def interrupt(self) -> None:
        """Silence the agent and cancel its reply."""
        self._forget_no_echo()
        said = self.cut_reply()
        now, onset = self._memory.end - self._committed_at, self._onset - self._committed_at
        if (not said and now < TAKEN_BACK_MS * MS) or 0 < onset < GOES_ON_MS * MS:
            self._facts.before = self._committed
        self.listener.on_interrupt()

    def cut_reply(self) -> str:
        """Silence the agent, whose reply somebody else cancels; return what was said of it."""
        self._leg.playout.flush()
        if self._away:
            self._leg.playout.pause()
        said, unsaid = self.reply.end()
        self.reply.cut = True
        if said or unsaid:
            self._emit(Interrupted(self._ms(self._memory.end), said, unsaid))
        return said

    def _check_end_of_turn(self) -> None:
        if self._end.engine is not None:
            self._feed_rest()
        end = self._memory.end

        def sound(samples: int) -> Pcm:
            return self._memory.slice(end - samples, end)

        def answered(probability: float | None) -> None:
            self._facts.end_probability = probability

        self._end.ask(self._ms(end), sound, answered)

    def _commit(self, now: float) -> None:
        self._turns += 1
        self._committed_at = self._memory.end
        facts = self._facts
        self._turn_end = self._memory.end - facts.silence_ms * MS
        self._end.decided(self._ms(self._memory.end))
        self.pace.end_turn()
        self.watch = self._watch_keys(now) if self._keyed else self._watch_words(now)
        self.watch.stamp("turn_decided", now)
        if not (self._keyed or self._committing):
            wait_ms = answer_silence(self._settings, facts) - facts.silence_ms
            self._heard_from = self._memory.end + wait_ms * MS if wait_ms > 0 else None
        text = _join(_join(facts.turn_text, facts.text), self._keyed)
        self._keyed = ""
        self._committed = _join(facts.before, text)
        self.audio_listener.on_commit(text)
        self._reset_turn()
        self.reply.busy = True
        self._emit(CallerTurn(self._ms(self._memory.end), self._turns, text))
        self.listener.on_commit(text)

    def _watch_words(self, now: float) -> TurnStopwatch:
        watch = TurnStopwatch(self._turns, end_silence(self._settings, self._facts))
        silence = self._facts.silence_ms / 1000
        buffer_s = self._leg.statistics().buffer_ms / 1000
        watch.stamp("packet_in", now - silence - buffer_s)
        watch.stamp("speech_end", now - max(0.0, silence - VOICE_GAP_MS / 1000))
        watch.stamp("asr_final", self._final_at)
        return watch

    def _watch_keys(self, now: float) -> TurnStopwatch:
        """Return a stopwatch that excludes the wait after the last key, which is intended."""
        waited_ms = self._ms(self._memory.end) - self._pressed_at
        watch = TurnStopwatch(self._turns, waited_ms)
        watch.stamp("packet_in", now - waited_ms / 1000)
        return watch

    def _reset_turn(self) -> None:
        self._committing = False
        self._facts.turn_text = self._facts.before = ""
        self._facts.paused_ms = 0
        self._cancel_utterance()
        self._facts.excused = False
        self._facts.end_probability = None
        self._end.withdraw()

    def _ms(self, sample: int) -> int:
        return sample // MS


def _join(first: str, second: str) -> str:
    return f"{first} {second}".strip() if first and second else first or second
