"""Streaming speech synthesis over a WebSocket: every message, both ways, as a value.

    GET /ws/speak?voice=…&language=en&instructions=…&speed=1.0&normalise=true&live=true&seed=…
                 &whole_text=false&cache=true

    client                                      server
    ------                                      ------
                                                {"type": "ready", …}
    {"type": "text", "text": "Good mor"}        binary: PCM, 16-bit little-endian mono, 24 kHz
    {"type": "text", "text": "ning."}           {"type": "mark", "reply": 0, …}
    {"type": "end"}                             {"type": "done", "reply": 0, …}
    {"type": "cancel"}                          {"type": "draining", "free": 0.0}
    {"type": "close"}                           {"type": "error", "code": …, "message": …}

A stream speaks one reply after another. The first text begins one; ``end`` says that its text is
complete; ``cancel`` drops all that is not spoken yet, of the reply being written and of those
before it, and without any does nothing; ``close`` ends the stream. Replies count from 0: each
``end`` and each ``cancel`` of one being written ends one. Every reply is answered by exactly one
done, in order, and all sound between two of them is of one reply; so what was under way when its
reply was cancelled is known as such, and the next reply may be written before the done has come.

A mark says which text has been spoken when its sample of the reply has been played. The texts of a
reply's marks, joined, are the text that was written. Without text a reply waits, it does not end.
``draining`` says that the server will stop, to clients that sent ``Offhook-Accept: draining``: the
reply goes on, the next belongs elsewhere. An error is the last message of a stream.

This module is bytes and text only; the sockets are in the worker and in `remote_synthesizer_io`.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from offhook.media.pcm import RATE_OUT
from offhook.pipeline.speech.remote.worker_protocol import (
    IDLE_S,
    MAX_TEXT_CHARS,
    Count,
    Draining,
    Error,
    ProtocolError,
    Share,
    flag,
    integer,
    known_only,
    parse_json,
    query_of,
    shown,
)
from offhook.pipeline.speech.synthesizer import DEFAULT_VOICE, VoiceOptions

PATH = "/ws/speak"
MAX_AUDIO_BYTES = 1 << 15
"""Maximum size of a binary message, 0.68 s; longer audio is sent in several."""
MAX_WAITING_CHARS = 100_000
"""Maximum text of one stream without a mark, about two hours; more ends the stream with the error
`behind`."""
MAX_WAITING_REPLIES = 16
"""Maximum replies of one stream without a done; more end the stream with the error `behind`."""
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
    type: Literal["text"] = "text"


@dataclass(frozen=True)
class End:
    """Ends the text of the reply."""

    type: Literal["end"] = "end"


@dataclass(frozen=True)
class Cancel:
    """Cancels everything not spoken yet."""

    type: Literal["cancel"] = "cancel"


@dataclass(frozen=True)
class Close:
    """Ends the stream."""

    type: Literal["close"] = "close"


Command = Text | End | Cancel | Close
_COMMAND: TypeAdapter[Command] = TypeAdapter(Annotated[Command, Field(discriminator="type")])


def command_text(command: Command) -> str:
    return json.dumps(vars(command), ensure_ascii=False)


def parse_command(text: str) -> Command:
    """Parses a client's text message. Raises ProtocolError."""
    return parse_json(_COMMAND, text, "forbid")


# --- from the server ---


@dataclass(frozen=True)
class Ready:
    """The engine is loaded. Text sent before this is buffered."""

    engine: str
    model: str
    voices: tuple[str, ...] = ()
    """Names of the voices, the default first."""
    rate: Count = RATE_OUT
    """Sample rate of the audio in Hz."""
    max_text_chars: Count = MAX_TEXT_CHARS
    max_waiting_chars: Count = MAX_WAITING_CHARS
    idle_s: Count = IDLE_S
    id: str = ""
    """Random name of the server's process; empty: it does not tell."""
    version: str = ""
    free: Share = 1.0
    """Free share of the server's streams, 0.0 to 1.0."""
    type: Literal["ready"] = "ready"


@dataclass(frozen=True)
class Mark:
    """This text ends at that sample of the reply."""

    reply: Count
    text: str
    samples: Count
    type: Literal["mark"] = "mark"


class Reason(Enum):
    END = "end"
    CANCEL = "cancel"


@dataclass(frozen=True)
class Done:
    """The last message of a reply."""

    reply: Count
    samples: Count
    """Samples of the reply that were sent."""
    reason: Reason
    type: Literal["done"] = "done"


ServerMessage = Ready | Mark | Done | Draining | Error
_SERVER: TypeAdapter[ServerMessage] = TypeAdapter(
    Annotated[ServerMessage, Field(discriminator="type")]
)


def server_text(message: ServerMessage) -> str:
    return _SERVER.dump_json(message).decode()


def parse_server(text: str) -> ServerMessage:
    """Parses a server's text message. Unknown fields are ignored for forward compatibility. Raises
    ProtocolError."""
    return parse_json(_SERVER, text)


_OPTIONS = {each.name for each in fields(VoiceOptions)}


def _decimal(name: str, text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,20})?", text):
        raise ProtocolError(f"{name} is {shown(text)}, not a number")
    return float(text)
