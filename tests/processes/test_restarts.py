"""When a process that has ended is started again."""

import math

import pytest

from offhook.processes.restarts import SPREAD_S, TABLE, Backoff, Restarts


def pauses(restarts: Restarts, *ends: float) -> list[float]:
    """The pauses after ends at these times, without what chance adds."""
    return [math.floor(restarts.next_s(end) / SPREAD_S) * SPREAD_S for end in ends]


def test_pauses_double_with_each_crash_and_stay_at_the_maximum() -> None:
    assert pauses(Restarts(1, 60, max_s=5), 0, 10, 20, 30, 40) == pytest.approx([1, 2, 4, 5, 5])


def test_a_process_that_has_run_for_long_begins_with_the_first_pause() -> None:
    restarts = Restarts(1, 60)
    assert pauses(restarts, 0, 60, 122, 190) == pytest.approx([1, 2, 4, 1])


def test_a_crash_counts_from_the_restart_that_follows_it() -> None:
    assert pauses(Restarts(30, 60, max_s=30), 0, 89) == pytest.approx([30, 30])
    assert pauses(Restarts(1, 60), 0, 60.9, 200) == pytest.approx([1, 2, 1])


def test_too_many_crashes_are_the_end_and_then_it_begins_anew() -> None:
    restarts = Restarts(0.1, 300, 3)
    assert [restarts.next_s(now) < math.inf for now in (0, 1, 2, 3)] == [True, True, False, True]
    assert Restarts(0.1, 300, 3).next_s(0) < 0.1 + SPREAD_S


def test_crashes_that_are_far_apart_are_never_too_many() -> None:
    restarts = Restarts(0.1, 300, 3)
    assert all(restarts.next_s(now) < math.inf for now in range(0, 3000, 200))


@pytest.mark.parametrize("crashes", [0, 1])
def test_a_fault_is_the_end_at_once(crashes: int) -> None:
    restarts = Restarts(1, 60, 4)
    for now in range(crashes):
        assert restarts.next_s(now) < math.inf
    assert restarts.next_s(2, fault=True) == math.inf
    assert pauses(restarts, 3) == pytest.approx([1])


def test_the_table_has_a_row_for_all_that_can_happen() -> None:
    conditions = {condition for condition, _ in TABLE} | {after for _, after in TABLE.values()}
    impossible = {("steady", "one too many")}
    endings = {ending for _, ending in TABLE}
    assert TABLE.keys() == {(c, e) for c in conditions for e in endings} - impossible


def test_processes_that_end_together_do_not_start_together() -> None:
    assert len({Restarts(1, 60).next_s(0) for _ in range(20)}) == 20
    assert Backoff(1, 60).next_s() == 1
