"""What SSML in a text makes of it, for a voice of any engine."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.pipeline.speech.script.lexicon import NO_LEXICON, Lexicon
from offhook.pipeline.speech.script.script import Delivery, Part, Pause, Script, Spoken
from offhook.pipeline.speech.text.spoken_text import TextReader


def parts_of(*texts: str, language: str = "", ipa: bool = False) -> list[Part]:
    script = Script(NO_LEXICON.finder(language), ipa)
    return [part for text in texts for part in script.feed(text)] + script.feed("", final=True)


def given_for(*texts: str, language: str = "", ipa: bool = False) -> str:
    parts = parts_of(*texts, language=language, ipa=ipa)
    return "".join(part.given for part in parts if isinstance(part, Spoken))


def read(text: str, language: str = "en") -> str:
    reader = TextReader(language)
    words = reader.feed(given_for(text, language=language)) + reader.finish()
    return "".join(word.spoken for word in words).strip()


def say_as(text: str, kind: str, form: str = "") -> str:
    return f'<say-as interpret-as="{kind}" format="{form}">{text}</say-as>'


@pytest.mark.parametrize(
    ("text", "language", "spoken"),
    [
        (say_as("kia7", "characters"), "en", "K, I, A, seven"),
        (say_as("AB", "spell-out"), "de", "A, B"),
        (say_as("2026", "digits"), "en", "two zero two six"),
        (say_as("5551234", "telephone"), "en", "five five five, one two three, four"),
        (
            say_as("+49 30 1234", "telephone"),
            "de",
            "plus vier neun, drei null, eins zwei drei vier",
        ),
        (say_as("1,234", "cardinal"), "en", "one thousand two hundred thirty-four"),
        (say_as("21", "ordinal"), "en", "twenty-first"),
        (f"der {say_as('3', 'ordinal')} Tag", "de", "der dritte Tag"),
        (f"le {say_as('3', 'ordinal')} jour", "fr", "le troisième jour"),
        (say_as("1/2/2026", "date", "dmy"), "en", "February first, twenty twenty-six"),
        (say_as("20260201", "date", "ymd"), "en", "February first, twenty twenty-six"),
        (say_as("tomorrow", "date", "dmy"), "en", "tomorrow"),
        (say_as("14:05", "time"), "en", "fourteen oh five"),
        (say_as("so", "unheard-of"), "en", "so"),
        (
            '<sub alias="World Wide Web Consortium">W3C</sub> it is',
            "en",
            "World Wide Web Consortium it is",
        ),
        ("<sub alias='A &amp; B'>AB</sub>", "en", "A and B"),
        ("H<sub>2</sub>O", "en", "H two O"),
        ('<phoneme alphabet="ipa" ph="kiə">Kia</phoneme>', "en", "Kia"),
        ("<speak><voice name='x'>Hello <mark name='m'/>you</voice></speak>", "en", "Hello you"),
        ('<lang xml:lang="de">Ja</lang> <emphasis level="strong">yes</emphasis>', "en", "Ja yes"),
        ("3 < 5", "en", "three is less than five"),
        (
            '<say-as interpret-as="digits">12<mark name="x"/>3</say-as>',
            "en",
            "one hundred twenty-three",
        ),
        ('<say-as interpret-as="digits">12 and so on', "en", "twelve and so on"),
        ('<sub alias="x">y', "en", "y"),
        ("</prosody></lang></sub></speak>all", "en", "all"),
    ],
)
def test_what_is_said(text: str, language: str, spoken: str) -> None:
    assert read(text, language) == spoken
    assert given_for(*text, language=language) == given_for(text, language=language)


def test_phonemes_reach_a_voice_that_takes_them() -> None:
    text = "<phoneme ph='k\"iə' alphabet='ipa'>A &amp; B</phoneme>"
    given = '<phoneme alphabet="ipa" ph="k&quot;iə">A &amp; B</phoneme>'
    assert given_for(text, ipa=True) == given
    assert given_for(given, ipa=True) == given
    assert given_for(text.replace("ipa", "x-sampa"), ipa=True) == "A & B"


@pytest.mark.parametrize(
    ("attributes", "ms"),
    [
        *(
            ('time="500ms"', 500),
            ('time="1.5s"', 1500),
            ("time='+2s'", 2000),
            ('time="99s"', 10_000),
        ),
        *(('strength="none"', 0), ('strength="weak"', 500), ("", 750), ('time="soon"', 750)),
        *(('time="s" strength="strong"', 1000), ('time="0"', 750), ('time="0ms"', 0)),
    ],
)
def test_the_length_of_a_pause(attributes: str, ms: int) -> None:
    [pause] = parts_of(f"<break {attributes}/>")
    assert pause == Pause(f"<break {attributes}/>", ms)


@pytest.mark.parametrize(
    ("value", "rate"),
    [
        *(("slow", 0.75), ("x-fast", 2), ("120%", 1.2), ("+20%", 1.2), ("-20%", 0.8), ("1.5", 1.5)),
    ],
)
def test_the_rate_of_a_text(value: str, rate: float) -> None:
    deliveries = [part for part in parts_of(f'<prosody rate="{value}">a</prosody>b')]
    assert [each.rate for each in deliveries if isinstance(each, Delivery)] == [
        pytest.approx(rate),
        1,
    ]


def test_elements_within_each_other_end_where_they_do() -> None:
    text = (
        '<lang xml:lang="de"><prosody rate="50%"><lang xml:lang="fr-CA">a</lang></prosody>b</lang>'
    )
    deliveries = [part for part in parts_of(text) if isinstance(part, Delivery)]
    now = [(each.rate, each.language) for each in deliveries]
    assert now == [(1, "de"), (0.5, "de"), (0.5, "fr"), (0.5, "de"), (1, "de"), (1, "")]


@pytest.mark.parametrize(
    "text",
    [
        "<prosody rate='50%'>" * 10_000 + "deep" + "</prosody>" * 10_000,
        f"<sub alias='{'x' * 1_000_000}'>deep</sub>",
        "<say-as interpret-as='digits'>" * 10_000 + "deep",
        "<" * 100_000 + "deep",
        "<break " * 20_000 + "deep",
        "<sub alias='a'" + " b='c'" * 50_000 + "deep",
        "<phoneme " + "\t" * 100_000 + "deep",
    ],
)
def test_broken_markup_is_read(text: str) -> None:
    parts = parts_of(*(text[at : at + 4000] for at in range(0, len(text), 4000)))
    assert "".join(part.written for part in parts) == text
    assert "deep" in "".join(part.given for part in parts if isinstance(part, Spoken))


def test_plain_text_does_not_wait_for_markup() -> None:
    script = Script(NO_LEXICON.finder(), ipa=False)
    for text in ("Hello ", "a < b ", "<b>bold</b> ", "<c and so on"):
        assert "".join(part.written for part in script.feed(text)) == text


PIECES = st.lists(
    st.sampled_from(
        [
            *("<speak>", "</speak>", "<break time='1s'/>", "<break", "<sub alias='Kia'>", "</sub>"),
            *("<prosody rate='50%'>", "</prosody>", "<lang xml:lang='de'>", "</lang>", "Kia"),
            *("<say-as interpret-as='digits'>", "</say-as>", "<phoneme ph='a'>", "</phoneme>"),
            *(" ", "12", "<", ">", "'", "&amp;", "x"),
        ]
    )
    | st.text(max_size=3)
)


@given(PIECES)
def test_parts_are_the_text_however_it_is_split(pieces: list[str]) -> None:
    text = "".join(pieces)
    lexicon = Lexicon.of_table({"Kia": "kee-ah"})
    results = []
    for texts in (pieces, [text], list(text)):
        script = Script(lexicon.finder(), ipa=True)
        parts = [part for each in texts for part in script.feed(each)]
        parts += script.feed("", final=True)
        assert "".join(part.written for part in parts) == text
        spoken = [part.given if isinstance(part, Spoken) else part for part in parts]
        merged: list[object] = []
        for each in spoken:
            if isinstance(each, str) and merged and isinstance(merged[-1], str):
                merged[-1] += each
            elif each:
                merged.append(each)
        results.append(merged)
    assert results[0] == results[1] == results[2]
