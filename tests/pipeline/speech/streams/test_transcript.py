"""What the user reads of what the model wrote."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.pipeline.speech.streams.transcript import (
    LOOP_COPIES,
    Transcript,
    fix_repetitions,
    may_repeat,
    most_tokens,
    parse,
    polish,
    repeats,
)


@pytest.mark.parametrize(
    ("raw", "language", "text"),
    [
        ("language English<asr_text>Hello there.", "English", "Hello there."),
        ("language chinese<asr_text> 你好。\n", "Chinese", "你好。"),
        ("language German\nsomething\n<asr_text>Guten Tag", "German", "Guten Tag"),
        ("language None<asr_text>", "", ""),
        ("language None<asr_text> um", "", "um"),
        ("no tag at all", "", "no tag at all"),
        ("language matters a lot", "", "language matters a lot"),
        ("<asr_text>text", "", "text"),
        ("", "", ""),
        ("  \n", "", ""),
        ("language English<asr_text>a < b", "English", "a < b"),
        # Where qwen-asr 0.0.6 shows the user what is not text:
        ("language English<asr_text>one language English<asr_text>two", "English", "one two"),
        ("language English<asr_text>one<|im_end|>", "English", "one"),
        ("language English<asr_text><asr<asr_text>_text>one", "English", "one"),
        # Which is no special token, so decoding leaves it there:
        ("language None<asr_text><non_speech>", "", ""),
        ("language English<asr_text>one <non_speech> two<non_speech>.", "English", "one two."),
        ("language English<asr_text><think>one</think>", "English", "one"),
        ("language English<asr_text>if <blank> is less", "English", "if <blank> is less"),
        ("language Engl", "", ""),
        ("language English<asr_te", "", ""),
    ],
)
def test_parse(raw: str, language: str, text: str) -> None:
    assert parse(raw) == Transcript(language, text)


def test_forced_language() -> None:
    assert parse(" Guten Tag ", "German") == Transcript("German", "Guten Tag")
    assert parse("language English<asr_text>Hello", "German") == Transcript("German", "Hello")
    assert parse("language", "English") == Transcript("English", "language")


def test_text_appears_when_the_header_is_whole() -> None:
    whole = "language English<asr_text>Hi!"
    shown = [parse(whole[:n], complete=False).text for n in range(len(whole) + 1)]
    assert shown == [""] * (len(whole) - 2) + ["H", "Hi", "Hi!"]


pieces = st.sampled_from(
    [
        "language ",
        "English",
        "None",
        "<asr_text>",
        "<|im_end|>",
        "<non_speech>",
        "<",
        "|",
        ">",
        "hi ",
        "é",
        "\ufffd",
    ]
)


@given(st.lists(pieces, max_size=8).map("".join), st.sampled_from(["", "English"]))
def test_no_tag_nor_half_character_is_shown_while_writing(text: str, forced: str) -> None:
    raw = text if forced else "language English<asr_text>" + text
    for end in range(len(raw) + 1):
        shown = parse(raw[:end], forced, complete=False).text
        assert "<asr_text>" not in shown
        assert "<|im_end|>" not in shown
        assert "<non_speech>" not in shown
        assert not shown.endswith(("<", "<a", "<asr_text", "<|im_end|", "<non_speech", "\ufffd"))


def test_shown_text_does_not_flicker_at_a_control_token() -> None:
    whole = "language English<asr_text>one<non_speech> two <think>three"
    shown = [parse(whole[:n], complete=False).text for n in range(len(whole) + 1)]
    assert all(later.startswith(text) for text, later in pairwise(shown))
    assert shown[-1] == "one two three"


def slow_fix(text: str, threshold: int = 20) -> str:
    """The rule said at length: runs of a character first, then pieces from the left."""
    runs = ""
    i = 0
    while i < len(text):
        n = 1
        while text[i : i + n + 1] == text[i] * (n + 1):
            n += 1
        runs += text[i] if n > threshold else text[i] * n
        i += n
    out, i = "", 0
    while i < len(runs):
        for size in range(1, 21) if len(runs) - i >= 2 * threshold else ():
            piece, copies = runs[i : i + size], 1
            while runs[i + copies * size :].startswith(piece) and len(piece) == size:
                copies += 1
            if copies >= threshold:
                out += piece
                i += copies * size
                break
        else:
            out += runs[i]
            i += 1
    return out


repetitive = st.lists(
    st.tuples(st.text("ab ", max_size=21), st.sampled_from([1, 4, 5, 6, 20, 21])), max_size=4
).map(lambda parts: "".join(piece * copies for piece, copies in parts))


@given(repetitive, st.sampled_from([3, 5, 20]))
def test_repetitions_are_fixed_as_the_rule_says(text: str, threshold: int) -> None:
    assert fix_repetitions(text, threshold) == slow_fix(text, threshold)


around = st.text("ab .", max_size=40)


@given(around, st.text("abc ", min_size=1, max_size=20), st.integers(18, 22), around)
def test_no_repetition_is_missed(before: str, piece: str, copies: int, after: str) -> None:
    text = before + piece * copies + after
    assert polish(text) == fix_repetitions(text)
    if copies > 20:
        assert may_repeat(text)


def test_speech_is_not_searched_for_repetitions() -> None:
    assert not may_repeat("I would like to change my booking from Friday to Sunday, please. " * 4)


@pytest.mark.parametrize(
    ("text", "fixed"),
    [
        ("So " + "the " * 40, "So the "),
        ("ha" * 19, "ha" * 19),
        ("ha" * 20, "ha"),
        ("wo" + "o" * 30 + "w", "wow"),
        ("1" + "0" * 20, "1" + "0" * 20),
        ("a" * 20, "a" * 20),
        ("a" * 20 + "bcdefghijklmnopqrstuv", "abcdefghijklmnopqrstuv"),
        ("哈哈哈" * 20 + "。", "哈。"),
        ("Thank you. " * 25 + "Bye. " * 25, "Thank you. Bye. "),
        ("a sentence of more than twenty letters " * 20,) * 2,
    ],
)
def test_known_repetitions(text: str, fixed: str) -> None:
    assert fix_repetitions(text) == fixed


def test_thousands_of_repetitions() -> None:
    text = "".join(f"w{i:04d} " * 20 for i in range(2000))
    assert fix_repetitions(text) == "".join(f"w{i:04d} " for i in range(2000))


def decoded(tokens: list[int]) -> list[int]:
    """As an engine would: one token after another, ending at the first loop."""
    written: list[int] = []
    for token in tokens:
        written.append(token)
        keep = repeats(written)
        if keep is not None:
            return written[:keep]
    return written


@given(
    st.lists(st.integers(100, 10_000), max_size=30, unique=True),
    st.lists(st.integers(0, 99), min_size=1, max_size=20, unique=True),
)
def test_a_loop_ends_decoding_and_leaves_one_copy(before: list[int], loop: list[int]) -> None:
    copies = LOOP_COPIES[len(loop)]
    assert decoded(before + loop * 200) == before + loop
    enough = before + loop * copies
    assert repeats(enough) == len(before) + len(loop)
    assert repeats(enough[:-1]) is None


@given(st.lists(st.integers(0, 3), max_size=200))
def test_only_loops_are_cut(tokens: list[int]) -> None:
    keep = repeats(tokens)
    if keep is None:
        return
    tail = tokens[keep:]
    periods = [p for p in range(1, 21) if tokens[keep - p :][: len(tail)] == tail]
    assert any(len(tail) >= p * (LOOP_COPIES[p] - 1) for p in periods)


@pytest.mark.parametrize(
    "tokens",
    [
        [0] * 19,  # a long number
        [7, 8] * 11,  # "no, no, no, ..."
        [1, 2, 3, 4, 5] * 4,  # "Can you hear me? " four times
    ],
)
def test_people_do_repeat_themselves(tokens: list[int]) -> None:
    assert repeats(tokens) is None


def test_more_tokens_than_speech_has() -> None:
    assert most_tokens(0) >= 16
    assert 100 <= most_tokens(8000) <= 300
