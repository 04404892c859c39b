import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.media.rtp.rtp import (
    RtpError,
    RtpPacket,
    uint16_add,
    uint16_diff,
    uint32_add,
    uint32_diff,
)

PLAIN = bytes.fromhex("80e0 1234 00000140 deadbeef") + b"sound"


def test_plain_packet_reads_and_writes_the_same_bytes() -> None:
    packet = RtpPacket.parse(PLAIN)
    assert packet == RtpPacket(96, 0x1234, 320, 0xDEADBEEF, b"sound", marker=True)
    assert packet.serialize() == PLAIN


@pytest.mark.parametrize(
    ("first", "between", "after"),
    [
        (0x82, "11111111 22222222", ""),
        (0x90, "bede 0001 10ff0000", ""),
        (0x90, "1000 0000", ""),
        (0xA0, "", "000003"),
        (0xB1, "33333333 bede 0001 10ff0000", "00000004"),
    ],
    ids=["sources", "one-byte extension", "empty extension", "padding", "all of them"],
)
def test_what_is_around_the_payload_is_skipped(first: int, between: str, after: str) -> None:
    data = bytes([first]) + PLAIN[1:12] + bytes.fromhex(between) + b"sound" + bytes.fromhex(after)
    assert RtpPacket.parse(data) == RtpPacket.parse(PLAIN)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        PLAIN[:11],
        b"\x40" + PLAIN[1:],
        b"\x8f" + PLAIN[1:],
        b"\x90" + PLAIN[1:14],
        b"\x90" + PLAIN[1:12] + bytes.fromhex("bede 0003 00000000"),
        b"\xa0" + PLAIN[1:12] + b"\x00",
        b"\xa0" + PLAIN[1:12] + b"\x02",
    ],
    ids=[
        "empty",
        "short",
        "version",
        "sources",
        "extension header",
        "extension",
        "no padding",
        "padding",
    ],
)
def test_broken_packets_are_refused(data: bytes) -> None:
    with pytest.raises(RtpError):
        RtpPacket.parse(data)


@given(st.binary(max_size=64))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        packet = RtpPacket.parse(data)
    except RtpError:
        return
    assert RtpPacket.parse(packet.serialize()) == packet


@given(
    st.builds(
        RtpPacket,
        st.integers(0, 127),
        st.integers(0, 0xFFFF),
        st.integers(0, 0xFFFFFFFF),
        st.integers(0, 0xFFFFFFFF),
        st.binary(max_size=50),
        st.booleans(),
    )
)
def test_every_packet_survives_the_wire(packet: RtpPacket) -> None:
    assert RtpPacket.parse(packet.serialize()) == packet


def test_counters_wrap() -> None:
    assert uint16_add(0xFFFF, 2) == 1
    assert uint32_add(0xFFFFFFFF, 2) == 1
    assert uint16_diff(1, 0xFFFF) == 2
    assert uint16_diff(0xFFFF, 1) == -2
    assert uint32_diff(1, 0xFFFFFFFF) == 2
    assert uint32_diff(0xFFFFFFFF, 1) == -2
