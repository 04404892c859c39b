"""Clauses: where a reply is cut to be spoken."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.pipeline.speech.text.spoken_text import SpokenWord
from offhook.pipeline.speech.voice.clauses import (
    DIGIT_CHARS,
    MAX_CHARS,
    MAX_WORD_CHARS,
    ClauseSplitter,
)
from offhook.pipeline.speech.voice.spoken_clauses import SpokenClauses


def clauses(*chunks: str) -> list[str]:
    splitter = ClauseSplitter()
    return [clause for chunk in chunks for clause in splitter.write(chunk)] + splitter.end()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Of course, I can help you with that.", ["Of course, ", "I can help you with that."]),
        ("Yes. We open at nine, Sundays too.", ["Yes. ", "We open at nine, Sundays too."]),
        (
            "One two three four five six seven eight nine ten",
            ["One two three four five six seven eight ", "nine ten"],
        ),
        ("I think so—it is.", ["I think so—", "it is."]),
        ("Hi there! (Really.) Bye", ["Hi there! ", "(Really.) ", "Bye"]),
        ("Our hours\n\nMonday nine to five", ["Our hours\n", "\nMonday nine to five"]),
    ],
)
def test_cut_where_a_speaker_breathes(text: str, expected: list[str]) -> None:
    assert clauses(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "It costs $3,000.50 at 10:30 sharp",
        "See Dr. Smith or Mrs. J. Jones",
        "Open at 9 a.m. or 2 p.m. today",
        "Mail bob.w@example.com or see https://a.b/c,d;e?f=g.h",
        "1. Call us",
        "Open Jan. 5 to Feb. 3 or so",
        "He lives in the U.S.A. and works",
        "J.R.R. Tolkien wrote it",
        "A Ph.D. is required",
        "At 12 Oak Ave. near us",
        "Please ring at No. 7 there",
        "Bread, milk etc. at nine",
        "Due Jan.\u00a05 or (Feb. 5)",
    ],
)
def test_never_cut_within_a_number_an_abbreviation_or_an_address(text: str) -> None:
    assert clauses(text) == [text]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("No. I cannot.", ["No. ", "I cannot."]),
        ("We open at 9 a.m. Please call.", ["We open at 9 a.m. ", "Please call."]),
        ("She has a Ph.D.  It is new.", ["She has a Ph.D. ", " It is new."]),
        ('Come in Feb. "Fine."', ["Come in Feb. ", '"Fine."']),
        ("Bread, milk etc.\nand eggs", ["Bread, milk etc.\n", "and eggs"]),
        ("We will see you all here on Jan. 5", ["We will see you all here on Jan. 5"]),
        ("So do I. 5 of us.", ["So do I. ", "5 of us."]),
    ],
)
def test_an_abbreviation_ends_a_sentence_where_a_capital_letter_follows(
    text: str, expected: list[str]
) -> None:
    assert clauses(text) == clauses(*text) == expected


def test_the_first_clause_comes_with_the_white_space_after_its_comma() -> None:
    splitter = ClauseSplitter()
    assert splitter.write("Good morning,") == []
    assert splitter.write(" how") == ["Good morning, "]


def test_a_short_comma_does_not_cut_a_later_clause() -> None:
    assert clauses("Good day. Yes, of course, you may. Bye") == [
        "Good day. ",
        "Yes, of course, you may. ",
        "Bye",
    ]


WRITING = st.text(st.sampled_from("ab INo9.,;:!?…—-\"')(\n "), max_size=300)


@given(st.lists(WRITING, max_size=20))
def test_the_clauses_are_the_text_however_it_was_chunked(chunks: list[str]) -> None:
    text = "".join(chunks)
    assert "".join(clauses(*chunks)) == text
    assert clauses(*chunks) == clauses(text) == clauses(*text)


@given(st.text(max_size=3 * MAX_CHARS))
def test_no_clause_is_longer_than_the_longest(text: str) -> None:
    assert all(0 < len(clause) <= MAX_CHARS for clause in clauses(text * 3))


@pytest.mark.parametrize("text", ["x" * 3000, "a" + " " * 3000, " " * 3000, "Jan. " + "…" * 3000])
def test_a_text_without_a_place_to_cut_is_cut_all_the_same(text: str) -> None:
    assert "".join(clauses(text)) == text
    assert all(0 < len(clause) <= MAX_CHARS for clause in clauses(text))


@given(st.lists(st.sampled_from(["Yes. ", "No, ", "one ", "two three. ", "\n", "I see! "])))
def test_few_words_are_joined_with_the_next(parts: list[str]) -> None:
    splitter = ClauseSplitter(least_words=3)
    found = [clause for part in parts for clause in splitter.write(part)]
    assert all(len(clause.split()) >= 3 for clause in found)
    assert "".join([*found, *splitter.end()]) == "".join(parts)


def test_the_first_clause_may_be_longer_for_voices_that_need_it() -> None:
    text = "one two three four five six seven eight nine ten eleven twelve "
    splitter = ClauseSplitter(first_words=10)
    first, *rest = [*splitter.write(text), *splitter.end()]
    assert len(first.split()) == 10
    assert "".join([first, *rest]) == text


def test_whether_a_sentence_waits_is_known() -> None:
    splitter = ClauseSplitter(least_words=3)
    assert not splitter.holds_sentence
    splitter.write("Okay")
    assert not splitter.holds_sentence
    splitter.write(". ")
    assert splitter.holds_sentence
    assert splitter.end() == ["Okay. "]
    assert not splitter.holds_sentence


@pytest.mark.parametrize(
    "text",
    ["7" * 3000, "$" * 3000, "bcd" * 1000, "1234567890 " * 300, "a/b " * 900, "3.14, " * 500],
)
def test_no_clause_takes_much_longer_to_say_than_another(text: str) -> None:
    """A voice speaks a digit as a word: a thread that all share would be taken for seconds."""

    def length(clause: str) -> int:
        return sum(1 if c.isalpha() or c.isspace() else DIGIT_CHARS for c in clause)

    assert "".join(clauses(text)) == text
    assert max(map(length, clauses(text))) <= MAX_CHARS + DIGIT_CHARS * MAX_WORD_CHARS


def test_a_run_without_white_space_is_no_longer_than_the_longest_word() -> None:
    assert clauses("x" * 3000) == ["x" * MAX_WORD_CHARS] * (3000 // MAX_WORD_CHARS)
    link = "https://shop.example.org/orders/2026-11-28/4711"
    assert clauses(f"See {link} for it.") == [f"See {link} for it."]


def test_text_without_spaces_ends_its_clauses_at_ideographic_full_stops() -> None:
    text = "我们九点开门。星期天也开门！您还想知道什么？"
    assert clauses(text) == ["我们九点开门。", "星期天也开门！", "您还想知道什么？"]


@given(st.lists(WRITING, max_size=20), st.integers(0, 3))
def test_a_queue_has_the_same_clauses_whenever_they_are_popped(
    chunks: list[str], popped: int
) -> None:
    queue = SpokenClauses()
    found: list[SpokenWord] = []
    for chunk in chunks:
        queue.write(chunk)
        found += [word for _ in range(popped) for word in queue.pop() or ()]
    queue.end()
    while (words := queue.pop()) is not None:
        found += words
    assert [word.text for word in found] == clauses(*chunks)
    assert queue.pop() is None
