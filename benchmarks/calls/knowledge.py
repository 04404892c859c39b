"""Documents of an agent: how long they take to be read and to be searched, and what the event loop
notices, by a clock that should wake up every 20 ms as that of packets does.

The pages are of made-up words, as frequent as words are (Zipf), 2500 characters each.
"""

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from time import perf_counter, process_time

from benchmarks.calls.pdf_writer import pdf
from offhook.media.memory_io import resident_bytes
from offhook.web.config.knowledge import Knowledge
from offhook.web.http.logs import Log
from offhook.web.http.logs_io import set_up
from offhook.web.tools.knowledge.knowledge_io import TOOL_PASSAGES, KnowledgeBase

PAGE_CHARS = 2500
LINE_CHARS = 90
WORDS = 30_000
"""Words of the language."""
QUERY_WORDS = 8
PAGES_OF_A_FILE = 50
TICK_S = 0.02
IDLE_S = 5.0
"""Time in s in which the clock runs alone: what else the machine does."""


class Language:
    """Makes text of words that are as frequent as words are."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        syllables = [c + v for c in "bdfgklmnprstvz" for v in ("a", "e", "i", "o", "u", "au")]
        self._words = [
            "".join(self._random.choices(syllables, k=self._random.randint(1, 4)))
            for _ in range(WORDS)
        ]
        self._weights = list(accumulate(1 / rank for rank in range(1, WORDS + 1)))

    def words(self, count: int) -> str:
        return " ".join(self._random.choices(self._words, cum_weights=self._weights, k=count))

    def page(self) -> list[str]:
        """Returns the lines of a page, with an empty one behind each paragraph."""
        lines: list[str] = []
        while sum(map(len, lines)) < PAGE_CHARS:
            lines.append(self.words(14)[:LINE_CHARS])
            if self._random.random() < 0.15:
                lines.append("")
        return lines


def write(folder: Path, pages: int, kind: str, language: Language) -> None:
    """Writes so many pages, PAGES_OF_A_FILE a file."""
    for first in range(0, pages, PAGES_OF_A_FILE):
        made = [language.page() for _ in range(min(PAGES_OF_A_FILE, pages - first))]
        file = folder / f"{first:05}.{kind}"
        if kind == "pdf":
            file.write_bytes(pdf(["\n".join(lines) for lines in made]))
        else:
            parts = (f"# {language.words(4)}\n\n" + "\n".join(lines) for lines in made)
            file.write_text("\n\n".join(parts))


class Ticks:
    """Wakes up every 20 ms, and keeps how late."""

    def __init__(self) -> None:
        self.late_ms: list[float] = []

    async def run(self) -> None:
        due = perf_counter()
        while True:
            due = max(due + TICK_S, perf_counter())
            await asyncio.sleep(due - perf_counter())
            self.late_ms.append((perf_counter() - due) * 1000)

    def show(self, what: str) -> None:
        late, self.late_ms = self.late_ms, []
        p99 = statistics.quantiles(late, n=100)[98]
        print(f"  ticks while {what}: late p99 {p99:.1f}, max {max(late):.1f} ms")


async def measure(pages: int, searches: int, kind: str) -> None:
    language, ticks = Language(1), Ticks()
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), pages, kind, language)
        ticking = asyncio.create_task(ticks.run())
        await asyncio.sleep(IDLE_S)
        ticks.show("nothing else is done")
        base = KnowledgeBase((folder,), Knowledge())
        before, began, used = resident_bytes(), perf_counter(), process_time()
        await base.refresh()
        took, used = perf_counter() - began, process_time() - used
        grown = (resident_bytes() - before) / 1e6
        documents = base.documents
        print(f"{pages} pages of {kind}: {documents.files} files, {documents.passages} passages")
        print(f"  read and indexed in {took:.1f} s, {used:.1f} s of a core here; {grown:.0f} MB")
        ticks.show("reading")
        times, used = [], process_time()
        for _ in range(searches):
            query = language.words(QUERY_WORDS)
            began = perf_counter()
            await base.find(query, TOOL_PASSAGES)
            times.append((perf_counter() - began) * 1000)
        parts, each = statistics.quantiles(times, n=20), (process_time() - used) * 1000 / searches
        print(f"  {searches} searches: p50 {parts[9]:.1f}, p95 {parts[18]:.1f} ms")
        print(f"  each {each:.1f} ms of a core")
        ticks.show("searching")
        ticking.cancel()
        await base.close()


def main(options: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="offhook bench knowledge", description=__doc__)
    parser.add_argument("--pages", type=int, default=1000)
    parser.add_argument("--searches", type=int, default=500)
    parser.add_argument("--kind", choices=("md", "pdf"), default="md")
    arguments = parser.parse_args(options)
    set_up(Log(level="WARNING"))
    asyncio.run(measure(arguments.pages, arguments.searches, arguments.kind))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
