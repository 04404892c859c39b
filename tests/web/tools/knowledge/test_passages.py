"""Documents become passages: no word is lost, and none is too long."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.web.tools.knowledge.documents import (
    Paragraph,
    paragraphs_of_html,
    paragraphs_of_markdown,
    paragraphs_of_page,
    paragraphs_of_text,
)
from offhook.web.tools.knowledge.passages import OVERLAP_CHARS, PASSAGE_CHARS, passages_of

WORDS = st.text(st.sampled_from("abc déß漢字.?! \n-#|`"), max_size=60)
PARAGRAPHS = st.builds(
    Paragraph,
    st.one_of(
        WORDS,
        st.builds(lambda text, times: text * times, WORDS, st.integers(1, 80)),
        st.integers(0, 3000).map(lambda size: "x" * size),
    ).filter(str.strip),
    st.sampled_from([(), ("Prices",), ("Prices", "Repairs")]),
    st.integers(1, 9),
    st.integers(0, 2),
)


@given(st.lists(PARAGRAPHS, max_size=12))
def test_no_word_is_lost_and_none_is_twice(paragraphs: list[Paragraph]) -> None:
    passages = list(passages_of(paragraphs))
    said = "".join(one.text for one in paragraphs)
    kept = "".join(one.text[one.repeated :] for one in passages)
    assert re.sub(r"\s", "", kept) == re.sub(r"\s", "", said)


@given(st.lists(PARAGRAPHS, max_size=12))
def test_no_passage_is_too_long_or_of_two_sections(paragraphs: list[Paragraph]) -> None:
    before = ""
    for one in passages_of(paragraphs):
        assert 0 < len(one.text) <= PASSAGE_CHARS
        assert one.repeated <= OVERLAP_CHARS
        assert before.endswith(one.text[: one.repeated])
        assert any((p.headings, p.page) == (one.headings, one.page) for p in paragraphs)
        before = one.text


@given(st.lists(WORDS, max_size=30).map("\n".join))
@pytest.mark.parametrize("reads", [paragraphs_of_text, paragraphs_of_markdown])
def test_no_word_of_a_text_is_lost(reads: object, text: str) -> None:
    paragraphs = reads(text)  # type: ignore[operator]
    kept = {word for one in paragraphs for word in re.findall(r"\w+", one.text)}
    kept |= {word for one in paragraphs for h in one.headings for word in re.findall(r"\w+", h)}
    assert kept == set(re.findall(r"\w+", text))


def test_a_long_paragraph_is_cut_behind_sentences_and_goes_on_with_the_last_words() -> None:
    sentence = "The chain of this bicycle is oiled every three months. "
    first, second, *_ = passages_of([Paragraph((sentence * 40).strip(), ("Care",), 7)])
    assert first.text.endswith("months. ")
    assert second.repeated > 0
    assert second.headings == ("Care",)
    assert first.place == "line 7"


def test_markdown_has_headings_lines_and_code() -> None:
    text = """---
title: Prices
---
# Lighthouse #

Welcome.

Repairs
-------
## Tyres
A flat tyre: 12 euros.
Two: 20.

```
# no heading

still code
```
### Nothing beneath
# Hours
"""
    assert [(p.text, p.headings, p.line) for p in paragraphs_of_markdown(text)] == [
        ("---\ntitle: Prices\n---", (), 1),
        ("Welcome.", ("Lighthouse",), 6),
        ("Repairs", ("Lighthouse",), 8),
        ("A flat tyre: 12 euros.\nTwo: 20.", ("Lighthouse", "Tyres"), 11),
        ("```\n# no heading\n\nstill code\n```", ("Lighthouse", "Tyres"), 14),
        ("Nothing beneath", ("Lighthouse", "Tyres"), 19),
        ("Hours", (), 20),
    ]


def test_html_has_no_markup() -> None:
    text = """<!doctype html><title>T</title><style>p {color: red}</style>
<body><h1>Our <b>prices</b></h1>
<p>A flat&nbsp;tyre<br>costs 12&euro;.
<script>alert("x")</script>
<h2>Table</h2><table><tr><th>What<th>Price</tr><tr><td>Chain</td><td>35</td></tr></table>
<p>End"""
    assert [(p.text, p.headings) for p in paragraphs_of_html(text)] == [
        ("T", ()),
        ("A flat tyre\ncosts 12€.", ("Our prices",)),
        ("What | Price", ("Our prices", "Table")),
        ("Chain | 35", ("Our prices", "Table")),
        ("End", ("Our prices", "Table")),
    ]


def test_words_that_a_page_breaks_are_whole() -> None:
    page = paragraphs_of_page("Repara-\nturen und\nE-\nBikes\n\n Zwei", 3)
    assert [(p.text, p.page) for p in page] == [
        ("Reparaturen und E- Bikes", 3),
        ("Zwei", 3),
    ]
