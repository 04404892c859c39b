"""User-turn detection of one call: feeds turn.py with facts on every tick and carries out its
actions.

Each 20 ms tick feeds the VAD (batched over all calls) and the echo detector; speech goes to the
recognizer in larger chunks with a short pre-roll; then the turn table is stepped. Noise suppression
and gain come before VAD and recognizer; the echo detector, like a recording, gets the line's own
audio. Playout is controlled directly at the leg, not by queued frames.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic

import numpy as np
from loguru import logger

from offhook.media.leg import Leg
from offhook.media.pcm import PACKET_MS, SAMPLES_IN, Pcm
from offhook.pipeline.conversation.events import (
    CallerPartial,
    CallerTurn,
    Dtmf,
    Event,
    SpeechStarted,
    TurnDiscarded,
)
from offhook.pipeline.conversation.latency import TurnStopwatch
from offhook.pipeline.conversation.reply import Reply
from offhook.pipeline.conversation.sentences import USUAL_LANGUAGE, Occasion
from offhook.pipeline.conversation.turns.agent_playout import OVER_THE_AGENT, AgentPlayout
from offhook.pipeline.conversation.turns.caller_audio import MS, CallerAudio
from offhook.pipeline.conversation.turns.end_of_turn import answer_silence, end_silence
from offhook.pipeline.conversation.turns.end_questions_io import EndQuestions, TurnAnswerer
from offhook.pipeline.conversation.turns.facts import Facts
from offhook.pipeline.conversation.turns.key_entries import KeyEntries
from offhook.pipeline.conversation.turns.last_turn import LastTurn
from offhook.pipeline.conversation.turns.pace import Pace
from offhook.pipeline.conversation.turns.transcript import join
from offhook.pipeline.conversation.turns.turn import (
    Action,
    Transition,
    Turn,
    TurnSettings,
    TurnState,
)
from offhook.pipeline.conversation.turns.utterance_feed import UserAudioListener, UtteranceFeed
from offhook.pipeline.conversation.turns.words_reader_io import WordsReader
from offhook.pipeline.speech.enhancement.enhancer import EnhancementSettings
from offhook.pipeline.speech.recognizer import Final, RecognizerStream
from offhook.pipeline.speech.vad.smart_turn_io import SECONDS, SharedTurnModel
from offhook.pipeline.speech.vad.vad import SpeechStart, SpeechSuspected
from offhook.pipeline.speech.vad.vad_io import VadBatch

WORDS_LATE_MS = 4000
"""Wait in ms after which a final transcript counts as late, for example when a recognizer hangs or
loads; the caller then hears an apology."""
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

    def questions(self, call_id: str, recognizer: RecognizerStream) -> EndQuestions:
        """Return what asks whether the turns of a call are over."""
        return EndQuestions(call_id, recognizer, self.model, self.answers, self.ask_engine)

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
        self.watch = TurnStopwatch(0, 0)
        """Stopwatch of the current turn."""
        self.reply = Reply()
        """State of the agent's reply, updated by the transport."""
        self.pace = Pace()
        """What this caller's pauses have taught."""
        self.keys = KeyEntries()
        self._leg, self.emit, self._excuse = leg, emit, excuse
        self._end = turn_detection.questions(leg.call_id, recognizer)
        self._turn = Turn(turn_detection.settings)
        self._facts = Facts()
        seconds = max(SECONDS, self._end.window_s)
        self._audio = CallerAudio(turn_detection.enhancement, recognizer_name, seconds, emit)
        self.agent = AgentPlayout(leg, self._audio, self.reply, self._facts, emit)
        self.utterances = UtteranceFeed(self._audio, recognizer, self._facts)
        self._last = LastTurn()
        self._manual = False
        self._manual_from = 0
        """Position at which the manual turn began."""
        self._committing = False
        """A program ended the turn, whose final transcript is due."""
        self._vad = turn_detection.vad.open(self._voice_window)
        self._stop_listening = leg.listen(self._tick)
        self.reader = WordsReader(
            leg.call_id, self.utterances, self._audio, self._report_words, self._receive_final
        )

    async def close(self) -> None:
        self._stop_listening()
        self._vad.close()
        try:
            await self.reader.close()
        finally:
            await self._end.tasks.close()
        # The rest of a call has reference cycles and waits for the garbage collector; free its
        # audio now. A program may still interrupt: the call is not over yet.
        self._audio.close()
        self.agent.close()

    @property
    def heard_ms(self) -> int:
        """The length of what was received: the time base of events."""
        return self._audio.end_ms

    @property
    def language(self) -> str:
        """Language code of the caller's last words, such as "en"; empty before any."""
        return self.reader.language

    @property
    def state(self) -> TurnState:
        return self._turn.state

    @property
    def awaits_an_answer(self) -> bool:
        """Whether the recognizer or the end-of-turn model is about to say something of the audio so
        far; more of it may be spoken meanwhile, but not be read ahead."""
        return self._facts.words_due or self.asks_for_the_end

    @property
    def asks_for_the_end(self) -> bool:
        """Whether the end-of-turn model, or the recognizer's engine as one, is about to answer."""
        return self._end.open

    def press(self, key: str) -> None:
        """Process a key pressed by the caller; it is ignored while the caller is away."""
        self.emit(Dtmf(self.heard_ms, key))
        if not self.agent.away:
            self.keys.press(key, self.heard_ms)

    async def change(
        self,
        audio_listener: UserAudioListener,
        recognizer: RecognizerStream | None,
        settings: TurnSettings,
    ) -> None:
        """For an agent that takes the place of another: have turns end by `settings`, give their
        audio to another listener, and with `recognizer` have that recognize them, each from the
        beginning of the utterance in progress. The stream before is closed."""
        self._turn.settings = settings
        if recognizer is None:
            self.utterances.listen(audio_listener)
            return
        self._end.ask_of(recognizer)
        self.utterances.listener = audio_listener
        await self.reader.replace(recognizer)

    # --- turns as a program wants them ---

    def configure(self, settings: TurnSettings, *, manual: bool = False) -> None:
        """Change how turns end: by `settings`, or with `manual` by `commit` alone. A turn in
        progress is discarded if that changes."""
        if (settings, manual) != (self._turn.settings, self._manual):
            self._turn, self._manual = Turn(settings), manual
            self.clear()

    def commit(self) -> None:
        """End the turn now: its transcript is reported once it is final."""
        self._committing = True
        self.utterances.finish()
        self._manual_from = self._audio.end
        if not self._facts.words_due:
            self._commit(monotonic())

    def end_turn(self) -> bool:
        """Have the turn end as soon as its words are known, since the caller waits for an answer;
        return False if there is none, or the caller speaks."""
        self._turn.over = self._turn.state is TurnState.ENDING
        return self._turn.over

    def clear(self) -> None:
        """Discard the turn in progress."""
        self._reset_turn()
        self._manual_from = self._audio.end

    def _tick(self, heard: Pcm, said: Pcm | None, now: float) -> None:
        if self._leg.idle:
            return
        audio, agent, facts, turn = self._audio, self.agent, self._facts, self._turn
        if agent.away:
            heard = _SILENCE
        suppressed = audio.add(heard)
        self.keys.gather(audio.end_ms)
        if self._manual:
            if self.utterances.feed_all(self._manual_from):
                self.clear()
            return
        agent.add(heard, said, turn.state)
        self._vad.feed(audio.amplify(suppressed))
        if self._leg.hurries:
            self._vad.catch_up()
        self.utterances.feed(turn, agent.echo.sure_until)
        self._update_facts()
        row = turn.step(facts, PACKET_MS)
        if row is not None:
            self._carry_out(row, now)
        if agent.held_until is not None:
            agent.hold(agent.held_until, self._turn.state)

    def _update_facts(self) -> None:
        facts, state = self._facts, self._turn.state
        self.keys.update_facts(facts)
        self._audio.update_facts(facts, self.agent.echo.over_since)
        self.agent.update_facts(self._last)
        facts.language, facts.learned_ms = self.reader.language or USUAL_LANGUAGE, self.pace.wait_ms
        if facts.voice and (state is TurnState.LISTENING or state is TurnState.HEARING):
            facts.end_probability = None
            self._end.withdraw()
        waits = facts.words_due and not facts.excused and state is TurnState.ENDING
        if waits and self._audio.end - self.utterances.requested_at >= WORDS_LATE_MS * MS:
            facts.excused = True
            self._excuse(Occasion.WAIT)

    def _voice_window(self, probability: float, level: float, end: int) -> None:
        may_be_echo = self.agent.echo.may_return
        for event in self._audio.receive_window(probability, level, end, may_be_echo=may_be_echo):
            match event:
                case SpeechSuspected():
                    self._end.prepare()
                    if self._turn.state not in OVER_THE_AGENT:
                        self._facts.speech_ms = 0  # earlier speech does not count
                case SpeechStart(at_sample) if not self.agent.speaking:
                    self.emit(SpeechStarted(at_sample // MS))

    # --- words ---

    def _receive_final(self, final: Final) -> None:
        """Process the last final that was due."""
        facts = self._facts
        # Whether the caller is expected to have said something, and not only over the agent.
        expected = self._committing or self.state in (TurnState.HEARING, TurnState.ENDING)
        if facts.text:
            self.reader.show(facts.text)
        elif final.lost and not facts.turn_text and expected:
            facts.lost = facts.excused = True
            self._excuse(Occasion.NOT_HEARD)
        if self._committing and facts.lost:
            self._discard()
        elif self._committing:
            self._commit(self.reader.final_at)

    def _report_words(self, text: str) -> bool:
        """Report the turn with the text of its last utterance, unless that may be none of it."""
        whole = join(self._facts.turn_text, text)
        if not whole or self.state in (*OVER_THE_AGENT, TurnState.SPEAKING):
            return False
        self.emit(CallerPartial(self.heard_ms, whole))
        self.listener.on_words(whole)
        return True

    # --- actions ---

    def _carry_out(self, row: Transition, now: float) -> None:
        logger.trace("{}: {} ({})", self._leg.call_id, row.then, row.why)
        for action in row.actions:
            match action:
                case Action.LOWER:
                    self.agent.lower()
                case Action.PAUSE:
                    self.agent.pause()
                case Action.RESUME:
                    self.agent.resume()
                case Action.INTERRUPT:
                    self.interrupt()
                case Action.ASK_END:
                    if self._end.engine is not None:
                        self.utterances.feed_rest()
                    self._end.ask(self.heard_ms, self._audio.until_now(), self._receive_probability)
                case Action.FINISH:
                    self.utterances.finish()
                case Action.CANCEL:
                    self._facts.turn_text = ""  # of the same sound
                    self.utterances.cancel()
                case Action.THINK:
                    self.listener.on_pause(self._facts.words)
                case Action.COMMIT:
                    self._commit(now)
                case Action.DISCARD:
                    self._discard()
        speaks = (TurnState.HEARING, TurnState.ENDING)
        if row.state is TurnState.ENDING and row.then is TurnState.HEARING:
            self._go_on()
        elif row.then in speaks and row.state not in speaks:
            self.pace.cut_off(self._last.pause_ms(self._audio.onset))
        elif row.then is TurnState.KEYING and row.state is not TurnState.KEYING:
            self.listener.on_keys()

    def _go_on(self) -> None:
        """Continue the turn: the caller kept speaking."""
        self.pace.pause(self._turn.pause_ms)
        self._facts.forget_pause(self._turn.pause_ms)
        self.utterances.go_on()
        self._end.withdraw()
        self.listener.on_resume()

    def interrupt(self) -> None:
        """Silence the agent and cancel its reply."""
        self.agent.interrupt(self._last)
        self.listener.on_interrupt()

    def _receive_probability(self, probability: float | None) -> None:
        self._facts.end_probability = probability

    def _commit(self, now: float) -> None:
        facts, settings, at_ms = self._facts, self._turn.settings, self.heard_ms
        keyed = self.keys.pop()
        text = join(join(facts.turn_text, facts.text), keyed)
        self._last.commit(self._audio.end, facts.silence_ms, join(facts.before, text))
        self._end.decided(at_ms)
        self.pace.end_turn()
        number, silence_ms = self._last.number, facts.silence_ms
        if keyed:
            self.watch = TurnStopwatch.after_keys(number, at_ms - self.keys.pressed_ms, now)
        else:
            required_ms, buffer_ms = end_silence(settings, facts), self._leg.statistics().buffer_ms
            self.watch = TurnStopwatch.after_words(number, required_ms, silence_ms, buffer_ms, now)
            self.watch.stamp("asr_final", self.reader.final_at)
        self.watch.stamp("turn_decided", now)
        if not (keyed or self._committing or self._turn.over):
            self.agent.hold_for(answer_silence(settings, facts) - silence_ms)
        self.utterances.listener.on_commit(text)
        self._reset_turn()
        self.reply.busy = True
        self.emit(CallerTurn(at_ms, number, text))
        self.listener.on_commit(text)

    def _discard(self) -> None:
        lost = self._facts.lost
        self._reset_turn()
        self.listener.on_resume()
        self.emit(TurnDiscarded(self.heard_ms, lost))

    def _reset_turn(self) -> None:
        self._committing = False
        self._facts.forget_turn()
        self.utterances.cancel()
        self._end.withdraw()
