"""How the words of a reply are compared with the words found in its sound."""

import pytest

from benchmarks.speech.transcript import WordEnd, mark_errors, reached, words, words_beyond
from offhook.pipeline.speech.recognizer import Word

TEXT = "We are a small bicycle shop by the harbour. It was founded by two sisters"
REPLY = words(TEXT)
WORD_MS = 300


def said(count: int) -> list[WordEnd]:
    """The reply of which `count` words were over."""
    ends = [(i + 1) * WORD_MS if i < count else None for i in range(len(REPLY))]
    return [WordEnd(word, end) for word, end in zip(REPLY, ends, strict=True)]


def heard(text: str, end_ms: int | None = None) -> list[Word]:
    """Words as recognised, each in its place; the last until `end_ms`."""
    found = [Word(w, i * WORD_MS, (i + 1) * WORD_MS) for i, w in enumerate(text.split())]
    if end_ms is not None:
        found[-1] = Word(found[-1].text, found[-1].start_ms, end_ms)
    return found


@pytest.mark.parametrize(
    ("found", "count"),
    [
        ("", 0),
        ("we are a small bicycle", 5),
        ("we are a small icicle", 5),  # heard wrongly, said all the same
        ("we aerosol bike", 5),  # two words joined; one cut short
        ("we are a small bicycle shop by the harder it was found", 12),
        ("we are a small bicycle shop buy the her bore", 9),  # one word split
        ("small bicycle shop", 6),  # the beginning was missed
    ],
)
def test_words_reached(found: str, count: int) -> None:
    assert reached(found.split(), REPLY) == count


def test_equal_prefixes_are_told_apart_by_time_else_the_longest_counts() -> None:
    reference = ["apple", "melon", "grape"]
    assert reached(["apple", "xxxxx"], reference) == 2
    assert reached(["apple", "xxxxx"], reference, around=1) == 1
    assert reached(["apple", "xxxxx"], reference, around=3) == 2


@pytest.mark.parametrize("context", range(4, 10))
def test_the_word_cut_short_may_count_or_not_and_no_other(context: int) -> None:
    cut_ms = 6 * WORD_MS + 150
    found = heard("we are a small bicycle shop buy", end_ms=cut_ms + 20)
    beyond = words_beyond(context, found, said(6), cut_ms)
    assert beyond == {4: -2, 5: -1, 6: 0, 7: 0, 8: 1, 9: 2}[context]


def test_a_word_that_ended_by_itself_is_to_be_in_the_context() -> None:
    found, cut_ms = heard("we are a small bicycle shop"), 6 * WORD_MS + 100
    assert words_beyond(5, found, said(5), cut_ms) == -1
    assert words_beyond(6, found, said(6), cut_ms) == 0


def test_a_last_word_not_recognised_at_all_is_made_out_by_its_time() -> None:
    cut_ms = 8 * WORD_MS
    found = [*heard("we are a small bicycle shop by"), Word("uh", 2110, 2390)]
    assert words_beyond(8, found, said(8), cut_ms) == 0


def test_nothing_heard() -> None:
    assert words_beyond(0, [], said(0), 0) == 0
    assert words_beyond(2, [], said(2), 600) == 2


def test_marks_are_compared_with_the_ends_of_the_same_words() -> None:
    late = [WordEnd(s.text, s.end_ms and s.end_ms + 40) for s in said(6)]
    found = heard("we are a small icicle shop by")
    assert mark_errors(found, said(6)) == [0] * 5
    assert mark_errors(found, late) == [40] * 5
