"""How patient a session is where no end-of-turn model answers."""

import pytest

from offhook.pipeline.conversation.turns.end_of_turn import end_silence
from offhook.pipeline.conversation.turns.facts import Facts
from offhook.pipeline.conversation.turns.turn import TurnSettings
from offhook.web.realtime.protocol.conversation_session import (
    ConversationSemanticVad,
    ConversationVad,
)
from offhook.web.realtime.turn_settings import EAGERNESS, turn_settings


@pytest.mark.parametrize("eagerness", [*EAGERNESS])
def test_without_an_answer_silence_is_waited_through_as_the_eagerness_says(eagerness: str) -> None:
    """No shorter than for a likely end, and no longer than for an unlikely one."""
    vad = ConversationSemanticVad.model_validate({"type": "semantic_vad", "eagerness": eagerness})
    settings = turn_settings(vad, TurnSettings())
    likely, unknown, unlikely = (
        end_silence(settings, Facts(text="I lost my keys", end_probability=probability))
        for probability in (0.9, None, 0.1)
    )
    assert likely < unknown <= unlikely


@pytest.mark.parametrize(
    ("silence_ms", "text", "waits_ms"),
    [
        (500, "that is all", 500),
        (500, "it is spelled L I N", 1300),
        (500, "my number is four one five", 1300),
        (500, "I would like to", 1300),
        (400, "it is spelled L I N", 400),
        (2000, "I would like to", 2000),
    ],
)
def test_silence_alone_ends_a_turn_unless_nobody_chose_how_much(
    silence_ms: int, text: str, waits_ms: int
) -> None:
    vad = ConversationVad(type="server_vad", silence_duration_ms=silence_ms)
    assert end_silence(turn_settings(vad, TurnSettings()), Facts(text=text)) == waits_ms
