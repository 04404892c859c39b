"""Clauses: where a reply is cut to be spoken."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.pipeline.clauses import MAX_CHARS, ClauseSplitter


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
    ],
)
def test_never_cut_within_a_number_an_abbreviation_or_an_address(text: str) -> None:
    assert clauses(text) == [text]


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


WRITING = st.text(st.sampled_from("ab I9.,;:!?…—-\"')(\n "), max_size=300)


@given(st.lists(WRITING, max_size=20))
def test_the_clauses_are_the_text_however_it_was_chunked(chunks: list[str]) -> None:
    text = "".join(chunks)
    assert "".join(clauses(*chunks)) == text
    assert clauses(*chunks) == clauses(text) == clauses(*text)


@given(st.text(max_size=3 * MAX_CHARS))
def test_no_clause_is_longer_than_the_longest(text: str) -> None:
    assert all(0 < len(clause) <= MAX_CHARS for clause in clauses(text * 3))
