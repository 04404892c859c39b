"""An agent's text, as it comes, in the words to be said: numbers, dates, money and addresses spelt
out, markup and emoji left out.

A voice model reads plain words best and is fed word by word, so a word goes out as soon as nothing
that may follow can change it: a plain word with the white space after it, a number with the word
after it.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from offhook.pipeline.speech.text.language_tables import LANGUAGES
from offhook.pipeline.speech.text.reading import NotYet, Reading
from offhook.pipeline.speech.text.spoken_english import read_english
from offhook.pipeline.speech.text.spoken_languages import read_language
from offhook.pipeline.speech.text.written_words import WordCutter, Written, first_letter


@dataclass(frozen=True)
class SpokenWord:
    """Some words written, and what is said for them.

    Joined, the texts are the text written and the spoken forms the text to be said.
    """

    text: str
    """The exact slice of the text written, with the white space after it."""
    spoken: str
    """With the space before it, where there is one; empty when there is nothing to say."""


class TextReader:
    """Text in, words to be said out.

    `language` is an ISO 639-1 code; in one that has no rules here only markup and emoji are left
    out. Without `normalise` words are said exactly as written.
    """

    def __init__(self, language: str, normalise: bool = True) -> None:
        self._cutter = WordCutter(language, markup=normalise)
        self._read = _reader(language) if normalise else None
        self._waiting: deque[Written] = deque()
        self._before: deque[str] = deque(("", "", ""), maxlen=3)
        self._final = False
        self._last = ""
        self._space = False

    def read_in(self, language: str) -> None:
        """What is not read yet is in another language than was thought."""
        self._cutter.language = language
        if self._read:
            self._read = _reader(language)

    def feed(self, delta: str) -> list[SpokenWord]:
        """Take the next piece of text; return the words that are certain now."""
        self._waiting += self._cutter.feed(delta)
        return self._spoken()

    def finish(self) -> list[SpokenWord]:
        """The rest; nothing can be fed after it."""
        self._final = True
        self._waiting += self._cutter.finish()
        return self._spoken()

    def word(self, number: int) -> str:
        """One of the words not yet said, for `Reading`."""
        if number and any(self._line_ends(before) for before in range(number)):
            return ""
        if number < len(self._waiting):
            return self._waiting[number].plain
        if not self._final:
            raise NotYet
        return ""

    def first(self, number: int) -> str:
        """The first letter or digit of a word not yet said, for `Reading`."""
        if number and any(self._line_ends(before) for before in range(number)):
            return ""
        if number > len(self._waiting):
            raise NotYet
        known = number < len(self._waiting)
        found = first_letter(self._waiting[number].text if known else self._cutter.rest)
        if found is None and not (known or self._final):
            raise NotYet
        return found or ""

    def _line_ends(self, number: int) -> bool:
        """Whether the line ends with a word, as far as is known."""
        if number < len(self._waiting) and self._waiting[number].ends_line:
            return True
        after = number + 1
        if after < len(self._waiting):
            return self._waiting[after].starts_line
        rest = self._cutter.rest
        return after == len(self._waiting) and "\n" in rest[: len(rest) - len(rest.lstrip())]

    def _spoken(self) -> list[SpokenWord]:
        words: list[SpokenWord] = []
        try:
            while self._waiting:
                words.append(self._next())
        except NotYet:
            pass
        return words

    def _next(self) -> SpokenWord:
        """Read the first of the words that wait. Raises NotYet, and changes nothing then."""
        first = self._waiting[0]
        taken, spoken = 1, first.plain
        if self._read and spoken:
            if first.starts_line:
                self._before.extend(("", "", ""))
            reading = Reading(self, self._before)
            spoken = self._read(reading).strip()
            taken = reading.taken
        slices = [self._waiting.popleft() for _ in range(taken)]
        self._before.extend(written.plain for written in slices if written.plain)
        text = "".join(written.text for written in slices)
        return SpokenWord(text, self._joined(text, spoken, first.starts_line, slices[-1].ends_line))

    def _joined(self, text: str, spoken: str, starts_line: bool, ends_line: bool) -> str:
        """The spoken form with the space before it, and with a full stop where a line ends without
        one: a heading or an item of a list is a sentence of its own."""
        stop = "." if self._read and starts_line and self._last.isalnum() and spoken else ""
        space = " " if self._last and (self._space or text[:1].isspace()) else ""
        self._space = (self._space and not spoken) or text[-1:].isspace()
        if not spoken:
            return ""
        if self._read and ends_line and spoken[-1].isalnum():
            spoken += "."
        self._last = spoken[-1]
        return f"{stop}{space}{spoken}"


def _reader(language: str) -> Callable[[Reading], str]:
    if language == "en":
        return read_english
    if language in LANGUAGES:
        return partial(read_language, LANGUAGES[language])
    return lambda reading: reading.word
