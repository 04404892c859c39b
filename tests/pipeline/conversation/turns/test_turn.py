"""The floor, row by row."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.pipeline.conversation.turns.end_of_turn import answer_silence, end_silence
from offhook.pipeline.conversation.turns.facts import Facts
from offhook.pipeline.conversation.turns.turn import TABLE, Action, Turn, TurnSettings, TurnState

S = TurnState


@pytest.mark.parametrize(("silent_ms", "floor"), [(1480, True), (1500, False)])
@pytest.mark.parametrize("state", [S.SPEAKING, S.REPLYING])
def test_a_reply_that_is_silent_holds_no_floor(
    state: TurnState, silent_ms: int, floor: bool
) -> None:
    turn = turn_in(state)
    row = turn.step(replace(BOTH, agent_silent_ms=silent_ms))
    assert row is not None
    assert row.then is S.SUSPECTED
    assert turn.floor is floor


def turn_in(state: TurnState, **attributes: object) -> Turn:
    """In which the agent has begun its answer already, unless `thoughts` says otherwise."""
    turn = Turn()
    turn.state = state
    turn.thoughts = turn.settings.think_times
    for name, value in attributes.items():
        setattr(turn, name, value)
    return turn


SPEAKING = Facts(agent_speaking=True, agent_busy=True)
KEYS = Facts(keying=True)
TWICE = TurnSettings(ask_end_times=2)
PAUSE = Facts(silence_ms=180, text="on Sunday")
CALLER = Facts(voice=True, speech_ms=300)
BOTH = replace(SPEAKING, voice=True, speech_ms=100)
ALONE = replace(SPEAKING, echo_free=True)


@pytest.mark.parametrize(
    ("text", "about", "wanted_ms"),
    [
        ("is it open on sunday", {}, 340),
        ("I lost my keys", {}, 360),
        ("I lost my keys", {"paused_ms": 500}, 700),
        ("is it open on sunday", {"paused_ms": 500}, 360),
        ("on sunday", {}, 700),
        ("I would like to", {}, 1300),
        ("four one five", {"asked": "Your phone number?"}, 1300),
        ("one two three", {"before": "my number is four five six seven eight nine oh"}, 340),
        ("on sunday", {"before": "I can come"}, 700),
        ("a", {"before": "I can come on"}, 1300),
        ("a hammer", {"asked": "Which extras would you like?"}, 1000),
        ("let me see", {}, 2500),
        ("ich möchte gern", {"language": "de"}, 1300),
    ],
)
def test_the_words_say_how_long_a_pause_is_waited_through(
    text: str, about: dict[str, Any], wanted_ms: int
) -> None:
    """Whatever the model says."""
    for first, second in (("", text), (text, "")):
        facts = Facts(turn_text=first, text=second, end_probability=0.99, **about)
        assert end_silence(TurnSettings(), facts) == wanted_ms


@pytest.mark.parametrize(
    ("facts", "least_ms", "most_ms"),
    [
        (Facts(text="is it open on sunday", end_probability=0.1), 0, 0),
        (Facts(text="I lost my keys", end_probability=1.0), 950, 950),
        (Facts(text="I lost my keys", end_probability=0.3), 960, 1240),
        (Facts(text="I lost my keys", end_probability=1.0, paused_ms=500), 1250, 1250),
        (Facts(text="I lost my keys", end_probability=1.0, before="hello"), 1250, 1250),
        (Facts(text="on sunday", end_probability=1.0), 1250, 1250),
        (Facts(text="a hammer", asked="Which extras would you like?"), 1250, 1250),
        (Facts(text="j'ai perdu mes clés", end_probability=0.1, language="sv"), 0, 0),
    ],
)
def test_an_answer_is_heard_later_the_more_is_likely_to_follow(
    facts: Facts, least_ms: int, most_ms: int
) -> None:
    assert least_ms <= answer_silence(TurnSettings(), facts) <= most_ms


def test_words_that_begin_as_the_agent_ends_are_the_answer() -> None:
    """Also those that would be a backchannel before."""
    answered, went_on = (
        (S.ENDING, (Action.INTERRUPT,)),
        (S.SPEAKING, (Action.RESUME, Action.CANCEL)),
    )
    for text, asks, left_ms, (then, actions) in (
        ("Yes.", False, 600, answered),
        ("Yes.", True, 0, answered),
        ("Yes.", True, 800, went_on),
        ("Yes.", True, None, went_on),
        ("Mm-hmm.", True, 600, answered),
        ("Mm-hmm.", False, 600, went_on),
    ):
        turn = turn_in(S.SPEAKING)
        turn.step(replace(BOTH, agent_left_ms=lambda left_ms=left_ms: left_ms))
        assert turn.state is S.SUSPECTED
        while turn.state is S.SUSPECTED and turn.state_ms < 1000:
            turn.step(replace(BOTH, voice=turn.state_ms < 200, speech_ms=280, text=text))
        assert turn.state is S.JUDGING
        over = replace(SPEAKING, speech_ms=280, text=text, final=True, agent_asks=asks)
        row = turn.step(over)
        assert row is not None
        assert (turn.state, row.actions) == (then, actions)


def test_a_short_sound_as_the_agent_ends_is_no_cough_until_its_words_are_known() -> None:
    turn = turn_in(S.SPEAKING)
    turn.step(replace(BOTH, agent_left_ms=lambda: 300))
    turn.step(replace(BOTH, speech_ms=120))
    turn.step(replace(SPEAKING, speech_ms=120))
    assert turn.state is S.JUDGING
    row = turn.step(replace(SPEAKING, speech_ms=120, final=True))
    assert row is not None
    assert row.actions == (Action.RESUME, Action.CANCEL)


def test_speech_that_was_no_echo_is_no_cough_until_its_words_are_known() -> None:
    """As of a caller whom the first reply of a call cuts off: for the first second none of it
    counts as speech, because the line might have echo."""
    turn, over = turn_in(S.SPEAKING), replace(SPEAKING, no_echo_ms=600)
    turn.step(replace(over, voice=True))
    turn.step(replace(over, voice=True))
    turn.step(over)
    assert turn.state is S.JUDGING
    turn.step(replace(over, text="book a table", final=True))
    assert turn.state is S.ENDING


def test_a_short_sound_before_the_agent_is_heard_is_no_cough_until_its_words_are_known() -> None:
    """As "no," of a caller whose turn went too early."""
    turn, unheard = turn_in(S.REPLYING), Facts(agent_busy=True, speech_ms=200)
    turn.step(replace(unheard, voice=True))
    turn.step(replace(unheard, voice=True))
    turn.step(unheard)
    assert turn.state is S.JUDGING
    turn.step(replace(unheard, text="no", final=True))
    assert turn.state is S.ENDING


def test_a_sound_over_the_agent_means_what_all_of_its_parts_say() -> None:
    turn, over = turn_in(S.SPEAKING), replace(SPEAKING, turn_text="where are", speech_ms=150)
    turn.step(replace(over, voice=True))
    turn.step(replace(over, voice=True))
    turn.step(over)
    assert turn.state is S.JUDGING
    turn.step(replace(over, text="uh-huh", final=True))
    assert turn.state is S.ENDING


@pytest.mark.parametrize(
    ("turn", "facts", "then", "actions"),
    [
        (turn_in(S.LISTENING), Facts(), S.LISTENING, ()),
        (turn_in(S.LISTENING), CALLER, S.HEARING, ()),
        (turn_in(S.LISTENING), replace(CALLER, echo=lambda: True), S.LISTENING, ()),
        (turn_in(S.LISTENING), SPEAKING, S.SPEAKING, ()),
        (turn_in(S.LISTENING), Facts(agent_busy=True), S.REPLYING, ()),
        (turn_in(S.HEARING), CALLER, S.HEARING, ()),
        (turn_in(S.HEARING), BOTH, S.SUSPECTED, (Action.PAUSE,)),
        (turn_in(S.HEARING), Facts(silence_ms=100), S.ENDING, ()),
        (turn_in(S.ENDING), CALLER, S.HEARING, ()),
        (turn_in(S.ENDING), SPEAKING, S.ENDING, (Action.INTERRUPT,)),
        (turn_in(S.ENDING), Facts(silence_ms=100), S.ENDING, ()),
        (turn_in(S.ENDING), Facts(silence_ms=160), S.ENDING, (Action.ASK_END,)),
        (turn_in(S.ENDING, asked=1, thoughts=0), PAUSE, S.ENDING, (Action.THINK,)),
        (
            turn_in(S.ENDING, asked=1, thoughts=0),
            replace(PAUSE, text="I would like to"),
            S.ENDING,
            (),
        ),
        (turn_in(S.ENDING, asked=1, thoughts=0), replace(PAUSE, silence_ms=140), S.ENDING, ()),
        (turn_in(S.ENDING, asked=1, thoughts=0), replace(PAUSE, text=""), S.ENDING, ()),
        (
            turn_in(S.ENDING, asked=1, thoughts=1, thought_of=PAUSE.text),
            PAUSE,
            S.ENDING,
            (),
        ),
        (
            turn_in(S.ENDING, asked=1, finished=True, thoughts=1, thought_of="on Saturday"),
            replace(PAUSE, final=True),
            S.ENDING,
            (Action.THINK,),
        ),
        (
            turn_in(S.ENDING, asked=1),
            Facts(silence_ms=200, end_probability=0.9),
            S.ENDING,
            (Action.FINISH,),
        ),
        (
            turn_in(S.ENDING, asked=1, asked_at=160),
            Facts(silence_ms=300, end_probability=0.1),
            S.ENDING,
            (),
        ),
        (
            turn_in(S.ENDING, asked=1, asked_at=160, finished=True),
            Facts(silence_ms=420, end_probability=0.1, text="I would like"),
            S.ENDING,
            (),
        ),
        (
            turn_in(S.ENDING, settings=TWICE, asked=1, asked_at=160, finished=True),
            Facts(silence_ms=420, end_probability=0.1, text="I would like"),
            S.ENDING,
            (Action.ASK_END,),
        ),
        (
            turn_in(S.ENDING, settings=TWICE, asked=1, asked_at=300, finished=True),
            Facts(silence_ms=420, end_probability=0.1, text="I would like"),
            S.ENDING,
            (),
        ),
        (
            turn_in(S.ENDING, asked=1, asked_at=160, finished=True),
            Facts(silence_ms=420, end_probability=0.1, text="open on sunday"),
            S.ENDING,
            (),
        ),
        (
            turn_in(S.ENDING, asked=1, asked_at=160, finished=True),
            Facts(silence_ms=420, text="open on sunday"),
            S.ENDING,
            (),
        ),
        (
            turn_in(S.ENDING),
            Facts(silence_ms=160, text="I would like"),
            S.ENDING,
            (Action.ASK_END,),
        ),
        (
            turn_in(S.ENDING, finished=True),
            Facts(silence_ms=410, text="I would like"),
            S.ENDING,
            (Action.ASK_END,),
        ),
        (
            turn_in(S.ENDING, asked=1, asked_at=410, finished=True),
            Facts(silence_ms=510, text="I would like", final=True),
            S.ENDING,
            (),
        ),
        (
            turn_in(S.ENDING, asked=2),
            Facts(silence_ms=380, end_probability=0.1),
            S.ENDING,
            (Action.FINISH,),
        ),
        (
            turn_in(S.ENDING, asked=2, finished=True),
            Facts(silence_ms=560, end_probability=0.2, text="open on sunday", final=True),
            S.ENDING,
            (),
        ),
        (
            turn_in(S.ENDING, asked=2, finished=True),
            Facts(silence_ms=580, end_probability=0.2, text="open on sunday", final=True),
            S.REPLYING,
            (Action.COMMIT,),
        ),
        (
            turn_in(S.ENDING, asked=1, finished=True),
            Facts(silence_ms=340, end_probability=0.9, text="hello", final=True, suspected=True),
            S.ENDING,
            (),
        ),
        (
            turn_in(S.ENDING, asked=1, finished=True),
            Facts(silence_ms=340, end_probability=0.9, text="hello", final=True),
            S.REPLYING,
            (Action.COMMIT,),
        ),
        (
            turn_in(S.ENDING, asked=1, finished=True),
            Facts(silence_ms=240, end_probability=0.9, text="hello", final=True),
            S.ENDING,
            (),
        ),
        (
            turn_in(S.ENDING, asked=5, finished=True),
            Facts(silence_ms=1200, end_probability=0.2, text="I would like", final=True),
            S.ENDING,
            (),
        ),
        (
            turn_in(S.ENDING, asked=6, finished=True),
            Facts(silence_ms=1300, end_probability=0.2, text="I would like", final=True),
            S.REPLYING,
            (Action.COMMIT,),
        ),
        (
            turn_in(S.ENDING, asked=3, finished=True),
            Facts(silence_ms=500, end_probability=None, text="hello", final=True),
            S.REPLYING,
            (Action.COMMIT,),
        ),
        (
            turn_in(S.ENDING, asked=1, finished=True),
            Facts(silence_ms=500, end_probability=0.9, text="", final=True),
            S.LISTENING,
            (Action.DISCARD,),
        ),
        (
            turn_in(S.ENDING, asked=1, finished=True),
            Facts(silence_ms=500, end_probability=0.9, turn_text="thank you", final=True),
            S.REPLYING,
            (Action.COMMIT,),
        ),
        (turn_in(S.REPLYING), replace(CALLER, agent_busy=True), S.SUSPECTED, (Action.PAUSE,)),
        (turn_in(S.REPLYING), SPEAKING, S.SPEAKING, ()),
        (
            turn_in(S.REPLYING),
            replace(SPEAKING, suspected=True, unheard=True),
            S.SUSPECTED,
            (Action.PAUSE,),
        ),
        (turn_in(S.REPLYING), Facts(agent_busy=True), S.REPLYING, ()),
        (turn_in(S.REPLYING), Facts(), S.LISTENING, ()),
        (turn_in(S.SPEAKING), SPEAKING, S.SPEAKING, ()),
        (turn_in(S.SPEAKING), BOTH, S.SUSPECTED, (Action.PAUSE,)),
        (turn_in(S.SPEAKING), replace(SPEAKING, suspected=True), S.SUSPECTED, (Action.PAUSE,)),
        (turn_in(S.SPEAKING), replace(BOTH, echo=lambda: True), S.SPEAKING, ()),
        (turn_in(S.SPEAKING), Facts(agent_busy=True), S.REPLYING, ()),
        (turn_in(S.SPEAKING), Facts(), S.LISTENING, ()),
        (turn_in(S.SUSPECTED), BOTH, S.SUSPECTED, ()),
        (turn_in(S.SUSPECTED, floor=False), replace(CALLER, text=""), S.SUSPECTED, ()),
        (turn_in(S.SUSPECTED), replace(CALLER, text="yes"), S.SUSPECTED, ()),
        (
            turn_in(S.SUSPECTED, floor=False),
            replace(CALLER, text="yes"),
            S.HEARING,
            (Action.INTERRUPT,),
        ),
        (
            turn_in(S.JUDGING, floor=False),
            Facts(speech_ms=300, text="yes", final=True),
            S.ENDING,
            (Action.INTERRUPT,),
        ),
        (turn_in(S.JUDGING, floor=False, state_ms=1000), Facts(speech_ms=300), S.JUDGING, ()),
        (
            turn_in(S.JUDGING, floor=False),
            Facts(speech_ms=300, final=True, agent_busy=True),
            S.REPLYING,
            (Action.RESUME, Action.CANCEL),
        ),
        (turn_in(S.SUSPECTED), replace(BOTH, speech_ms=880), S.SUSPECTED, ()),
        (turn_in(S.SUSPECTED), replace(BOTH, speech_ms=900), S.HEARING, (Action.INTERRUPT,)),
        (
            turn_in(S.SUSPECTED),
            replace(BOTH, speech_ms=1380, text="oh okay"),
            S.SUSPECTED,
            (),
        ),
        (
            turn_in(S.SUSPECTED),
            replace(BOTH, speech_ms=1400, text="oh okay"),
            S.HEARING,
            (Action.INTERRUPT,),
        ),
        # On a line without echo the agent goes on in a lower voice at what may be agreement.
        (turn_in(S.SPEAKING), replace(ALONE, suspected=True), S.SUSPECTED, (Action.PAUSE,)),
        (
            turn_in(S.SUSPECTED),
            replace(ALONE, voice=True, speech_ms=500, text="okay"),
            S.SUSPECTED,
            (),
        ),
        (
            turn_in(S.JUDGING, settings=TurnSettings(lower=False)),
            replace(ALONE, text="okay"),
            S.JUDGING,
            (),
        ),
        (turn_in(S.SUSPECTED), replace(BOTH, speech_ms=500, text="okay"), S.SUSPECTED, ()),
        (
            turn_in(S.SUSPECTED, had_floor=True),
            replace(ALONE, voice=True, text="okay", echo_free=True),
            S.HEARING,
            (Action.INTERRUPT,),
        ),
        (
            turn_in(S.JUDGING, may_answer=True),
            replace(ALONE, speech_ms=500, text="okay"),
            S.JUDGING,
            (),
        ),
        (
            turn_in(S.JUDGING, lowered=True),
            replace(ALONE, voice=True, speech_ms=600, text="okay"),
            S.SUSPECTED,
            (Action.PAUSE,),
        ),
        (turn_in(S.JUDGING), replace(ALONE, text="uh huh"), S.JUDGING, (Action.LOWER,)),
        (turn_in(S.JUDGING), ALONE, S.JUDGING, ()),
        (
            turn_in(S.JUDGING, lowered=True),
            replace(ALONE, text="uh huh stop", final=True, speech_ms=700),
            S.ENDING,
            (Action.INTERRUPT,),
        ),
        (
            turn_in(S.SUSPECTED),
            replace(BOTH, speech_ms=300, text="about"),
            S.SUSPECTED,
            (),
        ),
        (
            turn_in(S.SUSPECTED),
            replace(BOTH, speech_ms=300, text="please tell me"),
            S.HEARING,
            (Action.INTERRUPT,),
        ),
        (
            turn_in(S.SUSPECTED),
            replace(BOTH, speech_ms=260, text="stop"),
            S.HEARING,
            (Action.INTERRUPT,),
        ),
        (
            turn_in(S.SUSPECTED),
            replace(BOTH, speech_ms=800, text="opening hours", agent_said="our opening hours are"),
            S.SUSPECTED,
            (),
        ),
        (
            turn_in(S.SUSPECTED, state_ms=160),
            SPEAKING,
            S.SPEAKING,
            (Action.RESUME, Action.CANCEL),
        ),
        (
            turn_in(S.SUSPECTED, state_ms=160),
            Facts(agent_busy=True),
            S.REPLYING,
            (Action.RESUME, Action.CANCEL),
        ),
        (
            turn_in(S.SUSPECTED, speech_in_state=200),
            replace(SPEAKING, speech_ms=220),
            S.SPEAKING,
            (Action.RESUME, Action.CANCEL),
        ),
        (
            turn_in(S.SUSPECTED, speech_in_state=400),
            replace(SPEAKING, speech_ms=450),
            S.JUDGING,
            (Action.FINISH,),
        ),
        (turn_in(S.JUDGING), SPEAKING, S.JUDGING, ()),
        (turn_in(S.JUDGING), BOTH, S.SUSPECTED, ()),
        (
            turn_in(S.JUDGING),
            replace(SPEAKING, text="uh huh", final=True),
            S.SPEAKING,
            (Action.RESUME, Action.CANCEL),
        ),
        (
            turn_in(S.JUDGING),
            replace(SPEAKING, text="wrong number", final=True, speech_ms=400),
            S.ENDING,
            (Action.INTERRUPT,),
        ),
        # All of it was, or may have been, the agent's own voice: only what is unmistakable counts.
        (
            turn_in(S.JUDGING),
            replace(SPEAKING, text="wrong number", final=True),
            S.SPEAKING,
            (Action.RESUME, Action.CANCEL),
        ),
        (
            turn_in(S.JUDGING),
            replace(SPEAKING, text="no stop", final=True),
            S.ENDING,
            (Action.INTERRUPT,),
        ),
        (
            turn_in(S.SUSPECTED, speech_in_state=900),
            replace(BOTH, speech_ms=900, echo=lambda: True),
            S.SPEAKING,
            (Action.RESUME, Action.CANCEL),
        ),
        (
            turn_in(S.SUSPECTED, speech_in_state=900),
            replace(BOTH, no_echo_ms=500, echo=lambda: True),
            S.JUDGING,
            (Action.FINISH,),
        ),
        (
            turn_in(S.JUDGING),
            replace(BOTH, no_echo_ms=500, echo=lambda: True, text="where are you", final=True),
            S.ENDING,
            (Action.INTERRUPT,),
        ),
        (
            turn_in(S.REPLYING),
            replace(CALLER, agent_busy=True, echo=lambda: True),
            S.REPLYING,
            (),
        ),
        (
            turn_in(S.JUDGING, state_ms=700),
            SPEAKING,
            S.SPEAKING,
            (Action.RESUME,),
        ),
        # The words that were waited for come after all.
        (
            turn_in(S.SPEAKING),
            replace(SPEAKING, text="wrong number", final=True, speech_ms=400),
            S.ENDING,
            (Action.INTERRUPT,),
        ),
        (
            turn_in(S.SPEAKING),
            replace(SPEAKING, text="uh huh", final=True, speech_ms=400),
            S.SPEAKING,
            (Action.CANCEL,),
        ),
        (
            turn_in(S.REPLYING),
            Facts(agent_busy=True, text="no stop", final=True, speech_ms=400),
            S.ENDING,
            (Action.INTERRUPT,),
        ),
        (
            turn_in(S.LISTENING),
            Facts(text="and on Sunday", final=True, speech_ms=400),
            S.ENDING,
            (),
        ),
        (turn_in(S.LISTENING), Facts(final=True, speech_ms=400), S.LISTENING, (Action.CANCEL,)),
        (turn_in(S.LISTENING), KEYS, S.KEYING, ()),
        (turn_in(S.LISTENING), Facts(keyed=True), S.KEYING, ()),
        (turn_in(S.HEARING), replace(CALLER, keying=True), S.KEYING, (Action.FINISH,)),
        (turn_in(S.ENDING), KEYS, S.KEYING, (Action.FINISH,)),
        (turn_in(S.ENDING, finished=True), KEYS, S.KEYING, ()),
        (turn_in(S.REPLYING), replace(KEYS, agent_busy=True), S.KEYING, (Action.INTERRUPT,)),
        (turn_in(S.SPEAKING), replace(SPEAKING, keying=True), S.KEYING, (Action.INTERRUPT,)),
        (
            turn_in(S.SUSPECTED),
            replace(BOTH, keying=True),
            S.KEYING,
            (Action.INTERRUPT, Action.CANCEL),
        ),
        (
            turn_in(S.JUDGING),
            replace(SPEAKING, keying=True, text="wrong number", final=True),
            S.KEYING,
            (Action.INTERRUPT, Action.CANCEL),
        ),
        (
            turn_in(S.SUSPECTED, had_floor=True),
            replace(BOTH, speech_ms=0, text="well"),
            S.HEARING,
            (Action.INTERRUPT,),
        ),
        (
            turn_in(S.SUSPECTED, had_floor=True),
            replace(BOTH, speech_ms=0, turn_text="uh huh"),
            S.HEARING,
            (Action.INTERRUPT,),
        ),
        (turn_in(S.SUSPECTED, had_floor=True), replace(BOTH, echo=lambda: True), S.SUSPECTED, ()),
        (
            turn_in(S.SUSPECTED, had_floor=True, speech_in_state=200),
            SPEAKING,
            S.JUDGING,
            (Action.FINISH,),
        ),
        (
            turn_in(S.SUSPECTED, had_floor=True),
            replace(SPEAKING, words_due=True),
            S.JUDGING,
            (Action.FINISH,),
        ),
        (turn_in(S.SUSPECTED, had_floor=True), SPEAKING, S.SUSPECTED, ()),
        (
            turn_in(S.SUSPECTED, had_floor=True),
            replace(BOTH, keying=True),
            S.KEYING,
            (Action.INTERRUPT, Action.FINISH),
        ),
        (
            turn_in(S.JUDGING, had_floor=True),
            replace(SPEAKING, final=True, text="uh huh"),
            S.ENDING,
            (Action.INTERRUPT,),
        ),
        (
            turn_in(S.JUDGING, had_floor=True),
            replace(SPEAKING, final=True),
            S.SPEAKING,
            (Action.RESUME, Action.DISCARD),
        ),
        (
            turn_in(S.JUDGING, had_floor=True),
            replace(SPEAKING, keying=True),
            S.KEYING,
            (Action.INTERRUPT,),
        ),
        (
            turn_in(S.SPEAKING, had_floor=True),
            replace(SPEAKING, final=True, text="uh huh"),
            S.ENDING,
            (Action.INTERRUPT,),
        ),
        (
            turn_in(S.SPEAKING, had_floor=True),
            replace(SPEAKING, final=True),
            S.SPEAKING,
            (Action.DISCARD,),
        ),
        (
            turn_in(S.REPLYING, had_floor=True),
            Facts(agent_busy=True, final=True),
            S.REPLYING,
            (Action.DISCARD,),
        ),
        (
            turn_in(S.LISTENING, had_floor=True),
            Facts(final=True),
            S.LISTENING,
            (Action.DISCARD,),
        ),
        (
            turn_in(S.SUSPECTED),
            replace(BOTH, speech_ms=300, text="press one now", agent_said="please press one now"),
            S.SUSPECTED,
            (),
        ),
        (turn_in(S.KEYING), replace(CALLER, keying=True), S.KEYING, ()),
        (turn_in(S.KEYING), replace(SPEAKING, keying=True), S.KEYING, (Action.INTERRUPT,)),
        (turn_in(S.KEYING), Facts(keyed=True), S.REPLYING, (Action.COMMIT,)),
        (turn_in(S.KEYING), Facts(keyed=True, keying=True), S.KEYING, ()),
        (turn_in(S.KEYING), Facts(keyed=True, words_due=True), S.KEYING, ()),
        (
            turn_in(S.KEYING, state_ms=700),
            Facts(keyed=True, words_due=True),
            S.REPLYING,
            (Action.COMMIT,),
        ),
    ],
)
def test_row(turn: Turn, facts: Facts, then: TurnState, actions: tuple[Action, ...]) -> None:
    row = turn.step(facts)
    assert turn.state is then
    assert (row.actions if row else ()) == actions


def test_every_state_can_be_left() -> None:
    assert {row.state for row in TABLE} == set(TurnState)
    assert {s for row in TABLE for s in ((row.then,) if row.then else (S.SPEAKING, S.REPLYING))}


@pytest.mark.parametrize(
    ("state", "facts", "had_floor"),
    [
        (S.HEARING, BOTH, True),
        (S.SPEAKING, BOTH, False),
        (S.REPLYING, replace(CALLER, agent_busy=True), False),
        (S.SPEAKING, replace(BOTH, first=True), True),
        (S.REPLYING, replace(CALLER, agent_busy=True, unheard=True), True),
    ],
)
def test_who_spoke_first_had_the_floor(state: TurnState, facts: Facts, had_floor: bool) -> None:
    turn = turn_in(state)
    turn.step(facts)
    assert turn.state is S.SUSPECTED
    assert turn.had_floor is had_floor


@pytest.mark.parametrize("floor", [True, False])
def test_who_goes_on_over_the_agent_changes_nothing_about_its_floor(floor: bool) -> None:
    turn = turn_in(S.JUDGING, floor=floor)
    turn.step(replace(BOTH, agent_silent_ms=0 if not floor else 3000))
    assert turn.state is S.SUSPECTED
    assert turn.floor is floor


def test_a_turn_whose_words_are_late_stays_one() -> None:
    turn = turn_in(S.SPEAKING, had_floor=True)
    turn.step(replace(BOTH, words_due=True))
    assert turn.had_floor
    turn = turn_in(S.SPEAKING, had_floor=True)
    turn.step(BOTH)
    assert not turn.had_floor


FACTS = st.builds(
    Facts,
    voice=st.booleans(),
    suspected=st.booleans(),
    speech_ms=st.integers(0, 2000),
    silence_ms=st.integers(0, 3000),
    text=st.sampled_from(["", "uh huh", "stop", "I would like to know", "the"]),
    final=st.booleans(),
    end_probability=st.one_of(st.none(), st.floats(0, 1)),
    agent_speaking=st.booleans(),
    agent_busy=st.booleans(),
    keying=st.booleans(),
    keyed=st.booleans(),
    first=st.booleans(),
    unheard=st.booleans(),
    echo_free=st.booleans(),
    turn_text=st.sampled_from(["", "well"]),
    words_due=st.booleans(),
    echo=st.sampled_from([lambda: True, lambda: False]),
)


@given(st.lists(FACTS, max_size=60))
def test_playout_is_held_back_exactly_while_it_is_in_doubt(history: list[Facts]) -> None:
    """Whatever happens: a pause or lower sound is always followed by a resume, an interruption or
    the other of the two, never by itself, and the agent is never left so in another state."""
    turn: Turn = Turn()
    held: Action | None = None
    for facts in history:
        row = turn.step(facts)
        for action in row.actions if row else ():
            if action in (Action.PAUSE, Action.LOWER):
                assert held is not action
                held = action
            elif action in (Action.RESUME, Action.INTERRUPT):
                held = None
        assert (held is not None) == (turn.state in (S.SUSPECTED, S.JUDGING))
        assert turn.lowered == (held is Action.LOWER)


@given(st.integers(0, 700))
def test_a_doubt_is_bounded(speech_ms: int) -> None:
    """Some sound over the agent, then silence without any words: playout goes on in time."""
    settings = TurnSettings()
    turn = turn_in(S.SPEAKING)
    for at in range(0, speech_ms, 20):
        turn.step(replace(BOTH, speech_ms=at))
    waited = 0
    while turn.state is not S.SPEAKING and turn.state is not S.HEARING:
        turn.step(replace(SPEAKING, speech_ms=speech_ms))
        waited += 20
        assert waited <= settings.judging + settings.suspicion + 40
