"""The event loop: setup, load measurement and garbage collection."""

import asyncio
import gc
import resource
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from time import monotonic, thread_time
from typing import Any

from offhook.media.memory_io import resident_bytes, trim_heap

WHOLE_COLLECTION_EVERY = 3
"""Middle-generation collections per full collection; Python's default is 10."""
AT_LATEST = 12
"""The same where `collect_between_packets` makes the full collections, usually earlier."""
LOOK_S = 0.5
"""Interval in s at which `collect_between_packets` looks whether a full collection is due."""
FIRST_S, MOST_S, MARGIN = 0.04, 0.16, 1.25
"""Expected duration of a full collection in s: of the first, of any at most, and of the others in
proportion to the one before."""
YOUNG_OF_STREAMS = 10_000
"""Growth in objects after which a process with the streams of an engine collects its youngest ones.
At Python's 700 the objects of a batch outlive several collections, so they count as old and bring
on full ones: over the objects of 1,500 streams these stop a recognizer for 100 ms every 2 s."""
TRIM_S = 2.0
"""Interval in s at which `return_freed_memory` looks how much memory a process has."""
GROWN = 1.1
"""Resident memory, as a multiple of what it was at least, from which freed memory is returned."""
TRIMS = 30
"""How often it is returned then, every TRIM_S: what made a process grow may still be in use."""
BEGIN_S = 0.004
"""Estimated work in s for starting and ending a call; a phone call takes 3 ms."""

MAX_DESCRIPTORS = 1 << 20
"""Open files that a process may have at most, whatever the system allows: the kernel's default."""
LEAST_CALLS = 4
"""With fewer calls most of the load is the loop's own and says little about the cost of a call."""


class LoopLoad:
    """Measures how much of the time of one core the loop's thread uses. What other threads and
    processes use does not count: if they hold the packets up, lateness shows it."""

    def __init__(
        self,
        now: Callable[[], float] = monotonic,
        worked: Callable[[], float] = thread_time,
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

    def restart(self) -> None:
        """Begins a measurement after a pause without calls."""
        self._at, self._worked, self._calls = self._now(), self._work(), 0

    def measure(self, calls: int) -> None:
        """Updates the measurement; call it about every second with the number of calls."""
        now, worked = self._now(), self._work()
        seconds = now - self._at
        share = (worked - self._worked) / seconds
        self._beginning = min(share, self._begun * BEGIN_S / seconds)
        self._each = (share - self._beginning) / max(LEAST_CALLS, (self._calls + calls) / 2)
        self._at, self._worked, self._calls, self._begun = now, worked, calls, 0

    def with_another(self, calls: int) -> float:
        """Returns the utilization expected with one more call, assuming that calls started since
        the last measurement cost as much as the others."""
        return self._beginning + self._each * (calls + 1)


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """asyncio.run on uvloop if available, for steadier packet times under load, and with
    `return_freed_memory`."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(_with_little_memory(main))
    return uvloop.run(_with_little_memory(main))


async def _with_little_memory(main: Coroutine[Any, Any, Any]) -> Any:
    returning = asyncio.create_task(return_freed_memory(), name="return freed memory")
    try:
        return await main
    finally:
        returning.cancel()
        await asyncio.gather(returning, return_exceptions=True)


async def return_freed_memory(
    resident: Callable[[], int] = resident_bytes, trim: Callable[[], None] = trim_heap
) -> None:
    """Returns freed memory to the system when a process has grown, until cancelled: glibc keeps
    what large requests have used, 250 MB after some of 2 MB. It stops the loop for 0.5 to 5 ms."""
    least, trims = resident(), 0
    while True:
        await asyncio.sleep(TRIM_S)
        if not trims and resident() > least * GROWN:
            trims = TRIMS
        if trims:
            trim()
            trims -= 1
            if not trims:
                least = resident()
        least = min(least, resident())


def freeze_loaded_objects(young: int | None = None) -> None:
    """Excludes all objects alive now from cyclic garbage collection; call it once everything is
    loaded. Full collections over 150 000 library objects stop the loop for 80 ms; without them they
    are cheap and, made more often, find fewer ended calls each. `young`: growth in objects after
    which the youngest are collected, Python's by default."""
    gc.collect()
    gc.freeze()
    default, middle, _ = gc.get_threshold()
    gc.set_threshold(young or default, middle, WHOLE_COLLECTION_EVERY)


async def collect_between_packets(
    send_ahead: Callable[[float], None], call_in_progress: Callable[[], Awaitable[None]]
) -> None:
    """Makes full garbage collections while there are calls, until cancelled. One stops the loop for
    some 4 ms a call, so `send_ahead` is told before it for how long, in s, and sends the packets of
    that time. `call_in_progress` waits for a call if there is none."""
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, AT_LATEST)
    lasts_s = FIRST_S
    while True:
        await call_in_progress()
        await asyncio.sleep(LOOK_S)
        if gc.get_count()[2] > WHOLE_COLLECTION_EVERY:
            send_ahead(lasts_s)
            began = monotonic()
            gc.collect()
            lasts_s = min(MOST_S, MARGIN * (monotonic() - began))


def raise_descriptor_limit() -> None:
    """Lets this process and its children open as many files as the system allows, but no more than
    MAX_DESCRIPTORS. A shell's usual 1,024 are meant for programs that use select(2)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return
    with suppress(ValueError, OSError):  # macOS has a lower limit that it does not tell
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
