"""How names are said: whole words, the longest first, however the text is split."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.pipeline.speech.script.lexicon import Lexicon, LexiconError
from offhook.pipeline.speech.script.script import Script, Spans, Spoken

LEXICON = Lexicon.of_table(
    {
        "Kia": "kee-ah",
        "New York": {"say": "noo york", "ipa": "njuː jɔːk"},
        "New": "gnu",
        ".NET": "dot net",
        "C++": "see plus plus",
        "東京": "とうきょう",
        "Zoë": "zo-ee",
        "US": [{"say": "you ess", "case_sensitive": True}, {"say": "uns", "language": "de"}],
        "Ada": [{"say": "ay-da", "voice": "rms"}, "ah-da"],
    }
)
PARTS = ("Kia", "kia", "Kiaora", "New", "York", "NEW", "C++", "C", "+", ".NET", "東京", "京", "us")
SIGNS = (" ", "  ", "\n", ".", "'s", "-", "é", "Zoe\u0308", "Zoë", "<b>", "1", "_", "US")


def spoken(*parts: str, language: str = "", voice: str = "", ipa: bool = False) -> list[Spoken]:
    script = Script(LEXICON.finder(language, voice), ipa)
    pieces = [piece for part in parts for piece in script.feed(part)]
    pieces += script.feed("", final=True)
    return [piece for piece in pieces if isinstance(piece, Spoken)]


def given_for(*parts: str, language: str = "", voice: str = "", ipa: bool = False) -> str:
    pieces = spoken(*parts, language=language, voice=voice, ipa=ipa)
    return "".join(piece.given for piece in pieces)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("A kia, Kia's KIA.", "A kee-ah, kee-ah's kee-ah."),
        ("Kiaora, akia, Kia_1, Kia2", "Kiaora, akia, Kia_1, Kia2"),
        ("New  York, New Yorker, new", "noo york, gnu Yorker, gnu"),
        ("C++ and C++11, .NET and ASP.NET", "see plus plus and C++11, dot net and ASP.NET"),
        ("私は東京に", "私はとうきょうに"),
        ("Zoe\u0308 and ZOË, Zoe", "zo-ee and zo-ee, Zoe"),
        ("US for us", "you ess for us"),
        ("kia.com, **Kia** (Kia)", "kee-ah.com, **kee-ah** (kee-ah)"),
    ],
)
def test_whole_words_the_longest_first(text: str, said: str) -> None:
    assert given_for(text) == said
    assert given_for(*text) == said


def test_entries_for_a_language_or_a_voice() -> None:
    assert given_for("us", language="de") == "uns"
    assert given_for("us", language="en") == "us"
    assert given_for("Ada", voice="rms") == "ay-da"
    assert given_for("Ada", voice="slt") == "ah-da"


def test_phonemes_for_a_voice_that_takes_them() -> None:
    said = '<phoneme alphabet="ipa" ph="njuː jɔːk">noo york</phoneme>'
    assert given_for("In New York.", ipa=True) == f"In {said}."


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        ({"Kia": 1}, "'Kia' is no text or table"),
        ({"Kia": {}}, "'Kia' needs say"),
        ({"Kia": {"sya": "x"}}, "'Kia' has 'sya'"),
        ({"Kia": {"say": "x", "case_sensitive": "no"}}, "'Kia': case_sensitive is 'no'"),
        ({"Kia": {"say": "x", "language": "German"}}, "'Kia': language is 'German'"),
        ({"Kia": {"ipa": "k7a"}}, "'Kia': ipa has '7', which is no sign of IPA"),
        ({"Kia": {"ipa": "キア"}}, "'Kia': ipa has 'キ', which is no sign of IPA"),
        ({"...": "dots"}, "'...': a word"),
        ({"x" * 201: "y"}, "1 to 200 characters"),
        ({f"word{number}": "x" for number in range(5001)}, "more than 5000 entries"),
    ],
)
def test_an_entry_that_cannot_be_used(table: dict[str, object], fault: str) -> None:
    with pytest.raises(LexiconError, match=re.escape(fault)):
        Lexicon.of_table(table)


TEXTS = st.lists(st.sampled_from(PARTS + SIGNS) | st.text(max_size=4))


@given(TEXTS, st.booleans())
def test_no_character_of_other_words_is_changed(parts: list[str], ipa: bool) -> None:
    pieces = spoken("".join(parts), ipa=ipa)
    assert "".join(piece.written for piece in pieces) == "".join(parts)
    words = {entry.exact.casefold() for entry in LEXICON.entries} | {"zoe\u0308"}
    for piece in pieces:
        written = re.sub(r"\s+", " ", piece.written.casefold())
        assert piece.given == piece.written or written in words


@given(TEXTS, st.lists(st.integers(0, 30)))
def test_the_words_do_not_depend_on_how_the_text_is_split(
    parts: list[str], cuts: list[int]
) -> None:
    text = "".join(parts)
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    split = [text[a:b] for a, b in pairwise(places)]
    assert given_for(*split) == given_for(text)


@given(TEXTS, st.lists(st.integers(0, 9)))
def test_what_was_heard_is_told_as_written(parts: list[str], heard: list[int]) -> None:
    """However many characters of what it was given a voice has spoken: never less than before, and
    of a word that is said otherwise only all of it."""
    spans, text = Spans(), "".join(parts)
    pieces = spoken(text)
    for piece in pieces:
        spans.add(piece.written, piece.given)
    ends, said = [0], 0
    for characters in heard:
        said += characters
        ends.append(ends[-1] + len(spans.pop(characters)))
        whole = at = 0
        for piece in pieces:
            left = max(0, said - at)
            if left >= len(piece.given):
                whole += len(piece.written)
            elif piece.given == piece.written:
                whole += left
            at += len(piece.given)
        assert ends[-1] == whole
    assert ends == sorted(ends)
    assert len(spans.rest()) == len(text) - ends[-1]
