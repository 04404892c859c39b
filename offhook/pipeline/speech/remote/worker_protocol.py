"""Elements shared by all worker protocols: errors, and conversion of bytes, JSON and queries.

This module handles bytes and text only, like `asr_protocol` and `tts_protocol`, which build on it;
the sockets are in the worker and in `worker_client_io`.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, TypeVar

import numpy as np

from offhook.media.pcm import Pcm

IDLE_S = 60
"""Time in s without any data, even a ping, after which a stream ends with the error `idle`."""
MAX_UNREAD_S = 60
"""Time in s after which a client that reads no messages gets the error `behind`. Synthesis pauses
meanwhile."""
MAX_TEXT_CHARS = 1 << 16
"""Maximum size of a text message to the server; a longer one is the error `too_long`."""

_FLAGS = {"true": True, "1": True, "false": False, "0": False}


class ProtocolError(ValueError):
    """Raised when a message violates the protocol; the message says how."""


class ErrorCode(Enum):
    BAD_REQUEST = "bad_request"
    """The query or a message is invalid, or asks for something that does not exist."""
    TOO_LONG = "too_long"
    BEHIND = "behind"
    """More data is pending than is buffered."""
    IDLE = "idle"
    FULL = "full"
    """The server has its maximum number of streams; try again later."""
    ENGINE = "engine"
    """The engine does not load, or does not support the request."""
    STOPPING = "stopping"
    """The server is stopping; connect again."""


@dataclass(frozen=True)
class Error:
    """The last message of a stream that failed."""

    code: ErrorCode
    message: str

    def to_text(self) -> str:
        return json.dumps({"type": "error", "code": self.code.value, "message": self.message})

    @classmethod
    def parse(cls, table: dict[str, Any]) -> "Error":
        """Parses the message. Raises ProtocolError."""
        try:
            code = ErrorCode(table.get("code"))
        except ValueError as error:
            raise ProtocolError(f"unknown code {shown(table.get('code'))}") from error
        return cls(code, field(table, "message", str))


def samples_of(data: bytes) -> Pcm:
    """Parses 16-bit little-endian mono PCM, whose length the caller must limit. Raises
    ProtocolError."""
    if len(data) % 2:
        raise ProtocolError(f"{len(data)} bytes of audio: a sample has two")
    return np.frombuffer(data, "<i2").astype(np.int16, copy=False)


def bytes_of(pcm: Pcm) -> bytes:
    return pcm.astype("<i2", copy=False).tobytes()


# --- JSON to values; all raise ProtocolError ---

T = TypeVar("T")


def table_of(text: str) -> dict[str, Any]:
    try:
        table = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not JSON: {error}") from error
    if not isinstance(table, dict):
        raise ProtocolError(f"{type(table).__name__} is not a JSON object")
    return table


def kind_of(table: dict[str, Any], kinds: Iterable[str]) -> str:
    """Removes and returns the type of a client's message."""
    kind = table.pop("type", None)
    if not isinstance(kind, str) or kind not in kinds:
        raise ProtocolError(f"type is {shown(kind)}, not one of {', '.join(kinds)}")
    return kind


def no_more(kind: str, table: dict[str, Any]) -> None:
    """Raises ProtocolError for remaining fields, since ignoring them would not do what the client
    asked."""
    if table:
        raise ProtocolError(f"{kind} has no field {min(table)[:50]!r}")


def build(kind: type[T], table: dict[str, Any], types: Mapping[Any, type]) -> T:
    """Builds a dataclass from the fields of the same names; those without a default are required.
    `types` maps field types to JSON types."""
    known: dict[str, Any] = {}
    for each in fields(kind):  # type: ignore[arg-type]
        if each.name in table:
            known[each.name] = field(table, each.name, types[each.type])
    try:
        return kind(**known)
    except TypeError as error:
        raise ProtocolError(f"{kind.__name__.lower()} {str(error).partition(') ')[2]}") from error


def field(table: dict[str, Any], name: str, kind: type) -> Any:
    if name not in table:
        raise ProtocolError(f"{name} is missing")
    value = table[name]
    if type(value) is not kind:
        raise ProtocolError(f"{name} is {shown(value)}, not {kind.__name__}")
    if isinstance(value, int) and not 0 <= value < 1 << 53:
        raise ProtocolError(f"{name} is {shown(value)}")
    return value


def number(table: dict[str, Any], name: str) -> int:
    value: int = field(table, name, int)
    return value


def shown(value: object) -> str:
    return repr(value)[:50]


# --- the parameters of a query; all raise ProtocolError ---


def known_only(query: Mapping[str, str], known: Iterable[str]) -> None:
    if unknown := query.keys() - set(known):
        raise ProtocolError(f"unknown parameter {min(unknown)[:50]!r}")


def integer(name: str, text: str, digits: int = 9) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= digits):
        raise ProtocolError(f"{name} is {shown(text)}, not a number")
    return int(text)


def flag(name: str, text: str) -> bool:
    if text not in _FLAGS:
        raise ProtocolError(f"{name} is {shown(text)}, not true or false")
    return _FLAGS[text]


def query_of(given: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, str]:
    """Returns the parameters that differ from the defaults."""
    changed = {name: value for name, value in given.items() if value != usual[name]}
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in changed.items()
    }
