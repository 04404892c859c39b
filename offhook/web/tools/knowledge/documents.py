"""The paragraphs of Markdown, plain text and HTML, each with the headings above it."""

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

MAX_HEADING_CHARS = 200
"""Characters of a heading; a longer one counts as a paragraph."""
_HEADING = re.compile(r" {0,3}(#{1,6})(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*")
_UNDERLINE = re.compile(r" {0,3}(?:=+|-+)[ \t]*")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_BROKEN_WORD = re.compile(r"(?<=[^\W\d_])-\n(?=[a-zß-ÿ])")
_SILENT = frozenset(("script", "style", "template", "noscript", "svg", "head"))
_BLOCKS = re.compile(
    "address|article|aside|blockquote|body|caption|center|dd|details|dialog|div|dl|dt|fieldset"
    "|figcaption|figure|footer|form|h[1-6]|header|hr|html|legend|li|main|menu|nav|ol|p|pre|section"
    "|summary|table|tbody|tfoot|thead|title|tr|ul"
)
"""Elements that begin and end a paragraph."""
_CELLS = frozenset(("td", "th"))


@dataclass(frozen=True)
class Paragraph:
    text: str
    headings: tuple[str, ...] = ()
    """The headings above it, the outermost first."""
    line: int = 0
    """Its first line, from 1; 0 in a PDF."""
    page: int = 0
    """Its page, from 1; 0 where there are none."""


@dataclass
class Outline:
    """Collects the paragraphs of a document and the headings above them. A heading with nothing
    beneath it becomes a paragraph."""

    paragraphs: list[Paragraph] = field(default_factory=list)
    _open: list[tuple[int, str]] = field(default_factory=list)
    """Level and words of the headings above the current line."""
    _bare_line: int = 0
    """Line of the last heading while nothing is beneath it; 0: something is."""

    def add_heading(self, level: int, text: str, line: int) -> None:
        if not text:
            return
        if len(text) > MAX_HEADING_CHARS:
            self.add(text, line)
            return
        if self._open and level <= self._open[-1][0]:
            self._end_bare()
        while self._open and level <= self._open[-1][0]:
            self._open.pop()
        self._open.append((level, text))
        self._bare_line = line

    def add(self, text: str, line: int) -> None:
        """Adds a paragraph."""
        if text.strip():
            self._bare_line = 0
            self.paragraphs.append(Paragraph(text, self._path(), line))

    def end(self) -> list[Paragraph]:
        """Returns all paragraphs of a document that has ended."""
        self._end_bare()
        return self.paragraphs

    def _path(self) -> tuple[str, ...]:
        return tuple(text for _, text in self._open)

    def _end_bare(self) -> None:
        if self._bare_line:
            *above, text = self._path()
            self.paragraphs.append(Paragraph(text, tuple(above), self._bare_line))
            self._bare_line = 0


def paragraphs_of_text(text: str) -> list[Paragraph]:
    """Returns the paragraphs of a plain text: what empty lines separate."""
    outline = Outline()
    lines = _Lines(outline)
    for number, line in enumerate(text.split("\n"), 1):
        lines.add(line, number)
    lines.end()
    return outline.end()


def paragraphs_of_markdown(text: str) -> list[Paragraph]:
    """Returns the paragraphs of a Markdown document, markup included."""
    outline = Outline()
    lines = _Lines(outline)
    closes = ""
    for number, line in enumerate(text.split("\n"), 1):
        fence = _FENCE.match(line)
        if number == 1 and line.rstrip() == "---":  # front matter
            closes = "---"
        elif closes:
            if line.strip() == closes or (fence is not None and fence[1].startswith(closes)):
                closes = ""
        elif fence is not None:
            closes = fence[1]
        elif (heading := _HEADING.fullmatch(line)) is not None:
            lines.end()
            outline.add_heading(len(heading[1]), (heading[2] or "").strip(), number)
            continue
        elif len(lines.held) == 1 and _UNDERLINE.fullmatch(line):
            level = 1 if line.strip().startswith("=") else 2
            outline.add_heading(level, lines.held.pop().strip(), number - 1)
            continue
        lines.add(line, number, verbatim=bool(closes))
    lines.end()
    return outline.end()


def paragraphs_of_page(text: str, page: int) -> list[Paragraph]:
    """Returns the paragraphs of a page of a PDF, in which words are broken at the ends of lines."""
    parts = re.split(r"\n[ \t]*(?:\n[ \t]*)+", text)
    joined = (" ".join(_BROKEN_WORD.sub("", part).split()) for part in parts)
    return [Paragraph(part, page=page) for part in joined if part]


def paragraphs_of_html(text: str) -> list[Paragraph]:
    """Returns the paragraphs of a page of HTML, without its markup."""
    page = _Page()
    page.feed(text)
    page.close()
    page.flush()
    return page.outline.end()


class _Lines:
    """The lines of a paragraph that has not ended."""

    def __init__(self, outline: Outline) -> None:
        self.held: list[str] = []
        self._outline, self._first = outline, 0

    def add(self, line: str, number: int, *, verbatim: bool = False) -> None:
        """Adds a line; an empty one ends the paragraph unless it is `verbatim`."""
        if not line.strip() and not verbatim:
            self.end()
            return
        if not self.held:
            self._first = number
        self.held.append(line.rstrip())

    def end(self) -> None:
        self._outline.add("\n".join(self.held), self._first)
        self.held.clear()


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.outline = Outline()
        self._held: list[str] = []
        self._first = 0
        self._level = 0
        """Level of the heading that is open; 0: none."""
        self._silent: list[str] = []
        """Elements that are open of which nothing is shown."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _SILENT:
            self._silent.append(tag)
        elif tag == "body":  # what precedes it may have lost its end
            self._silent.clear()
        elif tag == "br":
            self._held.append("\n")
        elif tag in _CELLS:
            self._held.append(" | " if self._held else "")
        elif _BLOCKS.fullmatch(tag):
            self.flush()
            if re.fullmatch("h[1-6]", tag):
                self._level = int(tag[1])

    def handle_endtag(self, tag: str) -> None:
        if tag in self._silent:
            del self._silent[self._silent.index(tag) :]
        elif _BLOCKS.fullmatch(tag):
            self.flush()

    def handle_data(self, data: str) -> None:
        if self._silent:
            return
        if data.strip() and not any(part.strip() for part in self._held):
            self._first = self.getpos()[0]
        self._held.append(re.sub(r"\s+", " ", data))

    def flush(self) -> None:
        """Ends the paragraph or heading that is open."""
        lines = (" ".join(line.split()) for line in "".join(self._held).split("\n"))
        text = "\n".join(filter(None, lines))
        self._held.clear()
        level, self._level = self._level, 0
        if level:
            self.outline.add_heading(level, text.replace("\n", " "), self._first)
        else:
            self.outline.add(text, self._first)
