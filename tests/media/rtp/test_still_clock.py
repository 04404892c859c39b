"""Senders whose timestamps do not count: what they say is heard all the same."""

from collections.abc import Callable, Iterable

import numpy as np
import pytest

from offhook.media import native
from offhook.media.pcm import SAMPLES_IN
from offhook.media.rtp.jitter import STILL_PACKETS, new_buffer
from offhook.media.rtp.receiver import AudioReceiver, new_receiver
from offhook.media.rtp.rtp import RtpPacket
from tests.media.native.paths import path
from tests.media.rtp.test_receiver import Counting

TICKS = 160
STEP_S = 0.02
SHORTENED = 3
"""Packets that are not heard whole at most, where playout is stretched to another delay."""
Clock = Callable[[int], int]


@pytest.fixture(params=["python", "compiled"])
def receiver(request: pytest.FixtureRequest) -> AudioReceiver:
    if request.param == "compiled" and not native.BUILT:
        pytest.skip("the compiled path was not built")
    with path(request.param == "compiled"):
        return new_receiver({0: Counting})


def packet(number: int, timestamp: int, ms: int = 20) -> RtpPacket:
    """Its sound is its number."""
    payload = np.full(ms * 16, number, np.int16).tobytes()
    return RtpPacket(0, number & 0xFFFF, timestamp & 0xFFFF_FFFF, 1, payload)


def heard(
    receiver: AudioReceiver, clock: Clock, numbers: Iterable[int], ms: int = 20, start: int = 0
) -> list[int]:
    """The packets whose sound is heard, in order, as they come in their time; of one several times
    if it is long, or was stretched."""
    sounds = []
    for n, number in enumerate(numbers):
        now = (start + n) * ms / 1000
        receiver.receive(packet(number, clock(number), ms), now)
        for pull in range(ms // 20):
            sounds.append(receiver.pull(now + 0.001 + pull * STEP_S))
    flat = np.concatenate(sounds)
    steady = flat.reshape(-1, SAMPLES_IN)
    return [int(one[-1]) for one in steady if (one[-80:] == one[-1]).all() and one[-1]]


@pytest.mark.parametrize("stood", [0, 160_000, 0xFFFF_FFFF])
def test_all_but_the_first_packets_are_heard_in_order(receiver: AudioReceiver, stood: int) -> None:
    got = heard(receiver, lambda number: stood, range(1, 200))
    assert got == sorted(got)
    assert len(set(range(1, 195)) - set(got)) < STILL_PACKETS + SHORTENED
    assert receiver.stats.late < STILL_PACKETS


@pytest.mark.parametrize("ms", [40, 60])
def test_packets_of_any_length_follow_each_other(receiver: AudioReceiver, ms: int) -> None:
    got = heard(receiver, lambda number: 7, range(1, 100), ms)
    assert got == sorted(got)
    assert len(set(range(1, 95)) - set(got)) < STILL_PACKETS + SHORTENED
    assert receiver.stats.late < STILL_PACKETS


def test_a_clock_that_stops_in_the_call_and_goes_on_costs_some_packets(
    receiver: AudioReceiver,
) -> None:
    def clock(number: int) -> int:
        return TICKS * (number if number < 100 else 100 if number < 200 else number - 100)

    got = heard(receiver, clock, range(1, 300))
    assert got == sorted(got)
    assert len(set(range(1, 295)) - set(got)) < STILL_PACKETS + SHORTENED


def test_a_clock_that_goes_on_with_the_right_time_leaves_no_gap(receiver: AudioReceiver) -> None:
    got = heard(
        receiver, lambda number: TICKS * (100 if 100 < number < 150 else number), range(1, 250)
    )
    assert len(set(range(1, 245)) - set(got)) < STILL_PACKETS + SHORTENED
    assert receiver.stats.delay_ms < 60


def test_lost_and_swapped_packets_of_a_clock_that_stands_still(receiver: AudioReceiver) -> None:
    numbers = [n for n in range(1, 200) if n not in (50, 51, 120)]
    at = numbers.index(150)
    numbers[at : at + 2] = numbers[at + 1], numbers[at]
    for n, number in enumerate(numbers):
        receiver.receive(packet(number, 5), n * STEP_S)
        receiver.pull(n * STEP_S + 0.001)
    before = STILL_PACKETS - 2  # until the clock is known to stand still
    assert (receiver.stats.lost, receiver.stats.late) == (3 + before, before)


def test_copies_under_other_numbers_are_heard_once(receiver: AudioReceiver) -> None:
    """Some devices send every packet twice, and number both."""
    got = []
    for n in range(1, 100):
        for copy in range(2):
            one = packet(2 * n + copy, n * TICKS)
            receiver.receive(
                RtpPacket(0, one.sequence_number, one.timestamp, 1, packet(n, 0).payload),
                n * STEP_S,
            )
        got.append(int(receiver.pull(n * STEP_S + 0.001)[-1]))
    played = [n for n in got if n]
    assert played == sorted(set(played))
    assert set(played) >= set(range(2, 96))


@pytest.mark.parametrize("compiled", [False, True])
def test_the_length_of_packets_is_twenty_milliseconds_until_one_is_decoded(compiled: bool) -> None:
    if compiled and not native.BUILT:
        pytest.skip("the compiled path was not built")
    with path(compiled):
        assert [new_buffer(rate).packet_ticks for rate in (8000, 48_000)] == [160, 960]
