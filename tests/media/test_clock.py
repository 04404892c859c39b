"""Twenty milliseconds are twenty milliseconds for every leg, however late the loop runs."""

import asyncio
import logging
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.media.clock_io import (
    CATCH_UP_TICKS,
    DRAIN_DATAGRAMS,
    PHASE_S,
    PHASES,
    PacketClock,
)
from offhook.media.leg import Leg
from offhook.media.pcm import SAMPLES_IN
from tests.support.listening import Listening

TICK = 0.02
TIMER = 0.0021
"""Timers are set in whole milliseconds, rounded up."""


class SilentLeg(Leg):
    """Writes down when it was ticked."""

    def __init__(self, call_id="leg"):
        super().__init__(call_id)
        self.times = []

    def _receive(self, now):
        self.times.append(now)
        return np.zeros(SAMPLES_IN, np.int16)

    def _send(self, said, now):
        pass

    def send_message(self, text):
        return False


class Handle:
    def __init__(self, due, callback):
        self.due, self.callback, self.cancelled = due, callback, False

    def cancel(self):
        self.cancelled = True


class Loop:
    """The event loop's time and timers, moved by hand. As uvloop does, it runs timers, and what
    they call soon, before it reads a socket."""

    def __init__(self):
        self.now = 1000.0
        self.timers = []
        self.soon = []
        self.read = lambda: None
        """Reads one datagram of each socket."""

    def call_later(self, delay, callback):
        handle = Handle(self.now + delay, callback)
        self.timers.append(handle)
        return handle

    def call_soon(self, callback, *arguments):
        handle = Handle(self.now, lambda: callback(*arguments))
        self.soon.append(handle)
        return handle

    def run(self, seconds):
        """On time."""
        end = self.now + seconds
        while True:
            self.timers = [t for t in self.timers if not t.cancelled]
            due = min(self.timers, key=lambda t: t.due, default=None)
            if due is not None and due.due <= (self.now if self.soon else end):
                self.timers.remove(due)
                self.now = max(self.now, due.due)
                due.callback()
            elif not self.soon:
                break
            soon, self.soon = self.soon, []
            for handle in soon:
                if not handle.cancelled:
                    handle.callback()
            self.read()
        self.now = end

    def stall(self, seconds):
        """Something holds the loop up; then what is due runs."""
        self.now += seconds
        self.run(0)


@pytest.fixture(autouse=True)
def calls_taken() -> None:
    """Here the clock's own lateness is looked at."""


@pytest.fixture
def loop(monkeypatch):
    loop = Loop()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    return loop


def clocked(loop, count):
    return filled(PacketClock(now=lambda: loop.now), count)


def filled(clock, count):
    legs = [SilentLeg(str(n)) for n in range(count)]
    for leg in legs:
        clock.add(leg)
    return clock, legs


def test_every_leg_is_ticked_fifty_times_a_second(loop):
    clock, legs = clocked(loop, 9)
    loop.run(2.0)
    for leg in legs:
        assert leg.ticks in (99, 100)
        assert all(b - a == pytest.approx(TICK, abs=TIMER) for a, b in pairwise(leg.times))
    assert clock.skipped_ticks == 0
    assert clock.lateness_ms() < 2


def test_legs_are_spread_over_the_phases(loop):
    _, legs = clocked(loop, 4 * PHASES)
    loop.run(1.0)
    instants = [leg.times[10] for leg in legs]
    each = [sum(t == i for t in instants) for i in sorted(set(instants))]
    assert each == [4] * PHASES
    spread = max(instants) - min(instants)
    assert spread == pytest.approx(TICK - PHASE_S, abs=TIMER)


def test_phases_stay_balanced_when_legs_come_and_go(loop):
    clock, legs = clocked(loop, 4 * PHASES)
    for leg in legs[::PHASES]:  # all of one phase
        clock.remove(leg)
    for _ in range(4):
        clock.add(SilentLeg())
    assert [len(phase) for phase in clock._phases] == [4] * PHASES


def test_a_late_loop_loses_no_tick(loop):
    clock, legs = clocked(loop, 5)
    loop.run(2.0)
    loop.stall(0.3)
    assert [leg.ticks for leg in legs] == [pytest.approx(115, abs=1)] * 5
    assert clock.skipped_ticks == 0
    assert 200 < clock.lateness_ms(99) <= 300
    loop.run(1.0)
    assert [leg.ticks for leg in legs] == [pytest.approx(165, abs=1)] * 5


class SocketLeg(SilentLeg):
    """Gets a packet every 20 ms, which waits in a socket until it is read, and then in a buffer."""

    def __init__(self, loop):
        super().__init__()
        self._loop, self._start = loop, loop.now
        self._read = 2
        """Packets read: the buffer begins with two."""
        self.had_packet, self.unread = [], []

    def read(self):
        arrived = 2 + int((self._loop.now - self._start) / TICK)
        self._read = min(self._read + 1, arrived)

    def unread_since(self, at):
        self.unread.append(at)

    def _receive(self, now):
        self.had_packet.append(len(self.had_packet) < self._read)
        return super()._receive(now)


@pytest.mark.parametrize("seconds", [0.08, 0.3, 0.45])
def test_what_came_in_a_stall_is_read_before_the_ticks_that_were_missed(loop, seconds):
    clock, leg = PacketClock(now=lambda: loop.now), SocketLeg(loop)
    loop.read = leg.read
    clock.add(leg)
    loop.run(0.5)
    loop.stall(seconds)
    loop.run(0.5)
    assert leg.ticks == pytest.approx((1 + seconds) / TICK, abs=1)
    assert all(leg.had_packet)
    since, until = leg.unread
    assert since == pytest.approx(1000.5, abs=TICK)
    assert until is None


def test_all_of_a_socket_that_many_calls_share_is_read_after_a_stall(loop):
    _, legs = clocked(loop, 2 * DRAIN_DATAGRAMS + 1)
    unread = 0

    def read():
        nonlocal unread
        unread = max(0, unread - DRAIN_DATAGRAMS)

    loop.read = read
    loop.run(0.5)
    unread = len(legs) * round(2.0 / TICK)
    left = []
    legs[0].listen(lambda heard, said, now: left.append(unread))
    loop.stall(2.0)
    assert left
    assert not any(left)


def test_beyond_the_bound_ticks_are_skipped_and_counted(loop):
    clock, legs = clocked(loop, 5)
    loop.run(1.0)
    loop.stall(3.0)
    made_up = {leg.ticks - 50 for leg in legs}
    assert made_up <= {CATCH_UP_TICKS - 1, CATCH_UP_TICKS, CATCH_UP_TICKS + 1}
    assert clock.skipped_ticks == pytest.approx(150 - CATCH_UP_TICKS, abs=1)
    before = [leg.ticks for leg in legs]
    loop.run(1.0)  # and then it goes on as before, without a second burst
    after = [leg.ticks - b for leg, b in zip(legs, before, strict=True)]
    assert after == [pytest.approx(50, abs=1)] * 5


@given(st.lists(st.tuples(st.booleans(), st.floats(0.001, 1.5)), max_size=12))
def test_ticks_made_and_skipped_are_the_time_that_passed(steps):
    loop = Loop()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "get_running_loop", lambda: loop)
        clock, legs = clocked(loop, 3)
        for stalled, seconds in steps:
            (loop.stall if stalled else loop.run)(seconds)
        loop.run(TICK)
        passed = (loop.now - 1000) / TICK
        stalls = sum(stalled for stalled, _ in steps)
        for leg in legs:
            # Each stall beyond the bound may round a tick away.
            assert passed - 2 - stalls <= leg.ticks + clock.skipped_ticks <= passed + 1
            assert leg.times == sorted(leg.times)


def test_the_clock_stops_with_its_last_leg_and_starts_again(loop):
    clock, legs = clocked(loop, 2)
    loop.run(2.0)
    loop.stall(0.4)
    assert clock.lateness_ms() > 100
    for leg in legs:
        clock.remove(leg)
    clock.remove(legs[0])  # not there any more
    assert [t for t in loop.timers if not t.cancelled] == []
    assert clock.lateness_ms() == 0
    loop.run(10)
    clock.add(legs[0])
    loop.run(0.1)
    assert legs[0].ticks == pytest.approx(120 + 5, abs=1)
    assert clock.skipped_ticks == 0
    assert len([t for t in loop.timers if not t.cancelled]) == 1


def test_a_leg_may_leave_within_a_tick(loop):
    clock, legs = clocked(loop, 2 * PHASES)
    legs[0].listen(lambda heard, said, now: clock.remove(legs[PHASES]))
    loop.run(0.1)
    assert legs[0].ticks in (4, 5)
    assert legs[PHASES].ticks <= 1


def test_a_leg_that_fails_is_closed_and_the_others_go_on(loop, caplog):
    _, legs = clocked(loop, PHASES + 1)
    told = []
    legs[0].listener = Listening(on_closed=told.append)

    def fail(heard, said, now):
        raise ZeroDivisionError("codec")

    loop.run(0.1)
    legs[0].listen(fail)
    with caplog.at_level(logging.ERROR):
        loop.run(0.1)
    assert told == ["the line failed"]
    assert legs[0].times[-1] < 1000.13
    assert {leg.ticks for leg in legs[1:]} <= {9, 10}
    assert "codec" in caplog.text


def test_work_for_many_legs_is_done_once_in_20_ms(loop):
    clock, _ = clocked(loop, 3)
    runs = []
    clock.after = lambda: runs.append(loop.now)
    loop.run(0.2)
    assert len(runs) == pytest.approx(10, abs=1)


class Source:
    """Writes down what the clock asks of it, and fails while `error` is set."""

    def __init__(self):
        self.followed, self.reads, self.error = [], 0, None

    def follow(self, clocked):
        self.followed.append(clocked)

    def read(self):
        self.reads += 1
        if self.error is not None:
            raise self.error


def test_a_source_is_read_before_each_tick_while_the_clock_runs(loop):
    clock, source = PacketClock(now=lambda: loop.now), Source()
    clock.add_source(source)
    loop.run(1.0)
    assert (source.followed, source.reads) == ([False], 0)
    leg, read = SilentLeg(), []
    leg.listen(lambda heard, said, now: read.append(source.reads))
    clock.add(leg)
    loop.run(1.0)
    assert source.followed == [False, True]
    assert source.reads == pytest.approx(1.0 / PHASE_S, abs=1)
    steps = {later - earlier for earlier, later in pairwise(read)}
    assert steps == {PHASES}
    clock.remove(leg)
    reads = source.reads
    loop.run(1.0)
    assert (source.followed, source.reads) == ([False, True, False], reads)


def test_what_waits_at_a_source_in_a_stall_is_read_before_the_ticks_that_were_missed(loop):
    clock, legs = clocked(loop, 100)
    source, unread = Source(), 0

    def read():
        nonlocal unread
        unread = max(0, unread - 16 * DRAIN_DATAGRAMS)

    source.read = read
    clock.add_source(source)
    loop.run(0.5)
    unread = len(legs) * round(3.0 / TICK)
    left = []
    legs[0].listen(lambda heard, said, now: left.append(unread))
    loop.stall(3.0)
    assert left
    assert not any(left)


def test_a_source_added_while_the_clock_runs_is_read(loop):
    clock, _ = clocked(loop, 1)
    source = Source()
    clock.add_source(source)
    loop.run(0.1)
    assert source.followed == [True]
    assert source.reads in (9, 10)


def test_a_source_that_fails_does_not_stop_the_clock(loop, caplog):
    clock, legs = clocked(loop, 1)
    source = Source()
    source.error = ZeroDivisionError("packet")
    clock.add_source(source)
    loop.run(0.5)
    assert legs[0].ticks in (24, 25)
    assert "packet" in caplog.text


async def test_on_a_real_loop_all_legs_are_ticked_alike():
    clock, legs = filled(PacketClock(), 3)
    while legs[0].ticks < 20:
        await asyncio.sleep(0.005)
    for leg in legs:
        clock.remove(leg)
    assert {leg.ticks for leg in legs} <= {19, 20, 21}


def test_one_stall_is_not_recent_lateness_and_many_are_until_shortly_after(loop):
    clock, _ = clocked(loop, 5)
    loop.run(3.0)
    assert clock.recent_lateness_ms() < 3
    loop.stall(0.2)
    assert clock.lateness_ms(99) > 100
    loop.run(0.5)
    assert clock.recent_lateness_ms() < 3
    for _ in range(10):
        loop.stall(0.1)
    assert clock.recent_lateness_ms() == pytest.approx(95, abs=10)
    loop.run(2.0)
    assert clock.recent_lateness_ms() < 3


def test_before_the_process_stands_still_every_leg_sends_as_much_ahead(loop, caplog):
    clock, legs = clocked(loop, 3)
    ahead = [[], [], []]
    for leg, times in zip(legs, ahead, strict=True):
        leg.send_ahead = times.append
    legs[1].send_ahead = lambda now: 1 / 0
    clock.send_ahead(0.05)
    assert [len(times) for times in ahead] == [3, 0, 3]
    assert [leg.closed is None for leg in legs] == [True, False, True]
