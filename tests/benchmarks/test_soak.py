"""The soak tells a leak from the noise of a healthy server."""

from dataclasses import replace

import pytest

from benchmarks.calls.soak import Left, Rest
from benchmarks.processes.memory import HeapUsage, held

HEALTHY = HeapUsage(malloc_bytes=90 << 20, small_blocks=570_000, objects=160_000, rss_mb=250.0)
CALLS, TURNS = 130, 1400
"""What 20 callers do in two thirds of ten minutes."""


def left(grown: dict[str, float] | None = None, calls: int = CALLS, turns: int = TURNS) -> Left:
    grown = grown or {}
    last = replace(HEALTHY, **{n: getattr(HEALTHY, n) + more for n, more in grown.items()})
    return Left.between(Rest(HEALTHY, 60, 650), Rest(last, 60 + calls, 650 + turns))


def test_noise_is_no_leak() -> None:
    assert not left().leaks
    assert not left(
        {"malloc_bytes": 50_000, "small_blocks": 600, "objects": 50, "rss_mb": 2.0}
    ).leaks
    assert not left({"malloc_bytes": -3_000_000}).leaks
    assert left().conclusive


@pytest.mark.parametrize(
    "grown",
    [
        {"malloc_bytes": 20_000 * CALLS},
        {"malloc_bytes": 1000 * TURNS},
        {"small_blocks": 16 * TURNS},
        {"rss_mb": 20.0},
    ],
    ids=["20 KB a call", "1 KB a turn", "1 KB a turn of small objects", "not by malloc"],
)
def test_a_leak_is_told(grown: dict[str, float]) -> None:
    assert left(grown).leaks


def test_few_calls_or_turns_prove_nothing() -> None:
    assert not left(calls=10).conclusive
    assert not left(turns=100).conclusive


@pytest.mark.slow
def test_garbage_is_not_held() -> None:
    kept: list[object] = []

    def call(keep: bool) -> None:
        ring: list[object] = [bytearray(20_000)]
        ring.append(ring)
        if keep:
            kept.append(ring)

    def grown_by_calls(keep: bool) -> Left:
        first = held()
        for _ in range(CALLS):
            call(keep)
        return Left.between(Rest(first, 0, 0), Rest(held(), CALLS, TURNS))

    assert not grown_by_calls(keep=False).leaks
    assert grown_by_calls(keep=True).leaks
