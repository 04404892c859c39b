"""Events of the Wyoming protocol as bytes, within limits. Sans-io.

An event is a line of JSON, which may say how many bytes of JSON (`data_length`) and of payload
(`payload_length`) follow it. The package's own reader believes these lengths; this one checks them
before it waits for anything.
"""

import json
from collections.abc import Iterator
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from wyoming.event import Event

from offhook.pipeline.speech.remote.worker_protocol import ProtocolError, table_of

MAX_LINE_BYTES = 1 << 16
"""Maximum length of an event's header; with a longer one the client is disconnected."""
MAX_DATA_BYTES = 1 << 19
"""Maximum size of an event's data, a text of 100 000 characters; with a larger one the client gets
an error and is disconnected."""
MAX_PAYLOAD_BYTES = 1 << 20
"""Maximum size of an event's audio, 32 s as Home Assistant sends it; with a larger one the client
gets an error and is disconnected."""
MAX_TYPE_CHARS = 100
"""Maximum length of an event's type; with a longer one the client is disconnected."""
T = TypeVar("T")


class EventReader:
    """Parses one client's bytes, in pieces of any size. It keeps at most one incomplete event, and
    must not be used again after a ProtocolError."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._head: dict[str, Any] | None = None
        """The line of an event whose data and payload are incomplete."""
        self._data_bytes = self._payload_bytes = 0

    @property
    def is_within_event(self) -> bool:
        return self._head is not None or bool(self._buffer)

    def receive(self, data: bytes) -> Iterator[Event]:
        """Yields the events that these bytes complete. Raises ProtocolError."""
        self._buffer += data
        while (event := self._next()) is not None:
            yield event

    def _next(self) -> Event | None:
        if self._head is None and not self._read_head():
            return None
        assert self._head is not None
        size = self._data_bytes + self._payload_bytes
        if len(self._buffer) < size:
            return None
        head, self._head = self._head, None
        body = bytes(self._buffer[:size])
        del self._buffer[:size]
        data = head.get("data") or {}
        if not isinstance(data, dict):
            raise ProtocolError("data is not a JSON object")
        if self._data_bytes:
            data = {**data, **_table(body[: self._data_bytes])}
        return Event(head["type"], data, body[self._data_bytes :] or None)

    def _read_head(self) -> bool:
        """Reads the line that begins an event; returns whether it is complete."""
        end = self._buffer.find(b"\n")
        if (end if end >= 0 else len(self._buffer)) > MAX_LINE_BYTES:
            raise ProtocolError(f"a line of over {MAX_LINE_BYTES} bytes")
        if end < 0:
            return False
        head = _table(bytes(self._buffer[:end]))
        del self._buffer[: end + 1]
        kind = head.get("type")
        if not isinstance(kind, str) or not 0 < len(kind) <= MAX_TYPE_CHARS:
            raise ProtocolError("an event without a type")
        self._data_bytes = _length(head, "data_length", MAX_DATA_BYTES)
        self._payload_bytes = _length(head, "payload_length", MAX_PAYLOAD_BYTES)
        self._head = head
        return True


def _table(data: bytes) -> dict[str, Any]:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(f"not UTF-8: byte {error.start}") from error
    return table_of(text)


def _length(head: dict[str, Any], name: str, most: int) -> int:
    length = head.get(name)
    if length is None:
        return 0
    if type(length) is not int or not 0 <= length <= most:
        raise ProtocolError(f"{name} is {repr(length)[:50]}, not 0..{most}")
    return length


def to_bytes(event: Event) -> bytes:
    """Returns the event as one block, so that it leaves in one write."""
    data = json.dumps(event.data, ensure_ascii=False).encode() if event.data else b""
    head: dict[str, Any] = {"type": event.type}
    if data:
        head["data_length"] = len(data)
    if event.payload:
        head["payload_length"] = len(event.payload)
    return json.dumps(head).encode() + b"\n" + data + (event.payload or b"")


def parsed(messages: TypeAdapter[T], event: Event) -> T:
    """Returns the event as its class in the package `wyoming`. Raises ProtocolError."""
    data = {name: value for name, value in event.data.items() if name != "timestamp"}
    try:
        return messages.validate_python({**data, "audio": event.payload or b""})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"]))[:50]
        raise ProtocolError(f"{event.type}: {field}: {first['msg'][:200]}") from None
