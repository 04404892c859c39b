"""English words as they sound, so that "4471", "forty-four seventy-one" and "four four seven one"
are the same: recognizers write numbers, money, times, addresses and letters in many ways.

A text is read by the rules that voices here speak by; then numbers are taken apart into digits, and
capitals into letters.
"""

import re
from collections.abc import Iterable, Iterator

from benchmarks.speech.transcript import prefix_distances
from offhook.pipeline.speech.text.spoken_text import TextReader

_ONES = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
    *("ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen"),
    *("eighteen", "nineteen"),
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_ORDINALS = {"first": 1, "second": 2, "third": 3, "fifth": 5, "eighth": 8, "ninth": 9} | {
    "twelfth": 12
}
_VALUES = (
    {word: value for value, word in enumerate(_ONES)}
    | {f"{word}th": value for value, word in enumerate(_ONES)}
    | {word: 10 * tens for tens, word in enumerate(_TENS, 2)}
    | {f"{word[:-1]}ieth": 10 * tens for tens, word in enumerate(_TENS, 2)}
    | {str(digit): digit for digit in range(10)}
    | _ORDINALS
    | {"oh": 0}
)
_THOUSANDS = {"thousand": 1000, "million": 1_000_000}
_DASH = re.compile(r"(?<=\d)[-\u2013](?=\d)")
_CAPITALS = re.compile(r"\b(?!PIN\b|OK\b)[A-Z]{2,}\b")
"""Matches what is spelled."""


def spoken_words(text: str) -> list[str]:
    """Returns the words of a text as they sound, in lower case, each digit of a number a word."""
    reader = TextReader("en")
    apart = _DASH.sub(" ", text)
    read = "".join(word.spoken for word in [*reader.feed(apart), *reader.finish()])
    spelled = _CAPITALS.sub(lambda found: " ".join(found[0]), read)
    whole = re.sub(r"(?<=\w)['\u2019](?=\w)", "", spelled.lower())
    found = list(_in_digits(re.findall(r"[a-z]+|\d", whole)))
    return [word for n, word in enumerate(found) if not _is_sign(found, n)]


def word_errors(heard: str, said: str) -> int:
    """Returns how many words must be substituted, inserted or deleted to make one text of the
    other, as they sound."""
    return prefix_distances(spoken_words(heard), spoken_words(said))[-1]


def _is_sign(words: list[str], n: int) -> bool:
    """Returns whether a word between two digits is one that recognizers write as a sign, and write
    that sign in codes too: 4.471, 10-15."""
    around = "".join(words[max(0, n - 1) : n] + words[n + 1 : n + 2])
    return words[n] in ("point", "to") and len(around) == 2 and around.isdecimal()


def _in_digits(words: Iterable[str]) -> Iterator[str]:
    number: _Number | None = None
    for word in words:
        if number is not None and number.goes_on_with(word):
            continue
        if number is not None:
            yield from number.digits()
            number = None
        if word in _VALUES:
            number = _Number(_VALUES[word])
        else:
            yield word
    if number is not None:
        yield from number.digits()


class _Number:
    """A number of which words follow one another."""

    def __init__(self, value: int) -> None:
        self._thousands, self._rest = 0, value
        self._room = self._room_after(value)

    @staticmethod
    def _room_after(value: int) -> int:
        """Returns below which value a following word adds to it: "twenty" has room for nine."""
        return 10 if value >= 20 else 0

    def goes_on_with(self, word: str) -> bool:
        """Returns whether the word is part of this number, and adds it."""
        if word == "and":
            return self._room >= 100
        if word == "hundred" and 0 < self._rest < 100:
            self._rest, self._room = self._rest * 100, 100
        elif word in _THOUSANDS and self._rest > 0:
            self._thousands += self._rest * _THOUSANDS[word]
            self._rest, self._room = 0, 1000
        elif 0 < _VALUES.get(word, 0) < self._room:
            value = _VALUES[word]
            self._rest += value
            self._room = self._room_after(value)
        else:
            return False
        return True

    def digits(self) -> str:
        return str(self._thousands + self._rest)
