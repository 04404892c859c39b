"""Cuts documents into passages, small enough for a prompt and large enough to answer a question."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from offhook.web.tools.knowledge.documents import Paragraph

PASSAGE_CHARS = 800
"""Maximum characters of a passage; a longer paragraph becomes several."""
OVERLAP_CHARS = 120
"""Characters at most that a passage repeats from the one before where a paragraph was cut."""
_SENTENCE_ENDS = (". ", "? ", "! ", ".\n", "?\n", "!\n", "。", "？", "！")
_JOINT = "\n\n"


@dataclass(frozen=True)
class CutPassage:
    """Some paragraphs of one section and page, or a part of a long one."""

    text: str
    headings: tuple[str, ...]
    line: int
    page: int
    repeated: int = 0
    """Characters at its beginning that the passage before has as well."""

    @property
    def place(self) -> str:
        return f"page {self.page}" if self.page else f"line {self.line}"


def passages_of(paragraphs: Iterable[Paragraph]) -> Iterator[CutPassage]:
    """Yields the passages of a document, each of PASSAGE_CHARS characters at most."""
    held: list[Paragraph] = []
    size = 0
    for one in paragraphs:
        long = len(one.text) > PASSAGE_CHARS
        if held and (
            long
            or (one.headings, one.page) != (held[0].headings, held[0].page)
            or size + len(_JOINT) + len(one.text) > PASSAGE_CHARS
        ):
            yield _joined(held)
            held, size = [], 0
        if long:
            yield from _cut(one)
            continue
        size += len(one.text) + (len(_JOINT) if held else 0)
        held.append(one)
    if held:
        yield _joined(held)


def _joined(held: list[Paragraph]) -> CutPassage:
    first = held[0]
    text = _JOINT.join(one.text for one in held)
    return CutPassage(text, first.headings, first.line, first.page)


def _cut(one: Paragraph) -> Iterator[CutPassage]:
    text, start, new = one.text, 0, 0
    while True:
        end = _end(text, start)
        line = one.line + text.count("\n", 0, start) if one.line else 0
        yield CutPassage(text[start:end], one.headings, line, one.page, new - start)
        if end == len(text):
            return
        new = end
        start = _word_start(text, end - OVERLAP_CHARS, end)


def _end(text: str, start: int) -> int:
    """Returns where a passage ends that begins at `start`: behind a sentence, else a word, in its
    second half."""
    most = start + PASSAGE_CHARS
    if most >= len(text):
        return len(text)
    least = start + PASSAGE_CHARS // 2
    ends = [at + len(end) for end in _SENTENCE_ENDS if (at := text.rfind(end, least, most)) >= 0]
    if ends:
        return max(ends)
    blank = max(text.rfind(" ", least, most), text.rfind("\n", least, most))
    return blank + 1 if blank >= 0 else most


def _word_start(text: str, least: int, most: int) -> int:
    """Returns the beginning of the first word behind `least`; `most` if there is none before."""
    blanks = [at for blank in " \n" if (at := text.find(blank, least, most)) >= 0]
    return min(blanks) + 1 if blanks else most
