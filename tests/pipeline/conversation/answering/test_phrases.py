"""What words say of who speaks, in seven languages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.answers import second_texts, texts
from offhook.pipeline.conversation.answering.phrases import heard_in, plain

MACHINES = {
    "machine": texts.VOICEMAIL,
    "menu": texts.MENUS,
    "screening": texts.SCREENING,
    "unavailable": texts.UNAVAILABLE,
}


@pytest.mark.parametrize("result", MACHINES)
def test_what_machines_say_is_known(result: str) -> None:
    for language, said in MACHINES[result].items():
        for text in said:
            heard = heard_in(text)
            assert heard is not None, (language, text)
            assert heard.certain, (language, text)
            # Announcements of a mailbox begin with the same words.
            assert heard.result == result or result == "unavailable", (language, text)


@pytest.mark.parametrize(
    "said", [texts.HELLOS, texts.FIRMS, second_texts.HELLOS, second_texts.FIRMS]
)
def test_what_people_say_is_never_certainly_a_machine(said: dict[str, tuple[str, ...]]) -> None:
    for language, sentences in said.items():
        for text in sentences:
            heard = heard_in(text)
            assert heard is None or heard.result == "human" or not heard.certain, (language, text)


@pytest.mark.parametrize(
    "text",
    [
        "Would you like to leave a message?",
        "He is not here, can I take a message?",
        "Möchten Sie eine Nachricht hinterlassen?",
        "Voulez-vous laisser un message ?",
        "¿Quiere dejar un mensaje?",
        "Vuole lasciare un messaggio?",
        "Wilt u een bericht achterlaten?",
        "Sorry, she is not available right now.",
        "I'm driving, can I call you back? I'll call you back in an hour.",
        "My husband can't come to the phone, who is calling?",
        "Ich rufe Sie sofort zurück.",
        "Non posso rispondere adesso.",
    ],
)
def test_people_speak_of_messages_too(text: str) -> None:
    heard = heard_in(text)
    assert heard is None or not heard.certain


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    heard_in(text)
    assert set(plain(text)) <= set("abcdefghijklmnopqrstuvwxyz0123456789 ")


def test_of_a_long_text_the_end_counts() -> None:
    assert heard_in("hm " * 100_000 + "leave a message").certain  # type: ignore[union-attr]
    assert heard_in("leave a message " + "hm " * 100_000) is None
