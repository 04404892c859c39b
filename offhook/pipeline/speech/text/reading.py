"""A written word being converted to its spoken form, with its context.

Text arrives in pieces, and the reading of a word may depend on the next one: "$3" on "million",
"Dr." on a name. A rule looks ahead through `Reading`, which raises `NeedsMoreText` if the words it
needs have not been written yet, and is tried again when they have. The result therefore does not
depend on how the text was split.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

_PARTS = re.compile(
    r"""(?P<lead>["'“”‘’«»„(\[{¿¡]*)(?P<core>.*?)(?P<trail>[.,;:!?…"'“”‘’«»)\]}—]*)""", re.DOTALL
)

_SENTENCE_ENDS = re.compile(r"""(?:[!…]|(?<=\w{4})\.|(?<=\d)\.)["'”’»)\]]*$""")
"""Matches the last word of a sentence; a shorter one with a dot may be an abbreviation. A question
and its answer are of the same thing."""
_ELIDED = re.compile(r"\w{1,4}['’](?=\w{3})")
"""Matches an article that is a part of the word: l'ordine."""


class NeedsMoreText(Exception):
    """Raised when a rule needs text that has not been written yet."""


class Words(Protocol):
    """The words not yet spoken, counted from the current one (0)."""

    def word(self, number: int) -> str:
        """Returns a word without white space and markup; empty past the end of the line. Raises
        NeedsMoreText."""

    def first(self, number: int) -> str:
        """Returns its first ASCII letter or digit, which is known earlier; empty if there is
        none."""


@dataclass(frozen=True)
class Parts:
    """A word split from the punctuation around it."""

    lead: str = ""
    core: str = ""
    trail: str = ""


def parts(word: str) -> Parts:
    match = _PARTS.fullmatch(word)
    assert match
    return Parts(match["lead"], match["core"], match["trail"])


class Reading:
    """A word and the following words that a rule consumes with it."""

    def __init__(self, words: Words, before: Sequence[str]) -> None:
        self._words = words
        self.before = before
        """The last words already spoken, as written, nearest last; at least two, possibly empty."""
        self.word = words.word(0)
        own = parts(self.word)
        self.lead, self.core, self.trail = own.lead, own.core, own.trail
        self.taken = 1

    def after(self, number: int = 0) -> Parts:
        """Returns a word after the consumed ones; empty if punctuation or the end of the line is in
        between."""
        if self.trail:
            return Parts()
        for between in range(number):
            if parts(self._words.word(self.taken + between)).trail:
                return Parts()
        found = parts(self._words.word(self.taken + number))
        return Parts() if found.lead else found

    def following(self, number: int = 0) -> str:
        """Returns a word after the consumed ones, regardless of punctuation in between."""
        return self._words.word(self.taken + number)

    def sentence(self) -> list[str]:
        """Returns the words before it in its sentence, in lower case and without punctuation,
        nearest last."""
        found: list[str] = []
        for word in reversed(self.before):
            if not word or _SENTENCE_ENDS.search(word):
                break
            plain = word.lower().strip("\"'“”„‘’«»()[].,;:?¿#")
            found.insert(0, _ELIDED.sub("", plain.rstrip("—") or plain))
        return found

    def next_char(self) -> str:
        """Returns the first letter or digit after the consumed words, regardless of punctuation."""
        return self._words.first(self.taken)

    def consume(self, number: int = 1) -> None:
        """Consumes the next words, which are spoken together with this one."""
        self.taken += number
        self.trail = parts(self._words.word(self.taken - 1)).trail

    def surround(self, lead: str, trail: str) -> None:
        """Replaces the punctuation before and after the word."""
        self.lead, self.trail = lead, trail

    def drop_dot(self) -> None:
        """Drops the dot of an abbreviation; punctuation after it stays."""
        self.trail = self.trail.removeprefix(".")
