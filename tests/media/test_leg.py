"""What every line offers to those above it, whatever edge it came in by."""

import asyncio

import numpy as np
import pytest

from offhook.media.leg import (
    FRAME_QUEUE_MS,
    MAX_UNREAD_MESSAGES,
    SAME_DIGIT_TICKS,
    CallInfo,
    Leg,
    LegError,
    LegStatistics,
)
from offhook.media.pcm import RATE_IN, SAMPLES_IN, SAMPLES_OUT
from offhook.media.telephone_tones.tones import digit_frequencies, repeat
from tests.support.listening import Listening
from tests.support.waiting import HANGS_S


class CountingLeg(Leg):
    """Hears its own tick number, keeps what it says."""

    def __init__(self):
        super().__init__("counting")
        self.sent = []

    def _receive(self, now):
        return np.full(SAMPLES_IN, self.ticks, np.int16)

    def _send(self, said, now):
        self.sent.append(said)

    def send_message(self, text):
        return False


@pytest.fixture
def leg():
    return CountingLeg()


def tick(leg, count):
    for _ in range(count):
        leg.tick(leg.ticks * 0.02)


def test_a_tick_is_heard_said_and_told_of_with_one_time(leg):
    told = []
    leg.listen(lambda heard, said, now: told.append((int(heard[0]), said, now)))
    tick(leg, 1)
    leg.playout.write(np.arange(SAMPLES_OUT, dtype=np.int16))
    tick(leg, 2)
    assert [(heard, now) for heard, _, now in told] == [(0, 0.0), (1, 0.02), (2, 0.04)]
    assert [said is None for _, said, _ in told] == [True, False, True]
    np.testing.assert_array_equal(told[1][1], np.arange(SAMPLES_OUT))
    assert leg.sent[1] is told[1][1]
    assert leg.heard_ms == 60


def test_a_listener_stops_by_itself_and_from_within(leg):
    told = []
    stop = leg.listen(lambda heard, said, now: told.append(now))
    once = leg.listen(lambda heard, said, now: once())
    tick(leg, 1)
    stop()
    tick(leg, 2)
    assert told == [0.0]


def test_a_sound_is_played_while_nothing_else_is_and_stops_with_its_block(leg):
    music = repeat(np.arange(3 * SAMPLES_OUT, dtype=np.int16))
    speech = np.full(2 * SAMPLES_OUT, -7, np.int16)
    with leg.playing(music):
        tick(leg, 2)
        leg.playout.write(speech)
        tick(leg, 4)
    tick(leg, 1)
    said = [None if packet is None else int(packet[100]) for packet in leg.sent]
    assert said == [100, 580, -7, -7, 1060, 100, None]


def test_connecting_and_closing_are_told_once(leg):
    told = []
    leg.listener = Listening(on_connected=lambda: told.append("up"), on_closed=told.append)
    for _ in range(2):
        leg.connect()
        leg.close("first")
        leg.close("second")
    assert told == ["up", "first"]
    assert leg.closed == "first"


def test_hold_by_the_far_end_is_told_when_it_changes(leg):
    told = []
    leg.listener = Listening(on_held=told.append)
    for held in (False, True, True, False, False):
        leg.set_held(held)
        assert leg.held is held
    assert told == [True, False]


async def test_what_a_line_cannot_do_it_says(leg):
    with pytest.raises(LegError, match="cannot send DTMF"):
        leg.send_dtmf("1")
    with pytest.raises(LegError, match="cannot be transferred"):
        await leg.transfer("sip:a@example")
    for act in (leg.hold, leg.resume):
        with pytest.raises(LegError, match="cannot be put on hold"):
            await act()
    assert leg.closed is None


def test_calls_do_not_share_what_is_known_of_them(leg):
    assert leg.info == CallInfo()
    assert leg.info.headers is not CountingLeg().info.headers


async def gathered(frames):
    return [frame async for frame in frames]


async def begun(leg, frame_ms):
    """A reader already waiting for its first frame."""
    reader = asyncio.create_task(gathered(leg.frames(frame_ms)))
    await asyncio.sleep(0)
    return reader


@pytest.mark.parametrize("frame_ms", [20, 80, 100])
async def test_frames_are_gap_free_and_end_when_the_line_closes(leg, frame_ms):
    reader = await begun(leg, frame_ms)
    for _ in range(30):
        tick(leg, 1)
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    leg.close("over")
    frames = await asyncio.wait_for(reader, HANGS_S)
    assert {len(frame) for frame in frames} == {frame_ms * 16}
    heard = np.concatenate(frames)[::SAMPLES_IN]
    assert heard.tolist() == list(range(30 * 20 // frame_ms * frame_ms // 20))
    assert leg._listeners == []


async def test_a_reader_that_waits_is_woken_by_the_close_alone(leg):
    """The clock may have stopped by then: no further tick is needed."""
    reader = await begun(leg, 80)
    await asyncio.sleep(0)
    leg.close("over")
    assert await asyncio.wait_for(reader, HANGS_S) == []


async def test_a_slow_reader_loses_the_oldest_and_memory_is_bounded(leg):
    frames = leg.frames(100)
    first = asyncio.create_task(anext(frames))
    await asyncio.sleep(0)
    tick(leg, 5)
    await first
    tick(leg, 5 * 50)
    left = []
    async for frame in frames:
        left.append(int(frame[0]))
        if len(left) == FRAME_QUEUE_MS // 100:
            break
    await frames.aclose()
    assert left == list(range(5 + 5 * 50 - 100, 5 + 5 * 50, 5))
    assert leg._listeners == []


async def test_a_frame_once_given_does_not_change(leg):
    frames = leg.frames(20)
    waiting = asyncio.create_task(anext(frames))
    await asyncio.sleep(0)
    tick(leg, 1)
    frame = await waiting
    tick(leg, 3)
    assert set(frame) == {0}
    await frames.aclose()


def test_statistics_go_into_json_as_they_are():
    table = LegStatistics(packets_received=3, mos=4.1).as_dict()
    assert table["packets_received"] == 3
    assert table["round_trip_ms"] is None
    assert table["mos"] == 4.1


def test_messages_wait_for_whoever_reads_them(leg):
    for number in range(MAX_UNREAD_MESSAGES + 2):
        leg.listener.on_message(str(number))
    read = []
    leg.attach(Listening(on_message=read.append))
    leg.listener.on_message("last")
    assert read == [*map(str, range(2, MAX_UNREAD_MESSAGES + 2)), "last"]


async def test_it_is_known_whether_a_line_comes_up(leg):
    waiting = asyncio.create_task(leg.until_connected())
    leg.connect()
    assert await waiting
    leg.close("over")
    assert not await leg.until_connected()
    never = CountingLeg()
    never.close("the caller hung up")
    assert not await never.until_connected()


# --- digits that come as tones ---


class ToneLeg(CountingLeg):
    """Hears these sounds, one a tick, then silence."""

    def __init__(self, sounds):
        super().__init__()
        self.sounds = list(sounds)

    def _receive(self, now):
        return self.sounds.pop(0) if self.sounds else np.zeros(SAMPLES_IN, np.int16)


def toned(digits):
    """100 ms of each digit's tones and 100 ms of silence, in ticks."""
    time = np.arange(SAMPLES_IN * 5) / RATE_IN
    for digit in digits:
        sound = sum(5000 * np.sin(2 * np.pi * hz * time) for hz in digit_frequencies(digit))
        yield from np.split(sound.astype(np.int16), 5)
        yield from [np.zeros(SAMPLES_IN, np.int16)] * 5


def test_digits_are_heard_as_tones_only_if_it_was_asked_for():
    for wanted in (False, True):
        leg, keys, heard = ToneLeg(toned("1155")), [], []
        leg.listener = Listening(on_dtmf=keys.append)
        leg.listen(lambda pcm, said, now, heard=heard: heard.append(pcm))
        leg.listen_for_tones(wanted)
        tick(leg, 45)
        assert keys == (list("1155") if wanted else [])
        assert (np.concatenate(heard).any()) == (not wanted)


@pytest.mark.parametrize("signal_first", [True, False])
def test_a_digit_that_comes_as_a_signal_and_as_a_tone_is_one(signal_first):
    leg, keys = ToneLeg(toned("1155")), []
    leg.listener = Listening(on_dtmf=keys.append)
    leg.listen_for_tones(True)
    for digit in "1155":
        if signal_first:
            leg.receive_digit(digit)
        tick(leg, 10)
        if not signal_first:
            leg.receive_digit(digit)
    assert keys == list("1155")
    tick(leg, SAME_DIGIT_TICKS + 1)
    leg.receive_digit("5")
    assert keys == list("11555")
