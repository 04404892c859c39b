"""Passages of documents that a language model answers by."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Passage:
    source: str
    """File and line or page, as "prices.md, line 12"."""
    headings: str
    """The headings above it, as "Repairs > Prices"."""
    text: str

    @property
    def title(self) -> str:
        """Returns source and headings."""
        return f"{self.source} ({self.headings})" if self.headings else self.source


FindPassages = Callable[[str], Awaitable[Sequence[Passage]]]
"""Returns the best passages for what a caller says, the best first."""

_BEFORE = (
    "[Passages of our documents, found by what the caller says below. Answer by them where they "
    "fit; where they do not, do not mention them.]"
)
_CALLER = "[The caller says:]"


def last_words(messages: Sequence[Any]) -> str:
    """Returns what the caller has said last; "" if that is no text."""
    at = _last_of_caller(messages)
    content = messages[at]["content"] if at is not None else ""
    return content.strip() if isinstance(content, str) else ""


def with_passages(messages: Sequence[Any], passages: Sequence[Passage]) -> list[Any]:
    """Returns the messages of a request with passages before the caller's last words, in the same
    message: templates of some models want the caller and the model in turn."""
    at = _last_of_caller(messages)
    if at is None or not passages:
        return list(messages)
    found = "\n\n".join(f"[{one.title}]\n{one.text}" for one in passages)
    said = messages[at]["content"]
    asked = {**messages[at], "content": f"{_BEFORE}\n\n{found}\n\n{_CALLER}\n{said}"}
    return [*messages[:at], asked, *messages[at + 1 :]]


def _last_of_caller(messages: Sequence[Any]) -> int | None:
    places = (at for at in reversed(range(len(messages))) if messages[at].get("role") == "user")
    return next(places, None)


class PassagesForTurns:
    """Finds the passages for each of the caller's turns once, however often the model is asked."""

    def __init__(
        self, find: FindPassages, report: Callable[[str, Sequence[Passage]], None]
    ) -> None:
        """`report` is called with the words and the passages that a turn is answered by."""
        self._find, self._report = find, report
        self._turn = 0, ""
        """How often the caller has spoken, and the last words."""
        self._found: Sequence[Passage] = ()
        self._reported = True

    async def added(self, messages: Sequence[Any]) -> list[Any]:
        """Returns the messages of a request with the passages for the caller's last words."""
        words = last_words(messages)
        turn = sum(message.get("role") == "user" for message in messages), words
        if turn != self._turn:
            found = await self._find(words) if words else ()
            self._turn, self._found, self._reported = turn, found, not words
        return with_passages(messages, self._found)

    def used(self) -> None:
        """The model answers by what was added last, in a turn that is over."""
        if not self._reported:
            self._reported = True
            self._report(self._turn[1], self._found)
