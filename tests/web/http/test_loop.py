"""How much room the loop's thread has, as admission asks, and what its collections stop it for."""

import asyncio
import gc
import itertools
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from time import process_time

import pytest

from offhook.web.http import loop_io
from offhook.web.http.loop_io import (
    BEGIN_S,
    FIRST_S,
    LOOK_S,
    WHOLE_COLLECTION_EVERY,
    LoopLoad,
    collect_between_packets,
    return_freed_memory,
)


class Machine:
    """A loop on which each call takes a share of the time, and its beginning some of it."""

    def __init__(self, each: float) -> None:
        self.each = each
        self.now = self.worked = 0.0
        self.calls = 0
        self.load = LoopLoad(lambda: self.now, lambda: self.worked)

    def second(self, begin: int, end: int = 0) -> None:
        for _ in range(begin):
            self.load.begin()
        before, self.calls = self.calls, self.calls + begin - end
        self.now += 1
        self.worked += begin * BEGIN_S + self.each * (before + self.calls) / 2
        self.load.measure(self.calls)


def test_a_quick_start_is_not_taken_for_a_heavy_load() -> None:
    machine = Machine(0.005)
    for _ in range(5):
        machine.second(begin=20)
        expected = 0.005 * (machine.calls + 1) + 20 * BEGIN_S
        assert machine.load.with_another(machine.calls) == pytest.approx(expected)


def test_calls_that_began_since_are_counted_and_those_that_ended_are_not() -> None:
    machine = Machine(0.005)
    machine.second(begin=100)
    machine.second(begin=0)
    assert machine.load.with_another(100) == pytest.approx(0.505)
    assert machine.load.with_another(140) == pytest.approx(0.705)
    assert machine.load.with_another(20) == pytest.approx(0.105)


def test_heavy_calls_are_known_to_be_heavy_after_a_second() -> None:
    machine = Machine(0.08)
    machine.second(begin=10)
    assert machine.load.with_another(10) > 0.7


def test_what_other_threads_and_processes_use_does_not_count() -> None:
    load = LoopLoad()
    until = process_time() + 0.05
    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: all(process_time() < until for _ in iter(int, 1))).result()
    load.measure(100)
    assert load.with_another(100) < 0.5


COLLECTING = """
import gc, sys
from collections import deque
from offhook.web.http.loop_io import YOUNG_OF_STREAMS, freeze_loaded_objects

full = []
gc.callbacks.append(lambda phase, of: phase == "stop" and of["generation"] == 2 and full.append(of))
freeze_loaded_objects(YOUNG_OF_STREAMS if sys.argv[1] == "streams" else None)
streams = [[[] for _ in range(10)] for _ in range(5_000)]
full.clear()
batches = deque(maxlen=2)
for number in range(500):
    batches.append([[number] for _ in range(1_500)])
print(len(full))
for _ in range(1_000_000):
    cycle = []
    cycle.append(cycle)
print(len(gc.get_objects()) - len(streams) * 11)
"""


def counts(of: str) -> tuple[int, int]:
    command = [sys.executable, "-c", COLLECTING, of]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    full, garbage = map(int, run.stdout.split())
    return full, garbage


def test_batches_bring_on_no_full_collection_over_many_streams() -> None:
    """It would stop the engine for as long as all their objects take to visit."""
    full, garbage = counts("streams")
    assert full == 0
    assert counts("calls")[0] > 1  # so they are what it would be for
    assert garbage < 120_000  # of a million: cycles do not pile up


async def test_packets_are_sent_ahead_of_a_full_collection() -> None:
    """And of none else."""
    gc.collect()
    before = gc.get_threshold()
    ahead: list[float] = []
    full: list[int] = []

    def note(phase: str, of: dict[str, int]) -> None:
        if phase == "start" and of["generation"] == 2:
            full.append(len(ahead))

    gc.callbacks.append(note)
    calls = asyncio.Event()

    async def call_in_progress() -> None:
        await calls.wait()

    collecting = asyncio.create_task(collect_between_packets(ahead.append, call_in_progress))
    try:
        for _ in range(WHOLE_COLLECTION_EVERY + 1):
            gc.collect(1)
        await asyncio.sleep(1.5 * LOOK_S)
        assert ahead == full == []  # there is no call that it could disturb
        calls.set()
        await asyncio.sleep(2.5 * LOOK_S)
    finally:
        collecting.cancel()
        await asyncio.gather(collecting, return_exceptions=True)
        gc.callbacks.remove(note)
        gc.set_threshold(*before)
    assert ahead == [FIRST_S]
    assert full == [1]


RETURNED = """
import asyncio

from offhook.media.memory_io import resident_bytes
from offhook.web.http import loop_io

loop_io.TRIM_S = 0.01


async def main():
    await asyncio.sleep(0)
    before = resident_bytes()
    for _ in range(5):
        bodies = [bytes(64_000) + bytes(str(n), "ascii") for n in range(2_000)]
        kept = bodies[::50]  # holes between what lives on
        del bodies
        await asyncio.sleep(0.05)
    for _ in range(500):
        if resident_bytes() < before + 20e6:
            return print("returned")
        await asyncio.sleep(0.01)
    print(f"{(resident_bytes() - before) / 1e6:.0f} MB kept")


loop_io.run(main())
"""


def test_memory_of_large_requests_goes_back_to_the_system() -> None:
    ran = subprocess.run((sys.executable, "-c", RETURNED), capture_output=True, text=True)
    assert ran.stdout == "returned\n", ran.stderr


async def test_memory_is_returned_only_when_there_is_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_io, "TRIM_S", 0)
    monkeypatch.setattr(loop_io, "TRIMS", 3)
    sizes = itertools.chain((100,), (109,) * 20, (111,) * 20)
    seen: list[int] = []

    def resident() -> int:
        seen.append(next(sizes))
        return seen[-1]

    trimmed: list[int] = []
    with pytest.raises(RuntimeError):
        await return_freed_memory(resident, lambda: trimmed.append(seen[-1]))
    assert trimmed == [111, 111, 111]
