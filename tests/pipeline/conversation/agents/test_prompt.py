"""The messages that a model is sent."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.pipeline.conversation.agents.prompt import BEGINNING, SILENCE, TAKEN_OVER, in_turn
from offhook.pipeline.conversation.sentences import SENTENCES, Occasion, excuses

SYSTEM = {"role": "system", "content": "Be kind."}
BEGINS = {"role": "user", "content": BEGINNING}
WAIT = SENTENCES["en"][Occasion.WAIT]
LOST = SENTENCES["en"][Occasion.BROKEN_OFF]


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


MESSAGES = st.builds(
    lambda role, text: {"role": role, "content": text},
    st.sampled_from(["user", "assistant"]),
    st.sampled_from(["hello", "at nine", "", WAIT, LOST, f"{WAIT} At nine."]),
)


@given(st.lists(MESSAGES, max_size=12))
def test_user_and_assistant_take_turns_and_no_excuse_is_left(messages: list[Any]) -> None:
    sent = in_turn([SYSTEM, *messages], excuses())
    roles = [message["role"] for message in sent]
    assert roles[0] == "system"
    assert roles[1::2] == ["user"] * len(roles[1::2])
    assert roles[2::2] == ["assistant"] * len(roles[2::2])
    assert len(roles) > 1
    assert not any(WAIT in m["content"] for m in sent if m["role"] == "assistant")


def test_a_call_begins_with_the_user() -> None:
    assert in_turn([SYSTEM]) == [SYSTEM, BEGINS]
    assert in_turn([SYSTEM, assistant("hello")]) == [SYSTEM, BEGINS, assistant("hello")]
    assert in_turn([user("hello")]) == [user("hello")]


def test_an_agent_that_takes_a_call_over_is_asked_by_the_user() -> None:
    said = [{"role": "user", "content": "My bill."}, {"role": "assistant", "content": "Over."}]
    assert in_turn(said, cue=TAKEN_OVER) == [*said, {"role": "user", "content": TAKEN_OVER}]
    assert in_turn(said[:1], cue=TAKEN_OVER) == said[:1]
    assert in_turn(said) == said


def test_an_excuse_that_was_interrupted_is_left_out() -> None:
    beginning = " ".join(LOST.split()[:4])
    sent = in_turn([user("one"), assistant(beginning), user("two")], excuses())
    assert sent == [user("one two")]


def test_an_excuse_within_an_answer_is_left_out_of_it() -> None:
    sent = in_turn([user("one"), assistant(f"It is at. {LOST}")], excuses())
    assert sent == [user("one"), assistant("It is at.")]


def test_words_and_calls_of_one_answer_are_one_message() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    called = {"role": "assistant", "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "a", "content": "{}"}
    sent = in_turn([user("one"), assistant("So."), called, result, result])
    assert sent == [user("one"), {**assistant("So."), "tool_calls": [call]}, result, result]


@pytest.mark.parametrize(("words", "answer"), [("Enter it.", "Enter it."), ("", SILENCE)])
def test_a_tool_after_which_the_user_goes_on_is_answered(words: str, answer: str) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    called = {"role": "assistant", "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "a", "content": "{}"}
    sent = in_turn([user("one"), assistant(words), called, result, user("two")])
    assert sent == [user("one"), called, result, assistant(answer), user("two")]


def test_pictures_are_merged_with_words() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:"}}
    assert in_turn([user("one"), user([picture])]) == [
        user([{"type": "text", "text": "one"}, picture])
    ]


def test_what_is_given_is_not_changed() -> None:
    messages = [user("one"), user("two")]
    in_turn(messages)
    assert messages == [user("one"), user("two")]
