from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.telephony.sip.messages.framing import FramingError, Ping, StreamFramer
from offhook.telephony.sip.messages.message import MAX_MESSAGE_BYTES
from tests.support.sip_messages import TYPICAL, message

BYE, INFO = TYPICAL["BYE"], TYPICAL["INFO"]


def test_two_messages_in_one_segment_are_two() -> None:
    assert StreamFramer().receive(BYE + INFO) == [BYE, INFO]


@given(st.lists(st.integers(0, len(BYE + INFO)), max_size=6), st.integers(0, 3))
def test_messages_come_whole_however_the_stream_is_cut(places: list[int], breaks: int) -> None:
    stream = BYE + b"\r\n" * min(breaks, 1) + INFO
    cuts = [0, *sorted(places), len(stream)]
    framer = StreamFramer()
    messages = []
    for start, end in pairwise(cuts):
        messages += framer.receive(stream[start:end])
    assert messages == [BYE, INFO]


def test_a_message_may_come_a_byte_at_a_time() -> None:
    framer = StreamFramer()
    pieces = [framer.receive(bytes([byte])) for byte in b"\r\n" + INFO]
    assert pieces[:-1] == [[]] * (len(INFO) + 1)
    assert pieces[-1] == [INFO]


def test_two_line_breaks_between_messages_are_a_ping_and_one_is_none() -> None:
    framer = StreamFramer()
    assert framer.receive(b"\r\n\r\n") == [Ping()]
    assert framer.receive(b"\r\n" + BYE + b"\r\n\r\n" + INFO) == [BYE, Ping(), INFO]
    assert framer.receive(b"\r\n\r") == []
    assert framer.receive(b"\n") == [Ping()]


def test_any_number_of_line_breaks_is_one_ping() -> None:
    assert StreamFramer().receive(b"\r\n" * 100_000) == [Ping()]


def test_a_body_may_look_like_a_message() -> None:
    inner = message("MESSAGE sip:a@h SIP/2.0", f"Content-Length : {len(BYE)}", body=BYE)
    assert StreamFramer().receive(inner + INFO) == [inner, INFO]


@pytest.mark.parametrize("field", ["l:4", "CONTENT-LENGTH\t:\r\n\t 0004 "])
def test_the_length_is_found_in_any_spelling(field: str) -> None:
    data = message("MESSAGE sip:a@h SIP/2.0", "X-Content-Length: 9", field, body=b"body")
    assert StreamFramer().receive(data + BYE) == [data, BYE]


@pytest.mark.parametrize(
    "data",
    [
        message("BYE sip:a@h SIP/2.0", "X: 1"),
        message("BYE sip:a@h SIP/2.0", "Content-Length: -1"),
        message("BYE sip:a@h SIP/2.0", "Content-Length:"),
        message("BYE sip:a@h SIP/2.0", "Content-Length: 1 2"),
        message("BYE sip:a@h SIP/2.0", "Content-Length: 0", "l: 0"),
        message("BYE sip:a@h SIP/2.0", "Content-Length: 0, 0"),
        message("BYE sip:a@h SIP/2.0", "Content-Length: " + "9" * 5000),
        message("BYE sip:a@h SIP/2.0", f"Content-Length: {MAX_MESSAGE_BYTES}"),
        b"BYE " + b"a" * MAX_MESSAGE_BYTES,
        message("BYE sip:a@h SIP/2.0", "X: " + "x" * MAX_MESSAGE_BYTES, "l: 0"),
        b"\x16\x03\x01\x02\x00\x01",
        b"\nBYE",
        b"\r\r\n",
        b" BYE",
    ],
)
def test_a_stream_that_cannot_be_cut_is_given_up(data: bytes) -> None:
    with pytest.raises(FramingError):
        StreamFramer().receive(data)


@given(st.lists(st.binary(max_size=60) | st.sampled_from([BYE, INFO, b"\r\n", b"l: 3\r\n\r\n"])))
def test_any_stream_yields_messages_or_is_given_up(pieces: list[bytes]) -> None:
    framer = StreamFramer()
    received = []
    try:
        for piece in pieces:
            received += framer.receive(piece)
    except FramingError:
        pass
    stream = b"".join(pieces)
    for item in received:
        assert isinstance(item, Ping) or item in stream


def test_what_came_whole_before_the_fault_is_not_lost() -> None:
    good = b"OPTIONS sip:a@b SIP/2.0\r\nContent-Length: 0\r\n\r\n"
    with pytest.raises(FramingError) as raised:
        StreamFramer().receive(good + good + b"\x00nonsense")
    assert raised.value.complete == [good, good]
