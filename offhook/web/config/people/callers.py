"""`[callers.NAME]`: lists of callers, by which routes tell them apart."""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from pydantic import PrivateAttr, model_validator

from offhook.web.config.section import Section

MAX_NUMBERS = 100_000
"""Maximum numbers of one list of callers; a configuration with more is refused."""
MAX_PATTERNS = 1_000
"""Maximum numbers with * or ? of one list of callers, as each is compared with every caller; a
configuration with more is refused."""
_SEPARATORS = str.maketrans("", "", " -./()")


class Callers(Section):
    """Callers by their numbers: who is let in, who is not, who has an agent of their own."""

    numbers: tuple[str, ...] = ()
    """Numbers or SIP users, such as "+49 30 1234" or "ann"; "+4930*" for all that begin so."""
    file: Path | None = None
    """File with more of them, one a line; what follows # is a comment."""
    _exact: frozenset[str] = PrivateAttr(frozenset())
    _patterns: tuple[str, ...] = PrivateAttr(())

    @model_validator(mode="after")
    def _read(self) -> "Callers":
        numbers = {plain(number) for number in (*self.numbers, *self._of_file())} - {""}
        patterns = sorted(number for number in numbers if "*" in number or "?" in number)
        if not numbers:
            raise ValueError("there is no number, neither in numbers nor in file")
        if len(numbers) > MAX_NUMBERS:
            raise ValueError(f"there are {len(numbers)} numbers, more than {MAX_NUMBERS}")
        if len(patterns) > MAX_PATTERNS:
            raise ValueError(f"{len(patterns)} numbers have * or ?, more than {MAX_PATTERNS}")
        self._exact, self._patterns = frozenset(numbers.difference(patterns)), tuple(patterns)
        return self

    def _of_file(self) -> Iterator[str]:
        if self.file is None:
            return
        try:
            lines = self.file.read_text("utf-8").splitlines()
        except OSError as error:
            raise ValueError(f"file: {self.file} cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ValueError(f"file: {self.file} is no text in UTF-8") from error
        yield from (line.partition("#")[0] for line in lines)

    def has(self, caller: str) -> bool:
        """Returns whether a caller is in the list; one without a number is in none."""
        number = plain(caller)
        if not number:
            return False
        return number in self._exact or any(fnmatchcase(number, one) for one in self._patterns)


def plain(number: str) -> str:
    """Returns a number as it is compared: without what people write between digits, and with + for
    an international prefix of 00.

    >>> plain("0049 (30) 12-34")
    '+49301234'
    """
    bare = number.strip().lower().translate(_SEPARATORS)
    return f"+{bare[2:]}" if bare.startswith("00") else bare
