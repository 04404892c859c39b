"""Frames of ICE-TCP."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.signaling.ice.framing import MAX_FRAME_BYTES, Deframer, FramingError, frame

packets = st.lists(st.binary(max_size=MAX_FRAME_BYTES), max_size=8)


@given(packets, st.lists(st.integers(1, 700), min_size=1, max_size=20))
def test_packets_arrive_whole_however_the_stream_is_cut(sent, cuts) -> None:
    stream, deframer, got, at, n = b"".join(map(frame, sent)), Deframer(), [], 0, 0
    while at < len(stream):
        got += deframer.receive(stream[at : at + cuts[n % len(cuts)]])
        at += cuts[n % len(cuts)]
        n += 1
    assert got == sent


@pytest.mark.parametrize("data", [b"\x16\x03\x01\x02\x00", b"GET / HTTP/1.1\r\n", b"\x08\x01"])
def test_tls_http_and_long_frames_are_refused(data) -> None:
    with pytest.raises(FramingError):
        Deframer().receive(data)


@given(st.lists(st.binary(max_size=300), max_size=30))
def test_no_bytes_make_it_hold_more_than_a_frame(chunks) -> None:
    deframer = Deframer()
    for chunk in chunks:
        try:
            deframer.receive(chunk)
        except FramingError:
            return
        assert len(deframer._rest) < MAX_FRAME_BYTES + 2
