"""A reply of Pocket TTS between its text and its sound."""

import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.pipeline.engines.pocket.messages import Clause, ClauseSound
from offhook.pipeline.engines.pocket.reply import LEAST_WORDS, PocketReply
from offhook.pipeline.engines.shared.synthesis.messages import Ended, Reason
from offhook.pipeline.engines.shared.synthesis.reply import VoiceProfile
from offhook.pipeline.speech.synthesizer import Speech, VoiceOptions
from offhook.pipeline.speech.text.spoken_text import TextReader
from tests.pipeline.speech.text.test_sentences import SENTENCES

MAX_TOKENS = 50
TEXTS = (
    "The cat sat, on the mat. It cost $5.50 on May 3rd!\n\n- a point\n- another  one\nDone: yes ",
    "# Heading \nIsn't it -- well — **bold** (or not)? \"He said 'no'.\" 😀 a/b 1,000 km",
    "你好，世界！ Hello 世界. 123 456 7890",
    "one two three four five six seven eight nine ten eleven twelve thirteen " * 3,
)
letters = st.sampled_from("ab c.,!?\n-—*#5$%é你。's\t\"()")
texts = st.sampled_from(TEXTS) | st.text(letters, max_size=80)


class Letters:
    """A token for each letter of what is spoken, at most a sixth of it for long words."""

    def __init__(self) -> None:
        self.clauses: dict[tuple[int, ...], str] = {}

    def encode(self, clause: str) -> list[int]:
        if not any(map(str.isalnum, clause)):
            return []
        tokens = [ord(letter) for letter in clause[::4]]
        self.clauses[tuple(tokens)] = clause
        return tokens


def reply(tokenizer: Letters, **options: object) -> PocketReply:
    return PocketReply(
        tokenizer,
        MAX_TOKENS,
        "en",
        VoiceOptions(**options),  # type: ignore[arg-type]
        VoiceProfile(),
    )


def written(made: PocketReply, text: str, places: list[int]) -> list[Clause]:
    cuts = [0, *sorted(min(place, len(text)) for place in places), len(text)]
    given: list[Clause] = []
    for a, b in pairwise(cuts):
        made.write(text[a:b])
        given += made.parts()
    made.end()
    return given + made.parts()


def heard(made: PocketReply, clauses: list[Clause]) -> list[Speech]:
    """Lets the engine speak the clauses, and those that follow them."""
    tokens = 0
    queue = list(clauses)
    while queue:
        clause = queue.pop(0)
        tokens += len(clause.tokens)
        wave = (8000 * np.sin(np.arange(1920) * 0.1)).astype(np.int16)
        for frame in range(10):
            made.receive(ClauseSound(1, wave, tokens, frame == 9, 1.0))
        queue += made.parts()
    assert made.end_of_text
    made.receive(Ended(1, Reason.SPOKEN))
    pieces = []
    while (piece := made.speech()) is not None:
        pieces.append(piece)
    return pieces


@given(texts, st.lists(st.integers(0, 100), max_size=20), st.booleans())
def test_every_text_is_told_whole_and_in_order(
    text: str, places: list[int], normalise: bool
) -> None:
    made = reply(Letters(), normalise=normalise)
    clauses = written(made, text, places)
    assert all(0 < len(clause.tokens) <= MAX_TOKENS for clause in clauses)
    assert "".join(piece.text for piece in heard(made, clauses)) == text
    assert made.over


@given(texts, st.lists(st.integers(0, 100), max_size=20))
def test_clauses_do_not_depend_on_how_the_text_came(text: str, places: list[int]) -> None:
    assert written(reply(Letters()), text, places) == written(reply(Letters()), text, [])


@given(texts)
def test_all_words_are_spoken(text: str) -> None:
    tokenizer = Letters()
    made = reply(tokenizer, normalise=False)
    clauses = written(made, text, [])
    while more := made.parts():
        clauses += more
    spoken = "".join(tokenizer.clauses[tuple(clause.tokens)] for clause in clauses)
    reader = TextReader("en", normalise=False)
    wanted = "".join(word.spoken for word in [*reader.feed(text), *reader.finish()])
    latin = [c for c in wanted if c.isalnum() and c < "\u2e80"]
    assert [c for c in spoken if c.isalnum()] == latin


def clauses_of(text: str) -> list[str]:
    tokenizer = Letters()
    made = reply(tokenizer)
    return [tokenizer.clauses[tuple(c.tokens)].strip() for c in written(made, text, [])]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Yes. Of course, I can. Well, no.", ["Yes. Of course,", "I can. Well, no."]),
        ("I paid $3 for it, then I left.", ["I paid three dollars for it,", "then I left."]),
        ("Hello.", ["Hello."]),
        ("Menu\nSoup of the day\nBread", ["Menu.\nSoup of the day.", "Bread"]),
    ],
)
def test_where_clauses_end(text: str, expected: list[str]) -> None:
    assert clauses_of(text) == expected


@pytest.mark.parametrize("language", ["en", "de", "fr", "es"])
def test_sentences_are_read_word_by_word(language: str) -> None:
    """Also where the text has no space between them, as in "Tea&nbsp;&amp;&nbsp;cake"."""
    for known, text, spoken in SENTENCES:
        if known == language:
            tokenizer = Letters()
            made = PocketReply(tokenizer, 1000, language, VoiceOptions(live=False), VoiceProfile())
            queue = written(made, text, [])
            while queue:
                queue = made.parts()
            clauses = " ".join(tokenizer.clauses.values())
            assert re.findall(r"\w+", clauses) == re.findall(r"\w+", spoken)


def test_a_clause_too_long_for_the_model_is_split_near_its_middle() -> None:
    words = "abcdefghijklabcdefghijkl " * 24
    parts = clauses_of(words)
    assert len(parts) > 2
    assert " ".join(parts).split() == words.split()
    assert min(len(part.split()) for part in parts) >= LEAST_WORDS
    assert "".join(clauses_of(f"Oh, I see: {'m' * 300}.")).endswith(":" + "m" * 300 + ".")


def test_a_short_sentence_waits_until_it_is_flushed() -> None:
    made = reply(Letters())
    made.write("Okay. ")
    assert made.parts() == []
    assert made.holds_sentence
    made.flush()
    assert len(made.parts()) == 1
    assert not made.holds_sentence
    made.write("Now then ")
    assert made.parts() == []
    assert not made.holds_sentence


def test_words_are_told_with_the_clause_that_they_are_in() -> None:
    made = reply(Letters())
    first, second = written(made, "The cat sat on it. Then it went away again.", [])
    wave = (8000 * np.sin(np.arange(1920 * 20) * 0.1)).astype(np.int16)
    made.receive(ClauseSound(1, wave, len(first.tokens), True, 0.5))
    told = ""
    while (piece := made.speech()) is not None:
        told += piece.text
    assert told == "The cat sat on it. "
    made.receive(ClauseSound(1, wave, len(first.tokens + second.tokens), True, 0.5))
    while (piece := made.speech()) is not None:
        told += piece.text
    assert told == "The cat sat on it. Then it went away again."


def test_a_reply_ahead_of_its_listener_gets_no_more_text() -> None:
    made = reply(Letters(), live=False)
    text = "One two three four five six seven. " * 60
    made.write(text)
    given = made.parts()
    assert 0 < len(given) < 60
    assert made.parts() == []
    spoken = sum(len(clause.tokens) for clause in given)
    made.receive(ClauseSound(1, np.full(24_000 * 11, 99, np.int16), spoken, True, 1.0))
    assert made.parts() == []
    while made.speech() is not None:
        pass
    assert made.parts()
