"""The event loop: setup, load measurement and garbage collection."""

import asyncio
import gc
import os
from collections.abc import Callable, Coroutine
from time import monotonic, process_time, thread_time
from typing import Any

WHOLE_COLLECTION_EVERY = 3
"""Middle-generation collections per full collection; Python's default is 10."""
BEGIN_S = 0.004
"""Estimated work in s for starting and ending a call; a phone call takes 3 ms."""

LEAST_CALLS = 4
"""With fewer calls most of the load is the loop's own and says little about the cost of a call."""


def work_done() -> tuple[float, float]:
    """Returns the CPU time in s of the calling loop's thread, and of all threads divided by the
    available cores; either can be the bottleneck."""
    return thread_time(), process_time() / _cores()


def _cores() -> int:
    """Returns the cores available to this process; only Linux limits them."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class LoopLoad:
    """Measures the utilization of the loop's thread and of the cores, the earliest sign of late
    packets."""

    def __init__(
        self,
        now: Callable[[], float] = monotonic,
        worked: Callable[[], tuple[float, float]] = work_done,
    ) -> None:
        self._now, self._work = now, worked
        self._at, self._worked = now(), worked()
        self._calls = 0
        self._begun = 0
        """Calls started since the last measurement."""
        self._beginning = 0.0
        """Share, 0..1, used by starting and ending calls."""
        self._each = 0.0
        """Share used by each call in progress."""

    def begin(self) -> None:
        """Records that a call starts."""
        self._begun += 1

    def measure(self, calls: int) -> None:
        """Updates the measurement; call it about every second with the number of calls."""
        now, worked = self._now(), self._work()
        seconds = now - self._at
        share = max(b - a for a, b in zip(self._worked, worked, strict=True)) / seconds
        self._beginning = min(share, self._begun * BEGIN_S / seconds)
        self._each = (share - self._beginning) / max(LEAST_CALLS, (self._calls + calls) / 2)
        self._at, self._worked, self._calls, self._begun = now, worked, calls, 0

    def with_another(self, calls: int) -> float:
        """Returns the utilization expected with one more call, assuming that calls started since
        the last measurement cost as much as the others."""
        return self._beginning + self._each * (calls + 1)


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """asyncio.run on uvloop if available, for steadier packet times under load."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


def freeze_loaded_objects() -> None:
    """Excludes all objects alive now from cyclic garbage collection; call it once everything is
    loaded. Full collections over 150 000 library objects stop the loop for 80 ms; without them they
    are cheap and, made more often, find fewer ended calls each."""
    gc.collect()
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, WHOLE_COLLECTION_EVERY)
