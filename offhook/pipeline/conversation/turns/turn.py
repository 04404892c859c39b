"""Turn-taking and barge-in as one state machine: a table of (state, condition, next state,
actions).

Pure policy without I/O. Every 20 ms the caller of `Turn.step` passes the facts (from the VAD, the
recognizer, the end-of-turn model and the playout) and carries out the returned actions. Rows are
tried from top to bottom; the first whose condition holds is taken.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from offhook.pipeline.conversation.turns.end_of_turn import (
    ALL_SAID,
    MAY_BE_OVER,
    EndSettings,
    doubt_of,
    end_silence,
)
from offhook.pipeline.conversation.turns.facts import Facts
from offhook.pipeline.conversation.turns.words import (
    answers,
    decisive,
    is_backchannel,
    only_echo,
    weighty_words,
    words,
)

WHOLE_MS = 220
"""Silence in ms by which partial transcripts mostly have the last word: if they are whole then, the
final one is requested whatever the model says."""


class TurnState(Enum):
    LISTENING = auto()
    """Nobody is speaking."""
    HEARING = auto()
    """The caller is speaking."""
    ENDING = auto()
    """The caller has stopped speaking; the turn may or may not be over."""
    REPLYING = auto()
    """The turn was passed to the agent, whose reply has no audio yet."""
    SPEAKING = auto()
    """The agent is speaking."""
    SUSPECTED = auto()
    """There is sound from the caller while the agent speaks: playout is paused, or lowered, until
    it is classified."""
    JUDGING = auto()
    """That sound has ended; its transcript decides whether it was an interruption."""
    KEYING = auto()
    """The caller is pressing keys; audio is ignored meanwhile."""


class Action(Enum):
    LOWER = auto()
    """Play on quietly, from the next packet on."""
    PAUSE = auto()
    """Silence playout from the next packet on and keep the audio not yet played."""
    RESUME = auto()
    """Continue playout where it was paused, at the full level."""
    INTERRUPT = auto()
    """Drop the unplayed audio, cancel the agent's reply, and keep what was heard in the context."""
    ASK_END = auto()
    """Run the end-of-turn model on the audio so far."""
    FINISH = auto()
    """Ask the recognizer for the final transcript of the utterance."""
    CANCEL = auto()
    """Cancel the utterance and ignore its transcript."""
    THINK = auto()
    """Let the agent begin its answer to the words so far, unheard."""
    COMMIT = auto()
    """Pass the turn to the agent."""
    DISCARD = auto()
    """Discard the turn: it has no words."""


@dataclass(frozen=True)
class TurnSettings(EndSettings):
    """Turn-taking thresholds in ms. The defaults suit telephone conversations."""

    lower: bool = True
    """Whether the agent, silent since the caller's first sound over it, goes on 12 dB lower when
    the sound has ended and all that is understood is agreement ("okay"), until it is certain; on
    lines with echo it stays silent."""
    interrupt_speech: int = 900
    """Speech of this length over the agent is an interruption whatever its words..."""
    interrupt_agreement: int = 1400
    """...unless all that is understood of it is agreement ("oh, okay"): then speech of this length
    is."""
    interrupt_words_speech: int = 240
    """Speech of this length is an interruption if its transcript has a meaningful word."""
    cough: int = 260
    """Sound shorter than this without words counts as a cough, and playout resumes."""
    suspicion: int = 160
    """Timeout for a suspected onset to become speech."""
    no_echo: int = 400
    """On a line with echo, sound this long that does not match the agent's audio is the
    caller's."""
    judging: int = 700
    """Timeout for the final transcript of a short sound over the agent."""
    answer_rest: int = 700
    """Audio of the agent left to be heard up to which any words of the caller are the answer, even
    those that would be a backchannel before: "yes" at the end of a question."""
    floor_silence: int = 1500
    """A reply silent for this long, before its first audio or within it, does not hold the floor:
    any words of the caller then are a turn."""
    judging_silent: int = 2500
    """As `judging`, while the reply does not hold the floor: no audio is delayed by waiting."""


Condition = Callable[["Turn", Facts], bool]


@dataclass(frozen=True)
class Transition:
    state: TurnState
    when: Condition
    then: TurnState | None
    """The next state; None returns to SPEAKING or REPLYING, whichever the agent is in."""
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


def _may_go_on(turn: "Turn", facts: Facts) -> bool:
    return facts.unheard and facts.suspected and not facts.echo()


def _agrees(turn: "Turn", facts: Facts) -> bool:
    if turn.lowered or turn.had_floor or turn.may_answer or not turn.settings.lower:
        return False
    return facts.echo_free and facts.agent_speaking and is_backchannel(facts.words)


def _goes_on_over_it(turn: "Turn", facts: Facts) -> bool:
    return turn.lowered and _voice_after_echo_check(turn, facts)


def _end_check_is_due(turn: "Turn", facts: Facts) -> bool:
    s = turn.settings
    if not turn.asked:
        due = s.ask_end_after
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
        turn.over
        or _end_likely(turn, facts)
        or facts.silence_ms >= s.finish_unsure_after
        or (facts.end_probability is None and facts.silence_ms >= s.end_answer)
        or (facts.silence_ms >= WHOLE_MS and doubt_of(facts) in ALL_SAID)
    )


def _may_be_over(turn: "Turn", facts: Facts) -> bool:
    s, text = turn.settings, facts.words
    if facts.silence_ms < s.think_after or text == turn.thought_of or not text:
        return False
    return turn.thoughts < s.think_times and doubt_of(facts) in MAY_BE_OVER


def _turn_over(turn: "Turn", facts: Facts) -> bool:
    if not facts.final:
        return False
    if turn.over:
        return True
    more = turn.settings.suspicion if facts.suspected else 0  # the caller may be going on
    return facts.silence_ms >= end_silence(turn.settings, facts) + more


def _turn_over_with_words(turn: "Turn", facts: Facts) -> bool:
    return _turn_over(turn, facts) and bool(facts.words)


def _means_to_interrupt(turn: "Turn", facts: Facts) -> bool:
    s = turn.settings
    agreement = is_backchannel(facts.words)
    if facts.speech_ms >= (s.interrupt_agreement if agreement else s.interrupt_speech):
        return not only_echo(facts.words, facts.agent_said)
    return facts.speech_ms >= turn.settings.interrupt_words_speech and _weighty(turn, facts)


def _weighty(turn: "Turn", facts: Facts) -> bool:
    if only_echo(facts.words, facts.agent_said):
        return False
    return decisive(facts.words) or len(weighty_words(facts.words)) >= 2


def _speech_of_the_caller(turn: "Turn", facts: Facts) -> bool:
    return facts.speech_ms > 0 or facts.no_echo_ms >= turn.settings.no_echo


def _speaks_into_silence(turn: "Turn", facts: Facts) -> bool:
    if turn.floor or facts.speech_ms < turn.settings.interrupt_words_speech:
        return False
    return bool(words(facts.words)) and not only_echo(facts.words, facts.agent_said)


def _spoke_into_silence(turn: "Turn", facts: Facts) -> bool:
    return facts.final and _speaks_into_silence(turn, facts)


def _final_means_to_interrupt(turn: "Turn", facts: Facts) -> bool:
    return (
        facts.final
        and (_speech_of_the_caller(turn, facts) or decisive(facts.words))
        and bool(weighty_words(facts.words))
        and not only_echo(facts.words, facts.agent_said)
    )


def _final_is_nothing(turn: "Turn", facts: Facts) -> bool:
    return facts.final and not _final_means_to_interrupt(turn, facts)


def _final_answers(turn: "Turn", facts: Facts) -> bool:
    if not (facts.final and turn.may_answer) or only_echo(facts.words, facts.agent_said):
        return False
    return answers(facts.words, facts.agent_asks)


def _late_words_mean_a_turn(turn: "Turn", facts: Facts) -> bool:
    return (
        _final_means_to_interrupt(turn, facts)
        or _final_answers(turn, facts)
        or _spoke_into_silence(turn, facts)
        or _final_belongs_to_a_turn(turn, facts)
    )


def _late_words_are_nothing(turn: "Turn", facts: Facts) -> bool:
    return facts.final and not _late_words_mean_a_turn(turn, facts)


def _echo_after_all(turn: "Turn", facts: Facts) -> bool:
    return _echo_after_words(turn, facts) and facts.no_echo_ms < turn.settings.no_echo


def _echo_after_words(turn: "Turn", facts: Facts) -> bool:
    return facts.voice and not turn.had_floor and facts.echo()


def _was_nothing(turn: "Turn", facts: Facts) -> bool:
    return (
        not facts.voice and turn.speech_in_state == 0 and turn.state_ms >= turn.settings.suspicion
    )


def _cough(turn: "Turn", facts: Facts) -> bool:
    return (
        not facts.voice
        and not turn.may_answer
        and facts.agent_speaking
        and turn.speech_in_state > 0
        and facts.speech_ms < turn.settings.cough
        and facts.no_echo_ms < turn.settings.no_echo
        and not weighty_words(facts.words)
    )


def _sound_ended(turn: "Turn", facts: Facts) -> bool:
    return not facts.voice and turn.speech_in_state > 0


def _end_check_timed_out(turn: "Turn", facts: Facts) -> bool:
    s = turn.settings
    return turn.state_ms >= (s.judging if turn.floor else s.judging_silent)


def _presses(turn: "Turn", facts: Facts) -> bool:
    return facts.keying or facts.keyed


def _presses_within_a_turn(turn: "Turn", facts: Facts) -> bool:
    return turn.had_floor and _presses(turn, facts)


def _turn_goes_on(turn: "Turn", facts: Facts) -> bool:
    return turn.had_floor and bool(words(facts.words))


def _turn_pauses(turn: "Turn", facts: Facts) -> bool:
    spoke = turn.speech_in_state > 0 or facts.words_due  # else it is only suspected so far
    return turn.had_floor and not facts.voice and spoke


def _final_belongs_to_a_turn(turn: "Turn", facts: Facts) -> bool:
    return facts.final and _turn_goes_on(turn, facts)


def _no_turn_after_all(turn: "Turn", facts: Facts) -> bool:
    return facts.final and turn.had_floor and not _turn_goes_on(turn, facts)


def _presses_before_the_last_words(turn: "Turn", facts: Facts) -> bool:
    return _presses(turn, facts) and not turn.finished


def _entered(turn: "Turn", facts: Facts) -> bool:
    if facts.keying or not facts.keyed:
        return False
    return not facts.words_due or _end_check_timed_out(turn, facts)


S, A = TurnState, Action
PLAYOUT = (A.LOWER, A.PAUSE, A.RESUME, A.INTERRUPT)
TABLE: tuple[Transition, ...] = (
    Transition(S.LISTENING, _presses, S.KEYING, (), "the caller takes the turn"),
    Transition(S.LISTENING, _late_words_mean_a_turn, S.ENDING, (), "words over the agent, late"),
    Transition(S.LISTENING, _no_turn_after_all, S.LISTENING, (A.DISCARD,), "noise before it"),
    Transition(S.LISTENING, _late_words_are_nothing, S.LISTENING, (A.CANCEL,), "late 'uh-huh'"),
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
    Transition(S.ENDING, _may_be_over, S.ENDING, (A.THINK,), "the answer may begin meanwhile"),
    Transition(S.ENDING, _turn_over, S.LISTENING, (A.DISCARD,), "noise, or nothing understood"),
    Transition(S.REPLYING, _presses, S.KEYING, (A.INTERRUPT,), "the caller has more to say"),
    Transition(S.REPLYING, _late_words_mean_a_turn, S.ENDING, (A.INTERRUPT,), "a late 'stop'"),
    Transition(S.REPLYING, _no_turn_after_all, None, (A.DISCARD,), "noise before it"),
    Transition(S.REPLYING, _late_words_are_nothing, None, (A.CANCEL,), "a late 'uh-huh'"),
    Transition(S.REPLYING, _voice_after_echo_check, S.SUSPECTED, (A.PAUSE,), "the caller goes on"),
    Transition(S.REPLYING, _may_go_on, S.SUSPECTED, (A.PAUSE,), "nothing is lost by waiting"),
    Transition(S.REPLYING, _agent_speaks, S.SPEAKING, (), "the first sound of the reply"),
    Transition(S.REPLYING, _agent_done, S.LISTENING, (), "nothing to say"),
    Transition(S.SPEAKING, _presses, S.KEYING, (A.INTERRUPT,), "a key is never a cough"),
    Transition(S.SPEAKING, _late_words_mean_a_turn, S.ENDING, (A.INTERRUPT,), "a late 'stop'"),
    Transition(S.SPEAKING, _no_turn_after_all, None, (A.DISCARD,), "noise before it"),
    Transition(S.SPEAKING, _late_words_are_nothing, None, (A.CANCEL,), "a late 'uh-huh'"),
    Transition(S.SPEAKING, _barges_in, S.SUSPECTED, (A.PAUSE,), "fall silent first, think after"),
    Transition(S.SPEAKING, _agent_pauses_for_thought, S.REPLYING, (), "a gap inside the reply"),
    Transition(S.SPEAKING, _agent_done, S.LISTENING, (), "the reply has been heard"),
    Transition(S.SUSPECTED, _presses_within_a_turn, S.KEYING, (A.INTERRUPT, A.FINISH), "one turn"),
    Transition(S.SUSPECTED, _presses, S.KEYING, (A.INTERRUPT, A.CANCEL), "the sound of the key"),
    Transition(S.SUSPECTED, _turn_goes_on, S.HEARING, (A.INTERRUPT,), "the caller has the floor"),
    Transition(S.SUSPECTED, _turn_pauses, S.JUDGING, (A.FINISH,), "its words decide"),
    Transition(S.SUSPECTED, _echo_after_all, None, (A.RESUME, A.CANCEL), "the agent's own voice"),
    Transition(S.SUSPECTED, _echo_after_words, S.JUDGING, (A.FINISH,), "the caller pauses over it"),
    Transition(
        S.SUSPECTED, _means_to_interrupt, S.HEARING, (A.INTERRUPT,), "long, or words that count"
    ),
    Transition(S.SUSPECTED, _speaks_into_silence, S.HEARING, (A.INTERRUPT,), "'are you there?'"),
    Transition(S.SUSPECTED, _was_nothing, None, (A.RESUME, A.CANCEL), "one loud window, no speech"),
    Transition(S.SUSPECTED, _cough, None, (A.RESUME, A.CANCEL), "too short for a word"),
    Transition(S.SUSPECTED, _sound_ended, S.JUDGING, (A.FINISH,), "its words decide"),
    Transition(S.JUDGING, _presses_within_a_turn, S.KEYING, (A.INTERRUPT,), "one turn"),
    Transition(S.JUDGING, _presses, S.KEYING, (A.INTERRUPT, A.CANCEL), "the sound of the key"),
    Transition(S.JUDGING, _goes_on_over_it, S.SUSPECTED, (A.PAUSE,), "'okay, and where'"),
    Transition(S.JUDGING, _voice_after_echo_check, S.SUSPECTED, (), "the caller goes on"),
    Transition(
        S.JUDGING, _final_means_to_interrupt, S.ENDING, (A.INTERRUPT,), "a short 'no', 'stop'"
    ),
    Transition(
        S.JUDGING, _final_belongs_to_a_turn, S.ENDING, (A.INTERRUPT,), "the caller has the floor"
    ),
    Transition(S.JUDGING, _final_answers, S.ENDING, (A.INTERRUPT,), "a short 'yes' at its end"),
    Transition(S.JUDGING, _no_turn_after_all, None, (A.RESUME, A.DISCARD), "noise before it"),
    Transition(S.JUDGING, _spoke_into_silence, S.ENDING, (A.INTERRUPT,), "'are you there?'"),
    Transition(S.JUDGING, _final_is_nothing, None, (A.RESUME, A.CANCEL), "'uh-huh', or no words"),
    Transition(S.JUDGING, _agrees, S.JUDGING, (A.LOWER,), "'okay' so far"),
    Transition(
        S.JUDGING, _end_check_timed_out, None, (A.RESUME,), "bounded patience; the words may come"
    ),
    Transition(S.KEYING, _agent_speaks, S.KEYING, (A.INTERRUPT,), "the caller has the floor"),
    Transition(S.KEYING, _entered, S.REPLYING, (A.COMMIT,), "the entry is complete"),
)
_ROWS = {state: tuple(row for row in TABLE if row.state is state) for state in TurnState}


class Turn:
    """The turn-taking state of one call; call `step` once per tick."""

    def __init__(self, settings: TurnSettings | None = None) -> None:
        self.settings = settings or TurnSettings()
        self.state = TurnState.LISTENING
        self.state_ms = 0
        """ms since this state was entered."""
        self.speech_in_state = 0
        """ms of speech since this state was entered."""
        self.pause_ms = 0
        """ms of the caller's last silence, until now or until the speech now heard."""
        self.asked = 0
        """Runs of the end-of-turn model in this pause."""
        self.asked_at = 0
        """ms of silence at the last run of the end-of-turn model."""
        self.finished = False
        self.thought_of = ""
        """The words to which the agent last began its answer in this pause."""
        self.thoughts = 0
        """Answers begun in this pause."""
        self.floor = True
        """Whether the reply held the floor when the caller began to speak: it was audible or about
        to be."""
        self.may_answer = False
        """Whether the agent was about to end when the caller began to speak: any words answer."""
        self.lowered = False
        """Whether playout is lowered, and not paused."""
        self.over = False
        """Somebody knows that the turn is over, whatever its words and its silence say."""
        self.had_floor = False
        """Whether the suspected or judged sound began before the agent's: as a turn, or as more of
        the one that has just ended, which is never dropped as a backchannel or as echo, however
        short."""

    def step(self, facts: Facts, elapsed_ms: int = 20) -> Transition | None:
        """Advance by one tick; return the row taken, or None if nothing changes."""
        self.state_ms += elapsed_ms
        if facts.voice:
            self.speech_in_state += elapsed_ms
            self.asked, self.finished = 0, False
            self.thoughts, self.thought_of = 0, ""
        else:
            self.pause_ms = facts.silence_ms
        for row in _ROWS[self.state]:
            if row.when(self, facts):
                self._apply(row, facts)
                return row
        return None

    def _apply(self, row: Transition, facts: Facts) -> None:
        then = row.then or (TurnState.SPEAKING if facts.agent_speaking else TurnState.REPLYING)
        if then is TurnState.SUSPECTED and self.state is not TurnState.JUDGING:
            self.floor = facts.agent_silent_ms < self.settings.floor_silence
            over = 0 if not facts.agent_busy else None
            left_ms = facts.agent_left_ms() if facts.agent_speaking else over
            self.may_answer = left_ms is not None and left_ms <= self.settings.answer_rest
            awaited = self.had_floor and facts.words_due
            goes_on = self.state is TurnState.HEARING or facts.unheard
            self.had_floor = facts.first or awaited or goes_on
        elif then is TurnState.KEYING:
            self.floor = True
        if then is not self.state:
            spoke = facts.voice or self.state is TurnState.HEARING  # until this very tick
            self.over = False
            self.state = then
            self.state_ms = 0
            self.speech_in_state = 20 if spoke and then is TurnState.SUSPECTED else 0
        if Action.ASK_END in row.actions:
            self.asked += 1
            self.asked_at = facts.silence_ms
        if Action.THINK in row.actions:
            self.thoughts, self.thought_of = self.thoughts + 1, facts.words
        self.finished |= Action.FINISH in row.actions
        for action in row.actions:
            if action in PLAYOUT:
                self.lowered = action is Action.LOWER
