"""What the embedded voices are given to say: English words in ASCII, with nothing lost."""

import asyncio
import re
import string
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loguru import logger

from offhook.pipeline.engines.embedded.embedded_speech_io import EmbeddedSynthesizer, Sound
from offhook.pipeline.speech.synthesizer import DEFAULT_VOICE, Speech, VoiceOptions
from offhook.pipeline.speech.text.transliteration import in_ascii

RATE = 8000


class Silent(EmbeddedSynthesizer):
    """Makes 0.1 s of sound of each word, and keeps the words."""

    name = "silent"
    spoken = dict.fromkeys(("nobody",), ("en",))

    def __init__(self) -> None:
        super().__init__()
        self.clauses: list[str] = []

    def load(self) -> None:
        pass

    def sound(self, words: list[str], voice: str, speed: float = 1.0) -> Sound:
        self.clauses.append(" ".join(words))
        ends = [RATE // 10 * (number + 1) for number in range(len(words))]
        return Sound(np.full(ends[-1], 5000, np.int16), RATE, ends)


async def speak(
    *chunks: str, options: VoiceOptions = DEFAULT_VOICE
) -> tuple[list[str], list[Speech]]:
    """Returns the clauses said and the pieces of the reply."""
    synthesizer = Silent()
    await synthesizer.start()
    synthesizer.clauses.clear()
    reply = synthesizer.open(options)
    for chunk in chunks:
        reply.write(chunk)
    reply.end()
    pieces = [piece async for piece in reply]
    await synthesizer.close()
    return synthesizer.clauses, pieces


def said(text: str, options: VoiceOptions = DEFAULT_VOICE) -> str:
    clauses, pieces = asyncio.run(speak(text, options=options))
    assert "".join(piece.text for piece in pieces) == text
    return " ".join(clauses)


READINGS = {
    # fractions
    "2½ tablets": "two and a half tablets",
    "½ cup": "one half cup",
    "1 ½ cups": "one and a half cups",
    "¾ of it, ⅓ of that": "three quarters of it, one third of that",
    "½–¾ cup": "one half to three quarters cup",
    "1–1½ hours": "one to one and a half hours",
    "2½kg": "two and a half kilograms",
    "2½ million": "two and a half million",
    "a 2½-hour film": "a two and a half hour film",
    "2½%": "two and a half percent",
    "-½": "minus one half",
    "⅒ of a second": "one tenth of a second",
    "3⁄4": "three quarters",
    # minus signs and dashes
    "−5 °C": "minus five degrees Celsius",
    "–5 °C": "minus five degrees Celsius",
    "balance −20": "balance minus twenty",
    "balance −$20.50": "balance minus twenty dollars and fifty cents",
    "€−20": "minus twenty euros",
    "5 − 3 = 2": "five minus three equals two",
    "10 – 15 people": "ten to fifteen people",
    "a non‑smoker": "a non-smoker",
    # signs
    "a ≠ b": "a is not b",
    "x≥3 and y≤4": "x is at least three and y is at most four",
    "5 ± 2": "five plus or minus two",
    "≈50": "about fifty",
    "√16 = 4": "the square root of sixteen equals four",
    "§ 5 and §6": "section five and section six",
    "© 2024": "copyright twenty twenty-four",
    "Windows® 11™": "Windows eleven",
    "A → B": "A to B",
    "3·4 = 12": "three times four equals twelve",
    "3 × 4": "three times four",
    "∞": "infinity",
    "the angle α": "the angle alpha",
    "5‰": "five per mille",
    # units
    "5 µg": "five micrograms",
    "5μg": "five micrograms",
    "250 mcg": "two hundred fifty micrograms",
    "90 mg/dL": "ninety milligrams per deciliter",
    "2 kg/day": "two kilograms per day",
    "4.7 kΩ": "four point seven kilohms",
    "9.8 m/s²": "nine point eight meters per second squared",
    "20 ºC": "twenty degrees Celsius",
    "in °F": "in degrees Fahrenheit",
    "40°26′46″ N": "forty degrees twenty-six minutes forty-six seconds N",
    "㎏": "kg",
    # money
    "€20": "twenty euros",
    "£5.50": "five pounds and fifty pence",
    "€ 20": "twenty euros",
    "20 €": "twenty euros",
    "20–30€": "twenty to thirty euros",
    "₹500": "five hundred rupees",
    "₺5": "five lira",
    "5 zł": "five zlotys",
    "100 SEK": "one hundred Swedish kronor",
    # powers, indexes and footnotes
    "10⁻³": "ten to the power of minus three",
    "5×10⁻³": "five times ten to the power of minus three",
    "2⁴ or x¹⁰": "two to the power of four or x to the power of ten",
    "E=mc²": "E equals mc squared",
    "per km²": "per square kilometer",
    "as shown² by": "as shown by",
    "H₂O and CO₂": "H two O and CO two",
    # letters
    "Straße": "Strasse",
    "Łódź": "Lodz",
    "Ærø, Øresund, Þór": "Aero, Oresund, Thor",
    "İstanbul, Đorđe, Œuvre": "Istanbul, Dorde, Oeuvre",
    "Москва": "Moskva",
    "Ελλάδα": "Ellada",
    "the ﬁrst 𝐛𝐨𝐥𝐝 Ⅳ": "the first bold IV",
    "“It’s” … «so»": '"It\'s"... "so"',
    "9 a.m. in the US": "nine A.M. in the U.S.",
    # as before
    "**Bold** `code`": "Bold code",
    "R&D, 5 & 6": "R and D, five and six",
    "# Title\nText": "Title. Text",
    "Hi 😀!": "Hi!",
    ":-)": "",
    "": "",
}


@pytest.mark.parametrize(("written", "spoken"), READINGS.items())
def test_english_in_ascii(written: str, spoken: str) -> None:
    assert said(written) == spoken


TABLE = Path(__file__).parents[2] / "speech" / "text" / "sentences.txt"
ENGLISH = TABLE.read_text().split("[en]\n")[1].split("\n\n")[0].splitlines()


@pytest.mark.parametrize("line", ENGLISH)
def test_sentences_are_read_as_by_the_other_voices(line: str) -> None:
    written, _, spoken = line.partition(" => ")
    words = re.findall(r"\w+", in_ascii(spoken).lower())
    assert re.findall(r"\w+", said(written.replace("⏎", "\n")).lower()) == words


def test_text_that_is_words_already_keeps_its_signs_names() -> None:
    options = VoiceOptions(normalise=False)
    assert said("Room 5 & “Łódź”", options) == 'Room 5 and "Lodz"'


def test_an_amount_is_read_whole_where_clauses_part() -> None:
    text = "The price of all of it is now $3 million and more of them"
    assert "three million dollars" in said(text)


def test_the_last_word_is_in_its_clause() -> None:
    assert asyncio.run(speak("It costs $5"))[0] == ["It costs five dollars"]
    assert asyncio.run(speak("It is 5", " kg"))[0] == ["It is five kilograms"]


async def test_a_word_that_waited_for_the_next_is_spoken_at_the_end() -> None:
    synthesizer = Silent()
    await synthesizer.start()
    synthesizer.clauses.clear()
    reply = synthesizer.open()
    reply.write("It takes 5 kg. ")
    pieces = aiter(reply)
    heard = [await anext(pieces), await anext(pieces)]
    reply.end()
    heard += [piece async for piece in pieces]
    await synthesizer.close()
    assert "".join(piece.text for piece in heard) == "It takes 5 kg. "
    assert synthesizer.clauses == ["It takes", "five kilograms."]


def test_a_clause_ends_with_its_sentence() -> None:
    text = "Your time is at 10:30 a.m. Is that all right?"
    assert asyncio.run(speak(*text))[0] == [
        "Your time is at ten thirty A.M..",
        "Is that all right?",
    ]


def test_each_written_word_has_its_own_sound() -> None:
    _, pieces = asyncio.run(speak("It is $3,000.50 now"))
    lengths = {piece.text.strip(): len(piece.pcm) // 2400 for piece in pieces}
    assert lengths == {"It": 1, "is": 1, "$3,000.50": 6, "now": 1}


def test_a_letter_without_a_spelling_is_in_the_log() -> None:
    lines: list[str] = []
    handler = logger.add(lines.append, format="{message}")
    assert said("We say 東京 and 東京. It is a city: 中.") == "We say and. It is a city:."
    logger.remove(handler)
    [line] = [line for line in lines if "English only" in line]
    assert "東" in line


@given(st.text())
def test_any_text_is_spoken_in_ascii(text: str) -> None:
    allowed = set(string.printable) - set(string.whitespace) | {" "}
    assert set(said(text)) <= allowed


def test_english_is_read_without_the_packages_of_other_languages() -> None:
    code = (
        "import sys\n"
        "for name in ('num2words', 'babel', 'budoux', 'torch'):\n"
        "    sys.modules[name] = None\n"
        "from offhook.pipeline.speech.text.spoken_text import TextReader\n"
        "reader = TextReader('en')\n"
        "words = reader.feed('On 3/4/2024, 1905 people, 中文 $3.50') + reader.finish()\n"
        "print(''.join(word.spoken for word in words))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip().endswith("three dollars and fifty cents")
