"""Which words of a call are kept, event by event, around a pause."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.pipeline.conversation.events import (
    AgentTurn,
    CallerPartial,
    CallerTurn,
    CallerTyped,
    Event,
    Interrupted,
    PlayoutPaused,
    PlayoutResumed,
    RecordingPaused,
    RecordingResumed,
    SpeechStarted,
    ToolUsed,
    TurnDiscarded,
)
from offhook.web.edge.calls.withheld import Withheld, digits_of
from offhook.web.records.entries import NOT_KEPT

PAUSED, RESUMED = RecordingPaused(1000, "operator"), RecordingResumed(5000, "operator")
SAID = CallerTurn(5500, 1, "secret words")
TOOL = ToolUsed(900, "f", '{"n": "secret"}', "secret", 10, failed=False)


def kept_of(*events: Event, speaks: bool = False) -> str:
    withheld = Withheld(lambda: speaks)
    kept = " ".join(str(withheld.kept(event)) for event in events)
    return re.sub(r"_ms=\d+", "", kept)  # times are no numbers that anybody says


@pytest.mark.parametrize(
    "events",
    [
        (PAUSED, SAID),
        (SpeechStarted(500), PAUSED, RESUMED, SAID),
        (PAUSED, SpeechStarted(4000), RESUMED, SAID),
        (PAUSED, RESUMED, SpeechStarted(4900), SAID),
        (PAUSED, RESUMED, PlayoutPaused(5100, onset_ms=4900), CallerPartial(5200, "secret"), SAID),
        (PAUSED, RESUMED, SAID),
        (PAUSED, CallerPartial(4000, "secret"), RESUMED, CallerPartial(5100, "secret words"), SAID),
        (PAUSED, CallerTyped(2000, "secret")),
        (PAUSED, AgentTurn(2000, 1, "secret", interrupted=False)),
        (PAUSED, Interrupted(2000, "secret", "secret")),
        (PAUSED, TOOL),
        (PAUSED, RESUMED, replace(TOOL, at_ms=3000)),
    ],
)
def test_words_that_touch_a_pause_are_withheld(events: tuple[Event, ...]) -> None:
    kept = kept_of(*events)
    assert "secret" not in kept
    assert NOT_KEPT in kept


def test_what_the_agent_is_saying_when_a_pause_ends_is_withheld() -> None:
    turn = AgentTurn(6000, 1, "secret", interrupted=False)
    again = AgentTurn(9000, 2, "open at nine", interrupted=False)
    kept = kept_of(PAUSED, RESUMED, turn, again, speaks=True)
    assert "secret" not in kept
    assert "open at nine" in kept


@pytest.mark.parametrize(
    "events",
    [
        (SpeechStarted(100), SAID, PAUSED),
        (PAUSED, RESUMED, SpeechStarted(5100), SAID),
        (PAUSED, RESUMED, PlayoutPaused(5200, onset_ms=5100), SAID),
        (PAUSED, SpeechStarted(2000), TurnDiscarded(3000), RESUMED, SpeechStarted(5100), SAID),
        (
            PAUSED,
            PlayoutPaused(2000, 1900),
            PlayoutResumed(2100, ""),
            RESUMED,
            SpeechStarted(5100),
            SAID,
        ),
        (PAUSED, RESUMED, CallerTurn(40_000, 1, "secret words")),
        (PAUSED, RESUMED, replace(TOOL, at_ms=6000)),
        (TOOL,),
    ],
)
def test_words_before_and_after_are_kept(events: tuple[Event, ...]) -> None:
    assert "secret" in kept_of(*events)


@pytest.mark.parametrize(
    ("number", "digits"),
    [
        ("4111 1111-1111.1111", "4111111111111111"),
        ("four one one one", "4111"),
        ("Four, double one, one", "4111"),
        ("forty-one eleven", "4111"),
        ("twenty twenty", "2020"),
        ("twenty five oh two", "2502"),
        ("4 one 1 one", "4111"),
    ],
)
def test_numbers_are_read_as_digits(number: str, digits: str) -> None:
    assert digits_of(number) == digits
    kept = kept_of(PAUSED, CallerTyped(2000, f"it is {digits}"), RESUMED, CallerTyped(9000, number))
    assert "****" in kept


@given(st.text("0123456789", min_size=4, max_size=19), st.integers(1, 7), st.sampled_from(" -./"))
def test_a_number_is_masked_however_it_is_written_later(
    number: str, group: int, separator: str
) -> None:
    written = separator.join(number[i : i + group] for i in range(0, len(number), group))
    later = CallerTyped(9000, f"I repeat: {written}, ok?")
    tool = replace(TOOL, at_ms=9500, arguments=f'{{"n": {number}, "m": "{written}"}}', result="")
    kept = kept_of(PAUSED, CallerTyped(2000, number), RESUMED, later, tool)
    assert written not in kept
    assert number not in kept


@given(st.lists(st.text("0123456789", min_size=1, max_size=3), min_size=4, max_size=8))
def test_a_number_in_several_turns_is_one(parts: list[str]) -> None:
    paused = [CallerTyped(2000, part) for part in parts]
    kept = kept_of(PAUSED, *paused, RESUMED, CallerTyped(9000, "".join(parts)))
    assert "".join(parts) not in kept


def test_other_numbers_are_kept() -> None:
    withheld = Withheld()
    for event in (PAUSED, CallerTyped(2000, "4111 2222 3333 4444"), RESUMED):
        withheld.kept(event)
    for text in ("order 8812", "call 030 123 987", "in 2026", "one two", "room 411"):
        assert withheld.kept(CallerTyped(9000, text)) == CallerTyped(9000, text)
    assert withheld.masked({"card": 4111222233334444, "n": 8812, "yes": True}) == {
        "card": "****",
        "n": 8812,
        "yes": True,
    }


def test_a_secret_is_masked_as_it_stands() -> None:
    withheld = Withheld()
    withheld.withhold_secret("Sword.fish")
    withheld.withhold_secret("it")
    assert withheld.kept(CallerTyped(1, "it is sword.FISH!")) == CallerTyped(1, "it is ****!")
