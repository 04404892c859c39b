"""Two lines over RTP, back to back: keys, hold and changes of format as each end sees them."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from aiortc.rtp import RtcpPacket, RtcpRrPacket, RtcpSrPacket

from offhook.media.leg import LegError
from offhook.media.pcm import dbfs
from offhook.media.rtp.rtp import RtpPacket, uint16_diff, uint32_diff
from offhook.media.telephone_tones.dtmf import MAX_QUEUED
from tests.media.lines import CN, EVENT, FULL, G722, NARROW, PCMU, WIDE, Line, loudest, tone
from tests.support.listening import Listening


def call(format=NARROW):
    ours, theirs = Line("ours", format, 1), Line("theirs", format, 2)
    ours.far, theirs.far = theirs, ours
    return ours, theirs


def run(ours, theirs, ticks):
    for _ in range(ticks):
        for line in (ours, theirs):
            line.now = line.ticks * 0.02
            line.tick(line.now)


def talk(ours, theirs, ticks, hz=500):
    for _ in range(ticks):
        if ours.playout.queued < 480:
            ours.playout.write(tone(hz))
        run(ours, theirs, 1)


def hear(line, ticks):
    return np.concatenate(line.heard[-ticks:])


@pytest.mark.parametrize("format", [NARROW, FULL, replace(NARROW, ptime_ms=60)])
def test_keys_pressed_at_one_end_are_told_at_the_other(format):
    ours, theirs = call(format)
    run(ours, theirs, 20)
    ours.send_dtmf("12,a#")
    run(ours, theirs, 5)
    assert theirs.digits == ["1"]  # while it is still down
    ours.send_dtmf("9")
    run(ours, theirs, 80)
    assert theirs.digits == list("12A#9")
    assert ours.digits == []
    stats = theirs.statistics()
    assert (stats.packets_lost, stats.packets_late, stats.concealed_ms) == (0, 0, 0)
    assert theirs._rtcp.reception.lost == 0
    assert theirs._rtcp.reception.jitter_ms < 0.1


def test_keys_are_told_though_their_packets_are_lost():
    ours, theirs = call()
    seen = []

    def lost(packet):
        seen.append(packet.payload_type)
        return packet.payload_type == EVENT and seen.count(EVENT) % 7 != 3

    ours.lost = lost
    ours.send_dtmf("1122")
    run(ours, theirs, 50)
    assert theirs.digits == list("1122")


def test_what_is_being_said_waits_for_the_keys_and_loses_nothing():
    ours, theirs = call()
    marks = []
    ours.playout.listener = Listening(
        on_mark=lambda mark, position: marks.append((mark, ours.ticks))
    )
    ours.playout.write(np.concatenate((tone(500), tone(500))), "end")
    run(ours, theirs, 20)
    ours.send_dtmf("5")
    run(ours, theirs, 200)
    assert marks == [("end", 99 + 10)]
    assert {packet.payload_type for packet in ours.sent[20:27]} == {EVENT}
    heard = [dbfs(pcm) > -25 for pcm in theirs.heard]
    assert sum(heard) == pytest.approx(100, abs=8)  # the last sound fades where the key cuts it


def test_without_events_keys_are_tones_in_the_sound():
    ours, theirs = call(replace(NARROW, events_out=None))
    run(ours, theirs, 10)
    said = []
    ours.listen(lambda heard, what, now: said.append(what))
    ours.send_dtmf("5,5")
    run(ours, theirs, 60)
    assert [n for n, what in enumerate(said) if what is not None] == [*range(5), *range(35, 40)]
    assert {packet.payload_type for packet in ours.sent} == {PCMU}
    key = np.concatenate(theirs.heard[12:16])
    spectrum = np.abs(np.fft.rfft(key * np.hanning(len(key))))
    assert spectrum[[round(hz * len(key) / 16_000) for hz in (770, 1336)]].min() > 1e6
    assert theirs.digits == []


@pytest.mark.parametrize("digits", ["x", "1" * (MAX_QUEUED + 1)])
def test_keys_that_cannot_be_pressed_are_refused(digits):
    ours, theirs = call()
    with pytest.raises(LegError, match="DTMF digit"):
        ours.send_dtmf(digits)
    run(ours, theirs, 20)
    assert theirs.digits == []


def test_keys_need_a_line_that_is_up_and_not_on_hold():
    line = Line("unopened")
    with pytest.raises(LegError, match="not connected"):
        line.send_dtmf("1")
    ours, _ = call()
    ours.sending = False
    with pytest.raises(LegError, match="hold"):
        ours.send_dtmf("1")
    ours.close("over")
    with pytest.raises(LegError, match="not connected"):
        ours.send_dtmf("1")


def test_events_of_another_ssrc_are_heard_and_left_out_of_the_account():
    ours, theirs = call()
    talk(ours, theirs, 50)
    account = theirs._rtcp.reception
    for number in range(7):
        event = RtpPacket(EVENT, 9000 + number, 77, 0xBEEF, b"\x05\x0a\x03\xc0")
        theirs.receive_rtp(event.serialize(), theirs.now)
        talk(ours, theirs, 1)
    assert theirs.digits == ["5"]
    assert theirs._rtcp.reception is account
    assert (account.received, account.lost) == (57, 0)
    assert theirs.statistics().packets_lost == 0


def test_events_before_any_sound_are_heard():
    ours, theirs = call()
    ours.send_dtmf("7")
    run(ours, theirs, 20)
    assert theirs.digits == ["7"]
    assert theirs.statistics().packets_lost == 0


def test_on_hold_nothing_is_sent_but_reports_and_afterwards_time_has_passed():
    ours, theirs = call()
    talk(ours, theirs, 50)
    before = ours.sent[-1]
    ours.sending = False
    queued = ours.playout.queued
    run(ours, theirs, 500)
    assert ours.sent[-1] is before
    assert ours.playout.queued == queued  # what was to be said is said on resume
    reports = [RtcpPacket.parse(data)[0] for data in ours.reports]
    assert len(reports) >= 5
    assert isinstance(reports[0], RtcpSrPacket)
    assert isinstance(reports[-1], RtcpRrPacket)
    assert theirs.last_packet_at > 10 - 2.4 - 0.02
    ours.sending = True
    talk(ours, theirs, 50)
    after = ours.sent[51 - 1]
    assert after.marker
    assert uint16_diff(after.sequence_number, before.sequence_number) == 1
    assert uint32_diff(after.timestamp, before.timestamp) == 501 * 160
    assert not ours.sent[51].marker
    assert dbfs(hear(theirs, 40)) > -20
    stats = theirs.statistics()
    assert (stats.packets_lost, stats.concealed_ms) == (0, 0)


def test_a_key_being_pressed_as_the_hold_begins_is_told_once_and_the_next_one_after_it():
    ours, theirs = call()
    run(ours, theirs, 10)
    ours.send_dtmf("12")
    run(ours, theirs, 3)
    ours.sending = False
    run(ours, theirs, 100)
    assert theirs.digits == ["1"]
    ours.sending = True
    run(ours, theirs, 30)
    assert theirs.digits == ["1", "2"]


def test_what_comes_while_nothing_shall_be_heard_is_not_heard_and_not_lost():
    ours, theirs = call()
    talk(ours, theirs, 50)
    theirs.receiving = False
    talk(ours, theirs, 100)
    assert not hear(theirs, 100).any()
    ours.send_dtmf("3")
    run(ours, theirs, 20)
    assert theirs.digits == ["3"]
    theirs.receiving = True
    talk(ours, theirs, 50)
    assert dbfs(hear(theirs, 40)) > -20
    stats = theirs.statistics()
    assert (stats.packets_lost, stats.packets_late, stats.concealed_ms) == (0, 0, 0)
    assert theirs._rtcp.reception.lost == 0


@pytest.mark.parametrize(
    ("first", "second"), [(NARROW, WIDE), (NARROW, FULL), (FULL, NARROW), (WIDE, FULL)]
)
def test_the_format_changes_within_the_call(first, second):
    ours, theirs = call(first)
    talk(ours, theirs, 50)
    for line in (ours, theirs):
        line._change_formats(second)
    talk(ours, theirs, 100)
    same_clock = first.make_encoder().clock_rate == second.make_encoder().clock_rate
    assert [packet.payload_type for packet in ours.sent[50:]] == [second.payload_type] * 100
    assert (ours.sent[49].ssrc == ours.sent[50].ssrc) is same_clock
    heard = hear(theirs, 90)
    assert min(dbfs(pcm) for pcm in theirs.heard[-90:]) > -20
    assert loudest(heard) == pytest.approx(500, abs=5)
    assert theirs.statistics().packets_lost == 0
    assert theirs.statistics().jitter_ms < 0.5
    assert ours.statistics().packets_sent == (150 if same_clock else 100)
    # The far end's reports are of the stream we send now.
    run(ours, theirs, 250)
    assert ours.statistics().round_trip_ms is not None
    assert ours._rtcp.ssrc == ours.sent[-1].ssrc
    assert ours._remote.packets_lost == 0
    ours.send_dtmf("4")
    run(ours, theirs, 20)
    assert theirs.digits == ["4"]


def test_a_change_to_the_same_format_changes_nothing():
    """A new encoder would be heard: the predictor of G.722 begins anew."""
    plain, far = call(WIDE)
    talk(plain, far, 60)
    ours, theirs = call(WIDE)
    talk(ours, theirs, 30)
    for line in (ours, theirs):
        line._change_formats(replace(WIDE))
        line._change_formats(replace(WIDE, payload_type=G722, comfort_noise=frozenset()))
    talk(ours, theirs, 30)
    assert [packet.payload for packet in ours.sent] == [packet.payload for packet in plain.sent]
    np.testing.assert_array_equal(hear(theirs, 60), hear(far, 60))


def test_a_key_being_pressed_as_the_clock_changes_is_not_told_twice():
    ours, theirs = call(NARROW)
    run(ours, theirs, 10)
    ours.send_dtmf("12")
    run(ours, theirs, 3)
    for line in (ours, theirs):
        line._change_formats(FULL)
    run(ours, theirs, 30)
    assert theirs.digits == ["1", "2"]


def test_events_given_up_leave_the_keys_to_tones():
    ours, theirs = call(NARROW)
    ours.send_dtmf("123")
    run(ours, theirs, 3)
    ours._change_formats(replace(NARROW, events_out=None))
    run(ours, theirs, 30)
    assert theirs.digits == ["1"]
    assert EVENT not in {packet.payload_type for packet in ours.sent[-28:]}
    assert sum(dbfs(pcm) > -20 for pcm in theirs.heard[3:]) == pytest.approx(10, abs=3)


def test_the_length_of_packets_changes_within_the_call():
    ours, theirs = call(NARROW)
    talk(ours, theirs, 50)
    ours._change_formats(replace(NARROW, ptime_ms=40))
    talk(ours, theirs, 50)
    assert {len(packet.payload) for packet in ours.sent[51:]} == {320}
    assert min(dbfs(pcm) for pcm in theirs.heard[-40:]) > -20
    assert theirs.statistics().packets_lost == 0


def test_comfort_noise_is_heard_in_the_callers_silence():
    ours, theirs = call()
    talk(ours, theirs, 50)
    last = ours.sent[-1]
    number = last.sequence_number + 1 & 0xFFFF
    # Out of the clock, as some senders have it.
    noise = RtpPacket(CN, number, last.timestamp + 4000, last.ssrc, bytes([45]))
    theirs.receive_rtp(noise.serialize(), theirs.now)
    heard = []
    for n in range(50):
        theirs.tick(theirs.now + n * 0.02)
        heard.append(theirs.heard[-1])
    assert dbfs(np.concatenate(heard[5:])) == pytest.approx(-45, abs=1)
    assert theirs._rtcp.reception.lost == 0
    assert theirs.statistics().jitter_ms < 0.1


def test_a_goodbye_of_the_stream_ends_the_call():
    ours, theirs = call()
    run(ours, theirs, 5)
    ours.send_bye(ours.now)
    assert theirs.closed == "the caller hung up"


def stand_still(ours, theirs, ticks):
    """Ours does not tick for so long, and makes up for it then."""
    for _ in range(ticks):
        theirs.now = theirs.ticks * 0.02
        theirs.tick(theirs.now)
    for _ in range(ticks):
        ours.now = theirs.now
        ours.tick(ours.now)


def still(ahead, format=NARROW):
    """What the far end plays when ours stands still for 80 ms within a sentence."""
    ours, theirs = call(format)
    said = []
    ours.listen(lambda heard, what, now: said.append(what))
    ours.playout.write(np.concatenate([tone(500)] * 2))
    run(ours, theirs, 50)
    if ahead:
        for _ in range(4):
            ours.send_ahead(ours.now)
    stand_still(ours, theirs, 4)
    run(ours, theirs, 30)
    assert len(said) == ours.ticks
    assert all(what is not None for what in said)
    numbers = [packet.sequence_number for packet in ours.sent]
    assert [uint16_diff(b, a) for a, b in pairwise(numbers)] == [1] * 83
    return theirs.statistics()


@pytest.mark.parametrize("format", [NARROW, FULL])
def test_what_was_sent_ahead_leaves_no_hole_where_the_process_stands_still(format):
    assert still(ahead=False, format=format).concealed_ms > 0
    assert still(ahead=True, format=format).concealed_ms == 0


def test_only_what_is_written_is_sent_ahead():
    ours, theirs = call()
    run(ours, theirs, 20)
    ours.send_ahead(ours.now)
    ours.playout.begin()
    ours.playout.write(tone(500)[:480])
    run(ours, theirs, 1)
    sent = len(ours.sent)
    ours.send_ahead(ours.now)  # the next word is not there yet
    assert len(ours.sent) == sent
    ours.playout.write(tone(500))
    run(ours, theirs, 1)
    assert len(ours.sent) == sent + 1
    assert ours.playout.underruns == 0


def test_keys_are_not_sent_ahead():
    ours, theirs = call()
    ours.playout.write(tone(500))
    run(ours, theirs, 5)
    ours.send_dtmf("5")
    ours.send_ahead(ours.now)
    run(ours, theirs, 20)
    assert theirs.digits == ["5"]
    assert ours.ticks == 25
