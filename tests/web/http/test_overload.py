"""Calls are shed while packets of existing calls leave late, and for nothing else."""

import pytest

from offhook.media.lateness import WINDOW_S, RecentLateness
from offhook.web.http.overload import (
    IN_TIME,
    LATE_MS,
    TABLE,
    Lateness,
    Overload,
    OverloadState,
    classify,
)

WAKE_S = 0.01
RELIEF_S = 2.0


class Process:
    """A packet clock in virtual time, and what admission makes of it."""

    def __init__(self, calls: int) -> None:
        self.now, self.calls = 1000.0, calls
        self.lateness, self.overload = RecentLateness(), Overload()

    @property
    def sheds(self) -> bool:
        self.overload.update(self.calls, self.lateness.percentile_ms(self.now))
        return self.overload.state is OverloadState.SHEDDING

    def run(self, seconds: float, late_ms: float = 0.5, every: int = 1, late: float = 0) -> float:
        """Each `every`th wake-up is `late` ms late, the others `late_ms`. Returns for how long
        calls were shed in s."""
        shed = 0.0
        for number in range(round(seconds / WAKE_S)):
            self.now += WAKE_S
            lateness = late if late and number % every == every - 1 else late_ms
            self.lateness.wake(self.now, lateness / 1000)
            shed += WAKE_S * self.sheds
        return shed

    def stall(self, seconds: float) -> None:
        """Something holds the process up once."""
        self.now += seconds
        self.lateness.wake(self.now, seconds)


def test_other_work_on_the_machine_refuses_nobody_while_packets_are_in_time() -> None:
    process = Process(calls=3)
    assert process.run(60, late_ms=40) == 0
    assert process.run(60, late_ms=IN_TIME * LATE_MS + 2) == 0
    assert process.run(60, late_ms=3, every=200, late=120) == 0


def test_late_packets_of_existing_calls_shed_new_ones() -> None:
    process = Process(calls=3)
    assert not process.run(10)
    assert process.run(WINDOW_S, late_ms=100) > WINDOW_S * 0.9
    assert process.run(10, late_ms=100) == pytest.approx(10)


def test_a_tenth_of_the_packets_late_refuses_and_a_fiftieth_does_not() -> None:
    process = Process(calls=3)
    process.run(10)
    assert process.run(10, every=50, late=110) == 0
    process.run(2, every=10, late=110)
    assert process.sheds


@pytest.mark.parametrize("late_ms", [90, 400])
def test_calls_are_taken_within_two_seconds_of_relief(late_ms: float) -> None:
    process = Process(calls=3)
    process.run(30, late_ms=late_ms)
    assert process.sheds
    assert process.run(60) <= RELIEF_S


def test_a_single_stall_refuses_nobody() -> None:
    """Though for a moment most packets were late, those after it are not."""
    process = Process(calls=3)
    process.run(10)
    process.stall(0.3)
    assert process.run(10) == 0


def test_stalls_one_after_the_other_do_refuse() -> None:
    process = Process(calls=3)
    process.run(10)
    for _ in range(5):
        process.stall(0.3)
    assert process.sheds


def test_without_calls_nothing_is_shed_however_late_it_is() -> None:
    process = Process(calls=0)
    assert process.run(10, late_ms=500) == 0
    process.calls = 1
    assert process.sheds
    process.calls = 0
    assert not process.sheds


def test_a_clock_that_has_just_begun_says_nothing_yet() -> None:
    process = Process(calls=1)
    process.stall(0.2)
    assert process.run(WINDOW_S / 2, late_ms=100) == 0
    process.lateness.clear()
    assert process.run(WINDOW_S / 2, late_ms=100) == 0


def test_near_the_limit_calls_are_not_taken_and_shed_by_turns() -> None:
    process = Process(calls=3)
    process.run(10)
    changes, before = 0, process.sheds
    for number in range(40):
        process.run(0.5, late_ms=LATE_MS + (1 if number % 2 else -1))
        changes += process.sheds is not before
        before = process.sheds
    assert changes == 1


def test_every_state_and_lateness_has_a_row() -> None:
    assert TABLE.keys() == {(state, lateness) for state in OverloadState for lateness in Lateness}
    assert classify(0, 1000) is Lateness.NO_CALLS
    assert classify(1, LATE_MS + 1) is Lateness.LATE
    assert classify(1, LATE_MS) is Lateness.BETWEEN
    assert classify(1, IN_TIME * LATE_MS) is Lateness.IN_TIME
