"""What a run of damaged messages came to, and what it is measured by."""

import ctypes
import gc
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MAX_MESSAGE_MS = 10.0
"""Of processor time, for one message: longer is a hang."""
MAX_GROWTH_KB = 1024.0
"""Of the resident size after the first tenth, which fills the caches of the interpreter, of a part
that keeps nothing from one message to the next."""
KEPT = 20
"""Exceptions that are told, one of each place."""
SHOWN = 2000
"""Characters of a message that are shown."""


@dataclass
class Result:
    part: str
    messages: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    """What became of them."""
    per_second: float = 0.0
    """By the processor time spent on them, without that of whoever sends them."""
    slowest_ms: float = 0.0
    slowest: str = ""
    """The message of that time."""
    exceptions: list[str] = field(default_factory=list)
    """The first of each place that raised one, with the message."""
    left: dict[str, int] = field(default_factory=dict)
    """What was still there when all was over, and what had grown beyond its bound before."""
    growth_kb: float = 0.0
    most_growth_kb: float = MAX_GROWTH_KB
    most_ms: float = MAX_MESSAGE_MS
    spent: float = field(default=0.0, repr=False)
    """s."""

    @property
    def passed(self) -> bool:
        slow = self.slowest_ms > self.most_ms
        return not (self.exceptions or self.left or slow or self.growth_kb > self.most_growth_kb)

    def raised(self, error: Exception, from_: object) -> None:
        """What nobody was to see."""
        stack = traceback.extract_tb(error.__traceback__)
        where = f"{Path(stack[-1].filename).name}:{stack[-1].lineno}:" if stack else "here:"
        place = f"{where} {error!r}"[:SHOWN]
        known = any(text.startswith(where if stack else place) for text in self.exceptions)
        if len(self.exceptions) < KEPT and not known:
            self.exceptions.append(f"{place} from {repr(from_)[:SHOWN]}")

    def finish(self, grown_from_kb: float) -> None:
        """All is through; the resident size was that after the first tenth."""
        self.per_second = round(self.messages / max(self.spent, 1e-9))
        self.growth_kb = resident_kb() - grown_from_kb

    def report(self) -> dict[str, Any]:
        """For --json."""
        return vars(self) | {"counts": dict(self.counts), "passed": self.passed}

    def lines(self) -> list[str]:
        """For people."""
        counts = ", ".join(f"{n} {what}" for what, n in self.counts.most_common())
        told = [
            f"{self.part}: {self.messages} messages: {counts}",
            f"{self.per_second:.0f} a second, slowest {self.slowest_ms} ms, grown by "
            f"{self.growth_kb:.0f} KB, exceptions: {len(self.exceptions)}, "
            f"left: {self.left or 'nothing'}",
            *self.exceptions,
        ]
        if self.slowest_ms > self.most_ms:
            told.append(f"slowest: {self.slowest[:SHOWN]}")
        return [*told, "passed" if self.passed else "FAILED"]


COLLECT_MESSAGES = 200
"""From one collection of what is young to the next; of everything, 25 times as many."""


@contextmanager
def collecting() -> Iterator[Callable[[int], None]]:
    """The garbage collector runs only when the function yielded is called with the number of a
    message: its time is not the message's."""
    gc.collect()
    gc.freeze()
    gc.disable()

    def collect(number: int) -> None:
        if number % (25 * COLLECT_MESSAGES) == 0:
            gc.collect()
        elif number % COLLECT_MESSAGES == 0:
            gc.collect(1)

    try:
        yield collect
    finally:
        gc.enable()
        gc.unfreeze()


def resident_kb() -> float:
    """Of this process, what is free given back to the system before."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * 4.0
