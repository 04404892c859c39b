"""What is taken for played is what a carrier plays, whatever the network and the carrier do."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.media.pcm import RATE_OUT, SAMPLES_OUT
from offhook.telephony.carriers.streams.far_buffer import MAX_HELD_TICKS, MAX_PENDING, FarBuffer
from tests.telephony.carriers.carrier import Call, ScriptedStream, Way

NEAR_MS = 60
"""Of sound: how well it must be known what was heard."""
DELAYS = [10, 50, 150]
QUICK_WAYS = [(10, 10), (50, 150), (150, 50)]
WAYS = [
    pytest.param(*way, marks=() if way in QUICK_WAYS else pytest.mark.slow)
    for way in itertools.product(DELAYS, DELAYS)
]
"""Delays in ms there and back."""


def jumps(call):
    """ms left out (or, below 0, repeated) in what the far end played, where there are any."""
    played = np.array([ms for ms in call.played if ms])
    steps = np.diff(played) - 1
    return steps[steps != 0].tolist()


@pytest.mark.parametrize("jitter", [0, 15, 30])
@pytest.mark.parametrize(("out", "back"), WAYS)
def test_at_a_barge_in_as_much_is_counted_as_the_far_end_played(out, back, jitter):
    for at, seed in itertools.product((207, 520, 951, 1414, 2733), (1, 2)):
        call = Call(Way(out, jitter, seed=seed), Way(back, jitter, seed=seed + 10))
        call.run(60)
        call.speak(8000)
        call.run(at)
        counted, heard, words = call.interrupt()
        assert counted == pytest.approx(heard, abs=NEAR_MS)
        assert words == counted // 50


@pytest.mark.parametrize("jitter", [0, 15])
@pytest.mark.parametrize(("out", "back"), WAYS)
def test_a_far_end_that_begins_60_ms_late_is_found_out(out, back, jitter):
    for at in (30, 220, 420, 1131, 2733):
        call = Call(Way(out, jitter), Way(back, jitter, seed=7), start_ms=60)
        call.run(60)
        call.speak(8000)
        call.run(at)
        counted, heard, _ = call.interrupt()
        # Before the first mark comes back nobody can know.
        known = at > 80 + out + back + 2 * jitter
        assert counted == pytest.approx(heard, abs=NEAR_MS if known else 80 + jitter)


def test_that_it_begins_late_is_known_before_the_next_utterance():
    call = Call(Way(150), Way(150), start_ms=60)
    call.speak(1000)
    call.run(2500)
    before, begun = call.counted, call.ms
    call.speak(1000, 1000)
    call.run(200)
    counted, heard, _ = call.interrupt()
    assert counted - before == pytest.approx(heard - before, abs=20)
    assert [said is None for said in call.said[begun // 20 + 4 : begun // 20 + 10]] == [False] * 6


def test_a_far_end_that_waits_for_sound_begins_no_later_for_our_knowing_it():
    """It begins when it has 180 ms, more than the lead."""
    call = Call(Way(100), Way(100), least_ms=180)
    begun = []
    for number in range(6):
        call.speak(1000, number * 1000)
        at, played = call.ms, len(call.played)
        while len(call.played) == played:
            call.run(1)
        begun.append(call.ms - at)
        call.run(2000)
    assert max(begun[1:]) <= begun[0] + 20
    counted, heard, _ = call.interrupt()
    assert counted == heard == 6000


@pytest.mark.parametrize("kind", ["out", "back", "far end"])
@pytest.mark.parametrize("delay", DELAYS)
def test_after_a_stall_of_half_a_second_the_count_is_right_again(kind, delay):
    stall = (1000, 1500)
    for at in range(1500 + 2 * delay + 180, 3000, 130):
        call = Call(
            Way(delay, 10, [stall] if kind == "out" else []),
            Way(delay, 10, [stall] if kind == "back" else [], seed=2),
            frozen=[stall] if kind == "far end" else [],
        )
        call.speak(8000)
        call.run(at)
        counted, heard, _ = call.interrupt()
        assert counted == pytest.approx(heard, abs=NEAR_MS)


@pytest.mark.parametrize("delay", DELAYS)
def test_within_a_stall_no_more_is_counted_than_marks_allow(delay):
    """The count stops as soon as a mark is overdue, be it that the sound is not played or that
    only the mark does not come."""
    for at in range(1000, 1500, 70):
        frozen = Call(Way(delay), Way(delay), frozen=[(1000, 1500)])
        frozen.speak(8000)
        frozen.run(at)
        assert frozen.counted - frozen.heard() <= 2 * delay + 100 + 40 + 20
        mute = Call(Way(delay), Way(delay, stalls=[(1000, 1500)]))
        mute.speak(8000)
        mute.run(at)
        counted, heard, _ = mute.interrupt()
        assert heard - counted <= mute.stream.lead_ms


@pytest.mark.parametrize("delay", DELAYS)
def test_what_a_starved_far_end_did_not_have_is_not_counted_when_marks_come_again(delay):
    """Only the marks stood still, but what was not sent for want of them was not played either."""
    for at in range(1520, 2200, 40):
        call = Call(Way(delay), Way(delay, stalls=[(1000, 1500)]))
        call.speak(8000)
        call.run(at)
        counted, heard, _ = call.interrupt()
        assert counted - heard <= 40


def test_a_far_end_that_is_always_a_little_late_is_found_out_too():
    call = Call(start_ms=35)
    call.speak(8000)
    call.run(781)
    counted, heard, _ = call.interrupt()
    assert counted == pytest.approx(heard, abs=20)


def test_a_way_that_grew_longer_is_not_taken_for_a_late_far_end_for_ever():
    call = Call(Way(20), Way(20))
    for number in range(6):
        call.speak(600, number * 600)
        call.run(1500)
        call.out._delay = call.back._delay = 120
    before = call.counted
    call.speak(3000, 3600)
    call.run(900)
    counted, heard, _ = call.interrupt()
    assert before == 3600
    assert counted == pytest.approx(heard, abs=20)


@pytest.mark.parametrize("start_ms", [0, 60])
@pytest.mark.parametrize("jitter", [0, 30])
@pytest.mark.parametrize("delay", DELAYS)
def test_after_a_pause_the_sound_goes_on_within_the_word(delay, jitter, start_ms):
    for at, away in itertools.product((507, 1172, 2330), (0, 13, 45, 300, 1000)):
        call = Call(Way(delay, jitter), Way(delay, jitter, seed=3), start_ms)
        call.speak(5000)
        call.run(at)
        call.leg.playout.pause()
        call.run(away)
        call.leg.playout.resume()
        call.run(1000)
        assert len(jumps(call)) <= 1
        assert abs(sum(jumps(call))) <= 40


@pytest.mark.parametrize("jitter", [0, 30])
@pytest.mark.parametrize("delay", DELAYS)
def test_speech_that_nobody_cuts_is_played_whole_and_without_a_pause(delay, jitter):
    call = Call(Way(delay, jitter), Way(delay, jitter, seed=5))
    call.speak(4000)
    call.run(6000)
    assert [ms for ms in call.played if ms] == list(range(1, 4001))
    assert call.marks == list(range(50, 4001, 50))
    said = [said is not None for said in call.said]
    assert said[said.index(True) :][:200].count(False) <= 2 * jitter // 20


def test_a_far_end_without_marks_is_counted_by_the_clock():
    stream = ScriptedStream()
    stream.acknowledges = False
    call = Call(Way(80), Way(80), stream=stream)
    call.speak(8000)
    call.run(1234)
    counted, heard, _ = call.interrupt()
    assert counted == pytest.approx(heard, abs=20)
    assert not any(str(message).startswith("mark") for _, message in call.sent)


def test_marks_that_never_come_back_hold_nothing_up_for_long():
    call = Call()
    call.speak(20_000)
    call.run(1000)
    call._come_back = lambda mark: None
    before = call.counted
    call.run(2000 + 400)
    held = call.counted - before
    assert held < 500
    call.run(5000)  # not waited for a second time
    assert call.counted - before - held == pytest.approx(5000, abs=40)


def test_marks_unknown_doubled_and_out_of_order_change_nothing():
    far = FarBuffer()
    far.start(0, 10.0)
    probe, first, second = (far.mark(position, 10.0) for position in (0, 480, 960))
    far.played("no mark of ours", 10.05)
    far.played(probe, 10.08)
    far.played(probe, 10.9)
    assert far.round_trip_ms == pytest.approx(80)
    far.played(second, 10.12)
    far.played(first, 12.0)
    assert not far.pending
    assert far.due(10.12, 0, 2880) == 1


def test_a_mark_of_sound_that_was_cleared_is_no_mark_of_what_follows():
    far = FarBuffer()
    far.start(480, 1.0)
    old = [far.mark(480, 1.0), far.mark(960, 1.0)]
    far.cut()
    assert not far.pending
    far.start(480, 1.5)
    assert not {far.mark(480, 1.5), far.mark(960, 1.5)} & set(old)
    for name in old:
        far.played(name, 1.51)
    assert far.round_trip_ms is None


def test_marks_that_do_not_come_back_are_bounded():
    far = FarBuffer()
    far.start(0, 0.0)
    for number in range(10 * MAX_PENDING):
        far.mark(number, 0.0)
    assert len(far._pending) == MAX_PENDING


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["tick", "mark", "back", "again", "cut"]),
            st.floats(-0.1, 3.0, allow_nan=False),
        ),
        max_size=300,
    )
)
def test_no_order_and_time_of_marks_stops_the_count_for_more_than_two_seconds(events):
    far = FarBuffer()
    now, counted, sent, names, still = 0.0, 0, 0, ["none"], 0
    far.start(0, now)
    for kind, wait in events:
        now += wait
        if kind == "tick":
            sent = max(sent, counted + 2 * SAMPLES_OUT)
            due = far.due(now, counted, sent)
            assert 0 <= due <= 2
            counted += due * SAMPLES_OUT
            still = 0 if due else still + 1
            assert still <= MAX_HELD_TICKS
        elif kind == "mark":
            names.append(far.mark(sent, now))
        elif kind == "cut":
            far.cut()
            sent = counted
            far.start(sent, now)
        else:
            far.played(names[-1 if kind == "back" else len(names) // 2], now)
    for _ in range(MAX_HELD_TICKS + 1):
        now += 0.02
        counted_before = counted
        counted += far.due(now, counted, counted + RATE_OUT) * SAMPLES_OUT
        if counted > counted_before:
            break
    assert counted > counted_before


STEPS = st.one_of(
    st.tuples(st.just("run"), st.integers(1, 700)),
    st.tuples(st.just("speak"), st.integers(1, 40)),
    st.tuples(st.sampled_from(["pause", "resume", "flush"]), st.just(0)),
)


@given(
    st.lists(STEPS, min_size=1, max_size=14),
    st.integers(10, 150),
    st.integers(10, 150),
    st.integers(0, 20),
    st.sampled_from([0, 0, 40]),
    st.integers(0, 99),
)
def test_any_schedule_is_counted_as_it_is_played(steps, out, back, jitter, start_ms, seed):
    call = Call(Way(out, jitter, seed=seed), Way(back, jitter, seed=seed + 1), start_ms)
    playout, written, off = call.leg.playout, 0, 0.0

    def bounded():
        ahead = call.leg._out.position - playout.sent
        habit = start_ms + jitter  # sent all the same
        assert 0 <= ahead <= (call.stream.lead_ms + call.stream.packet_ms + habit) * 24
        if not start_ms and not jitter:
            assert call.queued <= call.stream.lead_ms + call.stream.packet_ms

    for name, size in [*steps, ("resume", 0), ("run", 3500), ("flush", 0)]:
        if name == "run":
            call.run(size, bounded)
        elif name == "speak":
            if playout.room >= size * 50 * 24:
                call.speak(size * 50, written)
                written += size * 50
        elif name == "resume":
            playout.resume()
        else:
            at = len(call.sent)
            getattr(playout, name)()
            assert [message for _, message in call.sent[at:]] in ([], ["clear"])
            counted = call.counted
            call.run(out + back + 2 * jitter + 40, bounded)
            assert counted - call.heard() == pytest.approx(off, abs=NEAR_MS)
            off = counted - call.heard()  # in what is counted next too
    assert all(step >= -40 for step in jumps(call))
