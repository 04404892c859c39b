"""What is queued can be sent before it is taken, and a cut says that it must be taken back."""

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from offhook.media.playout import FADE_SAMPLES, LOWERED_GAIN, Playout, PlayoutState
from tests.media.test_playout import COMMANDS, line, ramp, tone
from tests.support.listening import Listening


def cuts(playout):
    """Counts the calls of on_cut."""
    seen = []
    playout.on_cut = lambda: seen.append((playout.state, playout.queued))
    return seen


def test_what_is_queued_can_be_seen_before_it_is_taken():
    playout = Playout()
    playout.begin()
    for start in range(0, 3000, 250):
        playout.write(ramp(start, 250))
    for offset in (0, 1, 250, 700, 2520):
        np.testing.assert_array_equal(playout.peek(offset, 480), ramp(offset, 480))
    assert playout.peek(2521, 480) is None
    playout.pop()
    np.testing.assert_array_equal(playout.peek(100, 480), ramp(580, 480))
    assert (playout.sent, playout.queued) == (480, 2520)
    playout.end()
    tail = playout.peek(2400, 480)
    np.testing.assert_array_equal(tail[:120], ramp(2880, 120))
    assert not tail[120:].any()
    assert playout.peek(2520, 480) is None


def test_nothing_is_seen_of_what_is_paused():
    playout = Playout()
    playout.write(ramp(0, 2000))
    playout.pause()
    assert playout.peek(0, 480) is None
    playout.resume()
    np.testing.assert_array_equal(playout.peek(0, 480), ramp(0, 480))


def test_after_a_cut_what_is_seen_rises_as_what_is_taken():
    playout = Playout()
    playout.write(tone(5000))
    line(playout, 2)
    playout.pause()
    line(playout, 2)
    playout.resume()
    seen, beyond = playout.peek(0, 480), playout.peek(480, 480)
    taken = playout.pop()
    np.testing.assert_array_equal(seen, taken)
    assert abs(int(taken[0])) < abs(int(taken[FADE_SAMPLES]))
    np.testing.assert_array_equal(beyond, playout.pop())


def test_a_cut_is_told_within_the_call_that_makes_it():
    playout = Playout()
    seen = cuts(playout)
    playout.write(ramp(0, 2000))
    playout.pop()
    playout.pause()
    playout.pause()
    assert seen == [(PlayoutState.PAUSED, 1520)]
    playout.resume()
    assert len(seen) == 1
    order = []
    playout.on_cut = lambda: order.append("cut")
    playout.listener = Listening(
        on_dropped=lambda marks: order.append("dropped"), on_stopped=lambda: order.append("stopped")
    )
    playout.write(ramp(0, 10), mark="m")
    playout.flush()
    assert order == ["cut", "dropped", "stopped"]


CUT_AT_ITS_END = [("write", 651), ("begin",), ("write", 1271), ("take", 1), ("take", 4)]
"""Two samples are left after a fade: fewer than it takes to fade in again."""


@given(st.lists(COMMANDS, max_size=40), st.integers(0, 1500), st.integers(120, 2400))
@example(CUT_AT_ITS_END, 0, 120)
@example([("write", 1), ("take", 1), ("write", 121), ("lower",)], 0, 121)
def test_what_is_seen_is_what_is_taken_later(commands, offset, samples):
    playout = Playout(limit_ms=1000)
    written = 0
    for name, *argument in commands:
        if name == "write":
            if argument[0] <= playout.room:
                playout.write(ramp(written, *argument))
                written += argument[0]
        elif name == "take":
            line(playout, *argument)
        else:
            getattr(playout, name)()
    seen = playout.peek(offset, samples)
    queued, paused = playout.queued, playout.state is PlayoutState.PAUSED
    gain = LOWERED_GAIN if playout.state is PlayoutState.LOWERED else 1
    playout.resume()
    playout.end()
    due = playout.peek(0, max(1, queued))
    if seen is None:
        assert paused or offset + samples > queued
    else:
        expected = np.zeros(samples, np.int16)
        part = due[offset : offset + samples]
        expected[: len(part)] = part
        # The first 5 ms rise after a cut.
        start = max(0, FADE_SAMPLES - offset)
        np.testing.assert_allclose(seen[start:], expected[start:] * gain, atol=gain != 1)
