"""What is taken is what was written, counted to the sample, and no cut of it clicks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offhook.media.pcm import RATE_OUT, SAMPLES_OUT
from offhook.media.playout import (
    FADE_SAMPLES,
    LOWERED_GAIN,
    MARKS_LIMIT,
    Flushed,
    Playout,
    PlayoutFull,
    PlayoutState,
)
from tests.support.listening import Listening

TONE_HZ = 440
TONE_STEP = 32767 * 2 * np.pi * TONE_HZ / RATE_OUT
FADE_STEP = 32767 * np.pi / 2 / FADE_SAMPLES


def ramp(start, samples):
    """Sound whose every sample tells where it is; never zero, so that silence is seen."""
    return ((np.arange(start, start + samples) % 30_000) + 1000).astype(np.int16)


def tone(samples):
    """A full-scale tone, beginning at its loudest."""
    cosine = np.cos(2 * np.pi * TONE_HZ * np.arange(samples) / RATE_OUT)
    return (32767 * cosine).astype(np.int16)


def line(playout, ticks):
    """What the far end hears in so many ticks."""
    silence = np.zeros(SAMPLES_OUT, np.int16)
    packets = [playout.pop() for _ in range(ticks)]
    return np.concatenate([silence if packet is None else packet for packet in packets])


class Log:
    """Writes down what a playout says of itself."""

    def __init__(self, playout):
        self.events = []
        playout.listener = Listening(
            on_started=lambda: self.events.append("started"),
            on_stopped=lambda: self.events.append("stopped"),
            on_dropped=lambda marks: self.events.append(["dropped", *marks]),
            on_mark=lambda mark, position: self.events.append((mark, position)),
        )


def test_an_utterance_is_sent_whole_with_its_tail_padded():
    playout = Playout()
    log = Log(playout)
    sound = ramp(0, 1000)
    playout.write(sound[:700])
    playout.write(sound[700:], mark="end")
    assert (playout.queued, playout.room) == (1000, 60 * RATE_OUT - 1000)
    heard = line(playout, 3)
    np.testing.assert_array_equal(heard[:1000], sound)
    assert not heard[1000:].any()
    assert (playout.sent, playout.queued) == (1000, 0)
    assert playout.pop() is None
    assert playout.pop() is None
    assert log.events == ["started", ("end", 1000), "stopped"]
    assert playout.state is PlayoutState.IDLE


def test_a_packet_within_one_write_is_not_copied():
    playout = Playout()
    sound = ramp(0, 2 * SAMPLES_OUT)
    playout.write(sound)
    assert np.shares_memory(playout.pop(), sound)
    assert np.shares_memory(playout.pop(), sound)


def test_packets_are_contiguous_whatever_is_written():
    playout = Playout()
    playout.write(np.stack([ramp(0, 960), ramp(0, 960)], axis=1)[:, 0])
    packet = playout.pop()
    assert packet.flags.c_contiguous
    np.testing.assert_array_equal(packet, ramp(0, SAMPLES_OUT))


def test_marks_pass_in_the_packet_that_holds_their_sample():
    playout = Playout()
    log = Log(playout)
    playout.write(ramp(0, 0), mark="nothing yet")
    playout.write(ramp(0, 480), mark="first packet")
    playout.write(ramp(480, 1), mark="one sample on")
    playout.write(ramp(481, 0), mark="same place")
    playout.write(ramp(481, 479))
    playout.pop()
    assert log.events == ["started", ("nothing yet", 0), ("first packet", 480)]
    playout.pop()
    assert log.events[3:] == [("one sample on", 481), ("same place", 481)]


def test_a_mark_without_sound_passes_at_the_next_tick_when_idle():
    playout = Playout()
    log = Log(playout)
    playout.write(ramp(0, 0), mark="m")
    assert playout.pop() is None
    assert log.events == [("m", 0)]


@pytest.mark.parametrize("before", [1, 2, 3, 7])
def test_pause_is_silent_at_once_and_resume_loses_nothing(before):
    playout = Playout()
    sound = tone(10 * SAMPLES_OUT)
    playout.write(sound)
    first = line(playout, before)
    playout.pause()
    cut = line(playout, 4)
    assert playout.sent == before * SAMPLES_OUT
    assert not cut[FADE_SAMPLES:].any()
    assert playout.state is PlayoutState.PAUSED
    assert playout.speaking
    playout.resume()
    rest = line(playout, 10 - before)
    np.testing.assert_array_equal(first, sound[: len(first)])
    np.testing.assert_array_equal(rest[FADE_SAMPLES:], sound[len(first) + FADE_SAMPLES :])
    whole = np.concatenate([first, cut, rest])[1:-1]
    assert np.abs(np.diff(whole.astype(int))).max() <= TONE_STEP + FADE_STEP
    assert playout.sent == len(sound)


def test_lowered_sound_goes_on_quietly_and_counts_as_sent():
    cuts = []
    playout = Playout(on_cut=lambda: cuts.append(playout.sent))
    sound = tone(10 * SAMPLES_OUT)
    playout.write(sound)
    playout.end()
    first = line(playout, 2)
    playout.lower()
    ahead = playout.peek(SAMPLES_OUT, SAMPLES_OUT)
    low = line(playout, 3)
    assert playout.state is PlayoutState.LOWERED
    assert playout.sent == 5 * SAMPLES_OUT
    playout.pause()
    cut = line(playout, 2)
    assert playout.sent == 5 * SAMPLES_OUT
    playout.lower()
    again = line(playout, 2)
    playout.resume()
    rest = line(playout, 3)
    assert playout.state is PlayoutState.PLAYING
    quiet = np.rint(sound * np.float32(LOWERED_GAIN))
    np.testing.assert_array_equal(low[FADE_SAMPLES:], quiet[2 * 480 + FADE_SAMPLES : 5 * 480])
    np.testing.assert_array_equal(ahead, low[480:960])
    assert not cut[FADE_SAMPLES:].any()
    np.testing.assert_array_equal(again[FADE_SAMPLES:], quiet[5 * 480 + FADE_SAMPLES : 7 * 480])
    np.testing.assert_array_equal(rest[FADE_SAMPLES:], sound[7 * 480 + FADE_SAMPLES :])
    whole = np.concatenate([first, low, cut, again, rest])[1:-1]
    assert np.abs(np.diff(whole.astype(int))).max() <= TONE_STEP + FADE_STEP
    assert cuts == [
        2 * 480,
        5 * 480,
        5 * 480,
        7 * 480,
    ]  # what a far end has is too loud, or too low
    line(playout, 1)
    assert (playout.state, playout.sent) == (PlayoutState.IDLE, len(sound))


def test_what_is_not_playing_cannot_be_lowered():
    playout = Playout()
    playout.lower()
    playout.write(sound := tone(2 * SAMPLES_OUT))
    np.testing.assert_array_equal(line(playout, 2), sound)


def test_a_pause_taken_back_before_the_next_packet_is_not_heard():
    playout = Playout()
    sound = tone(4 * SAMPLES_OUT)
    playout.write(sound)
    first = line(playout, 2)
    playout.pause()
    playout.resume()
    np.testing.assert_array_equal(np.concatenate([first, line(playout, 2)]), sound)


def test_a_pause_before_the_start_holds_the_sound_back():
    playout = Playout()
    log = Log(playout)
    playout.pause()
    playout.write(ramp(0, 480))
    assert playout.pop() is None
    assert log.events == []
    assert not playout.speaking
    playout.resume()
    np.testing.assert_array_equal(playout.pop(), ramp(0, 480))
    assert log.events == ["started"]


@pytest.mark.parametrize("queued", [5000, 100, 1, 0])
@pytest.mark.parametrize("open_utterance", [True, False])
def test_flush_is_silent_at_once_without_a_click(queued, open_utterance):
    playout = Playout()
    log = Log(playout)
    sound = tone(SAMPLES_OUT + queued)
    if open_utterance:
        playout.begin()
    playout.write(sound[:SAMPLES_OUT], mark="heard")
    playout.write(sound[SAMPLES_OUT:], mark="not heard")
    first = line(playout, 1)
    dropped_marks = ("not heard",) if queued else ()
    sent = SAMPLES_OUT
    assert playout.flush() == Flushed(sent, len(sound) - SAMPLES_OUT, dropped_marks)
    last_mark = ["dropped", "not heard"] if queued else ("not heard", sent)
    assert log.events[2:] == [last_mark, "stopped"]
    rest = line(playout, 3)
    assert not rest[FADE_SAMPLES:].any()
    if queued >= FADE_SAMPLES or open_utterance:
        joint = np.concatenate([first, rest]).astype(int)[1:]
        assert np.abs(np.diff(joint)).max() <= TONE_STEP + FADE_STEP
    assert (playout.sent, playout.queued, playout.state) == (sent, 0, PlayoutState.IDLE)


def test_after_a_padded_tail_there_is_nothing_to_fade():
    playout = Playout()
    playout.write(ramp(0, 100))
    playout.pop()
    playout.flush()
    playout.write(ramp(0, 480))
    np.testing.assert_array_equal(playout.pop(), ramp(0, 480))


def test_what_is_written_after_a_flush_is_a_new_utterance():
    playout = Playout()
    log = Log(playout)
    playout.write(ramp(0, 5000), mark="old")
    line(playout, 2)
    playout.pause()
    playout.flush()
    playout.write(ramp(7000, 480), mark="new")
    farewell, new = playout.pop(), playout.pop()
    assert 0 < np.count_nonzero(farewell) <= FADE_SAMPLES
    np.testing.assert_array_equal(new, ramp(7000, 480))
    assert log.events == ["started", ["dropped", "old"], "stopped", "started", ("new", 3 * 480)]


def test_flush_of_silence_sends_nothing():
    playout = Playout()
    log = Log(playout)
    assert playout.flush() == Flushed(0, 0, ())
    assert playout.pop() is None
    assert log.events == []


@pytest.mark.parametrize("tail", [0, 1, 119, 120, 479])
def test_running_dry_within_an_utterance_is_an_underrun_and_not_its_end(tail):
    playout = Playout()
    log = Log(playout)
    sound = tone(4 * SAMPLES_OUT)
    playout.begin()
    playout.write(sound[: SAMPLES_OUT + tail])
    first = line(playout, 1)
    gap = line(playout, 3)
    assert playout.underruns == 1
    assert not gap[FADE_SAMPLES:].any()
    playout.write(sound[SAMPLES_OUT + tail :], mark="end")
    playout.end()
    rest = line(playout, 3)
    np.testing.assert_array_equal(rest[FADE_SAMPLES:], sound[SAMPLES_OUT + FADE_SAMPLES :])
    whole = np.concatenate([first, gap, rest])
    assert np.abs(np.diff(whole.astype(int))).max() <= TONE_STEP + FADE_STEP
    assert log.events == ["started", ("end", len(sound))]
    assert playout.pop() is None
    assert log.events[-1] == "stopped"
    assert playout.underruns == 1


def test_an_utterance_that_ends_while_dry_stops():
    playout = Playout()
    log = Log(playout)
    playout.begin()
    playout.write(ramp(0, 500))
    line(playout, 3)
    assert log.events == ["started"]
    playout.end()
    line(playout, 2)
    assert log.events == ["started", "stopped"]
    assert playout.sent == 500


@pytest.mark.parametrize("tail", [0, 100])
def test_an_utterance_announced_early_does_not_hold_up_the_end_of_the_last(tail):
    playout = Playout()
    log = Log(playout)
    playout.begin()
    playout.write(ramp(0, SAMPLES_OUT + tail))
    playout.end()
    playout.begin()
    heard = line(playout, 4)
    np.testing.assert_array_equal(heard[: SAMPLES_OUT + tail], ramp(0, SAMPLES_OUT + tail))
    assert not heard[SAMPLES_OUT + tail :].any()
    assert log.events == ["started", "stopped"]
    assert playout.underruns == 0
    playout.write(ramp(0, 479))
    assert playout.pop() is None
    playout.write(ramp(479, 1))
    np.testing.assert_array_equal(playout.pop(), ramp(0, 480))
    line(playout, 2)
    assert playout.underruns == 1
    assert log.events[2:] == ["started"]


def test_the_queue_is_bounded():
    playout = Playout(limit_ms=100)
    playout.write(ramp(0, 2000))
    assert playout.room == 400
    with pytest.raises(PlayoutFull):
        playout.write(ramp(2000, 401), mark="refused")
    assert playout.queued == 2000
    playout.write(ramp(2000, 400))
    assert playout.room == 0
    playout.pop()
    assert playout.room == 480
    for number in range(MARKS_LIMIT):
        playout.write(ramp(0, 0), mark=number)
    with pytest.raises(PlayoutFull):
        playout.write(ramp(0, 0), mark="one too many")


COMMANDS = st.one_of(
    st.tuples(st.just("write"), st.integers(0, 1300)),
    st.tuples(st.just("take"), st.integers(1, 4)),
    st.sampled_from([("pause",), ("lower",), ("resume",), ("flush",), ("begin",), ("end",)]),
)


def takes_what_is_due(playout, log, due, marks):
    """One take against the plain account: `due` is the sound not yet sent, by its samples."""
    before, events = playout.sent, len(log.events)
    gain = LOWERED_GAIN if playout.state is PlayoutState.LOWERED else 1.0
    packet = playout.pop()
    sent = playout.sent - before
    if packet is None:
        assert sent == 0
    else:
        assert (packet.shape, packet.dtype) == ((SAMPLES_OUT,), np.int16)
        if sent:
            assert not packet[sent:].any()
            level = np.rint(np.array(due[FADE_SAMPLES:sent]) * np.float32(gain))
            np.testing.assert_array_equal(packet[FADE_SAMPLES:sent], level)
            head = slice(0, min(sent, FADE_SAMPLES))
            assert (packet[head] >= 0).all()
            assert (packet[head] <= due[head]).all()
        else:
            assert not packet[FADE_SAMPLES:].any()
    del due[:sent]
    passed = [event for event in log.events[events:] if isinstance(event, tuple)]
    assert passed == [mark for mark in marks if mark[1] <= playout.sent]
    del marks[: len(passed)]


@given(st.lists(COMMANDS, max_size=60))
def test_any_order_of_events_is_accounted_for(commands):
    playout = Playout(limit_ms=1000)
    log = Log(playout)
    due, marks, dropped, written = [], [], 0, 0
    for name, *argument in commands:
        if name == "write":
            sound = ramp(written, *argument)
            if len(sound) > playout.room:
                continue
            written += len(sound)
            due.extend(sound.tolist())
            marks.append((object(), playout.sent + len(due)))
            playout.write(sound, mark=marks[-1][0])
        elif name == "take":
            for _ in range(*argument):
                takes_what_is_due(playout, log, due, marks)
        elif name == "flush":
            flushed = playout.flush()
            assert flushed == Flushed(playout.sent, len(due), tuple(mark for mark, _ in marks))
            dropped += len(due)
            due.clear()
            marks.clear()
        else:
            getattr(playout, name)()
        assert playout.queued == len(due)
        assert playout.sent + playout.queued + dropped == written
    playout.end()
    playout.resume()
    for _ in range(55):
        takes_what_is_due(playout, log, due, marks)
    assert (due, marks, playout.state) == ([], [], PlayoutState.IDLE)
    turns = [event for event in log.events if isinstance(event, str)]
    assert turns == ["started", "stopped"] * (len(turns) // 2)


@given(
    st.lists(st.sampled_from(["take", "pause", "lower", "resume", "write"]), max_size=40),
    st.integers(20, 2000),
)
@settings(max_examples=80)
def test_no_order_of_cuts_clicks(commands, block):
    """A full-scale tone, whatever happens to it, never steps further than the tone does in its
    fade; only the beginning and the end of an utterance are the writer's own."""
    playout = Playout()
    sound = tone(2 * SAMPLES_OUT + 40 * 2000)
    written = 2 * SAMPLES_OUT
    playout.begin()
    playout.write(sound[:written])
    heard = [line(playout, 1)]
    for command in commands:
        if command == "take":
            heard.append(line(playout, 1))
        elif command == "write":
            playout.write(sound[written : written + block])
            written += block
        elif command in ("pause", "lower", "resume"):
            getattr(playout, command)()
    steps = np.abs(np.diff(np.concatenate(heard).astype(int)))
    assert steps.max() <= TONE_STEP + FADE_STEP


ACCOUNT = ("state", "sent", "queued", "underruns")
CUTS = ("pause", "lower", "resume", "flush")


@given(
    script=st.lists(
        st.one_of(
            st.tuples(st.just("write"), st.sampled_from([1, 79, 400, 480, 960, 1000, 5000])),
            st.tuples(st.just("pop"), st.integers(1, 12)),
            st.sampled_from([(name, 0) for name in (*CUTS, "begin", "end")]),
        ),
        max_size=40,
    )
)
def test_a_packet_within_a_chunk_is_like_any_other(script):
    """The short way of the usual packet leaves all as the long one does."""
    short, long = Playout(), Playout()
    long._within_chunk = lambda: None
    logs = [Log(short), Log(long)]
    written = 0
    for number, (what, count) in enumerate(script):
        if what == "write":
            for playout in (short, long):
                playout.write(ramp(written, count), mark=number)
            written += count
        elif what == "pop":
            np.testing.assert_array_equal(line(short, count), line(long, count))
        else:
            assert getattr(short, what)() == getattr(long, what)()
        for name in (
            "state",
            "sent",
            "queued",
            "underruns",
            "_offset",
            "_sounding",
            "_cut",
            "_gain",
        ):
            assert getattr(short, name) == getattr(long, name), name
        np.testing.assert_array_equal(short._last, long._last)
    assert logs[0].events == logs[1].events
