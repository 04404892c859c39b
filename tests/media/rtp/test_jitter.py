from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.media import native
from offhook.media.rtp.jitter import (
    MAX_DELAY,
    MAX_PACKETS,
    MAX_SPAN,
    MIN_DELAY,
    STILL_PACKETS,
    Arrival,
    DelayEstimator,
    JitterBuffer,
    new_buffer,
)
from offhook.media.rtp.rtp import RtpPacket

RATE = 8000
TICKS = 160
STEP = 0.020


def packet(i: int, sequence_start: int = 0, timestamp_start: int = 0) -> RtpPacket:
    return RtpPacket(
        0,
        sequence_start + i & 0xFFFF,
        timestamp_start + i * TICKS & 0xFFFFFFFF,
        1,
        i.to_bytes(4, "big"),
    )


def play(buffer: JitterBuffer) -> list[int]:
    """Take all that is held, in order, and move the position behind it."""
    out = []
    while buffer.head is not None:
        queued = buffer.pop()
        buffer.position = queued.timestamp + TICKS
        out.append(int.from_bytes(queued.payload, "big"))
    return out


def feed(buffer: JitterBuffer, delays_ms: list[float], start: int = 0) -> None:
    for i, ms in enumerate(delays_ms, start):
        buffer.insert(packet(i), i * STEP + ms / 1000)
        play(buffer)


def test_reordered_packets_come_out_in_order_across_both_wraps() -> None:
    buffer = JitterBuffer(RATE)
    for n, i in enumerate([0, 2, 1, 4, 3, 5]):
        assert buffer.insert(packet(i, 0xFFFE, 0xFFFFFF00), n * STEP) is Arrival.QUEUED
    assert play(buffer) == [0, 1, 2, 3, 4, 5]


def test_duplicates_and_late_packets_are_told_apart() -> None:
    buffer = JitterBuffer(RATE)
    for i in (0, 1, 3):
        buffer.insert(packet(i), i * STEP)
    assert buffer.insert(packet(1), 0.07) is Arrival.DUPLICATE
    play(buffer)
    assert buffer.insert(packet(3), 0.08) is Arrival.DUPLICATE
    assert buffer.insert(packet(2), 0.09) is Arrival.LATE


def test_a_peer_that_restarts_is_followed_from_its_second_packet() -> None:
    buffer = JitterBuffer(RATE)
    feed(buffer, [0.0] * 50)
    assert buffer.insert(packet(0, 40000, 10**9), 1.0) is Arrival.OUT_OF_RANGE
    assert buffer.insert(packet(1, 40000, 10**9), 1.02) is Arrival.RESTARTED
    assert buffer.insert(packet(2, 40000, 10**9), 1.04) is Arrival.QUEUED
    assert play(buffer) == [1, 2]


def test_packets_from_shortly_before_the_latest_are_behind() -> None:
    buffer = JitterBuffer(RATE)
    assert buffer.backlog() == 0
    feed(buffer, [0.0] * 50)
    assert [buffer.is_behind(number) for number in (48, 49, 50, 40_000)] == [True, False] + [
        False
    ] * 2


@pytest.mark.parametrize("compiled", [True, False])
def test_a_stream_gets_the_buffer_that_is_used(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if compiled and not native.BUILT:
        pytest.skip("not compiled here")
    monkeypatch.setattr(native, "used", compiled)
    assert isinstance(new_buffer(RATE), JitterBuffer) is not compiled


def test_one_stray_packet_changes_nothing() -> None:
    buffer = JitterBuffer(RATE)
    feed(buffer, [0.0] * 50)
    assert buffer.insert(packet(0, 40000, 10**9), 1.0) is Arrival.OUT_OF_RANGE
    assert buffer.insert(packet(50), 1.0) is Arrival.QUEUED
    assert play(buffer) == [50]


def test_a_pause_in_sending_is_not_a_restart() -> None:
    buffer = JitterBuffer(RATE)
    feed(buffer, [0.0] * 10)
    after = RtpPacket(0, 10, 3000 * TICKS, 1, b"")
    assert buffer.insert(after, 3000 * STEP) is Arrival.QUEUED


def test_a_sender_that_sets_its_clock_back_is_followed_from_its_second_packet() -> None:
    buffer = JitterBuffer(RATE)
    for i in range(100):
        buffer.insert(packet(i), i * STEP)
    play(buffer)
    back = -50 * TICKS
    assert buffer.insert(packet(100, timestamp_start=back), 100 * STEP) is Arrival.OUT_OF_RANGE
    assert buffer.insert(packet(101, timestamp_start=back), 101 * STEP) is Arrival.RESTARTED
    assert buffer.insert(packet(102, timestamp_start=back), 102 * STEP) is Arrival.QUEUED
    assert play(buffer) == [101, 102]


def test_packets_without_sound_are_numbered_once_wherever_they_come() -> None:
    buffer = JitterBuffer(RATE)
    assert buffer.skip_non_audio(5) is None  # there is no stream yet
    buffer.insert(packet(0), 0.0)
    buffer.insert(packet(4), 4 * STEP)
    assert [buffer.skip_non_audio(number) for number in (5, 5, 2, 2, 4)] == [5, None, 2, None, None]
    buffer.insert(packet(3), 4 * STEP)
    buffer.insert(packet(6), 6 * STEP)
    assert buffer.skip_non_audio(9000) is None
    held = [(queued.sequence_number, queued.non_audio) for queued in list(buffer._packets)]
    assert held == [(0, 0), (3, 1), (4, 1), (6, 2)]


def test_target_is_one_packet_on_a_clean_line() -> None:
    buffer = JitterBuffer(RATE)
    feed(buffer, [0.0] * 200)
    assert buffer.target == MIN_DELAY


def test_target_follows_jitter_up_and_down() -> None:
    random = Random(0)
    buffer = JitterBuffer(RATE)
    feed(buffer, [random.uniform(0, 80) for _ in range(500)])
    assert 0.070 <= buffer.target <= 0.085
    feed(buffer, [0.0] * 500, 500)
    assert buffer.target == MIN_DELAY


def test_one_late_packet_does_not_raise_the_target() -> None:
    buffer = JitterBuffer(RATE)
    feed(buffer, [0.0] * 100 + [210.0] + [0.0] * 10)
    assert buffer.target == MIN_DELAY


@pytest.mark.parametrize("ppm", [-200, 200])
def test_drift_is_not_jitter(ppm: int) -> None:
    buffer = JitterBuffer(RATE)
    for i in range(20_000):
        buffer.insert(packet(i), i * STEP * (1 + ppm * 1e-6))
        play(buffer)
    assert buffer.target == MIN_DELAY
    assert abs(buffer.slack(20_000 * TICKS, 20_000 * STEP * (1 + ppm * 1e-6))) < 0.002


def test_a_longer_path_is_not_jitter_for_long() -> None:
    buffer = JitterBuffer(RATE)
    feed(buffer, [0.0] * 300 + [150.0] * 1200)
    assert buffer.target == MIN_DELAY


def test_a_repairable_loss_counts_as_late_by_one_packet() -> None:
    for repairable in (False, True):
        buffer = JitterBuffer(RATE)
        buffer.repairable = repairable
        random = Random(0)
        for i in range(1000):
            if i % 15:
                buffer.insert(packet(i), i * STEP + random.uniform(0, 0.02))
                play(buffer)
        assert (buffer.target > 0.025) is repairable


def test_a_full_buffer_drops_its_oldest() -> None:
    buffer = JitterBuffer(RATE)
    for i in range(200):
        buffer.insert(packet(i), 0.5)
    held = play(buffer)
    assert held[-1] == 199
    assert held == list(range(held[0], 200))
    assert len(held) == round(MAX_SPAN / STEP) + 1
    assert buffer.dropped == 200 - len(held)


packets = st.builds(
    RtpPacket,
    st.just(0),
    st.one_of(st.integers(0, 20), st.integers(0xFFF0, 0xFFFF), st.integers(0, 0xFFFF)),
    st.one_of(st.integers(0, 20).map(lambda n: n * TICKS), st.integers(0, 0xFFFFFFFF)),
    st.just(1),
    st.binary(max_size=4),
)


@given(st.lists(st.tuples(packets, st.floats(0, 2)), max_size=200))
def test_any_packets_leave_it_bounded_and_in_order(arrivals: list[tuple[RtpPacket, float]]) -> None:
    buffer = JitterBuffer(RATE)
    now = 0.0
    for incoming, wait in arrivals:
        now += wait
        buffer.insert(incoming, now)
        assert len(buffer) <= MAX_PACKETS
        assert MIN_DELAY <= buffer.target <= MAX_DELAY
    numbers = [buffer.pop().sequence_number for _ in range(len(buffer))]
    assert numbers == sorted(set(numbers))


def test_after_an_hour_it_follows_the_network_as_in_the_first_minute() -> None:
    """Weights grow with each packet, beyond what a float holds after 71,000 of them."""
    targets = []
    for minutes in (1, 60):
        estimator = DelayEstimator()
        for n in range(minutes * 3000):
            estimator.record((n % 7) / 1000)
        before = estimator.target
        for _ in range(300):
            estimator.record(0.09)
        targets.append((before, estimator.target))
    assert targets[0] == targets[1]
    assert targets[1][1] > 0.09


def test_while_a_clock_stands_still_the_numbers_count_and_then_what_it_has_lost_is_added() -> None:
    buffer = JitterBuffer(RATE)
    stood, ahead = 20, 10

    def sent(i: int) -> RtpPacket:
        timestamp = 7 if i < stood else 7 + (i - stood + 1) * TICKS
        return RtpPacket(0, i, timestamp, 1, i.to_bytes(4, "big"))

    played: list[int] = []
    timestamps: list[int] = []
    for i in range(stood + ahead):
        buffer.insert(sent(i), i * STEP)
        timestamps += [buffer.head.timestamp] if buffer.head is not None else []
        played += play(buffer)
    lost = STILL_PACKETS - 2  # until it is known to stand still
    assert played == [0, *range(1 + lost, stood + ahead)]
    steps = {after - before for before, after in pairwise(timestamps[1:])}
    assert steps == {TICKS}


def test_of_a_clock_that_stands_still_a_packet_with_another_time_keeps_it() -> None:
    buffer = JitterBuffer(RATE)
    for i in (0, 1, 2, 3, 5, 6):
        buffer.insert(RtpPacket(0, i, 7, 1, b""), i * STEP)
    before = len(buffer)
    assert buffer.insert(RtpPacket(0, 4, 7 + 100 * TICKS, 1, b""), 0.14) is Arrival.QUEUED
    assert len(buffer) == before + 1
