"""The text of an utterance while it is being said. The tokenizer here has a token for each byte and
for some words; the model is whatever comes to mind."""

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.pipeline.engines.qwen3_asr.hypothesis import (
    HEADER_TOKENS,
    KEPT_WINDOWS,
    MAX_PREFIX_TOKENS,
    MAX_WINDOWS,
    UNFIXED_MS,
    UNFIXED_TOKENS,
    Hypothesis,
    HypothesisUpdate,
    verify,
)

WORDS = [
    "<asr_text>",
    "language",
    " English",
    " None",
    " German",
    " hello",
    " world",
    "你好",
    "<|x|>",
]
ASR_TEXT, LANGUAGE, ENGLISH, NONE, GERMAN, HELLO, WORLD, NIHAO, TAG = range(256, 265)
HEADER = [LANGUAGE, ENGLISH, ASR_TEXT]


def decode(tokens: Sequence[int]) -> str:
    raw = b"".join(bytes([t]) if t < 256 else WORDS[t - 256].encode() for t in tokens)
    return raw.decode("utf-8", errors="replace")


def spoken(count: int, seed: int = 0) -> list[int]:
    """So many letters, in no loop."""
    return Random(seed).choices(range(97, 123), k=count)


def new() -> Hypothesis:
    return Hypothesis(decode, ASR_TEXT)


def say(
    hypothesis: Hypothesis, tokens: list[int], audio_ms: int, final: bool = False
) -> HypothesisUpdate:
    """A model that would write `tokens` if nothing were forced."""
    forced, _ = hypothesis.prompt()
    return hypothesis.update(tokens[len(forced) :], audio_ms, final)


def test_verify() -> None:
    assert verify([], [5]) == (0, 5)
    assert verify([1, 2, 3], [1, 2, 3, 4]) == (3, 4)
    assert verify([1, 2, 3], [1, 9, 3, 4]) == (1, 9)


def test_header_and_text() -> None:
    hypothesis = new()
    assert hypothesis.prompt() == ([], [])
    assert say(hypothesis, [LANGUAGE], 160) == HypothesisUpdate("", 0, "", 160)
    assert say(hypothesis, HEADER, 320) == HypothesisUpdate("", 0, "English", 320)
    heard = say(hypothesis, [*HEADER, HELLO, WORLD], 720)
    assert heard == HypothesisUpdate("hello world", 0, "English", 720)
    assert hypothesis.prompt() == ([], [*HEADER, HELLO, WORLD])
    assert hypothesis.header == HEADER
    assert say(hypothesis, [*HEADER, HELLO], 800, final=True) == HypothesisUpdate(
        "hello", 5, "English", 800
    )


def test_nobody_spoke() -> None:
    silence = [LANGUAGE, NONE, ASR_TEXT]
    assert say(new(), silence, 900, final=True) == HypothesisUpdate("", 0, "", 900)
    assert say(new(), [], 900, final=True) == HypothesisUpdate("", 0, "", 900)


def test_a_header_broken_off_is_no_text() -> None:
    assert say(new(), [LANGUAGE, ENGLISH], 900, final=True).text == ""


def test_forced_language() -> None:
    hypothesis = Hypothesis(decode, ASR_TEXT, language="German")
    assert hypothesis.update([LANGUAGE], 400) == HypothesisUpdate("language", 0, "German", 400)
    assert hypothesis.header == []


def test_a_guess_is_drafted_but_never_shown_or_forced() -> None:
    hypothesis = Hypothesis(decode, ASR_TEXT, guess=HEADER)
    assert hypothesis.prompt() == ([], HEADER)
    assert hypothesis.update([LANGUAGE, GERMAN, ASR_TEXT, HELLO], 400).language == "German"


def test_a_token_becomes_stable_with_age_agreement_and_distance() -> None:
    said = [*HEADER, *spoken(10)]
    hypothesis = new()
    assert say(hypothesis, said, 400).stable_chars == 0
    assert say(hypothesis, said, 400 + UNFIXED_MS - 10).stable_chars == 0  # too young
    assert say(hypothesis, said, 400 + UNFIXED_MS).stable_chars == 10 - UNFIXED_TOKENS
    forced, draft = hypothesis.prompt()
    assert forced == said[:-UNFIXED_TOKENS]
    assert draft == said[-UNFIXED_TOKENS:]
    # Old enough, but said only twice: a late stream.
    hypothesis = new()
    assert say(hypothesis, said, 5000).stable_chars == 0
    assert say(hypothesis, said[:6] + [HELLO] * 10, 9000).stable_chars == 0
    assert say(hypothesis, said[:6] + [HELLO] * 10, 19_000).stable_chars == 3


def test_a_change_begins_its_time_anew() -> None:
    said = [*HEADER, *spoken(10)]
    hypothesis = new()
    say(hypothesis, said, 400)
    say(hypothesis, [*HEADER, HELLO, *said[4:]], 2000)
    assert say(hypothesis, said, 2400).stable_chars == 0
    assert say(hypothesis, said, 4399).stable_chars == 0
    assert say(hypothesis, said, 4400).stable_chars == 5


def test_stable_text_ends_with_a_whole_character() -> None:
    said = [*HEADER, *"né".encode(), *b"mmmmm"]
    hypothesis = new()
    say(hypothesis, said[:-1], 0)
    say(hypothesis, said[:-1], 1500)
    heard = say(hypothesis, said[:-1], 3000)  # the 5 unfixed tokens begin inside the é
    assert (heard.text, heard.stable_chars) == ("némmmm", 1)
    assert hypothesis.prompt()[0] == [*HEADER, ord("n")]
    for audio_ms in (3100, 4000, 5100):
        heard = say(hypothesis, said, audio_ms)
    assert heard.stable_chars == 2


tokens = st.one_of(
    st.sampled_from([*HEADER, NONE, GERMAN, HELLO, WORLD, NIHAO, TAG, HELLO, HELLO]),
    st.sampled_from(list(b"ab <|>" + "é你😀".encode() + b"\xff")),
    st.sampled_from(list(b"<asr_text>")),
)
updates = st.lists(
    st.tuples(
        st.integers(0, 30),  # how much of the last hypothesis is taken back
        st.lists(tokens, max_size=25),
        st.sampled_from([1, 1, 30]),  # and how often the new part stands there
        st.sampled_from([20, 400, 2500, 9000, 25_000]),
    ),
    min_size=1,
    max_size=12,
)


@given(updates, st.sampled_from(["", "German"]))
def test_stable_text_is_never_unsaid(
    steps: list[tuple[int, list[int], int, int]], lang: str
) -> None:
    """Whatever the model says, in any order, however late."""
    hypothesis = Hypothesis(decode, ASR_TEXT, lang)
    stable, audio_ms = "", 0
    for i, (back, more, copies, ms) in enumerate(steps):
        audio_ms += ms
        _, draft = hypothesis.prompt()
        kept = draft[: max(0, len(draft) - back)]
        if i == 0 and not lang:
            kept = HEADER
        final = i == len(steps) - 1
        heard = hypothesis.update([*kept, *more * copies], audio_ms, final)
        assert heard.text.startswith(stable)
        assert heard.stable_chars >= len(stable)
        stable = heard.text[: heard.stable_chars]
        assert len(stable) == heard.stable_chars
        assert "<asr_text>" not in heard.text
        assert "<|x|>" not in heard.text
        assert final or not decode(hypothesis.prompt()[0]).endswith("\ufffd")
        assert heard.text == heard.text.strip()
        hypothesis.evict()
        assert len(hypothesis.prompt()[0]) <= MAX_PREFIX_TOKENS + HEADER_TOKENS
    assert heard.stable_chars == len(heard.text)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(80, 3000))
def test_nothing_is_lost_on_the_way(growth: list[int], pace: int) -> None:
    """A model that never changes its mind is quoted in full, whatever left the prompt."""
    hypothesis, text, left = new(), "", 0
    hypothesis.update(HEADER, 0)
    for i, count in enumerate(growth):
        said = [ord(" "), *spoken(count, seed=i)]
        text += decode(said)
        audio_ms = pace * (i + 1)
        heard = hypothesis.update([*hypothesis.prompt()[1], *said], audio_ms)
        assert heard.text == text.strip()
        left += hypothesis.evict()
        assert audio_ms // 8000 - left <= MAX_WINDOWS
    assert hypothesis.update(hypothesis.prompt()[1], audio_ms, final=True).text == text.strip()


def talk(hypothesis: Hypothesis, seconds: int, tokens_per_second: int, start: int = 0) -> list[int]:
    """Speak steadily; returns how many windows left at which second."""
    left = []
    for second in range(start, start + seconds):
        new = [HELLO if second % 2 else WORLD, *spoken(tokens_per_second - 1, second)]
        if second == 0:
            new = HEADER + new
        hypothesis.update([*hypothesis.prompt()[1], *new], 1000 * (second + 1))
        left += [second] * hypothesis.evict()
    return left


def test_an_endless_utterance_keeps_two_to_four_windows() -> None:
    hypothesis = new()
    left = talk(hypothesis, seconds=90, tokens_per_second=3)
    assert left == [39] * 3 + [63] * 3 + [87] * 3  # the fifth window completes with second 39
    forced, _ = hypothesis.prompt()
    assert forced[:3] == HEADER
    # The prompt begins with the text of the first window kept, 72 s to 80 s and so on.
    assert forced[3] in (HELLO, WORLD)
    assert 2 * 24 <= len(forced) + len(hypothesis.prompt()[1]) - 3 <= 2 * 24 + 8 + 6


def test_fast_speech_drops_windows_earlier() -> None:
    hypothesis = new()
    left = talk(hypothesis, seconds=34, tokens_per_second=6)
    assert left == [25, 33]  # with more than 150 tokens, three windows being complete
    forced, draft = hypothesis.prompt()
    assert 2 * 48 <= len(forced) + len(draft) - 3 <= MAX_PREFIX_TOKENS


def test_windows_completed_together_share_the_text() -> None:
    hypothesis = new()
    words = [t for i in range(80) for t in (HELLO if i % 2 else WORLD, *spoken(1, i))]
    said = [*HEADER, *words]
    heard = say(hypothesis, said, 40_000)  # five windows in one late update
    assert hypothesis.evict() == 5 - KEPT_WINDOWS
    forced, draft = hypothesis.prompt()
    assert forced == HEADER
    assert draft == words[96:]  # 32 tokens to each window
    heard = say(hypothesis, [*forced, *draft], 40_010)
    assert heard.text == decode(words).strip()
    assert heard.stable_chars >= len(decode(words[:96]).strip())


def test_silence_for_minutes() -> None:
    hypothesis, left = new(), 0
    for second in range(1, 200):
        heard = say(hypothesis, [LANGUAGE, NONE, ASR_TEXT], second * 1000)
        left += hypothesis.evict()
        assert heard.text == ""
    assert left >= 20
    assert hypothesis.prompt() == ([], [LANGUAGE, NONE, ASR_TEXT])


def test_a_loop_leaves_the_prompt() -> None:
    """One copy a second, each of them stable soon: the model must not be shown its own loop."""
    hypothesis = new()
    say(hypothesis, [*HEADER, HELLO], 1000)
    counts = []
    for second in range(2, 60):
        heard = hypothesis.update([*hypothesis.prompt()[1], WORLD], second * 1000)
        forced, draft = hypothesis.prompt()
        counts.append((forced + draft).count(WORLD))
    assert max(counts) == 19
    assert counts[19] == 1  # the twentieth
    assert heard.text.startswith("hello world world")


def test_a_loop_is_cut_at_a_character() -> None:
    """The loop's first copy may begin inside one: 0xA9 ends "é" and "ĩ"."""
    heard = say(new(), [*HEADER, *"ĩ".encode(), *"xé".encode() * 10], 1000)
    assert heard.text == "ĩxé"


def test_a_loop_within_an_update_is_one_copy() -> None:
    heard = say(new(), [*HEADER, HELLO, *[WORLD, 33] * 12], 1000)
    assert heard.text == "hello world!"


@pytest.mark.parametrize("script", ["ไ", "你", "😀"])
def test_scripts_without_spaces_leave_whole_characters(script: str) -> None:
    hypothesis = new()
    hypothesis.update(HEADER, 400)
    text = ""
    for second in range(1, 60):
        new_text = script + "".join(map(chr, spoken(2, second))) + script * 2
        text += new_text
        heard = hypothesis.update([*hypothesis.prompt()[1], *new_text.encode()], second * 1000)
        hypothesis.evict()
        forced, draft = hypothesis.prompt()
        assert "\ufffd" not in decode(forced[3:] + draft)
    assert heard.text == text
