"""Two callers joined: each hears the other, soon, and nothing of itself."""

from dataclasses import replace

import numpy as np
import pytest

from offhook.media.bridge_io import Bridge
from offhook.media.pcm import SAMPLES_OUT, dbfs
from tests.media.lines import FULL, NARROW, WIDE, Line, tone
from tests.support.listening import Listening


class Call:
    """A phone and our line to it."""

    def __init__(self, name, format):
        self.phone, self.line = Line(f"{name}'s phone", format, 1), Line(name, format, 2)
        self.phone.far, self.line.far = self.line, self.phone

    def heard(self, ticks):
        return np.concatenate(self.phone.heard[-ticks:])


def tick(*lines):
    """20 ms pass, for these lines and by the clock of the first."""
    now = lines[0].ticks * 0.02
    for line in lines:
        line.now = now
        line.tick(now)


def run(calls, ticks, hz=()):
    for _ in range(ticks):
        for call, frequency in zip(calls, hz, strict=False):
            if call.phone.playout.queued < SAMPLES_OUT:
                call.phone.playout.write(tone(frequency))
        tick(*(call.phone for call in calls), *(call.line for call in calls))


def parts(pcm, *frequencies):
    """Share of the power within 20 Hz of each frequency."""
    power = np.abs(np.fft.rfft(pcm * np.hanning(len(pcm)))) ** 2
    hz = np.fft.rfftfreq(len(pcm), 1 / 16_000)
    return [power[np.abs(hz - frequency) < 20].sum() / power.sum() for frequency in frequencies]


@pytest.fixture
def calls():
    return Call("a", NARROW), Call("b", NARROW)


def test_one_that_has_closed_before_is_over_at_once(calls):
    a, b = calls
    a.line.close("the caller hung up")
    over = []
    Bridge(a.line, b.line, lambda: over.append("over"))
    b.line.close("the other end hung up")
    assert over == ["over"]


@pytest.mark.parametrize(("one", "other"), [(NARROW, NARROW), (WIDE, FULL), (FULL, NARROW)])
def test_each_hears_the_other_and_not_itself(one, other):
    a, b = Call("a", one), Call("b", other)
    Bridge(a.line, b.line)
    run((a, b), 150, hz=(500, 800))
    assert parts(a.heard(100), 800, 500) == pytest.approx([1, 0], abs=0.01)
    assert parts(b.heard(100), 500, 800) == pytest.approx([1, 0], abs=0.01)
    for call in (a, b):
        assert min(dbfs(pcm) for pcm in call.phone.heard[-100:]) > -20
        assert call.line.playout.underruns <= 1


def test_three_pairs_do_not_hear_one_another():
    pairs = [(Call(f"a{n}", NARROW), Call(f"b{n}", NARROW)) for n in range(3)]
    for a, b in pairs:
        Bridge(a.line, b.line)
    every = [call for pair in pairs for call in pair]
    hz = (400, 600, 900, 1300, 1900, 2700)
    run(every, 100, hz)
    for n, call in enumerate(every):
        assert parts(call.heard(60), hz[n ^ 1]) == pytest.approx([1], abs=0.01)


def click_at(pcm):
    """Samples before the first loud one."""
    return int(np.flatnonzero(np.abs(pcm.astype(int)) > 2000)[0])


@pytest.mark.parametrize("first", ["a", "b"])
def test_the_bridge_adds_a_tick_at_most(calls, first):
    """Against the way in and the way out alone, each measured by itself."""
    a, b = calls
    bridge = Bridge(a.line, b.line)
    lines = (a.line, b.line) if first == "a" else (b.line, a.line)
    heard_by_line, heard_by_phone = [], []
    a.line.listen(lambda heard, said, now: heard_by_line.append(heard))
    b.phone.listen(lambda heard, said, now: heard_by_phone.append(heard))
    click = np.zeros(SAMPLES_OUT, np.int16)
    click[240:260] = 20_000

    def go(ticks):
        for _ in range(ticks):
            tick(a.phone, b.phone, *lines)

    go(50)
    a.phone.playout.write(click)
    go(25)
    bridged = click_at(np.concatenate(heard_by_phone)) - click_at(np.concatenate(heard_by_line))
    bridge.close()
    go(25)
    heard_by_phone.clear()
    b.line.playout.write(click)
    go(25)
    way_out = click_at(np.concatenate(heard_by_phone)) - 160
    assert 0 <= bridged - way_out <= 320 + 32  # and the resampler's millisecond


def test_the_delay_does_not_grow_when_a_line_stood_still(calls):
    a, b = calls
    Bridge(a.line, b.line)
    run(calls, 50, hz=(500, 800))
    for _ in range(40):
        tick(a.phone, b.phone, a.line)  # b is not ticked
    assert b.line.playout.queued <= 2 * SAMPLES_OUT
    run(calls, 50, hz=(500, 800))
    assert b.line.playout.queued <= SAMPLES_OUT
    assert a.line.playout.queued <= SAMPLES_OUT
    assert parts(b.heard(30), 500) == pytest.approx([1], abs=0.01)


def test_a_line_that_runs_dry_is_still_speaking_and_when_parted_is_not(calls):
    """Whoever watches the playout is told of one beginning and one end."""
    a, b = calls
    told = []
    b.line.playout.listener = Listening(
        on_started=lambda: told.append("started"), on_stopped=lambda: told.append("stopped")
    )
    bridge = Bridge(a.line, b.line)
    run(calls, 20)
    for _ in range(5):
        tick(a.phone, b.phone, b.line)  # a is not ticked
    run(calls, 20)
    assert told == ["started"]
    bridge.close()
    run(calls, 3)
    assert told == ["started", "stopped"]


def test_keys_are_passed_on_both_ways(calls):
    a, b = calls
    Bridge(a.line, b.line)
    run(calls, 10)
    a.phone.send_dtmf("12")
    b.phone.send_dtmf("#")
    run(calls, 60)
    assert b.phone.digits == ["1", "2"]
    assert a.phone.digits == ["#"]


def test_a_line_that_takes_no_keys_does_not_end_the_bridge(calls):
    a, b = calls
    Bridge(a.line, b.line)
    b.line.sending = False
    a.phone.send_dtmf("1")
    run(calls, 20)
    b.line.sending = True
    run(calls, 50, hz=(500,))
    assert b.phone.digits == []
    assert parts(b.heard(30), 500) == pytest.approx([1], abs=0.01)


def test_what_was_queued_is_said_first():
    a, b = Call("a", NARROW), Call("b", replace(NARROW, ptime_ms=40))
    b.line.playout.write(tone(1500))
    Bridge(a.line, b.line)
    run((a, b), 45, hz=(500,))
    assert parts(b.heard(30), 1500) == pytest.approx([1], abs=0.01)
    run((a, b), 60, hz=(500,))
    assert parts(b.heard(40), 500) == pytest.approx([1], abs=0.01)


def test_parted_they_hear_nothing_more_and_keys_go_where_they_went(calls):
    a, b = calls
    bridge = Bridge(a.line, b.line)
    run(calls, 50, hz=(500, 800))
    for _ in range(2):
        bridge.close()
    run(calls, 50, hz=(500, 800))
    assert not a.heard(30).any()
    assert not b.heard(30).any()
    a.phone.send_dtmf("5")
    run(calls, 20)
    assert a.line.digits == ["5"]
    assert b.phone.digits == []
    assert a.line.playout.queued == b.line.playout.queued == 0
    again = Bridge(a.line, b.line)
    run(calls, 50, hz=(500, 800))
    assert dbfs(a.heard(20)) > -20
    again.close()
