"""Messages of a stream as packets: numbered, timed and cut as a receive path wants them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offhook.media.codecs.opus import OpusEncoder
from offhook.telephony.carriers.streams.packets import Packetizer
from offhook.telephony.carriers.streams.stream import Format, Sound
from tests.media.lines import tone

PCMU = Format("pcmu", 8000)


def places(packetizer, *sounds):
    """Number, timestamp and bytes of every packet."""
    return [
        (packet.sequence_number, packet.timestamp, len(packet.payload))
        for sound in sounds
        for packet in packetizer.packets(sound)
    ]


def test_messages_without_numbers_are_counted_on():
    sounds = [Sound(bytes(size)) for size in (160, 80, 480, 160)]
    assert places(Packetizer(PCMU), *sounds) == [
        (0, 0, 160),
        (1, 160, 80),
        (2, 240, 480),
        (3, 720, 160),
    ]


def test_very_long_messages_are_cut():
    sounds = [Sound(bytes(17_000), 5), Sound(bytes(320), 6), Sound(bytes(8002), 7)]
    assert places(Packetizer(Format("l16", 8000)), *sounds) == [
        (0, 0, 8000),
        (1, 4000, 8000),
        (2, 8000, 1000),
        (3, 8500, 320),
        (4, 8660, 8000),
        (5, 12_660, 2),
    ]


def test_opus_is_timed_by_what_is_in_the_packet_and_never_cut():
    encoder = OpusEncoder()
    sixty, twenty = encoder.encode(tone(500)[:1440]), encoder.encode(tone(500)[:480])
    sounds = [Sound(sixty), Sound(twenty), Sound(b"\xff\xff"), Sound(twenty)]
    timestamps = [at for _, at, _ in places(Packetizer(Format("opus", 48_000)), *sounds)]
    assert timestamps == [0, 2880, 3840, 4800]


def test_a_message_that_was_overtaken_is_put_where_it_belongs():
    sounds = [Sound(bytes(160), number) for number in (1, 2, 5, 3, 4, 6)]
    assert [place[:2] for place in places(Packetizer(PCMU), *sounds)] == [
        (0, 0),
        (1, 160),
        (4, 640),
        (2, 320),
        (3, 480),
        (5, 800),
    ]


def test_a_number_far_from_the_last_begins_anew():
    sounds = [Sound(bytes(160), number) for number in (7, 8, 5000, 5001, 3, 4)]
    assert [number for number, _, _ in places(Packetizer(PCMU), *sounds)] == list(range(6))


def test_sound_left_out_is_a_gap_in_time_and_no_loss():
    sounds = [Sound(bytes(160), 1, 5), Sound(bytes(160), 2, 25), Sound(bytes(160), 3, 545)]
    got = places(Packetizer(PCMU), *sounds)
    assert got == [(0, 0, 160), (1, 160, 160), (2, 160 + 520 * 8, 160)]


def test_clocks_that_waver_and_drift_leave_no_gap_and_no_overlap():
    wavering = [0, 23, 38, 61, 85, 99, 80, 81]  # the carrier's rounding, then its clock set back
    sounds = [Sound(bytes(160), None, ms) for ms in wavering]
    assert [at for _, at, _ in places(Packetizer(PCMU), *sounds)] == list(range(0, 1280, 160))
    drifting = [Sound(bytes(160), None, number * 21) for number in range(1000)]
    assert places(Packetizer(PCMU), *drifting)[-1][1] == 999 * 160


def test_less_than_a_sample_is_nothing():
    assert Packetizer(Format("l16", 8000)).packets(Sound(b"\x00")) == []


@pytest.mark.parametrize(
    "format", [PCMU, Format("l16", 24_000, True), Format("opus", 48_000)], ids=str
)
@given(
    st.lists(
        st.builds(
            Sound,
            st.binary(min_size=1, max_size=9000),
            st.none() | st.integers(-5, 300) | st.integers(),
            st.none() | st.integers(0, 5000) | st.integers(),
        )
    )
)
@settings(max_examples=settings.default.max_examples // 3)
def test_whatever_is_told_packets_are_valid(format, sounds):
    packetizer = Packetizer(format)
    for sound in sounds:
        packets = packetizer.packets(sound)
        for packet in packets:
            assert len(packet.serialize()) == 12 + len(packet.payload)
        if format.encoding != "l16":
            assert b"".join(packet.payload for packet in packets) == sound.payload
