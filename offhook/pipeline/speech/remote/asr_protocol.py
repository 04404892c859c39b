"""Streaming speech recognition over a WebSocket: every message, both ways, as a value.

    GET /ws/transcribe?rate=16000&language=en&context=…&update_ms=400&words=false&live=true
        &gate=false&timing=false

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

With ``timing``, partials and finals tell how long the newest sound behind them was where, in ms:
``"timing": {"buffering_ms": …, "queued_ms": …, "gpu_ms": …, "routed_ms": …, "sent_ms": …}``.

The query is `StreamOptions` and the rate. This module is bytes and text only; the sockets are in
`asr_stream_io` and in `remote_recognizer_io`.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import Enum
from typing import Any

from offhook.media.pcm import RATE_IN
from offhook.pipeline.speech.recognizer import DEFAULT_OPTIONS, Final, Partial, StreamOptions, Word
from offhook.pipeline.speech.remote.worker_protocol import (
    IDLE_S,
    Error,
    ProtocolError,
    build,
    field,
    flag,
    integer,
    kind_of,
    known_only,
    no_more,
    number,
    query_of,
    shown,
    table_of,
)
from offhook.pipeline.speech.streams.utterance_queue import MAX_UNHEARD_S
from offhook.pipeline.speech.timing import STAGES, Stages

PATH = "/ws/transcribe"
RATES = (8_000, 16_000, 24_000, 48_000)
"""Accepted rates in Hz; the server resamples to 16 000."""
MAX_AUDIO_BYTES = 1 << 18
"""Maximum size of a binary message: 8 s at 16 kHz. A longer one is the error `too_long`."""
MAX_STAGE_MS = 1e9
"""Maximum plausible duration of one stage in ms."""


# --- from the client ---


@dataclass(frozen=True)
class Request:
    """The query parameters of a stream."""

    rate: int = RATE_IN
    options: StreamOptions = DEFAULT_OPTIONS

    @classmethod
    def parse(cls, query: Mapping[str, str]) -> "Request":
        """Parses query parameters. Raises ProtocolError."""
        known_only(query, {"rate", *_OPTIONS})
        rate = integer("rate", query.get("rate", str(RATE_IN)))
        if rate not in RATES:
            raise ProtocolError(f"rate is {rate}, not one of {', '.join(map(str, RATES))} Hz")
        asked: dict[str, Any] = {name: query[name] for name in _OPTIONS & query.keys()}
        if "update_ms" in asked:
            asked["update_ms"] = integer("update_ms", asked["update_ms"])
        for name in {"words", "live", "gate", "timing"} & asked.keys():
            asked[name] = flag(name, asked[name])
        if "language" in asked:
            asked["language"] = asked["language"] or None
        try:
            return cls(rate, StreamOptions(**asked))
        except ValueError as error:
            raise ProtocolError(str(error)) from error

    def query(self) -> dict[str, str]:
        """Returns the parameters that differ from the defaults."""
        return query_of(
            {"rate": self.rate, **asdict(self.options)},
            {"rate": RATE_IN, **asdict(DEFAULT_OPTIONS)},
        )


class Command(Enum):
    FLUSH = "flush"
    """Ends the utterance; the final follows."""
    CANCEL = "cancel"
    """Discards the utterance in progress."""
    CLOSE = "close"
    """Ends the stream."""


_TO_JSON = json.JSONEncoder(ensure_ascii=False)


def command_text(command: Command) -> str:
    return json.dumps({"type": command.value})


def parse_command(text: str) -> Command:
    """Parses a client's text message. Raises ProtocolError."""
    table = table_of(text)
    kind = kind_of(table, [command.value for command in Command])
    no_more(kind, table)
    return Command(kind)


# --- from the server ---


@dataclass(frozen=True)
class Ready:
    """The engine is loaded. Audio sent before this is buffered."""

    engine: str
    model: str
    rate: int
    max_audio_bytes: int = MAX_AUDIO_BYTES
    max_unheard_s: int = MAX_UNHEARD_S
    idle_s: int = IDLE_S


@dataclass(frozen=True)
class RecognitionResult:
    """A partial or final of one utterance. Word times count from the stream's first sample,
    including cancelled utterances."""

    utterance: int
    event: Partial | Final
    """The event; its `Timing` is on the local clock and is not transmitted."""
    stages: Stages | None = None


ServerMessage = Ready | RecognitionResult | Error


def server_text(message: ServerMessage) -> str:
    match message:
        case Ready():
            return json.dumps({"type": "ready", **asdict(message)})
        case RecognitionResult(utterance, event):
            kind = type(event).__name__.lower()
            table = {"type": kind, "utterance": utterance, **vars(event)}
            if isinstance(event, Final):
                table["words"] = [vars(word) for word in event.words]
            del table["timing"]
            if message.stages is not None:
                table["timing"] = vars(message.stages)
            return _TO_JSON.encode(table)
        case Error():
            return message.to_text()


def parse_server(text: str) -> ServerMessage:
    """Parses a server's text message. Unknown fields are ignored for forward compatibility. Raises
    ProtocolError."""
    table = table_of(text)
    match table.get("type"):
        case "ready":
            return build(Ready, table, _TYPES)
        case "partial":
            stages = _stages(table)
            partial = build(Partial, table, _TYPES)
            if not 0 <= partial.stable_chars <= len(partial.text):
                raise ProtocolError("stable_chars is not within the text")
            return RecognitionResult(number(table, "utterance"), partial, stages)
        case "final":
            stages = _stages(table)
            return RecognitionResult(number(table, "utterance"), _final(table), stages)
        case "error":
            return Error.parse(table)
        case other:
            raise ProtocolError(f"type is {shown(other)}, not ready, partial, final or error")


def _stages(table: dict[str, Any]) -> Stages | None:
    """Removes and parses the timing."""
    if "timing" not in table:
        return None
    told = field(table, "timing", dict)
    del table["timing"]
    return Stages(*[_ms(told, f"{stage}_ms") for stage in STAGES])


def _ms(table: dict[str, Any], name: str) -> float:
    value = table.get(name)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < MAX_STAGE_MS:
        return float(value)
    raise ProtocolError(f"{name} is {shown(value)}, not ms")


def _final(table: dict[str, Any]) -> Final:
    words = field({"words": [], **table}, "words", list)
    if not all(isinstance(word, dict) for word in words):
        raise ProtocolError("words is not a list of objects")
    timed = tuple(build(Word, word, _TYPES) for word in words)
    return build(Final, {**table, "words": timed}, _TYPES)


_TYPES: dict[Any, type] = {str: str, int: int, bool: bool, tuple[Word, ...]: tuple}
_OPTIONS = {each.name for each in fields(StreamOptions)}
