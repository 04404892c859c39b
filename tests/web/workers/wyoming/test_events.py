"""The bytes of Wyoming events: those of stock clients are read, others are refused in time."""

import asyncio
import json
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wyoming.event import Event, async_read_event, async_write_event

from offhook.pipeline.speech.remote.worker_protocol import ProtocolError
from offhook.web.workers.wyoming.events import (
    MAX_DATA_BYTES,
    MAX_LINE_BYTES,
    MAX_PAYLOAD_BYTES,
    EventReader,
    to_bytes,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUES = st.none() | st.booleans() | st.integers() | TEXT | st.lists(TEXT, max_size=3)
DATA = st.dictionaries(TEXT, VALUES, max_size=4)
EVENTS = st.builds(
    Event,
    type=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=100),
    data=DATA,
    payload=st.none() | st.binary(min_size=1, max_size=2000),
)


class Pipe:
    """Collects what the package writes."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes) -> None:
        self.data += data

    def writelines(self, lines: tuple[bytes, ...]) -> None:
        self.data += b"".join(lines)

    async def drain(self) -> None:
        pass


def as_stock_clients_write(events: list[Event]) -> bytes:
    pipe: Any = Pipe()

    async def write() -> None:
        for event in events:
            await async_write_event(event, pipe)

    asyncio.run(write())
    return bytes(pipe.data)


def with_data_in_line(event: Event) -> bytes:
    """As the protocol's first clients wrote."""
    head = {"type": event.type, "data": event.data}
    if event.payload:
        head["payload_length"] = len(event.payload)
    return json.dumps(head).encode() + b"\n" + (event.payload or b"")


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in pairwise(places)]


@settings(max_examples=50)
@given(st.lists(EVENTS, max_size=4), st.lists(st.integers(0, 1 << 16), max_size=8), st.booleans())
def test_events_are_read_however_they_are_cut(
    events: list[Event], cuts: list[int], early: bool
) -> None:
    data = b"".join(map(with_data_in_line, events)) if early else as_stock_clients_write(events)
    reader = EventReader()
    assert [e for piece in pieces(data, cuts) for e in reader.receive(piece)] == events
    assert not reader.is_within_event


@settings(max_examples=50)
@given(EVENTS)
def test_the_stock_reader_reads_what_we_write(event: Event) -> None:
    async def read() -> Event | None:
        reader = asyncio.StreamReader()
        reader.feed_data(to_bytes(event))
        return await async_read_event(reader)

    assert asyncio.run(read()) == event


JUNK = st.binary(max_size=60) | st.sampled_from(
    [
        *(b"\n", b"{}", b'{"type":', b'"x"', b"}\n", b"[1]\n", b"\xff\xfe", b"null\n"),
        *(b'{"type":"x","data_length":', b"-1}\n", b"1e9}\n", b"99999999999}\n", b"true}\n"),
        b'{"type":"x","payload_length":3}\nabc',
        b'{"type":"x","data_length":2}\n[]',
        b"[" * 50_000,
    ]
)


@given(st.lists(JUNK, max_size=8))
def test_junk_is_refused_and_never_kept(blocks: list[bytes]) -> None:
    reader = EventReader()
    with suppress(ProtocolError):
        for block in blocks:
            for event in reader.receive(block):
                assert isinstance(event.type, str)
                assert isinstance(event.data, dict)
            assert len(reader._buffer) <= MAX_LINE_BYTES


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"x" * (MAX_LINE_BYTES + 1), "a line of over 65536 bytes"),
        (b"x" * MAX_LINE_BYTES + b"\n", "not JSON"),
        (b"GET / HTTP/1.1\r\n", "not JSON"),
        (b'{"type": "\xff"}\n', "not UTF-8"),
        (b"[" * 10_000 + b"\n", "not JSON"),
        (b'{"data": {}}\n', "without a type"),
        (b'{"type": "x", "data": []}\n', ""),
        (b'{"type": "x", "data": [1]}\n', "data is not a JSON object"),
        (b'{"type": "x", "data_length": 2}\n[]', "not a JSON object"),
        (b'{"type": "x", "data_length": %d}\n' % (MAX_DATA_BYTES + 1), "data_length is 524289"),
        (b'{"type": "x", "payload_length": %d}\n' % (MAX_PAYLOAD_BYTES + 1), "payload_length is"),
        (b'{"type": "x", "payload_length": -1}\n', "payload_length is -1"),
        (b'{"type": "x", "payload_length": 1.5}\n', "payload_length is 1.5"),
        (b'{"type": "x", "payload_length": true}\n', "payload_length is True"),
    ],
)
def test_what_is_no_event_is_named(data: bytes, words: str) -> None:
    reader = EventReader()
    if not words:
        assert [event.data for event in reader.receive(data)] == [{}]
        return
    with pytest.raises(ProtocolError, match=words):
        list(reader.receive(data))
