"""Streaming speech recognition over a WebSocket: every message, both ways, as a value.

    GET /ws/transcribe?rate=16000&language=en&context=…&update_ms=400&words=false&live=true

    client                                      server
    ------                                      ------
                                                {"type": "ready", …}
    binary: PCM, 16-bit little-endian mono      {"type": "partial", …}
    {"type": "flush"}                           {"type": "final", …}
    {"type": "cancel"}
    {"type": "close"}                           {"type": "error", "code": …, "message": …}

A stream hears one utterance after another. The first sound begins one; ``flush`` ends it, and its
final answers; ``cancel`` drops the one in progress, and without one does nothing; ``close`` ends
the stream, with what has no final yet. Utterances count from 0: each ``flush`` and each ``cancel``
of one in progress ends one. Partials and finals carry the number, so an answer that was under way
when its utterance was cancelled is known as such. An error is the last message of a stream.

This module is bytes and text only; the sockets are in `worker_io` and `remote_recognizer_io`.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import Enum
from typing import Any, TypeVar

import numpy as np

from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.recognizer import DEFAULT_OPTIONS, Final, Partial, StreamOptions, Word

PATH = "/ws/transcribe"
RATES = (8_000, 16_000, 24_000, 48_000)
"""Hz; what is not 16 000 is converted by the server."""
MAX_AUDIO_BYTES = 1 << 18
"""Of one binary message: 8 s at 16 kHz. A longer one is the error `too_long`."""
MAX_TEXT_CHARS = 1 << 16
"""Of one text message to the server."""
MAX_UNHEARD_S = 180
"""Sound of one stream that no partial or final has covered yet. Beyond it the server reads no
further until a final comes; when none is due, because nothing was flushed, it is the error
`behind`."""
IDLE_S = 60
"""A stream of which nothing comes for so long, not even a ping, is the error `idle`."""

_FLAGS = {"true": True, "1": True, "false": False, "0": False}


class ProtocolError(ValueError):
    """What came is not this protocol; the message says what is wrong, in its words."""


class ErrorCode(Enum):
    BAD_REQUEST = "bad_request"
    """The query or a message is not understood."""
    TOO_LONG = "too_long"
    BEHIND = "behind"
    IDLE = "idle"
    FULL = "full"
    """There are as many streams as the server takes: try again later."""
    ENGINE = "engine"
    """The engine does not load, or cannot hear what was asked for."""
    STOPPING = "stopping"
    """The server ends: connect again."""


# --- from the client ---


@dataclass(frozen=True)
class Request:
    """What the query of the address asks for."""

    rate: int = RATE_IN
    options: StreamOptions = DEFAULT_OPTIONS

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> "Request":
        """From the parameters of the query. Raises ProtocolError."""
        values = dict(query)
        rate = _integer("rate", values.pop("rate", str(RATE_IN)))
        if rate not in RATES:
            raise ProtocolError(f"rate is {rate}, not one of {', '.join(map(str, RATES))} Hz")
        asked: dict[str, Any] = {name: values.pop(name) for name in _OPTIONS & values.keys()}
        if values:
            raise ProtocolError(f"unknown parameter {min(values)[:50]!r}")
        if "update_ms" in asked:
            asked["update_ms"] = _integer("update_ms", asked["update_ms"])
        for name in {"words", "live"} & asked.keys():
            asked[name] = _flag(name, asked[name])
        if "language" in asked:
            asked["language"] = asked["language"] or None
        try:
            return cls(rate, StreamOptions(**asked))
        except ValueError as error:
            raise ProtocolError(str(error)) from error

    def query(self) -> dict[str, str]:
        """Only what differs from the defaults."""
        given = {"rate": self.rate, **asdict(self.options)}
        usual = {"rate": RATE_IN, **asdict(DEFAULT_OPTIONS)}
        changed = {name: value for name, value in given.items() if value != usual[name]}
        return {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in changed.items()
        }


@dataclass(frozen=True, eq=False)
class Audio:
    pcm: Pcm
    """At the stream's rate."""

    def to_bytes(self) -> bytes:
        return self.pcm.astype("<i2", copy=False).tobytes()


@dataclass(frozen=True)
class Flush:
    """End the utterance and tell its final words."""


@dataclass(frozen=True)
class Cancel:
    """Drop the utterance in progress."""


@dataclass(frozen=True)
class Close:
    """End the stream."""


Command = Flush | Cancel | Close
_COMMANDS: dict[str, Command] = {"flush": Flush(), "cancel": Cancel(), "close": Close()}


def command_text(command: Command) -> str:
    return json.dumps({"type": type(command).__name__.lower()})


def parse_audio(data: bytes) -> Audio:
    """A binary message. Raises ProtocolError; its length is for the caller to bound."""
    if len(data) % 2:
        raise ProtocolError(f"{len(data)} bytes of audio: a sample has two")
    return Audio(np.frombuffer(data, "<i2").astype(np.int16, copy=False))


def parse_command(text: str) -> Command:
    """A text message of a client. Raises ProtocolError."""
    table = _table(text)
    kind = table.pop("type", None)
    command = _COMMANDS.get(kind) if isinstance(kind, str) else None
    if command is None:
        raise ProtocolError(f"type is {_shown(kind)}, not one of {', '.join(_COMMANDS)}")
    if table:
        raise ProtocolError(f"{kind} has no field {min(table)[:50]!r}")
    return command


# --- from the server ---


@dataclass(frozen=True)
class Ready:
    """The engine is loaded, and the stream may be spoken to. Sound sent before this waits."""

    engine: str
    model: str
    rate: int
    max_audio_bytes: int = MAX_AUDIO_BYTES
    max_unheard_s: int = MAX_UNHEARD_S
    idle_s: int = IDLE_S


@dataclass(frozen=True)
class Heard:
    """A partial or a final of one utterance. Times of words count from the stream's first sample,
    with the utterances that were cancelled."""

    utterance: int
    event: Partial | Final


@dataclass(frozen=True)
class Error:
    code: ErrorCode
    message: str


ServerMessage = Ready | Heard | Error


def server_text(message: ServerMessage) -> str:
    match message:
        case Ready():
            return json.dumps({"type": "ready", **asdict(message)})
        case Heard(utterance, event):
            kind = type(event).__name__.lower()
            table = {"type": kind, "utterance": utterance, **asdict(event)}
            return json.dumps(table, ensure_ascii=False)
        case Error(code, text):
            return json.dumps({"type": "error", "code": code.value, "message": text})


def parse_server(text: str) -> ServerMessage:
    """A text message of a server. Fields it does not know are passed over: servers grow.
    Raises ProtocolError."""
    table = _table(text)
    match table.get("type"):
        case "ready":
            return _build(Ready, table)
        case "partial":
            partial = _build(Partial, table)
            if not 0 <= partial.stable_chars <= len(partial.text):
                raise ProtocolError("stable_chars is not within the text")
            return Heard(_number(table, "utterance"), partial)
        case "final":
            return Heard(_number(table, "utterance"), _final(table))
        case "error":
            try:
                code = ErrorCode(table.get("code"))
            except ValueError as error:
                raise ProtocolError(f"unknown code {_shown(table.get('code'))}") from error
            return Error(code, _field(table, "message", str))
        case other:
            raise ProtocolError(f"type is {_shown(other)}, not ready, partial, final or error")


def _final(table: dict[str, Any]) -> Final:
    words = _field({"words": [], **table}, "words", list)
    if not all(isinstance(word, dict) for word in words):
        raise ProtocolError("words is not a list of objects")
    return _build(Final, {**table, "words": tuple(_build(Word, word) for word in words)})


# --- JSON to values ---

T = TypeVar("T", Ready, Partial, Final, Word)


def _build(kind: type[T], table: dict[str, Any]) -> T:
    """A dataclass from the fields of its name; those without a default must be there."""
    known: dict[str, Any] = {}
    for each in fields(kind):
        if each.name in table:
            known[each.name] = _field(table, each.name, _TYPES[each.type])
    try:
        return kind(**known)
    except TypeError as error:
        raise ProtocolError(f"{kind.__name__.lower()} {str(error).partition(') ')[2]}") from error


_TYPES: dict[Any, type] = {str: str, int: int, bool: bool, tuple[Word, ...]: tuple}
_OPTIONS = {each.name for each in fields(StreamOptions)}


def _field(table: dict[str, Any], name: str, kind: type) -> Any:
    if name not in table:
        raise ProtocolError(f"{name} is missing")
    value = table[name]
    if type(value) is not kind:
        raise ProtocolError(f"{name} is {_shown(value)}, not {kind.__name__}")
    if isinstance(value, int) and not 0 <= value < 1 << 53:
        raise ProtocolError(f"{name} is {_shown(value)}")
    return value


def _number(table: dict[str, Any], name: str) -> int:
    value: int = _field(table, name, int)
    return value


def _table(text: str) -> dict[str, Any]:
    try:
        table = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not JSON: {error}") from error
    if not isinstance(table, dict):
        raise ProtocolError(f"{_shown(table)} is not a JSON object")
    return table


def _shown(value: object) -> str:
    return repr(value)[:50]


def _integer(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ProtocolError(f"{name} is {_shown(text)}, not a number")
    return int(text)


def _flag(name: str, text: str) -> bool:
    if text not in _FLAGS:
        raise ProtocolError(f"{name} is {_shown(text)}, not true or false")
    return _FLAGS[text]
