"""Reads documents and cuts them into passages, in a process of its own: `python -m` this module.

Documents may be broken or hostile, such as a PDF that unpacks without end. On standard input there
is the path of a file a line, as JSON; for each this process answers with a line of JSON:
`{"passages": [[text, headings, place], …], "note": "…", "skipped": "why"}`. It limits itself; who
started it sees when it has ended, and starts another one for the files that are left.
"""

import importlib.util
import json
import resource
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from offhook.processes.child_limits_io import allow_processor_time, limit_ourselves
from offhook.web.tools.knowledge.documents import (
    Paragraph,
    paragraphs_of_html,
    paragraphs_of_markdown,
    paragraphs_of_page,
    paragraphs_of_text,
)
from offhook.web.tools.knowledge.passages import passages_of

MAX_TEXT_BYTES = 5_000_000
"""Maximum size of a Markdown, text or HTML file; a larger one is skipped."""
MAX_PDF_BYTES = 100_000_000
"""Maximum size of a PDF; a larger one is skipped."""
MAX_PAGES = 2000
"""Pages of a PDF that are read at most; the rest is left out, with a warning."""
MAX_PDF_CHARS = 10_000_000
"""Characters of a PDF that are read at most; the rest is left out, with a warning."""
MEMORY_BYTES = 512 << 20
"""Memory that reading may take at most; a file that needs more is skipped."""
COMPUTING_S = 120.0
"""Time limit in s of a processor for one file, after which it is skipped."""
ERROR_CHARS = 300
"""Characters of an error that are shown."""
NEEDS_PYPDF = "a PDF needs the pypdf package: run .venv/bin/pip install pypdf"
KINDS: dict[str, Callable[[str], list[Paragraph]]] = {
    ".md": paragraphs_of_markdown,
    ".markdown": paragraphs_of_markdown,
    ".txt": paragraphs_of_text,
    ".text": paragraphs_of_text,
    ".html": paragraphs_of_html,
    ".htm": paragraphs_of_html,
}
"""What reads a text, by the ending of its file's name."""
PDF = ".pdf"


class Unreadable(Exception):
    """Raised for a file of which nothing can be read; says why, and what helps."""


def reads_pdf() -> bool:
    """Returns whether the package that reads PDFs is there."""
    return importlib.util.find_spec("pypdf") is not None


@dataclass
class _Pdf:
    """The pages of a PDF, and what was left out of it."""

    path: Path
    left_out: list[str] = field(default_factory=list)

    def paragraphs(self) -> Iterator[Paragraph]:
        """Raises Unreadable, and whatever pypdf raises."""
        if not reads_pdf():
            raise Unreadable(NEEDS_PYPDF)
        import pypdf

        reader = pypdf.PdfReader(self.path)
        if reader.is_encrypted and not reader.decrypt(""):
            raise Unreadable("is encrypted: save it without a password")
        empty, broken, characters, fault = [], [], 0, ""
        for number, page in enumerate(reader.pages, 1):
            if number > MAX_PAGES or characters > MAX_PDF_CHARS:
                self.left_out.append(f"pages from {number} on are left out: it is too long")
                break
            try:
                text = page.extract_text()
            except MemoryError:
                raise
            except Exception as error:  # of whatever kind: pypdf raises many
                broken.append(number)
                fault = f"{type(error).__name__}: {error}"[:ERROR_CHARS]
                continue
            characters += len(text)
            if not text.strip():
                empty.append(number)
            yield from paragraphs_of_page(text, number)
        if not characters and broken:
            raise Unreadable(f"no page can be read: {fault}")
        if not characters:
            raise Unreadable("has no text: scanned pages need text recognition first (ocrmypdf)")
        if empty:
            self.left_out.append(f"no text on {_listed(empty)}")
        if broken:
            self.left_out.append(f"{_listed(broken)} cannot be read")


def read(path: Path) -> tuple[list[Any], str]:
    """Returns the passages of a file, each its text, headings and place, and what was left out of
    it, if anything. Raises Unreadable."""
    kind = path.suffix.lower()
    pdf = _Pdf(path)
    try:
        size = path.stat().st_size
        if size > (most := MAX_PDF_BYTES if kind == PDF else MAX_TEXT_BYTES):
            raise Unreadable(f"has over {most // 1_000_000} MB")
        paragraphs = pdf.paragraphs() if kind == PDF else KINDS[kind](_text_of(path))
        passages = [
            [one.text.strip(), " > ".join(one.headings), one.place]
            for one in passages_of(paragraphs)
            if one.text.strip()
        ]
    except Unreadable:
        raise
    except MemoryError as error:
        raise Unreadable(f"takes more than {MEMORY_BYTES >> 20} MB of memory") from error
    except OSError as error:
        raise Unreadable(f"cannot be read: {error.strerror or error}") from error
    except Exception as error:  # of whatever kind: pypdf raises many
        raise Unreadable(
            f"cannot be read: {type(error).__name__}: {error}"[:ERROR_CHARS]
        ) from error
    if not passages:
        raise Unreadable("is empty")
    return passages, "; ".join(pdf.left_out)


def _text_of(path: Path) -> str:
    """Raises Unreadable and OSError."""
    data = path.read_bytes()
    utf_16 = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    try:
        text = data.decode("utf-16" if utf_16 else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise Unreadable("is not UTF-8: save it as UTF-8") from error
    if "\0" in text:
        raise Unreadable("is no text")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _listed(pages: list[int]) -> str:
    """Returns numbers of pages as words, the first of many."""
    if len(pages) == 1:
        return f"page {pages[0]}"
    shown = ", ".join(map(str, pages[:5]))
    return f"pages {shown}{' and others' if len(pages) > 5 else ''}"


def main() -> None:
    if reads_pdf():
        import pypdf  # noqa: F401  # not while a file's time is counted
    limit_ourselves(MEMORY_BYTES)
    for line in sys.stdin:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        allow_processor_time(usage.ru_utime + usage.ru_stime + COMPUTING_S)
        try:
            passages, note = read(Path(json.loads(line)))
            answer = {"passages": passages, "note": note, "skipped": ""}
        except Unreadable as error:
            answer = {"passages": [], "note": "", "skipped": str(error)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
