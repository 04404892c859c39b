"""What a caller's pauses teach: from a turn ended too early to turns waited for, and back."""

import pytest

from offhook.pipeline.conversation.events import CallerTurn
from offhook.pipeline.conversation.turns.end_of_turn import end_silence
from offhook.pipeline.conversation.turns.facts import Facts
from offhook.pipeline.conversation.turns.pace import CUT_OFF_MS, MARGIN_MS, Pace
from offhook.pipeline.conversation.turns.turn import TurnSettings
from tests.pipeline.conversation.turns.test_user_turn import Conversation, Said


def test_a_pause_that_was_too_long_is_waited_for_and_forgotten_again() -> None:
    pace = Pace()
    assert pace.wait_ms == 0
    pace.cut_off(500)
    assert pace.wait_ms == 500 + MARGIN_MS
    pace.cut_off(300)
    assert pace.wait_ms == 500 + MARGIN_MS
    pace.end_turn()
    assert pace.wait_ms == 500 + MARGIN_MS
    waits = []
    while pace.wait_ms:
        pace.end_turn()
        waits.append(pace.wait_ms)
    assert waits == sorted(waits, reverse=True)
    assert len(waits) < 10


def test_pauses_teach_only_of_callers_who_were_cut_off() -> None:
    pace = Pace()
    pace.pause(500)
    assert pace.wait_ms == 0
    pace.cut_off(400)
    pace.pause(500)
    assert pace.wait_ms == 500 + MARGIN_MS


def test_an_interruption_of_the_reply_teaches_nothing() -> None:
    pace = Pace()
    pace.cut_off(CUT_OFF_MS + 1)
    assert pace.wait_ms == 0


@pytest.mark.parametrize(
    ("probability", "learned", "most", "waits"),
    [
        (0.9, 0, 800, 340),
        (0.9, 400, 800, 400),
        (0.1, 300, 800, 340),
        (0.1, 700, 800, 700),
        (None, 700, 800, 700),
        (0.9, 1300, 800, 800),
        (0.9, 1300, 0, 340),
    ],
)
def test_silence_is_waited_for_as_learned(
    probability: float | None, learned: int, most: int, waits: int
) -> None:
    settings = TurnSettings(end_silence_learned=most)
    facts = Facts(text="I see", end_probability=probability, learned_ms=learned)
    assert end_silence(settings, facts) == waits


PAUSE = 22
"""Packets of a caller's pause: longer than the silence of a turn that the model takes for whole."""


async def test_a_caller_is_cut_off_once() -> None:
    conversation = Conversation(0, 40, 0.9)
    sentence = Said(((15, PAUSE), (15, 0)), 0.99, 0)
    await conversation.run([Said(((15, 0),), 0.99, 0)] * 2 + [sentence] * 3)
    turns = [event.text for event in conversation.events if isinstance(event, CallerTurn)]
    assert turns == ["a", "b", "c", "d", "e f", "g h"]
