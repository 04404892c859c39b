"""What a few words over the agent mean."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.pipeline.conversation.reply import Reply
from offhook.pipeline.conversation.turns.words import (
    BACKCHANNELS,
    DECISIVE,
    ECHO_WINDOW_WORDS,
    HUMS,
    WEIGHTLESS,
    answers,
    decisive,
    is_backchannel,
    only_echo,
    weighty_words,
    words,
)


@pytest.mark.parametrize(
    "text",
    ["uh-huh", "Uh huh.", "Okay, okay", "I see", "mm-hmm", "yeah right", "oh, got it", "MHM"],
)
def test_said_while_listening(text):
    assert is_backchannel(text)
    assert weighty_words(text) == []


@pytest.mark.parametrize(
    ("text", "weight"),
    [
        ("okay but what about Sunday", ["what", "about", "sunday"]),
        ("stop", ["stop"]),
        ("yes, on Monday", ["monday"]),
        ("I can't come", ["can't", "come"]),
        ("ja, natürlich", ["ja", "natürlich"]),
    ],
)
def test_a_message_has_weight(text, weight):
    assert not is_backchannel(text)
    assert weighty_words(text) == weight


@pytest.mark.parametrize("text", ["but but", "the", "and a", "to"])
def test_what_a_breath_is_taken_for_is_neither_agreement_nor_a_message(text):
    assert not is_backchannel(text)
    assert weighty_words(text) == []


@pytest.mark.parametrize("text", ["", " ", "...", "-", "?!"])
def test_nothing_said_is_nothing(text):
    assert words(text) == []
    assert not is_backchannel(text)
    assert not decisive(text)
    assert not only_echo(text, "we are open")


@pytest.mark.parametrize(
    "text", ["Stop!", "no no no", "hold on", "okay wait", "excuse me", "Sorry?"]
)
def test_one_word_can_be_an_interruption(text):
    assert decisive(text)
    assert not is_backchannel(text)


@pytest.mark.parametrize("text", ["nobody", "whole", "stopping by", "notable", "okay"])
def test_a_word_within_a_word_is_none(text):
    assert not decisive(text)


def test_the_agents_own_words_are_an_echo():
    said = "We are open Monday to Friday, from nine to five."
    assert only_echo("Monday to Friday", said)
    assert only_echo("open from nine", said)
    assert not only_echo("open on Sunday", said)
    assert not only_echo("Friday", said)  # one word may be a question
    assert not only_echo("Monday Friday", "")


def test_an_echo_is_of_the_last_words_only():
    said = " ".join(["opening", "hours", *(["word"] * ECHO_WINDOW_WORDS)])
    assert not only_echo("opening hours", said)
    assert only_echo("opening hours", " ".join(said.split()[:ECHO_WINDOW_WORDS]))


def test_hums_answer_a_question_only() -> None:
    assert HUMS < BACKCHANNELS
    for text, alone, asked in (
        ("yes", True, True),
        ("uh-huh", False, True),
        ("mm-hmm, okay", True, True),
        ("the", False, False),
        ("", False, False),
    ):
        assert (answers(text, False), answers(text, True)) == (alone, asked)


def test_the_lists_do_not_contradict_each_other():
    assert not DECISIVE & (BACKCHANNELS | WEIGHTLESS)
    for listed in (BACKCHANNELS, WEIGHTLESS, DECISIVE):
        assert all(words(word) == [word] for word in listed)


@given(st.text(max_size=40), st.text(max_size=40))
def test_any_text_has_a_meaning(text, said):
    for word in words(text):
        assert word == word.lower()
    if is_backchannel(text):
        assert not weighty_words(text)
        assert not decisive(text)
        assert not only_echo(text, said)
    if only_echo(text, said):
        assert set(weighty_words(text)) <= set(words(said))
    assert decisive(f"{text} stop")


def test_the_word_that_is_being_said_comes_back_too() -> None:
    reply = Reply()
    for word in ("Good", "evening,", "how"):
        reply.queue(word)
    reply.say()
    assert only_echo("good evening", reply.recent())
    assert not only_echo("evening how", reply.recent())
