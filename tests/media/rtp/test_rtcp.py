"""RTCP between two ends in memory: what each learns of the line, and any bytes at all."""

import struct
from itertools import pairwise

import pytest
from aiortc.rtp import (
    RtcpByePacket,
    RtcpPacket,
    RtcpReceiverInfo,
    RtcpRrPacket,
    RtcpSdesPacket,
    RtcpSrPacket,
)
from hypothesis import given
from hypothesis import strategies as st

from offhook.media.rtp.rtcp import (
    REPORT_INTERVAL_S,
    Bye,
    ReceptionStatistics,
    RemoteReport,
    RtcpError,
    RtcpSession,
    SentTotals,
)

CLOCK_RATE = 48_000
OURS, THEIRS = 0x1111, 0x2222
WALL = 1_800_000_000.25


def session(ssrc: int = OURS, now: float = 0.0, cname: str = "a@example") -> RtcpSession:
    return RtcpSession(ssrc, cname, CLOCK_RATE, now, uniform=lambda: 0.5)


def report(end: RtcpSession, packets: int = 0, wall_time: float = WALL) -> bytes:
    """The report that is due next, sent when it is due."""
    sent = SentTotals(packets, packets * 80, packets * 960)
    data = end.reports_to_send(end.get_timer(), wall_time, sent)
    assert data is not None
    return data


def packets_of(data: bytes) -> list[object]:
    return list(RtcpPacket.parse(data))


# Reception statistics


def test_a_clean_line_has_no_loss_and_no_jitter() -> None:
    reception = ReceptionStatistics(THEIRS, CLOCK_RATE)
    for i in range(500):
        reception.receive(i, i * 960, i * 0.02)
    assert (reception.received, reception.lost, reception.next_fraction_lost()) == (500, 0, 0)
    assert reception.jitter_ms < 1e-6


@given(
    start=st.integers(0, 0xFFFF),
    lost=st.sets(st.integers(1, 298), max_size=250),
    swaps=st.lists(st.integers(0, 297), max_size=20),
)
def test_loss_is_counted_whatever_the_order_and_the_wrap(
    start: int, lost: set[int], swaps: list[int]
) -> None:
    sent = [i for i in range(300) if i not in lost]
    for swap in swaps:
        i = 1 + swap % (len(sent) - 2)
        sent[i], sent[i - 1] = sent[i - 1], sent[i]
    # The first to arrive sets the base (A.1), so it is kept first.
    sent.sort(key=lambda i: i != 0)
    reception = ReceptionStatistics(THEIRS, CLOCK_RATE)
    for i in sent:
        reception.receive((start + i) & 0xFFFF, i * 960, i * 0.02)
    assert reception.lost == len(lost)
    assert reception.highest_sequence == start + 299
    assert reception.next_fraction_lost() == 256 * len(lost) // 300
    assert reception.next_fraction_lost() == 0


def test_fraction_lost_is_of_the_last_interval_only() -> None:
    reception = ReceptionStatistics(THEIRS, CLOCK_RATE)
    for i in range(100):
        if i % 4:
            reception.receive(i, i * 960, i * 0.02)
    assert reception.next_fraction_lost() == pytest.approx(64, abs=3)
    for i in range(100, 200):
        reception.receive(i, i * 960, i * 0.02)
    assert reception.next_fraction_lost() == 0
    assert reception.lost == 24


def test_duplicates_make_the_loss_negative_and_the_fraction_nothing() -> None:
    reception = ReceptionStatistics(THEIRS, CLOCK_RATE)
    for i in range(50):
        reception.receive(i, i * 960, i * 0.02)
        reception.receive(i, i * 960, i * 0.02)
    assert reception.lost == -50
    assert reception.next_fraction_lost() == 0


def test_jitter_is_the_mean_deviation_in_timestamp_units() -> None:
    reception = ReceptionStatistics(THEIRS, CLOCK_RATE)
    for i in range(1000):
        late = 0.010 if i % 2 else 0.0
        reception.receive(i, 0xFFFF_0000 + i * 960 & 0xFFFF_FFFF, i * 0.02 + late)
    # Every transit differs by 10 ms from the one before.
    assert reception.jitter_ms == pytest.approx(10, rel=0.01)
    assert reception.jitter == pytest.approx(480, rel=0.01)


def test_a_sender_that_sets_its_clock_or_sends_dtmf_adds_no_jitter() -> None:
    reception = ReceptionStatistics(THEIRS, CLOCK_RATE)
    for i in range(50):
        reception.receive(i, i * 960, i * 0.02)
    for i in range(50, 60):
        reception.receive(i, 50 * 960, i * 0.02)
    for i in range(60, 100):
        reception.receive(i, 0x7000_0000 + i * 960, i * 0.02)
    assert reception.jitter_ms < 1


def test_packets_out_of_the_clock_are_counted_and_add_no_jitter() -> None:
    """Events and comfort noise stand among the sound with timestamps of their own."""
    reception = ReceptionStatistics(THEIRS, CLOCK_RATE)
    for i in range(100):
        reception.receive(2 * i, i * 960, i * 0.02)
        reception.receive(2 * i + 1, None, i * 0.02)
    assert (reception.received, reception.lost) == (200, 0)
    assert reception.jitter_ms < 1e-6


def test_a_clock_of_another_rate_is_followed() -> None:
    ours = session()
    for i in range(100):
        ours.receive_rtp(THEIRS, i, i * 960, i * 0.02 + 0.003 * (i % 2))
    assert ours.reception is not None
    before = ours.reception.jitter_ms
    ours.set_clock_rate(8000)
    for i in range(100, 200):
        ours.receive_rtp(THEIRS, i, 77_000 + i * 160, i * 0.02 + 0.003 * (i % 2))
        assert ours.reception.jitter_ms == pytest.approx(before, rel=0.1)
    assert ours.reception.lost == 0
    ours.receive_rtp(7, 1, 0, 4.0)
    ours.receive_rtp(7, 2, 160, 4.03)
    assert ours.reception.jitter_ms == pytest.approx(10 / 16)


def test_another_stream_of_ours_goes_by_the_same_name_and_its_own_counts() -> None:
    ours, theirs = session(), session(THEIRS)
    report(ours, packets=50)
    ours.change_source(0x3333, 8000)
    first = packets_of(report(ours, packets=0))
    assert isinstance(first[0], RtcpRrPacket)
    sender, description = packets_of(report(ours, packets=5))
    assert isinstance(sender, RtcpSrPacket)
    assert isinstance(description, RtcpSdesPacket)
    assert (sender.ssrc, description.chunks[0].ssrc) == (0x3333, 0x3333)
    assert description.chunks[0].items[0][1] == b"a@example"
    theirs.receive_rtp(0x3333, 1, 0, 0.0)
    (told,) = ours.receive(report(theirs), 2.0)
    assert isinstance(told, RemoteReport)
    old = RtcpReceiverInfo(OURS, 0, 0, 1, 0, 0, 0)
    assert ours.receive(bytes(RtcpRrPacket(ssrc=THEIRS, reports=[old])), 2.0) == []


def test_a_stray_packet_is_not_counted_and_a_restarted_sender_is_followed() -> None:
    reception = ReceptionStatistics(THEIRS, CLOCK_RATE)
    for i in range(100):
        reception.receive(i, i * 960, i * 0.02)
    reception.receive(40_000, 0, 2.0)
    assert (reception.received, reception.lost) == (100, 0)
    for i in range(20):
        reception.receive(50_000 + i, i * 960, 3 + i * 0.02)
    # The first of the new run is spent on believing in it.
    assert (reception.received, reception.lost) == (19, 0)
    assert reception.highest_sequence == 50_019


# Reports


def test_both_ends_learn_loss_jitter_and_round_trip() -> None:
    ours, theirs = session(OURS), session(THEIRS)
    for i in range(100):
        if i % 10:
            theirs.receive_rtp(OURS, i, i * 960, i * 0.02 + (0.004 if i % 2 else 0))
    sent_at = ours.get_timer()
    # Their clock has another origin, as on another machine.
    assert theirs.receive(report(ours, packets=100), 1000.0) == []
    answer = theirs.reports_to_send(1000.5, WALL - 77, SentTotals(0, 0, 0))
    assert answer is not None
    (event,) = ours.receive(answer, sent_at + 0.5 + 0.120)
    assert isinstance(event, RemoteReport)
    assert event.fraction_lost == pytest.approx(9 / 99, abs=1 / 256)
    assert event.packets_lost == 9
    assert event.jitter_ms == pytest.approx(3.5, abs=1)
    assert event.round_trip_ms == pytest.approx(120, abs=0.05)


def test_the_round_trip_is_unknown_until_a_report_was_answered() -> None:
    ours, theirs = session(OURS), session(THEIRS)
    theirs.receive_rtp(OURS, 1, 960, 0.0)
    (event,) = ours.receive(report(theirs), 1.0)
    assert isinstance(event, RemoteReport)
    assert event.round_trip_ms is None
    forged = RtcpReceiverInfo(OURS, 0, 0, 1, 0, lsr=0xDEADBEEF, dlsr=1)
    (event,) = ours.receive(bytes(RtcpRrPacket(THEIRS, [forged])), 2.0)
    assert isinstance(event, RemoteReport)
    assert event.round_trip_ms is None


def test_a_report_of_a_late_tick_answers_one_that_came_after_its_time() -> None:
    ours, theirs = session(), session(THEIRS)
    ours.receive_rtp(THEIRS, 1, 0, 0.0)
    ours.receive(report(theirs, packets=1), ours.get_timer() + 0.4)
    (answer, _) = packets_of(report(ours))
    assert isinstance(answer, RtcpRrPacket)
    (block,) = answer.reports
    assert block.lsr
    assert block.dlsr == 0


def test_a_sender_report_carries_ntp_time_counts_and_cname() -> None:
    sr, sdes = packets_of(report(session(cname="call-7@host"), packets=42))
    assert isinstance(sr, RtcpSrPacket)
    assert sr.sender_info.ntp_timestamp / 2**32 == pytest.approx(WALL + 2_208_988_800)
    assert (sr.sender_info.packet_count, sr.sender_info.octet_count) == (42, 42 * 80)
    assert sr.sender_info.rtp_timestamp == 42 * 960
    assert isinstance(sdes, RtcpSdesPacket)
    assert sdes.chunks[0].items == [(1, b"call-7@host")]


def test_who_falls_silent_goes_from_sender_to_receiver_reports() -> None:
    end = session()
    kinds = [type(packets_of(report(end, packets=n))[0]) for n in (0, 50, 50, 50, 51)]
    assert kinds == [RtcpRrPacket, RtcpSrPacket, RtcpSrPacket, RtcpRrPacket, RtcpSrPacket]


def test_reports_come_between_half_and_one_and_a_half_of_the_interval() -> None:
    end = RtcpSession(OURS, "a", CLOCK_RATE, now=10.0)
    assert end.reports_to_send(10.0, WALL, SentTotals(1, 1, 1)) is None
    times = [10.0]
    for _ in range(200):
        times.append(end.get_timer())
        report(end, packets=1)
    gaps = [b - a for a, b in pairwise(times[1:])]
    assert times[1] - 10.0 <= 0.75 * REPORT_INTERVAL_S
    assert 0.5 * REPORT_INTERVAL_S <= min(gaps) < 0.6 * REPORT_INTERVAL_S
    assert 1.4 * REPORT_INTERVAL_S < max(gaps) <= 1.5 * REPORT_INTERVAL_S


def test_a_new_ssrc_starts_new_statistics_and_its_predecessors_bye_ends_nothing() -> None:
    end = session()
    for i in range(10):
        end.receive_rtp(THEIRS, i * 2, 0, 0.0)
    end.receive_rtp(0x3333, 500, 0, 0.0)
    assert end.reception is not None
    assert (end.reception.received, end.reception.lost) == (1, 0)
    assert end.receive(session(THEIRS).bye(1.0), 1.0) == []
    assert end.receive(session(0x3333).bye(1.0), 1.0) == [Bye(0x3333)]


def test_bye_is_a_valid_compound_packet() -> None:
    kinds = [type(packet) for packet in packets_of(session().bye(5.0))]
    assert kinds == [RtcpRrPacket, RtcpSdesPacket, RtcpByePacket]


# What others send


def test_extensions_unknown_types_and_padding_are_read_past() -> None:
    end = session()
    block = bytes(RtcpReceiverInfo(OURS, 64, -3, 7, 480, 0, 0))
    extended = struct.pack("!BBHL", 0x81, 201, 8, THEIRS) + block + b"more"
    xr = struct.pack("!BBHL", 0x80, 207, 1, THEIRS)
    feedback = struct.pack("!BBHLL", 0x8F, 206, 3, THEIRS, OURS) + b"REMB"
    padded_bye = struct.pack("!BBHL", 0xA1, 203, 2, THEIRS) + b"\0\0\0\4"
    events = end.receive(xr + extended + feedback + padded_bye, 1.0)
    assert events == [RemoteReport(0.25, -3, 10.0, None), Bye(THEIRS)]


def test_reduced_size_packets_are_taken() -> None:
    """RFC 5506: a goodbye or feedback without the report before it."""
    bye = bytes(RtcpByePacket([THEIRS]))
    assert session().receive(bye, 0.0) == [Bye(THEIRS)]
    assert session().receive(struct.pack("!BBHLL", 0x81, 205, 2, THEIRS, OURS), 0.0) == []


def test_a_report_of_somebody_elses_stream_is_no_event() -> None:
    block = RtcpReceiverInfo(0x9999, 255, 100, 7, 480, 0, 0)
    assert session().receive(bytes(RtcpRrPacket(THEIRS, [block])), 0.0) == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80",
        b"\x00\xc9\x00\x00",
        struct.pack("!BBHL", 0x81, 201, 1, THEIRS),
        struct.pack("!BBHL", 0x80, 201, 9, THEIRS),
        struct.pack("!BBHL", 0xA0, 201, 1, THEIRS),
        struct.pack("!BBHL", 0x82, 203, 1, THEIRS),
    ],
    ids=["empty", "header", "version", "block", "length", "padding", "bye"],
)
def test_malformed_datagrams_raise_rtcp_error(data: bytes) -> None:
    with pytest.raises(RtcpError, match="RTCP"):
        session().receive(data, 0.0)


def one_packet(packet_type: int, count: int, words: bytes) -> bytes:
    body = words + b"\0" * (-len(words) % 4)
    return struct.pack("!BBH", 0x80 | count, packet_type, len(body) // 4) + body


almost_rtcp = st.lists(
    st.builds(one_packet, st.integers(192, 213), st.integers(0, 31), st.binary(max_size=90)),
    max_size=4,
).map(b"".join)


@given(st.lists(st.one_of(st.binary(max_size=200), almost_rtcp), max_size=5))
def test_any_bytes_give_events_or_rtcp_error(datagrams: list[bytes]) -> None:
    end = session()
    end.receive_rtp(THEIRS, 1, 960, 0.0)
    for data in datagrams:
        try:
            events = end.receive(data, 1.0)
        except RtcpError:
            continue
        assert all(isinstance(event, RemoteReport | Bye) for event in events)
    assert packets_of(report(end, packets=1))


@given(st.lists(st.tuples(st.integers(0, 0xFFFF), st.integers(0, 2**32 - 1), st.floats(0, 1e6))))
def test_any_packets_give_a_report_that_can_be_sent(arrivals: list[tuple[int, int, float]]) -> None:
    end = session()
    for sequence_number, timestamp, now in arrivals:
        end.receive_rtp(THEIRS, sequence_number, timestamp, now)
    assert packets_of(report(end, packets=1))
