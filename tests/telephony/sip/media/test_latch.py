"""Whom to believe: the latch of RTP, and that of RTCP. Time is given."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.telephony.sip.media.latch import (
    CANDIDATE_TIMEOUT_S,
    LATCH_AHEAD,
    LATCH_GAP,
    LATCH_PACKETS,
    MAX_CANDIDATES,
    RELATCH_S,
    RTCP_RELATCH_S,
    Latch,
    MediaSources,
    RtcpLatch,
)

SDP = ("10.0.0.5", 4000)
NAT = ("203.0.113.7", 61_234)
OTHER = ("198.51.100.66", 9999)
CALLER, ATTACKER = 0xCA11E4, 0xBAD
PCMU, EVENTS = 0, 101


def rtp(number, ssrc=CALLER, payload_type=PCMU):
    sequence, timestamp = number & 0xFFFF, number * 160 & 0xFFFF_FFFF
    header = struct.pack("!BBHII", 0x80, payload_type, sequence, timestamp, ssrc)
    return header + b"\xff" * 160


def report(ssrc=CALLER):
    return struct.pack("!BBHI", 0x80, 201, 1, ssrc)


def latch(expected=SDP, secure=False):
    return Latch(expected, secure, frozenset({PCMU, EVENTS}))


def stream(latch, source, numbers, start=0.0, **packet):
    """Packets 20 ms apart; how many of them were accepted."""
    return sum(
        latch.accept(source, rtp(number, **packet), start + 0.02 * index)
        for index, number in enumerate(numbers)
    )


def both(latch, own, numbers, other, others, start=0.0, **packet):
    """Two streams at once, a packet of each every 20 ms; how many of the second were accepted."""
    accepted = 0
    for index, (number, another) in enumerate(zip(numbers, others, strict=True)):
        now = start + 0.02 * index
        assert latch.accept(own, rtp(number), now)
        accepted += latch.accept(other, rtp(another, **packet), now + 0.01)
    return accepted


def test_the_address_of_sdp_is_believed_at_once():
    line = latch()
    assert not line.locked
    assert line.destination == SDP
    assert line.accept(SDP, rtp(1), 0.0)
    assert line.locked
    assert line.destination == SDP
    assert line.ssrc == CALLER.to_bytes(4, "big")


def test_behind_a_nat_the_source_is_believed_after_some_packets_in_order():
    line = latch()
    assert stream(line, NAT, range(100, 100 + LATCH_PACKETS - 1)) == 0
    assert line.destination == SDP  # until something is latched
    assert line.accept(NAT, rtp(100 + LATCH_PACKETS), 0.2)
    assert line.destination == NAT
    assert stream(line, NAT, range(110, 150), 0.3) == 40


PUBLIC, OTHER_PORT, ELSEWHERE = ("8.8.8.8", 4000), ("8.8.8.8", 61_234), ("9.9.9.9", 9999)
PHONES = {
    # address in SDP, where SIP comes from, where RTP comes from, whether that is latched
    "a phone behind a NAT": (SDP, "9.9.9.9", ELSEWHERE, True),
    "the same, its line's addresses are several": (SDP, "9.9.9.8", ELSEWHERE, True),
    "the same, behind our proxy": (SDP, "10.0.0.2", ELSEWHERE, True),
    "an address of a carrier's NAT": (("100.64.0.9", 4000), "9.9.9.9", ELSEWHERE, True),
    "a link-local address": (("169.254.1.2", 4000), "9.9.9.9", ELSEWHERE, True),
    "a unique local address": (("fd00::5", 4000), "2600::1", ("2600::1", 9), True),
    "its own loopback, or c=0.0.0.0": (None, "9.9.9.9", ELSEWHERE, True),
    "STUN, and a port of the NAT's own": (PUBLIC, "8.8.8.8", OTHER_PORT, True),
    "the same, behind our proxy or a trunk": (PUBLIC, "10.0.0.2", OTHER_PORT, True),
    "an outdated address of STUN": (PUBLIC, "9.9.9.9", ELSEWHERE, True),
    "a stranger, while a trunk is quiet": (PUBLIC, "8.8.8.7", ELSEWHERE, False),
    "a stranger, while a phone is quiet": (PUBLIC, "8.8.8.8", ELSEWHERE, False),
    "a stranger, by IPv6": (("2600::5", 4000), "2600::5", ("2600::6", 9), False),
    "a stranger, while a phone in our network is": (SDP, "10.0.0.5", ("10.0.0.6", 9), False),
    "a stranger on the machine of a phone in our network": (
        SDP,
        "10.0.0.5",
        ("10.0.0.5", 9),
        False,
    ),
    "who signals is unknown": (PUBLIC, "", ELSEWHERE, False),
}


@pytest.mark.parametrize("name", PHONES)
def test_who_sends_first_is_believed_only_where_sdp_does_not_say(name):
    expected, signalling, source, latched = PHONES[name]
    for sources in (MediaSources(signalling), MediaSources(signalling, anywhere=True)):
        line = Latch(expected, False, {PCMU}, sources)
        accepted = stream(line, source, range(50))
        if latched or sources.anywhere:
            assert (accepted, line.destination) == (51 - LATCH_PACKETS, source)
        else:
            assert (accepted, line.destination) == (0, expected)
            assert line.is_foreign(source)
            assert line.accept(expected, rtp(7), 2.0)
            assert not line.is_foreign(source)


def test_a_new_sdp_says_anew_who_may_be_latched():
    line = Latch(SDP, False, {PCMU}, MediaSources("9.9.9.9"))
    assert stream(line, ELSEWHERE, range(20)) > 0
    line.renew(PUBLIC, False, {PCMU}, 1.0)
    assert stream(line, OTHER, range(100, 150), 1.0 + RELATCH_S) == 0
    assert line.destination == PUBLIC
    assert stream(line, OTHER_PORT, range(200, 250), 5.0) > 0


def test_a_call_in_progress_still_moves_with_its_stream():
    line = Latch(PUBLIC, False, {PCMU}, MediaSources("8.8.8.8"))
    assert stream(line, PUBLIC, range(50)) == 50
    assert stream(line, ELSEWHERE, range(50, 100), 1.0) > 0
    assert line.destination == ELSEWHERE


def test_the_order_may_have_gaps_and_may_wrap():
    line = latch()
    numbers = [65_520 + LATCH_GAP * index for index in range(LATCH_PACKETS)]
    assert stream(line, NAT, numbers) == 1


@pytest.mark.parametrize(
    "packets",
    [
        [rtp(7)] * 50,  # one packet again and again
        [rtp(number * 1000) for number in range(50)],  # blind guesses
        [rtp(-number) for number in range(50)],
        [rtp(number, ssrc=number) for number in range(50)],
        [rtp(number, payload_type=PCMU + 1) for number in range(50)],
        [b"\x80\x00"] * 50,
        [b""] * 50,
    ],
    ids=["repeated", "skipping", "backwards", "SSRCs", "payload type", "truncated", "empty"],
)
def test_what_is_no_stream_of_ours_is_never_latched(packets):
    line = latch()
    assert not any(line.accept(OTHER, data, 0.02 * i) for i, data in enumerate(packets))
    assert line.destination == SDP


def test_once_the_address_of_sdp_was_heard_nobody_else_is():
    line = latch()
    assert line.accept(SDP, rtp(1), 0.0)
    for second in range(10):
        assert line.accept(SDP, rtp(second), second)
        assert stream(line, OTHER, range(100), second, ssrc=ATTACKER) == 0
    for ahead in (0, 1, 100):  # one who knows the stream, while it is heard
        numbers = range(100, 150)
        assert both(line, SDP, numbers, OTHER, range(100 + ahead, 150 + ahead), 10 + ahead) == 0
    assert line.destination == SDP


def test_whoever_sprayed_first_loses_to_the_address_of_sdp_at_its_first_packet():
    line = latch()
    stream(line, OTHER, range(50), ssrc=ATTACKER)
    assert line.destination == OTHER
    assert line.accept(SDP, rtp(1), 1.0)
    assert line.destination == SDP
    assert stream(line, OTHER, range(50, 100), 1.0, ssrc=ATTACKER) == 0
    assert stream(line, OTHER, range(50, 100), 5.0, ssrc=ATTACKER) == 0  # silent or not


def test_a_source_latched_to_is_locked():
    line = latch()
    stream(line, NAT, range(10))
    assert both(line, NAT, range(10, 60), OTHER, range(11, 61), 0.2) == 0
    assert line.destination == NAT


@pytest.mark.parametrize("first", [SDP, NAT])
@pytest.mark.parametrize("lost", [0, 1, 50, LATCH_AHEAD - LATCH_PACKETS])
def test_a_stream_that_goes_on_elsewhere_is_heard_after_some_packets(first, lost):
    line = latch()
    stream(line, first, range(65_500, 65_530))  # until 0.58
    on = 65_530 + lost
    assert stream(line, OTHER, range(on, on + LATCH_PACKETS + 10), 0.6 + 0.02 * lost) == 11
    assert line.destination == OTHER
    assert both(line, OTHER, range(on + 20, on + 60), NAT, range(on + 21, on + 61), 60.0) == 0


@pytest.mark.parametrize(
    ("numbers", "packet"),
    [
        (range(10, 60), {"ssrc": ATTACKER}),
        (range(10, 60), {"payload_type": PCMU + 1}),
        (range(-60, 0), {}),  # played again
        (range(10 + LATCH_AHEAD, 60 + LATCH_AHEAD), {}),
        (range(10, 1000, LATCH_GAP + 1), {}),
        ([10] * 50, {}),
    ],
    ids=["SSRC", "payload type", "heard before", "far ahead", "gaps", "repeated"],
)
def test_another_stream_is_never_taken_for_one_that_goes_on(numbers, packet):
    line = latch()
    stream(line, NAT, range(10))
    assert stream(line, OTHER, numbers, 0.2, **packet) == 0
    assert line.destination == NAT


def test_a_burst_between_two_packets_moves_nothing():
    line = latch()
    stream(line, NAT, range(10))
    for number in range(10, 40):
        assert not any(line.accept(OTHER, rtp(number + i), 0.02 * number) for i in range(20))
        assert line.accept(NAT, rtp(number), 0.02 * number + 0.019)
    assert line.destination == NAT


def test_after_a_silence_the_numbers_may_have_begun_anew():
    line = latch()
    stream(line, NAT, range(1000, 1010))  # until 0.18
    late = 0.18 + RELATCH_S + 0.001
    assert stream(line, OTHER, range(100), late, ssrc=ATTACKER) == 0
    assert stream(line, OTHER, range(10, 10 + LATCH_PACKETS), late + 2) == 1
    assert line.destination == OTHER


def test_only_so_many_sources_are_observed_and_silent_ones_make_room():
    line = latch()
    for port in range(MAX_CANDIDATES):
        assert not line.accept(("198.51.100.66", port), rtp(port, ssrc=ATTACKER), 0.0)
    assert stream(line, NAT, range(LATCH_PACKETS), 0.1) == 0
    assert stream(line, NAT, range(LATCH_PACKETS), CANDIDATE_TIMEOUT_S + 0.1) == 1


def test_an_sdp_without_an_address_waits_for_a_source():
    line = latch(expected=None)
    assert line.destination is None
    stream(line, NAT, range(LATCH_PACKETS))
    assert line.destination == NAT


def test_a_new_offer_with_the_same_address_keeps_the_latch():
    line = latch()
    stream(line, NAT, range(10))
    line.renew(SDP, False, frozenset({8}), 1.0)
    assert line.destination == NAT
    assert line.accept(NAT, rtp(11, payload_type=8), 1.0)
    assert stream(line, OTHER, range(12, 60), 1.0, payload_type=PCMU) == 0


def test_a_new_address_is_sent_to_at_once_and_the_old_heard_for_a_while():
    line = latch()
    line.accept(SDP, rtp(1), 0.0)
    moved = ("10.0.0.9", 5000)
    line.renew(moved, False, frozenset({PCMU}), 1.0)
    assert line.destination == moved
    assert stream(line, SDP, range(2, 22), 1.0) == 20
    assert line.destination == moved
    assert both(line, moved, range(30, 50), SDP, range(22, 42), 1.5) == 0


def test_a_new_address_behind_a_nat_is_latched_anew():
    line = latch()
    stream(line, NAT, range(10))
    line.renew(("10.0.0.9", 5000), False, frozenset({PCMU}), 1.0)
    stream(line, NAT, range(10, 30), 1.0)
    assert line.destination == ("10.0.0.9", 5000)
    elsewhere = ("203.0.113.7", 61_300)
    assert stream(line, elsewhere, range(30, 30 + LATCH_PACKETS), 1.5) == 1
    assert line.destination == elsewhere


def test_with_srtp_whoever_authenticates_is_sent_to():
    line = latch(secure=True)
    assert line.accept(OTHER, rtp(1), 0.0)  # to be authenticated, and it will not be
    assert line.destination == SDP
    assert line.accept(NAT, rtp(1), 0.0)
    line.authenticated(NAT, rtp(1), 0.0)
    assert line.destination == NAT
    line.authenticated(SDP, rtp(2), 0.1)
    assert line.destination == SDP


RTCP = (SDP[0], SDP[1] + 1)


def heard_from(source, ssrc=CALLER):
    """RTP's latch, locked to a source."""
    line = latch()
    assert stream(line, source, range(LATCH_PACKETS), ssrc=ssrc)
    assert line.destination == source
    return line


def test_rtcp_is_latched_by_itself():
    line, rtp_line = RtcpLatch(RTCP, secure=False), heard_from(SDP)
    nat = (NAT[0], 61_235)
    assert not line.accept(nat, report(), latch(), 0.0)
    assert not line.accept(nat, report(ATTACKER), rtp_line, 0.0)
    assert not line.accept(nat, b"\x80\xc9", rtp_line, 0.0)
    assert line.destination == RTCP
    assert line.accept(nat, report(), rtp_line, 0.0)
    assert line.destination == nat
    assert line.accept(nat, report(ATTACKER), rtp_line, 0.1)
    assert not line.accept(OTHER, report(), rtp_line, 0.2)
    assert line.accept(OTHER, report(), rtp_line, 0.1 + RTCP_RELATCH_S)
    assert line.accept(RTCP, report(), rtp_line, 20.0)
    assert not line.accept(OTHER, report(), rtp_line, 21.0)


def test_rtcp_moves_with_its_rtp():
    line = RtcpLatch(RTCP, secure=False)
    assert line.accept(RTCP, report(), heard_from(SDP), 0.0)
    nat = (NAT[0], 61_235)
    assert not line.accept(nat, report(), heard_from(SDP), 0.1)
    moved = heard_from(NAT)
    assert not line.accept(nat, report(ATTACKER), moved, 0.2)
    assert not line.accept(OTHER, report(), moved, 0.2)
    assert line.accept(nat, report(), moved, 0.3)
    assert line.destination == nat
    assert not line.accept((NAT[0], 9), report(), moved, 0.4)  # of the same host, but not moved


def test_rtcp_of_another_source_is_believed_after_some_while_the_old_one_is_silent():
    line, rtp_line = RtcpLatch(RTCP, secure=False), heard_from(SDP)
    assert line.accept(RTCP, report(), rtp_line, 0.0)
    rebound = (RTCP[0], 61_235)
    believed = [line.accept(rebound, report(), rtp_line, 1.0 + 2 * n) for n in range(LATCH_PACKETS)]
    assert believed == [False] * (LATCH_PACKETS - 1) + [True]
    assert line.destination == rebound
    # A burst is not enough, nor are reports between which those of the old source come.
    assert not any(line.accept((RTCP[0], 9), report(), rtp_line, 8.0) for _ in range(20))
    assert line.accept(rebound, report(), rtp_line, 9.0)
    assert not any(
        line.accept((RTCP[0], 9), report(), rtp_line, 9.0 + 2 * n)
        or not line.accept(rebound, report(), rtp_line, 10.0 + 2 * n)
        for n in range(2 * LATCH_PACKETS)
    )
    assert line.destination == rebound


def test_rtcp_follows_a_new_address_and_authentication():
    line = RtcpLatch(SDP, secure=False)
    assert line.accept(SDP, report(), latch(), 0.0)
    line.renew(SDP, secure=True)
    assert line.destination == SDP
    line.authenticated(NAT, 1.0)
    assert line.destination == NAT
    line.renew(SDP, secure=False)
    assert line.destination == NAT
    line.renew(OTHER, secure=False)
    assert line.destination == OTHER
    assert not line.accept(NAT, report(ATTACKER), heard_from(SDP), 1.0)


addresses = st.sampled_from([SDP, NAT, OTHER, ("198.51.100.66", 1)])


@given(
    st.lists(
        st.tuples(addresses, st.binary(max_size=14) | st.integers(0, 20).map(rtp), st.floats(0, 3)),
        max_size=60,
    )
)
def test_the_destination_is_always_the_sdp_or_a_source_accepted(packets):
    line, now, accepted = latch(), 0.0, {SDP}
    for source, data, elapsed in packets:
        now += elapsed
        if line.accept(source, data, now):
            accepted.add(source)
        assert line.destination in accepted
