"""WebSocket frames: whatever way the bytes come, the same messages; and what RFC 6455 forbids."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offhook.telephony.carriers.streams.frames import (
    MAX_FRAMES_AT_ONCE,
    Close,
    CloseCode,
    FrameReader,
    Opcode,
    Ping,
    Pong,
    Violation,
    close_payload,
    control_frame,
    frame,
)
from tests.telephony.carriers.masked import sent

LIMIT = 70_000
MASKS = st.binary(min_size=4, max_size=4)
TEXTS = st.text(max_size=200) | st.just("ü" * 300) | st.just("x" * 66_000)
BINARIES = st.binary(max_size=300) | st.just(bytes(65_536))


@st.composite
def said(draw):
    """A message or control frame: its frames, and what is to be read of them."""
    kind = draw(st.sampled_from(("text", "binary", "ping", "pong")))
    if kind in ("ping", "pong"):
        payload = draw(st.binary(max_size=125))
        opcode, item = (
            (Opcode.PING, Ping(payload)) if kind == "ping" else (Opcode.PONG, Pong(payload))
        )
        return sent(opcode, payload, draw(MASKS)), [item]
    message = draw(TEXTS if kind == "text" else BINARIES)
    payload = message.encode() if isinstance(message, str) else message
    opcode = Opcode.TEXT if kind == "text" else Opcode.BINARY
    cuts = sorted(draw(st.lists(st.integers(0, len(payload)), max_size=4)))
    pieces = [payload[a:b] for a, b in pairwise((0, *cuts, len(payload)))]
    data, items = b"", []
    for n, piece in enumerate(pieces):
        last = n == len(pieces) - 1
        data += sent(opcode if n == 0 else Opcode.CONTINUATION, piece, draw(MASKS), fin=last)
        if not last and draw(st.booleans()):  # controls may come within a message
            data += sent(Opcode.PING, b"within", draw(MASKS))
            items.append(Ping(b"within"))
    return data, [*items, message]


def read(data, cuts=()):
    reader, items = FrameReader(LIMIT), []
    for start, end in pairwise((0, *sorted(cuts), len(data))):
        items += reader.receive(data[start:end])
    return items


@given(st.lists(said(), max_size=6), st.data())
def test_any_split_of_the_bytes_gives_the_same_messages(parts, chance):
    data = b"".join(part for part, _ in parts)
    expected = [item for _, items in parts for item in items]
    assert read(data) == expected
    cuts = chance.draw(st.lists(st.integers(0, len(data)), max_size=30))
    assert read(data, cuts) == expected


@given(st.lists(said(), max_size=2), st.binary(max_size=60), st.data())
def test_noise_ends_in_one_violation_or_waits_for_more_however_it_is_split(parts, noise, chance):
    data = b"".join(part for part, _ in parts) + noise
    whole = read(data)
    assert not any(isinstance(item, Violation | Close) for item in whole[:-1])
    cuts = chance.draw(st.lists(st.integers(0, len(data)), max_size=30))
    assert read(data, cuts) == whole


def test_byte_by_byte_a_large_message_takes_no_longer_than_its_bytes():
    data = sent(Opcode.BINARY, bytes(LIMIT))
    reader = FrameReader(LIMIT)
    for n in range(len(data) - 1):
        assert reader.receive(data[n : n + 1]) == []
    assert reader.receive(data[-1:]) == [bytes(LIMIT)]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (sent(Opcode.TEXT, b"x", masked=False), CloseCode.PROTOCOL_ERROR),
        (bytes((0xC1, 0x80)), CloseCode.PROTOCOL_ERROR),  # a reserved bit
        (bytes((0x83, 0x80)), CloseCode.PROTOCOL_ERROR),  # opcodes that are not defined
        (bytes((0x8B, 0x80)), CloseCode.PROTOCOL_ERROR),
        (sent(Opcode.CONTINUATION, b"x"), CloseCode.PROTOCOL_ERROR),
        (sent(Opcode.TEXT, b"", fin=False) + sent(Opcode.TEXT, b""), CloseCode.PROTOCOL_ERROR),
        (sent(Opcode.PING, b"x", fin=False), CloseCode.PROTOCOL_ERROR),
        (sent(Opcode.PING, bytes(126)), CloseCode.PROTOCOL_ERROR),
        (sent(Opcode.CLOSE, b"\x03"), CloseCode.PROTOCOL_ERROR),
        (sent(Opcode.CLOSE, close_payload(1005) + b"\x03\xed"), CloseCode.PROTOCOL_ERROR),
        (sent(Opcode.CLOSE, (1000).to_bytes(2, "big") + b"\xff"), CloseCode.INVALID_DATA),
        (sent(Opcode.TEXT, b"\xff"), CloseCode.INVALID_DATA),
        (sent(Opcode.BINARY, bytes(LIMIT + 1))[:20], CloseCode.TOO_BIG),  # before it has come
        (
            sent(Opcode.BINARY, bytes(LIMIT), fin=False) + sent(Opcode.CONTINUATION, b"x"),
            CloseCode.TOO_BIG,
        ),
    ],
)
def test_what_the_protocol_forbids_is_named_after_what_was_right(data, code):
    items = read(sent(Opcode.TEXT, b"before") + data + sent(Opcode.TEXT, b"after"))
    assert items[0] == "before"
    assert [item.code for item in items[1:]] == [code]


def test_characters_may_be_cut_between_frames():
    first, second = "ü".encode()[:1], "ü".encode()[1:]
    data = sent(Opcode.TEXT, first, fin=False) + sent(Opcode.CONTINUATION, second)
    assert read(data) == ["ü"]


@pytest.mark.parametrize("code", [1000, 1001, 1011, 3000, 4999])
def test_after_a_close_nothing_is_read(code):
    payload = close_payload(code) + b"bye"
    assert read(sent(Opcode.CLOSE, payload) + sent(Opcode.TEXT, b"x")) == [Close(code, "bye")]
    assert read(sent(Opcode.CLOSE, b"")) == [Close(CloseCode.NO_STATUS, "")]


@given(st.text(max_size=300) | st.binary(max_size=70_000))
@settings(max_examples=50)
def test_what_is_written_says_its_own_length(message):
    data = frame(message)
    opcode = Opcode.TEXT if isinstance(message, str) else Opcode.BINARY
    payload = message.encode() if isinstance(message, str) else message
    assert data == sent(opcode, payload, masked=False)
    assert control_frame(Opcode.PONG, b"x") == sent(Opcode.PONG, b"x", masked=False)


@pytest.mark.parametrize("opcode", [Opcode.PING, Opcode.TEXT])
def test_so_many_frames_at_once_are_an_attack(opcode):
    data = sent(opcode, b"", bytes(4))
    assert len(FrameReader(LIMIT).receive(data * MAX_FRAMES_AT_ONCE)) == MAX_FRAMES_AT_ONCE
    *_, last = FrameReader(LIMIT).receive(data * 50_000)
    assert last == Violation(CloseCode.POLICY_VIOLATION, "more than 4000 frames at once")
