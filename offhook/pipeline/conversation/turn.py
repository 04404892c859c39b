"""Who has the floor: turn-taking and barge-in as one table of state x condition -> state, actions.

Pure policy. Twenty milliseconds at a time the caller of `Turn.step` states the facts (what the
voice detector, the recogniser, the end-of-turn model and the playout say) and carries out the
actions that come back. Rows are tried top to bottom; the first whose condition holds is taken.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto

from offhook.pipeline.conversation.words import (
    breaks_off,
    decisive,
    is_backchannel,
    only_echo,
    weighty_words,
    words,
)


class TurnState(Enum):
    LISTENING = auto()
    """Nobody speaks."""
    HEARING = auto()
    """The caller speaks."""
    ENDING = auto()
    """The caller fell silent; is the turn over?"""
    REPLYING = auto()
    """The turn went to the agent, which has made no sound yet."""
    SPEAKING = auto()
    """The agent speaks."""
    SUSPECTED = auto()
    """Sound from the caller over the agent: playout is paused until it is known what it is."""
    JUDGING = auto()
    """That sound has ended; its words decide."""
    KEYING = auto()
    """The caller presses keys; what sounds meanwhile is not listened to."""


class Action(Enum):
    PAUSE = auto()
    """Playout falls silent in the next packet and keeps what is unsaid."""
    RESUME = auto()
    """Playout goes on mid-word."""
    INTERRUPT = auto()
    """Drop what is unsaid, cancel the agent's reply, keep in the context what was heard."""
    ASK_END = auto()
    """Ask the end-of-turn model about the sound so far."""
    FINISH = auto()
    """Ask the recogniser for the final words of the utterance."""
    CANCEL = auto()
    """Forget the utterance."""
    COMMIT = auto()
    """Hand the turn to the agent."""
    DISCARD = auto()
    """The turn had no words: forget it."""


@dataclass(frozen=True)
class TurnSettings:
    """Times in ms. The defaults suit a telephone conversation."""

    ask_end_after: int = 150
    """Silence before the end-of-turn model is asked: early enough that its answer costs no wait,
    late enough that most pauses inside a sentence are over."""
    ask_end_again: int = 260
    """More silence makes the model surer: where it said no it is asked again this much later."""
    ask_end_times: int = 2
    """A question costs a core 80 ms; a third one seldom changes the answer."""
    ask_end_takes: int = 110
    """From a question to its answer. One that would come after the silence has decided is not
    asked for."""
    end_likely: float = 0.5
    """Probability from which the model's word counts as the end of the turn."""
    end_silence: int = 260
    """Silence that ends a turn the model holds for complete."""
    end_silence_unsure: int = 520
    """Silence that ends a turn the model holds for unfinished but whose words do not."""
    end_silence_dangling: int = 1300
    """Silence that ends a turn which breaks off ("I would like to"), by the model and the words."""
    finish_unsure_after: int = 380
    """Silence after which the final words are asked for even when the model expects more."""
    end_answer: int = 500
    """A model slower than this is not waited for, unless the words break off."""
    interrupt_speech: int = 700
    """Speech this long over the agent is an interruption whatever the words."""
    interrupt_words_speech: int = 240
    """With a weighty word heard, this much speech is enough."""
    cough: int = 260
    """Sound shorter than this with no words is a cough: playout resumes without further thought."""
    suspicion: int = 160
    """A suspicion that has not become speech by then was nothing."""
    no_echo: int = 400
    """Sound this long that is not the agent's own voice is the caller's, on a line with echo."""
    judging: int = 700
    """The longest wait for the final words of a short sound over the agent."""
    floor_silence: int = 1500
    """A reply that has been silent this long, before its first sound or within it, holds no floor:
    whatever words the caller says then are a turn."""
    judging_silent: int = 2500
    """As `judging`, while the reply holds no floor: nothing is kept from the caller meanwhile."""


@dataclass
class Facts:
    """What is known at this tick; filled in by UserTurnController, read by the conditions below."""

    voice: bool = False
    """The voice detector holds that the caller is speaking."""
    suspected: bool = False
    """One strong window: speech may just have begun."""
    speech_ms: int = 0
    """Length of the current speech, or of the last one when it has ended; without what is, or may
    still be, the agent's own voice coming back."""
    no_echo_ms: int = 0
    """How long what comes in has not been the agent's own voice, since the caller was suspected
    to speak over it; counted only while `echo` is asked for."""
    silence_ms: int = 0
    """Since the end of the last speech."""
    text: str = ""
    """Words of the utterance so far, partial or final."""
    final: bool = False
    """`text` is final."""
    turn_text: str = ""
    """Final words of the turn's earlier utterances."""
    end_probability: float | None = None
    agent_speaking: bool = False
    """There is sound of the agent being played or paused."""
    agent_busy: bool = False
    """The agent is making a reply."""
    agent_silent_ms: int = 0
    """Since the last sound of the agent, or since it was given the turn."""
    agent_said: str = ""
    """The agent's last words as played: heard back, they are echo."""
    keying: bool = False
    """An entry of keys has begun and is not complete."""
    keyed: bool = False
    """An entry is complete and not yet handed over."""
    words_due: bool = False
    """The final words of an utterance are still to come."""
    excused: bool = False
    """The words are late or lost, and the caller is told so: what the agent says is no reply."""
    echo: Callable[[], bool] = field(default=lambda: False)
    """Is what comes in the agent's own voice? Costs a correlation, so it is asked only when it
    matters."""


Condition = Callable[["Turn", Facts], bool]


@dataclass(frozen=True)
class Transition:
    state: TurnState
    when: Condition
    then: TurnState | None
    """None: back to where the agent is, SPEAKING or REPLYING."""
    actions: tuple[Action, ...]
    why: str


def _voice(turn: "Turn", facts: Facts) -> bool:
    return facts.voice


def _voice_after_echo_check(turn: "Turn", facts: Facts) -> bool:
    return facts.voice and not facts.echo()


def _silent(turn: "Turn", facts: Facts) -> bool:
    return not facts.voice


def _agent_speaks(turn: "Turn", facts: Facts) -> bool:
    return facts.agent_speaking


def _agent_replies(turn: "Turn", facts: Facts) -> bool:
    return facts.agent_speaking and not facts.excused


def _agent_done(turn: "Turn", facts: Facts) -> bool:
    return not facts.agent_speaking and not facts.agent_busy


def _agent_pauses_for_thought(turn: "Turn", facts: Facts) -> bool:
    return not facts.agent_speaking and facts.agent_busy


def _barges_in(turn: "Turn", facts: Facts) -> bool:
    return (facts.voice or facts.suspected) and not facts.echo()


def _end_check_is_due(turn: "Turn", facts: Facts) -> bool:
    s = turn.settings
    if not turn.asked:
        due = s.ask_end_after + (s.ask_end_again if facts.text and breaks_off(facts.text) else 0)
    elif facts.end_probability is None or _end_likely(turn, facts):
        return False
    else:
        due = turn.asked_at + s.ask_end_again
    in_time = facts.silence_ms + s.ask_end_takes < end_silence(s, facts)
    return turn.asked < s.ask_end_times and facts.silence_ms >= due and in_time


def _end_likely(turn: "Turn", facts: Facts) -> bool:
    return facts.end_probability is not None and facts.end_probability >= turn.settings.end_likely


def _time_to_finish(turn: "Turn", facts: Facts) -> bool:
    s = turn.settings
    return not turn.finished and (
        _end_likely(turn, facts)
        or facts.silence_ms >= s.finish_unsure_after
        or (facts.end_probability is None and facts.silence_ms >= s.end_answer)
    )


def end_silence(settings: TurnSettings, facts: Facts) -> int:
    """ms of silence that end the turn, given what the model and the words say."""
    words = facts.text or facts.turn_text
    if facts.end_probability is None:
        dangling = words and breaks_off(words)
        return settings.end_silence_dangling if dangling else settings.end_answer
    if facts.end_probability >= settings.end_likely:
        return settings.end_silence
    return settings.end_silence_dangling if breaks_off(words) else settings.end_silence_unsure


def _turn_over(turn: "Turn", facts: Facts) -> bool:
    return facts.final and facts.silence_ms >= end_silence(turn.settings, facts)


def _turn_over_with_words(turn: "Turn", facts: Facts) -> bool:
    return _turn_over(turn, facts) and bool(facts.turn_text or facts.text)


def _means_to_interrupt(turn: "Turn", facts: Facts) -> bool:
    if facts.speech_ms >= turn.settings.interrupt_speech:
        return not only_echo(facts.text, facts.agent_said)
    return facts.speech_ms >= turn.settings.interrupt_words_speech and _weighty(turn, facts)


def _weighty(turn: "Turn", facts: Facts) -> bool:
    if only_echo(facts.text, facts.agent_said):
        return False
    return decisive(facts.text) or len(weighty_words(facts.text)) >= 2


def _speech_of_the_caller(turn: "Turn", facts: Facts) -> bool:
    return facts.speech_ms > 0 or facts.no_echo_ms >= turn.settings.no_echo


def _speaks_into_silence(turn: "Turn", facts: Facts) -> bool:
    if turn.floor or facts.speech_ms < turn.settings.interrupt_words_speech:
        return False
    return bool(words(facts.text)) and not only_echo(facts.text, facts.agent_said)


def _spoke_into_silence(turn: "Turn", facts: Facts) -> bool:
    return facts.final and _speaks_into_silence(turn, facts)


def _final_means_to_interrupt(turn: "Turn", facts: Facts) -> bool:
    return (
        facts.final
        and (_speech_of_the_caller(turn, facts) or decisive(facts.text))
        and bool(weighty_words(facts.text))
        and not is_backchannel(facts.text)
        and not only_echo(facts.text, facts.agent_said)
    )


def _final_is_nothing(turn: "Turn", facts: Facts) -> bool:
    return facts.final and not _final_means_to_interrupt(turn, facts)


def _echo_after_all(turn: "Turn", facts: Facts) -> bool:
    return _echo_after_words(turn, facts) and facts.no_echo_ms < turn.settings.no_echo


def _echo_after_words(turn: "Turn", facts: Facts) -> bool:
    return facts.voice and facts.echo()


def _was_nothing(turn: "Turn", facts: Facts) -> bool:
    return (
        not facts.voice and turn.speech_in_state == 0 and turn.state_ms >= turn.settings.suspicion
    )


def _cough(turn: "Turn", facts: Facts) -> bool:
    return (
        not facts.voice
        and turn.speech_in_state > 0
        and facts.speech_ms < turn.settings.cough
        and not weighty_words(facts.text)
    )


def _sound_ended(turn: "Turn", facts: Facts) -> bool:
    return not facts.voice and turn.speech_in_state > 0


def _end_check_timed_out(turn: "Turn", facts: Facts) -> bool:
    s = turn.settings
    return turn.state_ms >= (s.judging if turn.floor else s.judging_silent)


def _presses(turn: "Turn", facts: Facts) -> bool:
    return facts.keying or facts.keyed


def _presses_before_the_last_words(turn: "Turn", facts: Facts) -> bool:
    return _presses(turn, facts) and not turn.finished


def _entered(turn: "Turn", facts: Facts) -> bool:
    if facts.keying or not facts.keyed:
        return False
    return not facts.words_due or _end_check_timed_out(turn, facts)


S, A = TurnState, Action
TABLE: tuple[Transition, ...] = (
    Transition(S.LISTENING, _presses, S.KEYING, (), "the caller takes the turn"),
    Transition(S.LISTENING, _agent_speaks, S.SPEAKING, (), "a greeting or a prompt"),
    Transition(S.LISTENING, _voice_after_echo_check, S.HEARING, (), "the caller takes the turn"),
    Transition(
        S.LISTENING, _agent_pauses_for_thought, S.REPLYING, (), "the agent starts by itself"
    ),
    Transition(S.HEARING, _presses, S.KEYING, (A.FINISH,), "words and keys are one turn"),
    Transition(S.HEARING, _agent_speaks, S.SUSPECTED, (A.PAUSE,), "never talk over the caller"),
    Transition(S.HEARING, _silent, S.ENDING, (), "a pause, or the end"),
    Transition(S.ENDING, _presses_before_the_last_words, S.KEYING, (A.FINISH,), "one turn"),
    Transition(S.ENDING, _presses, S.KEYING, (), "one turn"),
    Transition(S.ENDING, _voice, S.HEARING, (), "it was a pause"),
    Transition(S.ENDING, _agent_replies, S.ENDING, (A.INTERRUPT,), "the caller has the floor"),
    Transition(S.ENDING, _end_check_is_due, S.ENDING, (A.ASK_END,), "ask early, decide later"),
    Transition(S.ENDING, _time_to_finish, S.ENDING, (A.FINISH,), "the words are needed by then"),
    Transition(S.ENDING, _turn_over_with_words, S.REPLYING, (A.COMMIT,), "the caller is done"),
    Transition(S.ENDING, _turn_over, S.LISTENING, (A.DISCARD,), "noise, or nothing understood"),
    Transition(S.REPLYING, _presses, S.KEYING, (A.INTERRUPT,), "the caller has more to say"),
    Transition(S.REPLYING, _voice_after_echo_check, S.SUSPECTED, (A.PAUSE,), "the caller goes on"),
    Transition(S.REPLYING, _agent_speaks, S.SPEAKING, (), "the first sound of the reply"),
    Transition(S.REPLYING, _agent_done, S.LISTENING, (), "nothing to say"),
    Transition(S.SPEAKING, _presses, S.KEYING, (A.INTERRUPT,), "a key is never a cough"),
    Transition(S.SPEAKING, _barges_in, S.SUSPECTED, (A.PAUSE,), "fall silent first, think after"),
    Transition(S.SPEAKING, _agent_pauses_for_thought, S.REPLYING, (), "a gap inside the reply"),
    Transition(S.SPEAKING, _agent_done, S.LISTENING, (), "the reply has been heard"),
    Transition(S.SUSPECTED, _presses, S.KEYING, (A.INTERRUPT, A.CANCEL), "the sound of the key"),
    Transition(S.SUSPECTED, _echo_after_all, None, (A.RESUME, A.CANCEL), "the agent's own voice"),
    Transition(S.SUSPECTED, _echo_after_words, S.JUDGING, (A.FINISH,), "the caller pauses over it"),
    Transition(
        S.SUSPECTED, _means_to_interrupt, S.HEARING, (A.INTERRUPT,), "long, or words that count"
    ),
    Transition(S.SUSPECTED, _speaks_into_silence, S.HEARING, (A.INTERRUPT,), "'are you there?'"),
    Transition(S.SUSPECTED, _was_nothing, None, (A.RESUME, A.CANCEL), "one loud window, no speech"),
    Transition(S.SUSPECTED, _cough, None, (A.RESUME, A.CANCEL), "too short for a word"),
    Transition(S.SUSPECTED, _sound_ended, S.JUDGING, (A.FINISH,), "its words decide"),
    Transition(S.JUDGING, _presses, S.KEYING, (A.INTERRUPT, A.CANCEL), "the sound of the key"),
    Transition(S.JUDGING, _voice_after_echo_check, S.SUSPECTED, (), "the caller goes on"),
    Transition(
        S.JUDGING, _final_means_to_interrupt, S.ENDING, (A.INTERRUPT,), "a short 'no', 'stop'"
    ),
    Transition(S.JUDGING, _spoke_into_silence, S.ENDING, (A.INTERRUPT,), "'are you there?'"),
    Transition(S.JUDGING, _final_is_nothing, None, (A.RESUME, A.CANCEL), "'uh-huh', or no words"),
    Transition(S.JUDGING, _end_check_timed_out, None, (A.RESUME, A.CANCEL), "bounded patience"),
    Transition(S.KEYING, _agent_speaks, S.KEYING, (A.INTERRUPT,), "the caller has the floor"),
    Transition(S.KEYING, _entered, S.REPLYING, (A.COMMIT,), "the entry is complete"),
)
_ROWS = {state: tuple(row for row in TABLE if row.state is state) for state in TurnState}


class Turn:
    """The floor of one call. `step` once a tick."""

    def __init__(self, settings: TurnSettings | None = None) -> None:
        self.settings = settings or TurnSettings()
        self.state = TurnState.LISTENING
        self.state_ms = 0
        """Since this state was entered."""
        self.speech_in_state = 0
        """ms of voice since this state was entered."""
        self.asked = 0
        """How often the end-of-turn model was asked in this silence."""
        self.asked_at = 0
        """ms of silence at the last of these questions."""
        self.finished = False
        self.floor = True
        """When the caller began to speak, the reply was heard, or soon to be."""

    def step(self, facts: Facts, elapsed_ms: int = 20) -> Transition | None:
        """Advance by one tick; the row taken, or None when nothing changes."""
        self.state_ms += elapsed_ms
        if facts.voice:
            self.speech_in_state += elapsed_ms
            self.asked, self.finished = 0, False
        for row in _ROWS[self.state]:
            if row.when(self, facts):
                self._apply(row, facts)
                return row
        return None

    def _apply(self, row: Transition, facts: Facts) -> None:
        then = row.then or (TurnState.SPEAKING if facts.agent_speaking else TurnState.REPLYING)
        if then is TurnState.SUSPECTED and self.state is not TurnState.JUDGING:
            self.floor = facts.agent_silent_ms < self.settings.floor_silence
        elif then is TurnState.KEYING:
            self.floor = True
        if then is not self.state:
            self.state = then
            self.state_ms = 0
            self.speech_in_state = 20 if facts.voice and then is TurnState.SUSPECTED else 0
        if Action.ASK_END in row.actions:
            self.asked += 1
            self.asked_at = facts.silence_ms
        self.finished |= Action.FINISH in row.actions
