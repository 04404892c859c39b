"""Ten thousand calls are spread evenly over workers, before and after a third of these are lost."""

from dataclasses import replace

import pytest

from benchmarks.scale.balance import LOSS, USUAL, chance_of_most, line, row
from benchmarks.scale.simulation import Simulation

GOAL = 1.15
"""Streams of the most loaded worker ÷ their mean."""
LOST = 7
"""Of 20 workers."""


@pytest.mark.slow
def test_ten_thousand_calls_are_even_and_stay_so_when_a_third_of_the_workers_is_killed() -> None:
    result = Simulation(replace(LOSS, kill=LOST, event_s=26.0, seconds=36.0)).run()
    assert max(result.ratios("held", 20, 26)) < GOAL
    assert max(result.ratios("held", 27)) < GOAL
    lost = LOST * LOSS.calls / LOSS.workers
    moves = sum(times * calls for times, calls in result.moves.items())
    assert moves < 1.05 * lost  # and none goes on from its new worker
    assert max(result.outages_s) < 0.3
    assert result.waited == result.calls_refused == 0


def test_workers_that_vanish_are_left_within_a_second_at_a_bounded_rate() -> None:
    few = replace(LOSS, calls=1000, edges=40, event_s=26.0, seconds=36.0)
    result = Simulation(replace(few, vanish=LOST)).run()
    assert 0.5 < sorted(result.outages_s)[len(result.outages_s) // 2] < 1.0
    assert max(result.outages_s) < 1.5
    assert max(result.moves) <= 2


@pytest.mark.slow
def test_free_shares_of_those_who_speak_alone_are_refused_more_often_after_a_loss() -> None:
    """It is why idle streams count, and why a worker says its share to streams too."""
    few = replace(LOSS, calls=4000, edges=160, kill=LOST, event_s=26.0, seconds=28.0)
    old = replace(few, polls_only=True, in_use_only=True)
    even, uneven = (Simulation(s).run() for s in (few, old))
    assert max(even.ratios("held", 20)) < max(uneven.ratios("held", 20)) < GOAL
    assert 3 * even.refusals < uneven.refusals


def test_a_row_is_one_of_a_table() -> None:
    result = Simulation(replace(USUAL, name="few", calls=100, edges=4, seconds=30.0)).run()
    assert line(row(result)).startswith("| few | 100, 4, 20 | ")


def test_the_same_seed_is_the_same_simulation() -> None:
    few = replace(LOSS, calls=200, edges=8, kill=5, event_s=25.0, seconds=30.0)
    first, second = (row(Simulation(few).run()) for _ in range(2))
    assert first == second != row(Simulation(replace(few, seed=2)).run())


@pytest.mark.parametrize(
    ("streams", "workers", "most"), [(500, 20, 1.10), (50, 200, 1.48), (5, 1, 1.0)]
)
def test_chance_alone_makes_some_speak_at_once(streams: int, workers: int, most: float) -> None:
    assert chance_of_most(streams, workers) == pytest.approx(most, abs=0.02)
