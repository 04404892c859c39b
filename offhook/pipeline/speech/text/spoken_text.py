"""Converts an agent's streaming text to spoken words: numbers, dates, money and addresses are
spelled out, markup and emoji dropped.

A voice model reads plain words best and is fed word by word, so a word is emitted as soon as no
later text can change it: a plain word with the following white space, a number with the following
word.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec

from offhook.pipeline.speech.streams.languages import UNKNOWN
from offhook.pipeline.speech.text.english.spoken_english import read_english
from offhook.pipeline.speech.text.languages.language_tables import LANGUAGES
from offhook.pipeline.speech.text.markup import IPA_BEGINS
from offhook.pipeline.speech.text.reading import NeedsMoreText, Reading
from offhook.pipeline.speech.text.written_words import WordCutter, Written, first_letter


@dataclass(frozen=True)
class SpokenWord:
    """Written words and their spoken form.

    Concatenated, the texts are the text written, and the spoken forms the text to speak.
    """

    text: str
    """The exact slice of the text written, with the following white space."""
    spoken: str
    """Spoken form with a leading space where there is one; empty if nothing is spoken."""


RULES = ("babel", "budoux", "num2words")
"""Packages of the rules for other languages than English."""


def with_rules(language: str) -> str:
    """Returns the language, by its ISO 639-1 code, if it can be read by rules here, or the one that
    has none."""
    return language if language == "en" or all(map(find_spec, RULES)) else UNKNOWN


MAX_BEFORE = 12
"""Words already spoken that may decide how the next is."""


class TextReader:
    """Streaming text in, spoken words out.

    `language` is an ISO 639-1 code; without rules for it, only markup and emoji are dropped.
    Without `normalise` words are spoken as written. With `ipa`, what `<phoneme>` says otherwise is
    spoken in IPA, between IPA_BEGINS and IPA_ENDS.
    """

    def __init__(self, language: str, normalise: bool = True, *, ipa: bool = False) -> None:
        self._cutter = WordCutter(language, normalise, ipa)
        self._read = _reader(language) if normalise else None
        self._waiting: deque[Written] = deque()
        self._before: deque[str] = deque(("", "", ""), maxlen=MAX_BEFORE)
        self._final = False
        self._last = ""
        self._space = False
        self._line = False
        """Whether a line has begun of which nothing was spoken yet."""
        self._cell = False
        """Whether the end of a table's cell was the last that was read."""

    def read_in(self, language: str) -> None:
        """Changes the language for the rest of the text."""
        self._cutter.language = language
        if self._read:
            self._read = _reader(language)

    def feed(self, delta: str) -> list[SpokenWord]:
        """Adds text and returns the words that are now certain."""
        self._waiting += self._cutter.feed(delta)
        return self._spoken()

    def finish(self) -> list[SpokenWord]:
        """Returns the remaining words; nothing may be fed afterwards."""
        self._final = True
        self._waiting += self._cutter.finish()
        return self._spoken()

    def word(self, number: int) -> str:
        """Returns a word not yet spoken; see `Reading`."""
        place = self._place(number)
        if place is None:
            return ""
        if place < len(self._waiting):
            return self._waiting[place].plain
        if not self._final:
            raise NeedsMoreText
        return ""

    def first(self, number: int) -> str:
        """Returns the first letter or digit of a word not yet spoken; see `Reading`."""
        place = self._place(number)
        if place is None:
            return ""
        known = place < len(self._waiting)
        found = first_letter(self._waiting[place].source if known else self._cutter.rest)
        if found is None and not (known or self._final):
            raise NeedsMoreText
        return found or ""

    def _place(self, number: int) -> int | None:
        """Returns the place of a word among those that wait, not counting tags and the like; None
        past the end of the line. The next one is perhaps not complete."""
        place = 0
        while number:
            if place == len(self._waiting) and not self._final:
                raise NeedsMoreText
            if place == len(self._waiting) or self._line_ends(place):
                return None
            place += 1
            number -= place == len(self._waiting) or not self._waiting[place].is_silent
        return place

    def _line_ends(self, number: int) -> bool:
        """Returns whether the line ends with a word, as far as known."""
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
        except NeedsMoreText:
            pass
        return words

    def _next(self) -> SpokenWord:
        """Reads the next word. Raises NeedsMoreText, changing nothing."""
        first = self._waiting[0]
        taken, spoken = 1, first.plain
        if self._read and spoken and IPA_BEGINS not in spoken:
            if first.starts_line:
                self._before.extend(("", "", ""))
            reading = Reading(self, self._before)
            spoken = self._read(reading).strip()
            taken = reading.taken
        slices = [self._waiting.popleft()]
        while taken > 1:
            slices.append(self._waiting.popleft())
            taken -= not slices[-1].is_silent
        self._before.extend(written.plain for written in slices if written.plain)
        text = "".join(written.text for written in slices)
        source = "".join(written.source for written in slices)
        return SpokenWord(
            text, self._joined(source, spoken, first.starts_line, slices[-1].ends_line)
        )

    def _joined(self, text: str, spoken: str, starts_line: bool, ends_line: bool) -> str:
        """Returns the spoken form with its leading space, and with a full stop if a line ends
        without one: a heading or list item is a sentence. The cells of a table are set apart by
        commas."""
        stop = ""
        if self._read and spoken and self._last.isalnum():
            stop = "." if starts_line or self._line else "," if self._cell else ""
        mark = spoken[:1] in tuple(".,;:!?…") and not any(map(str.isalnum, spoken))
        spaced = self._last and not mark and (self._space or text[:1].isspace())
        space = " " if spaced else ""
        self._space = (self._space and not spoken) or text[-1:].isspace()
        self._cell = text.strip() == "|" or (self._cell and not spoken)
        self._line = (starts_line or self._line) and not spoken
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
        # Its packages come with the engines that speak it.
        from offhook.pipeline.speech.text.languages.spoken_languages import read_language

        return partial(read_language, LANGUAGES[language])
    return lambda reading: reading.word
