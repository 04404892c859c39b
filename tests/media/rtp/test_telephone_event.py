"""Each key is heard once and at its first packet, whatever the network does to the others."""

import itertools
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.media import keys
from offhook.media.rtp.rtp import RtpPacket, uint32_add
from offhook.media.rtp.telephone_event import MAX_REMEMBERED_PRESSES, EventReceiver, EventSender
from offhook.media.telephone_tones.dtmf import DIGIT_TICKS, DIGITS, DtmfQueue

PT = 101


numbers = itertools.count()


def event(digit, timestamp, duration, end=False, marker=False, ssrc=7, sequence_number=None):
    """The next packet of a stream."""
    payload = bytes((DIGITS.index(digit), 0x80 * end | 10)) + duration.to_bytes(2, "big")
    number = (next(numbers) if sequence_number is None else sequence_number) & 0xFFFF
    return RtpPacket(PT, number, timestamp & 0xFFFFFFFF, ssrc, payload, marker)


def heard(packets):
    receiver = EventReceiver()
    return "".join(receiver.receive(packet) for packet in packets)


def sent(digits, clock_rate=8000, timestamp=1000):
    """Packets of a press of each digit, as (tick, packet)."""
    keys, sender = DtmfQueue(), EventSender(clock_rate)
    keys.press(digits)
    packets, tick = [], 0
    while keys.busy:
        key = keys.tick()
        packet = key and sender.tick(key, timestamp)
        if packet:
            stamp, payload, marker = packet
            packets.append((tick, RtpPacket(PT, len(packets), stamp, 7, payload, marker)))
        timestamp = uint32_add(timestamp, clock_rate // 50)
        tick += 1
    return packets


@pytest.mark.parametrize("clock_rate", [8000, 48000])
def test_a_press_on_the_wire(clock_rate):
    packets = sent("5", clock_rate, timestamp=0xFFFFFF00)
    step = clock_rate // 50
    assert [tick for tick, _ in packets] == list(range(7))
    assert {packet.timestamp for _, packet in packets} == {0xFFFFFF00}
    assert [packet.marker for _, packet in packets] == [True] + [False] * 6
    payloads = [packet.payload for _, packet in packets]
    assert [payload[0] for payload in payloads] == [5] * 7
    assert [payload[1] for payload in payloads] == [10] * 4 + [0x80 | 10] * 3
    durations = [int.from_bytes(payload[2:], "big") for payload in payloads]
    assert durations == [step, 2 * step, 3 * step, 4 * step, 5 * step, 5 * step, 5 * step]


def test_presses_begin_200_ms_apart_and_code_their_keys():
    packets = sent(DIGITS)
    firsts = [packet for _, packet in packets if packet.marker]
    assert [packet.payload[0] for packet in firsts] == list(range(16))
    assert {b.timestamp - a.timestamp for a, b in pairwise(firsts)} == {1600}
    assert {tick % DIGIT_TICKS for tick, packet in packets if packet.marker} == {0}


def test_a_key_is_told_at_its_first_packet():
    receiver = EventReceiver()
    told = [receiver.receive(packet) for _, packet in sent("5")]
    assert told == ["5"] + [""] * 6


@pytest.mark.parametrize("lost", [range(1), range(4), range(1, 4), range(4, 7), range(1, 7)])
def test_the_first_the_middle_or_the_end_may_be_lost(lost):
    packets = [p for digit in (0, 7) for p in sent("55")[digit : digit + 7]]
    kept = [packet for n, (_, packet) in enumerate(packets) if n % 7 not in lost]
    assert heard(kept) == "55"


@st.composite
def journeys(draw):
    """A digit string, and the order in which its packets come: some lost, but of each press at
    least one is not, some twice, each up to 79 ms late: any later, a press may be told after the
    next."""
    digits = draw(st.text(DIGITS, min_size=1, max_size=12))
    clock_rate = draw(st.sampled_from([8000, 48000]))
    arrivals = []
    packets = sent(digits, clock_rate, draw(st.integers(0, 0xFFFFFFFF)))
    for press in range(len(digits)):
        of_press = [p for p in packets if p[0] // DIGIT_TICKS == press]
        copies = draw(st.lists(st.integers(0, 2), min_size=7, max_size=7).filter(any))
        for (tick, packet), count in zip(of_press, copies, strict=True):
            for _ in range(count):
                arrivals.append((tick * 20 + draw(st.integers(0, 79)), len(arrivals), packet))
    return digits, [packet for _, _, packet in sorted(arrivals, key=lambda arrival: arrival[:2])]


@given(journeys())
def test_any_digits_arrive_exactly_if_one_packet_of_each_does(journey):
    digits, packets = journey
    assert heard(packets) == digits


def test_a_press_told_late_and_again_is_one_press():
    packets = [packet for _, packet in sent("12")]
    old, new = packets[:7], packets[7:]
    assert heard([old[0], new[0], *old, *new, *old]) == "12"


def test_events_may_share_a_timestamp_but_not_their_key():
    """Some senders let the clock stand still while keys are pressed."""
    assert heard([event("1", 0, 160), event("1", 0, 320, end=True), event("2", 0, 160)]) == "12"


@pytest.mark.parametrize("lost", [None, 0, 3, 4])
def test_a_key_held_for_seconds_is_one_press(lost):
    """At 48 kHz a segment is full after 1.4 s."""
    segment = 0xFFFF
    packets = [event("8", 0, 960, marker=True), event("8", 0, segment)]
    packets += [event("8", segment, 960), event("8", segment, segment)]
    packets += [event("8", 2 * segment, 960), event("8", 2 * segment, 1920, end=True)]
    packets = [packet for n, packet in enumerate(packets) if n != lost]
    assert heard(packets) == "8"
    again = event("8", 3 * segment, 960)
    assert heard([*packets, again]) == "88"


def test_a_segment_may_end_where_its_sender_had_its_last_packet():
    last = 65280  # 68 packets of 20 ms at 48 kHz
    packets = [event("8", n * last, d) for n in range(3) for d in range(960, last + 1, 960)]
    assert heard(packets) == "8"


def test_the_same_key_again_without_pause_end_or_marker_is_a_press():
    assert heard([event("8", 0, 4800), event("8", 4800, 960)]) == "88"


def test_a_new_press_after_a_segment_is_known_by_its_marker():
    assert heard([event("8", 0, 0xFFFF), event("8", 0xFFFF, 960, marker=True)]) == "88"


def test_durations_that_lie_change_nothing():
    packets = [event("3", 50, duration) for duration in (0, 65535, 160, 0)]
    assert heard([*packets, event("3", 50, 0, end=True), event("3", 900, 0)]) == "33"


def test_two_presses_of_which_only_the_ends_arrive_are_two():
    ends = [
        event("5", stamp, 800, end=True, sequence_number=n) for n, stamp in ((9, 0), (10, 1600))
    ]
    assert heard(ends) == "55"


def test_a_relay_that_numbers_packets_in_a_wrong_order_makes_no_press():
    late = [event("5", 0, 480), event("5", 0, 800), event("5", 0, 800, end=True)]
    assert heard([*late, event("5", 0, 640)]) == "5"


def test_two_streams_are_two_phones():
    assert heard([event("1", 0, 160), event("1", 0, 160, ssrc=8)]) == "11"


def test_short_events_packed_together_are_all_told():
    packed = event("1", 0, 400, end=True)
    packed.payload += event("2", 0, 400, end=True).payload + event("2", 0, 160).payload
    assert heard([packed, packed, event("2", 800, 400, end=True)]) == "122"


def test_what_is_no_key_is_nothing():
    flash = RtpPacket(PT, 0, 0, 7, bytes((16, 0x80, 0, 160)))
    empty, short = RtpPacket(PT, 0, 0, 7, b""), RtpPacket(PT, 0, 0, 7, b"\x05\x0a\x00")
    assert heard([flash, empty, short]) == ""
    odd = event("5", 0, 160)
    odd.payload += b"\x00\x00"
    assert heard([odd]) == "5"


@given(st.lists(st.tuples(st.integers(0, 0xFFFFFFFF), st.booleans(), st.binary(max_size=40))))
def test_no_packet_raises_and_memory_is_bounded(packets):
    receiver = EventReceiver()
    for timestamp, marker, payload in packets:
        told = receiver.receive(RtpPacket(PT, 0, timestamp, 7, payload, marker))
        assert set(told) <= set(DIGITS)
        assert len(receiver._presses) <= MAX_REMEMBERED_PRESSES


@pytest.mark.parametrize("talks", [True, False])
@pytest.mark.parametrize("ends", [1, 3])
@pytest.mark.parametrize("durations", keys.DURATIONS)
@pytest.mark.parametrize("markers", keys.MARKERS)
@pytest.mark.parametrize("stamps", keys.STAMPS)
@pytest.mark.parametrize("digits", ["5", "15", "115", "11111", "151", "1515"])
def test_odd_senders_are_understood(digits, stamps, markers, durations, ends, talks):
    packets = keys.sent(digits, stamps, markers, durations, ends, talks)
    assert heard(packets) == digits
    assert heard([packet for packet in packets for _ in range(2)]) == digits  # each sent twice


@pytest.mark.parametrize("markers", keys.MARKERS)
@pytest.mark.parametrize("stamps", keys.STAMPS)
def test_odd_senders_are_understood_when_a_packet_is_lost(stamps, markers):
    packets = keys.sent("1155", stamps, markers)
    for lost in range(len(packets)):
        assert heard(packets[:lost] + packets[lost + 1 :]) == "1155", lost
