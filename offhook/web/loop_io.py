"""The event loop everything runs on."""

import asyncio
import gc
from collections.abc import Coroutine
from time import monotonic, thread_time
from typing import Any

WHOLE_COLLECTION_EVERY = 3
"""Collections of the middle generation; Python's default is 10."""
LOAD_SECONDS = 1.0
"""How long the load of the loop is measured, at least."""


class LoopLoad:
    """How much of its time the loop's thread is at work: what comes before packets are late."""

    def __init__(self) -> None:
        self._share = 0.0
        self._at, self._worked = monotonic(), thread_time()
        self._asked = 0

    def with_another(self, calls: int) -> float:
        """The share, 0..1, that one call more will make of it. Those that were asked about since
        the last measurement are not in it yet, and are taken to come."""
        now, worked = monotonic(), thread_time()
        if now - self._at >= LOAD_SECONDS:
            self._share = (worked - self._worked) / (now - self._at)
            self._at, self._worked = now, worked
            self._asked = 0
        self._asked += 1
        return self._share * (1 + self._asked / max(calls, 1))


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
