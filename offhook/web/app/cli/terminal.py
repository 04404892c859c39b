"""Where the commands write: main.py alone prints."""

from typing import NamedTuple, Protocol


class Show(Protocol):
    def __call__(self, text: object, /, *, end: str = "\n") -> None: ...


class Terminal(NamedTuple):
    show: Show
    """Writes to standard output, at once."""
    warn: Show
    """Writes to standard error."""
