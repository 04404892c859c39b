"""Streaming speech synthesis over a WebSocket: every message, both ways, as a value.

    GET /ws/speak?voice=…&language=en&instructions=…&speed=1.0&normalise=true&live=true&seed=…
                 &whole_text=false&cache=true

    client                                      server
    ------                                      ------
                                                {"type": "ready", …}
    {"type": "text", "text": "Good mor"}        binary: PCM, 16-bit little-endian mono, 24 kHz
    {"type": "text", "text": "ning."}           {"type": "mark", "reply": 0, …}
    {"type": "end"}                             {"type": "done", "reply": 0, …}
    {"type": "cancel"}
    {"type": "close"}                           {"type": "error", "code": …, "message": …}

A stream speaks one reply after another. The first text begins one; ``end`` says that its text is
complete; ``cancel`` drops all that is not spoken yet, of the reply being written and of those
before it, and without any does nothing; ``close`` ends the stream. Replies count from 0: each
``end`` and each ``cancel`` of one being written ends one. Every reply is answered by exactly one
done, in order, and all sound between two of them is of one reply; so what was under way when its
reply was cancelled is known as such, and the next reply may be written before the done has come.

A mark says which text has been spoken when its sample of the reply has been played. The texts of a
reply's marks, joined, are the text that was written. Without text a reply waits, it does not end.
An error is the last message of a stream.

This module is bytes and text only; the sockets are in the worker and in `remote_synthesizer_io`.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import Enum
from typing import Any

from offhook.media.pcm import RATE_OUT
from offhook.pipeline.speech.remote.worker_protocol import (
    IDLE_S,
    MAX_TEXT_CHARS,
    Error,
    ProtocolError,
    build,
    field,
    flag,
    integer,
    kind_of,
    known_only,
    no_more,
    query_of,
    shown,
    table_of,
)
from offhook.pipeline.speech.synthesizer import DEFAULT_VOICE, VoiceOptions

PATH = "/ws/speak"
MAX_AUDIO_BYTES = 1 << 15
"""Maximum size of a binary message: 0.68 s."""
MAX_WAITING_CHARS = 100_000
"""Maximum text of one stream without a mark, about two hours; more is the error `behind`."""
MAX_WAITING_REPLIES = 16
"""Maximum replies of one stream without a done; more is the error `behind`."""
SEED_DIGITS = 19


# --- from the client ---


def parse_query(query: Mapping[str, str]) -> VoiceOptions:
    """Parses query parameters. Raises ProtocolError."""
    known_only(query, _OPTIONS)
    asked: dict[str, Any] = {name: value for name, value in query.items() if value}
    if "speed" in asked:
        asked["speed"] = _decimal("speed", asked["speed"])
    if "seed" in asked:
        asked["seed"] = integer("seed", asked["seed"], SEED_DIGITS)
    for name in {"normalise", "live", "cache", "whole_text"} & asked.keys():
        asked[name] = flag(name, asked[name])
    try:
        return VoiceOptions(**asked)
    except ValueError as error:
        raise ProtocolError(str(error)) from error


def query(options: VoiceOptions) -> dict[str, str]:
    """Returns the parameters that differ from the defaults."""
    return query_of(asdict(options), asdict(DEFAULT_VOICE))


@dataclass(frozen=True)
class Text:
    """More text of the reply, in pieces of any length."""

    text: str


@dataclass(frozen=True)
class End:
    """Ends the text of the reply."""


@dataclass(frozen=True)
class Cancel:
    """Cancels everything not spoken yet."""


@dataclass(frozen=True)
class Close:
    """Ends the stream."""


Command = Text | End | Cancel | Close
_COMMANDS: dict[str, Command] = {"end": End(), "cancel": Cancel(), "close": Close()}


def command_text(command: Command) -> str:
    table = {"type": type(command).__name__.lower(), **asdict(command)}
    return json.dumps(table, ensure_ascii=False)


def parse_command(text: str) -> Command:
    """Parses a client's text message. Raises ProtocolError."""
    table = table_of(text)
    kind = kind_of(table, ("text", *_COMMANDS))
    if kind != "text":
        no_more(kind, table)
        return _COMMANDS[kind]
    command = Text(_text(table))
    no_more(kind, {name: value for name, value in table.items() if name != "text"})
    return command


# --- from the server ---


@dataclass(frozen=True)
class Ready:
    """The engine is loaded. Text sent before this is buffered."""

    engine: str
    model: str
    voices: tuple[str, ...] = ()
    """Names of the voices, the default first."""
    rate: int = RATE_OUT
    """Sample rate of the audio in Hz."""
    max_text_chars: int = MAX_TEXT_CHARS
    max_waiting_chars: int = MAX_WAITING_CHARS
    idle_s: int = IDLE_S


@dataclass(frozen=True)
class Mark:
    """This text ends at that sample of the reply."""

    reply: int
    text: str
    samples: int


class Reason(Enum):
    END = "end"
    CANCEL = "cancel"


@dataclass(frozen=True)
class Done:
    """The last message of a reply."""

    reply: int
    samples: int
    """Samples of the reply that were sent."""
    reason: Reason


ServerMessage = Ready | Mark | Done | Error


def server_text(message: ServerMessage) -> str:
    match message:
        case Ready() | Mark():
            table = {"type": type(message).__name__.lower(), **asdict(message)}
            return json.dumps(table, ensure_ascii=False)
        case Done(reply, samples, reason):
            table = {"type": "done", "reply": reply, "samples": samples, "reason": reason.value}
            return json.dumps(table)
        case Error():
            return message.to_text()


def parse_server(text: str) -> ServerMessage:
    """Parses a server's text message. Unknown fields are ignored for forward compatibility. Raises
    ProtocolError."""
    table = table_of(text)
    match table.get("type"):
        case "ready":
            voices = field({"voices": [], **table}, "voices", list)
            if not all(isinstance(voice, str) for voice in voices):
                raise ProtocolError("voices is not a list of names")
            return build(Ready, {**table, "voices": tuple(voices)}, _TYPES)
        case "mark":
            return build(Mark, table, _TYPES)
        case "done":
            try:
                reason = Reason(table.get("reason"))
            except ValueError as error:
                raise ProtocolError(f"unknown reason {shown(table.get('reason'))}") from error
            return build(Done, {**table, "reason": reason}, _TYPES)
        case "error":
            return Error.parse(table)
        case other:
            raise ProtocolError(f"type is {shown(other)}, not ready, mark, done or error")


_TYPES: dict[Any, type] = {str: str, int: int, tuple[str, ...]: tuple, Reason: Reason}
_OPTIONS = {each.name for each in fields(VoiceOptions)}


def _decimal(name: str, text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,20})?", text):
        raise ProtocolError(f"{name} is {shown(text)}, not a number")
    return float(text)


def _text(table: dict[str, Any]) -> str:
    """Validates text without quoting it, so it appears in no error or log."""
    text = table.get("text")
    if not isinstance(text, str):
        raise ProtocolError(f"text is {type(text).__name__}, not str")
    try:
        text.encode()
    except UnicodeEncodeError as error:  # JSON can contain lone surrogates
        raise ProtocolError("text holds half a character (a lone surrogate)") from error
    return text
