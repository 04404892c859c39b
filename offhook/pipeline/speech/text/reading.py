"""A written word on its way to its spoken form, with the words around it.

Text comes piece by piece, and how a word is read may depend on the next: "$3" on "million", "Dr."
on a name. A rule looks ahead through `Reading`, which raises `NotYet` where the words it would see
are not all written: the rule is tried again when they are. So what is said cannot depend on how
the text was cut into pieces.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

_PARTS = re.compile(
    r"""(?P<lead>["'“”‘’«»„(\[{¿¡]*)(?P<core>.*?)(?P<trail>[.,;:!?…"'“”‘’«»)\]}]*)""", re.DOTALL
)


class NotYet(Exception):
    """What is asked for has not been written yet, and may come."""


class Words(Protocol):
    """The words not yet said, from the one being read (0)."""

    def word(self, number: int) -> str:
        """Without white space and markup; empty past the end of the line. Raises NotYet."""

    def first(self, number: int) -> str:
        """Its first ASCII letter or digit, which is known sooner; empty when there is none."""


@dataclass(frozen=True)
class Parts:
    """A word without the punctuation around it."""

    lead: str = ""
    core: str = ""
    trail: str = ""


def parts(word: str) -> Parts:
    match = _PARTS.fullmatch(word)
    assert match
    return Parts(match["lead"], match["core"], match["trail"])


class Reading:
    """One word, and as many after it as a rule takes along."""

    def __init__(self, words: Words, before: Sequence[str]) -> None:
        self._words = words
        self.before = before
        """The last words already said, as written; the nearest last. At least two, maybe empty."""
        self.word = words.word(0)
        own = parts(self.word)
        self.lead, self.core, self.trail = own.lead, own.core, own.trail
        self.taken = 1

    def after(self, number: int = 0) -> Parts:
        """A word after those taken; empty where punctuation or the line's end is in between."""
        if self.trail:
            return Parts()
        for between in range(number):
            if parts(self._words.word(self.taken + between)).trail:
                return Parts()
        found = parts(self._words.word(self.taken + number))
        return Parts() if found.lead else found

    def following(self, number: int = 0) -> str:
        """A word after those taken, whatever punctuation is in between."""
        return self._words.word(self.taken + number)

    def next_char(self) -> str:
        """The first letter or digit after those taken, whatever punctuation is in between."""
        return self._words.first(self.taken)

    def take(self, number: int = 1) -> None:
        """Say the next words together with this one."""
        self.taken += number
        self.trail = parts(self._words.word(self.taken - 1)).trail

    def surround(self, lead: str, trail: str) -> None:
        """Say this before and after it in place of the punctuation it was written with."""
        self.lead, self.trail = lead, trail

    def drop_dot(self) -> None:
        """Take away the dot of an abbreviation; the punctuation after it stays."""
        self.trail = self.trail.removeprefix(".")
