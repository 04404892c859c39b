"""User turns of one call: from the leg's ticks to the decisions of turn.py, carried out at once.

Each 20 ms tick feeds the voice detector (batched over all calls) and the echo detector; speech goes
to the recogniser in coarse frames with a little of what came before it; then the turn table is
stepped, and what it says about playout is done right here at the leg, not by frames in queues.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic

import numpy as np
from loguru import logger

from offhook.media.leg import Leg
from offhook.media.pcm import PACKET_MS, RATE_IN, SAMPLES_IN, Pcm
from offhook.pipeline.conversation.digits import Digits, as_text
from offhook.pipeline.conversation.echo import MAX_DELAY_MS, EchoDetector
from offhook.pipeline.conversation.events import (
    CallerPartial,
    CallerTurn,
    Dtmf,
    Event,
    Interrupted,
    PlayoutPaused,
    PlayoutResumed,
    SpeechStarted,
    TurnDiscarded,
)
from offhook.pipeline.conversation.latency import TurnStopwatch
from offhook.pipeline.conversation.reply import Reply
from offhook.pipeline.conversation.sentences import Occasion
from offhook.pipeline.conversation.turn import (
    Action,
    Facts,
    Transition,
    Turn,
    TurnSettings,
    TurnState,
    end_silence,
)
from offhook.pipeline.speech.recognizer import Final, Partial, RecognizerStream
from offhook.pipeline.speech.vad.smart_turn_io import SmartTurn
from offhook.pipeline.speech.vad.vad import (
    SpeechDetector,
    SpeechDismissed,
    SpeechStart,
    SpeechSuspected,
)
from offhook.pipeline.speech.vad.vad_io import VadBatch

MS = RATE_IN // 1000
MEMORY_S = 8
"""The end-of-turn model looks at the last eight seconds."""
PRE_ROLL_MS = 320
"""Speech is noticed late; the recogniser gets this much from before its onset."""
PRE_ROLL_ECHO_MS = 120
"""After the agent's own voice this much: its last words would spoil the caller's first."""
PARTIAL_MS = 200
"""Partial words are told at most this often: reading is slower, and each costs messages."""
FEED_MS = 100
"""Sound goes to the recogniser in pieces of this length."""
WORDS_LATE_MS = 4000
"""Final words that have not come by then, as of a recogniser that hangs or loads, are late: nobody
likes to wait on the telephone without a word."""
VOICE_GAP_MS = 100
"""The voice detector waits longer before it calls speech ended; the turn's clock starts here."""
ECHO_CHECK_MS = 100
"""An echo verdict is good for this long: it costs milliseconds."""
ECHO_CHECK_MOST_MS = 150
"""A check that finds no echo speaks for no more: a stall before it spoils the echo, too."""
ECHO_TAIL_MS = MAX_DELAY_MS
"""The agent's last words can come back this long after they were sent."""
ECHO_KNOWN_MS = 10_000
"""A line that brought echo so recently is taken to bring more: checks that find none are not
believed before so many in a row agree..."""
ECHO_MISSES_SPEAKING = 2
"""...while the agent speaks, which has to fall silent soon..."""
ECHO_MISSES_SILENT = 3
"""...and after its last word, when nothing is lost by waiting: what the caller says is kept."""
ECHO_DOUBT_MS = 400
"""A check agrees with one this long ago: on a busy machine, and between two words, they are farther
apart than usual."""
ECHO_UNKNOWN_MS = 800
"""While it is not known whether a line brings echo, it is taken to come this late..."""
QUIET_PROVES_MS = 1500
"""...until the agent has been heard to speak alone for so long: then none comes."""
ECHO_LINGERS_MS = 160
"""Echo is held for voice this long after the last of it: a room, and the detector's windows."""

_SILENCE = np.zeros(SAMPLES_IN, np.int16)


class Memory:
    """The last eight seconds heard, addressed by absolute sample position."""

    def __init__(self) -> None:
        self._ring = np.zeros(MEMORY_S * RATE_IN, np.int16)
        self.end = 0

    def add(self, pcm: Pcm) -> None:
        at = self.end % len(self._ring)
        self._ring[at : at + len(pcm)] = pcm  # ticks divide the ring: never wraps inside
        self.end += len(pcm)

    def slice(self, start: int, end: int) -> Pcm:
        """Samples [start, end), as much of it as is still remembered."""
        start = max(start, self.end - len(self._ring), 0)
        a, b = start % len(self._ring), end % len(self._ring)
        if start >= end:
            return self._ring[:0]
        return self._ring[a:b].copy() if a < b else np.concatenate((self._ring[a:], self._ring[:b]))


@dataclass
class TurnDetection:
    """The voice and end-of-turn models that all calls of a process share, and their settings."""

    vad: VadBatch
    smart_turn: SmartTurn
    settings: TurnSettings = field(default_factory=TurnSettings)


class UserTurnListener:
    """Told what the user's turn comes to. Each method does nothing unless overridden."""

    def on_words(self, text: str) -> None:
        """All words of the turn so far, which may still change."""

    def on_keys(self) -> None:
        """The first key of a turn was pressed."""

    def on_commit(self, text: str) -> None:
        """The turn is over: these are its words, for the agent to answer."""

    def on_interrupt(self) -> None:
        """The agent's reply is cancelled."""


class UserTurnController:
    """Hears one leg. Everything runs on the event loop."""

    def __init__(
        self,
        leg: Leg,
        turn_detection: TurnDetection,
        recognizer: RecognizerStream,
        emit: Callable[[Event], None],
        excuse: Callable[[Occasion], None],
    ) -> None:
        """`emit` gets the events of the call. `excuse` is to say a sentence to a caller who is
        done: WAIT while the words do not come, NOT_HEARD when none were understood."""
        self.listener = UserTurnListener()
        self.watch = TurnStopwatch(0, 0)
        """The turn being timed."""
        self.reply = Reply()
        """The agent's reply, kept up to date by the transport."""
        self.language = ""
        """Of the caller's last words, as "en"; empty before there are any."""
        self.digits = Digits()
        """The keys pressed; times are those of the line."""
        self._leg = leg
        self._emit = emit
        self._excuse = excuse
        self._recognizer = recognizer
        self._turn_detection = turn_detection
        self._turn = Turn(turn_detection.settings)
        self._facts = Facts(echo=self._is_echo)
        self._detector = SpeechDetector()
        self._echo = EchoDetector()
        self._memory = Memory()
        self._suspected = False
        self._onset = 0
        self._fed_until: int | None = None
        """Samples given to the recogniser; None between utterances."""
        self._fed_end = 0
        """Where the last utterance ended: its sound is not fed twice. What was cancelled may be."""
        self._final_at = 0.0
        self._asked_at = 0
        """Where the final words were asked for, in samples."""
        self._told_at = 0
        self._awaiting_final = False
        self._stale_finals = 0
        """Finals of cancelled utterances still to come, to be ignored."""
        self._away = False
        self._keyed = ""
        """Entries of keys that are complete and not yet handed over."""
        self._pressed_at = 0
        self._echo_verdict = (False, -(10**9))
        self._echo_misses = 0
        """The checks in a row that found no echo."""
        self._echo_until = -(10**9)
        """Up to here what was heard is known to be the agent's own voice."""
        self._echo_sure_until = -(10**9)
        """The same, without a check that found echo right after one that did not: a caller who
        speaks over it is now and then taken for echo."""
        self._echo_gone = -(10**9)
        """From here on nothing of what was sent before the last pause can come back."""
        self._agent_sound_at = -(10**9)
        self._agent_alone_ms = 0
        """How long the agent has spoken in this call while nothing was heard."""
        self._committed_at = 0
        """When the agent was given its last turn."""
        self._end_question: asyncio.Task[None] | None = None
        self._turns = 0
        self._vad = turn_detection.vad.open(self._voice_window)
        self._stop_listening = leg.listen(self._tick)
        self._reader = asyncio.create_task(self._read_words(), name=f"words {leg.call_id}")

    async def close(self) -> None:
        self._stop_listening()
        self._vad.close()
        self._withdraw_question()
        self._reader.cancel()
        await self._recognizer.close()
        await asyncio.gather(self._reader, return_exceptions=True)
        # The rest of a call refers to itself and waits for a cyclic collection; its sound need not.
        del self._memory, self._echo

    @property
    def state(self) -> TurnState:
        return self._turn.state

    @property
    def away(self) -> bool:
        """The line is on hold, or is being transferred: nobody is there to hear or to be heard.
        Silence is heard, keys mean nothing, and playout keeps still."""
        return self._away

    @away.setter
    def away(self, away: bool) -> None:
        self._away = away
        if away:
            self._leg.playout.pause()
        else:
            self._leg.playout.resume()

    def press(self, key: str) -> None:
        """The caller pressed a key."""
        at_ms = self._ms(self._memory.end)
        self._emit(Dtmf(at_ms, key))
        if not self._away and self.digits.press(key, at_ms):
            self._pressed_at = at_ms

    # --- the tick ---

    def _tick(self, heard: Pcm, said: Pcm | None, now: float) -> None:
        if self._away:
            heard = _SILENCE
        self._memory.add(heard)
        self._echo.sent(said)
        self._echo.add_received(heard)
        if said is not None:
            self._agent_sound_at = self._memory.end
            if not (self._detector.speaking or self._suspected):
                self._agent_alone_ms += PACKET_MS
        self._vad.feed(heard)
        self._feed()
        self._gather_keys()
        self._state_facts()
        self._notice_late_words()
        row = self._turn.step(self._facts, PACKET_MS)
        if row is not None:
            self._carry_out(row, now)

    def _voice_window(self, probability: float, level: float, end_sample: int) -> None:
        for event in self._detector.window(probability, level, end_sample):
            match event:
                case SpeechSuspected(at_sample):
                    self._turn_detection.smart_turn.load()  # it is asked at the first pause
                    self._suspected = True
                    self._onset = at_sample
                    self._facts.speech_ms = 0  # whatever was said before is another matter
                case SpeechDismissed():
                    self._suspected = False
                case SpeechStart(at_sample):
                    self._suspected = False
                    self._onset = at_sample
                    if not self._agent_is_speaking():
                        self._emit(SpeechStarted(self._ms(at_sample)))

    def _state_facts(self) -> None:
        facts, detector = self._facts, self._detector
        facts.voice = detector.speaking and detector.silence_ms <= VOICE_GAP_MS
        facts.suspected = self._suspected
        if detector.speaking:
            # Since the agent's own voice, if that is what it began with.
            voiced_until = detector.now - detector.silence_ms * MS
            callers = voiced_until - max(self._echo_until, self._echo_gone)
            facts.speech_ms = min(detector.speech_ms, max(0, self._ms(callers)))
        facts.silence_ms = detector.silence_ms
        facts.keying, facts.keyed = self.digits.collecting, bool(self._keyed)
        facts.words_due = self._awaiting_final
        facts.agent_speaking = self._agent_is_speaking()
        facts.agent_busy = self.reply.busy
        since = max(self._agent_sound_at, self._committed_at)
        facts.agent_silent_ms = (self._memory.end - since) // MS
        if self._turn.state in (TurnState.SUSPECTED, TurnState.JUDGING):
            facts.agent_said = self.reply.recent()
        if facts.voice and self._turn.state in (TurnState.LISTENING, TurnState.HEARING):
            facts.end_probability = None
            self._withdraw_question()

    def _agent_is_speaking(self) -> bool:
        return self._leg.playout.speaking

    def _is_echo(self) -> bool:
        # Of the sound that the voice detector has judged, which on a busy machine is not the last.
        end = self._detector.now
        if end - self._agent_sound_at > ECHO_TAIL_MS * MS:
            return False
        verdict, at = self._echo_verdict
        if end - at >= ECHO_CHECK_MS * MS:
            known = end - self._echo_until < ECHO_KNOWN_MS * MS
            found = self._echo.is_echo((self._memory.end - end) // SAMPLES_IN)
            if found:
                self._echo_until = end
                if not self._echo_misses:
                    self._echo_sure_until = end
                if self._turn.state not in (TurnState.SUSPECTED, TurnState.JUDGING):
                    self._facts.no_echo_ms = 0
            else:
                self._facts.no_echo_ms += min(self._ms(end - at), ECHO_CHECK_MOST_MS)
            misses = self._echo_misses if end - at < ECHO_DOUBT_MS * MS else 0
            self._echo_misses = 0 if found else misses + 1
            speaking = self._agent_is_speaking()
            enough = ECHO_MISSES_SPEAKING if speaking else ECHO_MISSES_SILENT
            verdict = found or (known and self._echo_misses < enough)
            self._echo_verdict = (verdict, end)
        return verdict

    def _pause(self) -> None:
        """Fall silent; what was said may still be on its way back."""
        self._leg.playout.pause()
        if self._memory.end - self._echo_until < ECHO_KNOWN_MS * MS:
            delay_ms = self._echo.delay_ms
        elif self._agent_alone_ms < QUIET_PROVES_MS:
            delay_ms = ECHO_UNKNOWN_MS
        else:
            return
        self._echo_gone = self._agent_sound_at + (delay_ms + ECHO_LINGERS_MS) * MS

    # --- keys ---

    def _gather_keys(self) -> None:
        self.digits.handle_timer(self._ms(self._memory.end))
        while (keys := self.digits.next_entry()) is not None:
            self._keyed = _join(self._keyed, as_text(keys))

    # --- words ---

    def _feed(self) -> None:
        """Give the recogniser what is new, while there is speech that may be the caller's."""
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
                self._echo_sure_until - PRE_ROLL_ECHO_MS * MS,
            )
            if ending:
                self._keep_final()
            self._facts.text, self._facts.final = "", False
        if self._memory.end - self._fed_until >= FEED_MS * MS:
            self._feed_rest()

    def _feed_rest(self) -> None:
        if self._fed_until is not None and self._memory.end > self._fed_until:
            self._recognizer.feed(self._memory.slice(self._fed_until, self._memory.end))
            self._fed_until = self._memory.end

    def _notice_late_words(self) -> None:
        facts = self._facts
        if (
            self._awaiting_final
            and not facts.excused
            and self._turn.state is TurnState.ENDING
            and self._memory.end - self._asked_at >= WORDS_LATE_MS * MS
        ):
            facts.excused = True
            self._excuse(Occasion.WAIT)

    def _finish_utterance(self) -> None:
        if self._fed_until is None:  # nothing was fed: nothing will come
            self._facts.text, self._facts.final = "", True
            return
        self._feed_rest()
        self._fed_end, self._fed_until = self._fed_until, None
        self._awaiting_final = True
        self._asked_at = self._memory.end
        self._recognizer.finish()

    def _cancel_utterance(self) -> None:
        if self._awaiting_final:
            self._stale_finals += 1
            self._awaiting_final = False
        elif self._fed_until is not None:
            self._recognizer.cancel()
        self._fed_until = None
        self._facts.text, self._facts.final = "", False

    async def _read_words(self) -> None:
        async for event in self._recognizer.events():
            if isinstance(event, Final) and event.text:
                self.language = event.language
            match event:
                case Partial() if self._fed_until is not None or self._awaiting_final:
                    if self._stale_finals == 0 and event.text != self._facts.text:
                        self._facts.text = event.text
                        if self._memory.end - self._told_at >= PARTIAL_MS * MS:
                            self._emit_words(event.text)
                case Final() if self._stale_finals:
                    self._stale_finals -= 1
                case Final(continues=True):
                    self._facts.turn_text = _join(self._facts.turn_text, event.text)
                case Final() if self._fed_until is not None:
                    # The caller spoke on after the pause: what was final is part of the turn.
                    self._facts.turn_text = _join(self._facts.turn_text, event.text)
                    self._awaiting_final = False
                case Final() if self._awaiting_final:
                    self._awaiting_final = False
                    self._final_at = monotonic()
                    self._facts.text, self._facts.final = event.text, True
                    if event.text:
                        self._emit_words(event.text)
                    elif event.lost and not self._facts.turn_text:
                        self._facts.excused = True
                        self._excuse(Occasion.NOT_HEARD)

    def _emit_words(self, text: str) -> None:
        if self._turn.state in (TurnState.SUSPECTED, TurnState.JUDGING):
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
                case Action.PAUSE:
                    self._pause()
                    self._emit(PlayoutPaused(self._ms(self._memory.end), self._ms(self._onset)))
                case Action.RESUME:
                    self._facts.no_echo_ms = 0
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
                    self._cancel_utterance()
                case Action.COMMIT:
                    self._commit(now)
                case Action.DISCARD:
                    self._reset_turn()
                    self._emit(TurnDiscarded(self._ms(self._memory.end)))
        if row.state is TurnState.ENDING and row.then is TurnState.HEARING:
            self._go_on()
        elif row.then is TurnState.KEYING and row.state is not TurnState.KEYING:
            self.listener.on_keys()

    def _go_on(self) -> None:
        """The caller spoke on."""
        self._keep_final()
        facts = self._facts
        facts.excused = False
        facts.end_probability = None
        self._withdraw_question()

    def _keep_final(self) -> None:
        """An utterance already final becomes part of the turn."""
        facts = self._facts
        if facts.final:
            facts.turn_text = _join(facts.turn_text, facts.text)
            facts.text, facts.final = "", False

    def interrupt(self) -> None:
        """The agent falls silent, and its reply is cancelled."""
        self._facts.no_echo_ms = 0
        self._leg.playout.flush()
        if self._away:
            self._leg.playout.pause()
        said, unsaid = self.reply.end()
        self.reply.cut = True
        if said or unsaid:
            self._emit(Interrupted(self._ms(self._memory.end), said, unsaid))
        self.listener.on_interrupt()

    def _check_end_of_turn(self) -> None:
        sound = self._memory.slice(self._memory.end - MEMORY_S * RATE_IN, self._memory.end)

        async def ask() -> None:
            self._facts.end_probability = await self._turn_detection.smart_turn.probability(
                sound, self._leg.call_id
            )

        self._withdraw_question()
        self._end_question = asyncio.create_task(ask(), name=f"end? {self._leg.call_id}")

    def _withdraw_question(self) -> None:
        if self._end_question is not None:
            self._end_question.cancel()
            self._end_question = None

    def _commit(self, now: float) -> None:
        self._turns += 1
        self._committed_at = self._memory.end
        facts = self._facts
        self.watch = self._watch_keys(now) if self._keyed else self._watch_words(now)
        self.watch.stamp("turn_decided", now)
        text = _join(_join(facts.turn_text, facts.text), self._keyed)
        self._keyed = ""
        self._reset_turn()
        self.reply.busy = True
        self._emit(CallerTurn(self._ms(self._memory.end), self._turns, text))
        self.listener.on_commit(text)

    def _watch_words(self, now: float) -> TurnStopwatch:
        watch = TurnStopwatch(self._turns, end_silence(self._turn_detection.settings, self._facts))
        silence = self._facts.silence_ms / 1000
        buffer_s = self._leg.statistics().buffer_ms / 1000
        watch.stamp("packet_in", now - silence - buffer_s)
        watch.stamp("speech_end", now - max(0.0, silence - VOICE_GAP_MS / 1000))
        watch.stamp("asr_final", self._final_at)
        return watch

    def _watch_keys(self, now: float) -> TurnStopwatch:
        """All of the time since the last key was waited on purpose."""
        waited_ms = self._ms(self._memory.end) - self._pressed_at
        watch = TurnStopwatch(self._turns, waited_ms)
        watch.stamp("packet_in", now - waited_ms / 1000)
        return watch

    def _reset_turn(self) -> None:
        self._cancel_utterance()
        self._facts.turn_text = ""
        self._facts.excused = False
        self._facts.end_probability = None
        self._withdraw_question()

    def _ms(self, sample: int) -> int:
        return sample // MS


def _join(first: str, second: str) -> str:
    return f"{first} {second}".strip() if first and second else first or second
