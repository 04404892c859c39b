"""The event loop everything runs on."""

import asyncio
import gc
import os
from collections.abc import Callable, Coroutine
from time import monotonic, process_time, thread_time
from typing import Any

WHOLE_COLLECTION_EVERY = 3
"""Collections of the middle generation; Python's default is 10."""
BEGIN_S = 0.004
"""Of work for a call's coming and going, about; a phone's takes 3 ms."""

LEAST_CALLS = 4
"""With fewer calls most of the load is the loop's own, and says little of what a call takes."""


def work_done() -> tuple[float, float]:
    """Seconds that the loop's thread has worked, and those of all threads of the process over the
    cores it may use: either can leave no time. To be called by the loop's thread."""
    return thread_time(), process_time() / _cores()


def _cores() -> int:
    """That this process may use; only Linux tells when they are not all."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class LoopLoad:
    """How much of their time the loop's thread and the cores are at work: what comes before
    packets are late."""

    def __init__(
        self,
        now: Callable[[], float] = monotonic,
        worked: Callable[[], tuple[float, float]] = work_done,
    ) -> None:
        self._now, self._work = now, worked
        self._at, self._worked = now(), worked()
        self._calls = 0
        self._begun = 0
        """Calls, since the last measurement."""
        self._beginning = 0.0
        """The share, 0..1, that goes into calls coming and going."""
        self._each = 0.0
        """The share that each call takes which is there."""

    def begin(self) -> None:
        """A call begins."""
        self._begun += 1

    def measure(self, calls: int) -> None:
        """To be called every second or so, with the number of calls that there are."""
        now, worked = self._now(), self._work()
        seconds = now - self._at
        share = max(b - a for a, b in zip(self._worked, worked, strict=True)) / seconds
        self._beginning = min(share, self._begun * BEGIN_S / seconds)
        self._each = (share - self._beginning) / max(LEAST_CALLS, (self._calls + calls) / 2)
        self._at, self._worked, self._calls, self._begun = now, worked, calls, 0

    def with_another(self, calls: int) -> float:
        """The share that one call more will make of it. Those that began since the last
        measurement are taken to cost what the others do."""
        return self._beginning + self._each * (calls + 1)


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """asyncio.run, on uvloop where there is one: steadier packet times under load."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


def spare_what_is_loaded() -> None:
    """Take all that is alive now out of Python's cyclic collections: call it once everything is
    loaded. They stop the loop: for 80 ms with the 150 000 objects of libraries to look through.
    Without them whole collections are cheap; made more often, each finds fewer calls that ended."""
    gc.collect()
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, WHOLE_COLLECTION_EVERY)
