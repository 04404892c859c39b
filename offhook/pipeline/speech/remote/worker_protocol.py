"""Elements shared by all worker protocols: errors, and conversion of bytes, JSON and queries.

This module handles bytes and text only, like `asr_protocol` and `tts_protocol`, which build on it;
the sockets are in the worker and in `worker_client_io`.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from annotated_types import Ge, Le, Lt
from pydantic import TypeAdapter, ValidationError

from offhook.media.pcm import Pcm
from offhook.media.untrusted_json import read_json
from offhook.pipeline.speech.errors import EngineError, EngineOverloaded

IDLE_S = 60
"""Time in s without any data, even a ping, after which a stream ends with the error `idle`."""
MAX_UNREAD_S = 60
"""Time in s after which a client that reads no messages gets the error `behind`. Synthesis pauses
meanwhile."""
MAX_TEXT_CHARS = 1 << 16
"""Maximum size of a text message to the server; a longer one ends the stream with the error
`too_long`."""
ACCEPT_HEADER = "Offhook-Accept"
"""Header of a WebSocket request that names messages beyond the first version of the protocols.
Servers that do not know it ignore it, unlike a parameter of the query."""
DRAINING = "draining"
"""Its value from clients that understand `Draining`."""

Count = Annotated[int, Ge(0), Lt(1 << 53)]
Share = Annotated[float, Ge(0), Le(1)]

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
    type: Literal["error"] = "error"

    def to_text(self) -> str:
        return json.dumps({"type": "error", "code": self.code.value, "message": self.message})


@dataclass(frozen=True)
class Draining:
    """The server will stop: streams go on for a while, and new ones belong on another server. Only
    clients that accept it get it."""

    free: Share = 0.0
    type: Literal["draining"] = "draining"

    def to_text(self) -> str:
        return json.dumps(vars(self))


def samples_of(data: bytes) -> Pcm:
    """Parses 16-bit little-endian mono PCM, whose length the caller must limit. Raises
    ProtocolError."""
    if len(data) % 2:
        raise ProtocolError(f"{len(data)} bytes of audio: a sample has two")
    return np.frombuffer(data, "<i2").astype(np.int16, copy=False)


def bytes_of(pcm: Pcm) -> bytes:
    return pcm.astype("<i2", copy=False).tobytes()


_FULL = ("engine_full", "queue_full")


def refusal(status: int, text: str) -> tuple[str, str]:
    """Returns message and code of the body of a response other than 200, which is OpenAI's error.
    Raises EngineOverloaded, and EngineError if the body is none."""
    try:
        error = read_json(text)["error"]
        message, code = str(error["message"]), str(error["code"])
    except (ValueError, TypeError, KeyError) as error:
        words = f"it answered {status} and not in JSON: is it an offhook of this age?"
        raise EngineError(words) from error
    if code in _FULL:
        raise EngineOverloaded(message)
    return message, code


# --- JSON to values; all raise ProtocolError ---

T = TypeVar("T")


def parse_json(
    messages: TypeAdapter[T], text: str, extra: Literal["ignore", "forbid"] = "ignore"
) -> T:
    """Parses a message; `extra` is what is done with unknown fields. The error quotes the type and
    names of fields, and no other text of the message."""
    try:
        return messages.validate_json(text, strict=True, extra=extra)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        context = first.get("ctx", {})
        *outer, name = map(str, first["loc"] or ("the message",))
        match first["type"]:
            case "json_invalid":
                words = f"not JSON: {context['error']}"
            case "enum" if name == "type":
                kinds = context["expected"].replace("'", "").replace(" or ", ", ")
                words = f"type is {shown(first['input'])}, not one of {kinds}"
            case "union_tag_invalid":
                kinds = context["expected_tags"].replace("'", "")
                words = f"type is {context['tag'][:50]!r}, not one of {kinds}"
            case "union_tag_not_found":
                words = "type is missing"
            case "unexpected_keyword_argument":
                words = f"{'.'.join(outer) or 'the message'} has no field {name[:50]!r}"
            case _:
                words = f"{'.'.join((*outer, name))}: {first['msg']}"
        raise ProtocolError(words.replace(": Input should be", " is not")) from None


def table_of(text: str) -> dict[str, Any]:
    """Parses a JSON object."""
    try:
        table = read_json(text)
    except ValueError as error:
        raise ProtocolError(f"not JSON: {error}") from error
    if not isinstance(table, dict):
        raise ProtocolError(f"{type(table).__name__} is not a JSON object")
    return table


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
