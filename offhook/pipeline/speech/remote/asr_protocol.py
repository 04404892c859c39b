"""Streaming speech recognition over a WebSocket: every message, both ways, as a value.

    GET /ws/transcribe?rate=16000&language=en&context=…&update_ms=400&words=false&live=true
        &gate=false&timing=false

    client                                      server
    ------                                      ------
                                                {"type": "ready", …}
    binary: PCM, 16-bit little-endian mono      {"type": "partial", …}
    {"type": "flush"}                           {"type": "final", …}
    {"type": "cancel"}                          {"type": "draining", "free": 0.0}
    {"type": "turn", "question": 0, …}          {"type": "turn", "question": 0, …}
    {"type": "close"}                           {"type": "error", "code": …, "message": …}

A stream hears one utterance after another. The first sound begins one; ``flush`` ends it, and its
final answers; ``cancel`` drops the one in progress, and without one does nothing; ``close`` ends
the stream, with what has no final yet. Utterances count from 0: each ``flush`` and each ``cancel``
of one in progress ends one. Partials and finals carry the number, so an answer that was under way
when its utterance was cancelled is known as such. ``draining`` says that the server will stop, to
clients that sent ``Offhook-Accept: draining``: the stream goes on, the next belongs elsewhere. An
error is the last message of a stream.

A server whose ``ready`` has ``"turns": true`` also answers ``turn``: how likely it is that the
speaker's turn is over at a place of the stream's audio. Answers come in any order, beside partials
and finals.

With ``timing``, partials and finals tell how long the newest sound behind them was where, in ms:
``"timing": {"buffering_ms": …, "queued_ms": …, "gpu_ms": …, "routed_ms": …, "sent_ms": …}``.

The query is `StreamOptions` and the rate. This module is bytes and text only; the sockets are in
`asr_stream_io` and in `recognizer_io`.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from offhook.media.pcm import RATE_IN
from offhook.pipeline.speech.recognizer import DEFAULT_OPTIONS, Final, Partial, StreamOptions, Word
from offhook.pipeline.speech.remote.worker_protocol import (
    IDLE_S,
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
)
from offhook.pipeline.speech.streams.utterance_queue import MAX_UNHEARD_S
from offhook.pipeline.speech.timing import Stages

PATH = "/ws/transcribe"
RATES = (8_000, 16_000, 24_000, 48_000)
"""Accepted rates in Hz; the server resamples to 16 000."""
MAX_AUDIO_BYTES = 1 << 18
"""Maximum size of a binary message, 8 s at 16 kHz; a longer one ends the stream with the error
`too_long`."""


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


@dataclass(frozen=True)
class TurnQuestion:
    """Asks whether the speaker's turn is over."""

    question: Count
    """A number of the client's choice; the answer has it."""
    at_ms: Count
    """The place in ms of the stream's audio, cancelled utterances included; within the last second
    of what was sent before this."""
    type: Literal["turn"] = "turn"


@dataclass(frozen=True)
class _Command:
    type: Literal["flush", "cancel", "close"]


_COMMAND: TypeAdapter[_Command | TurnQuestion] = TypeAdapter(
    Annotated[_Command | TurnQuestion, Field(discriminator="type")]
)
_TO_JSON = json.JSONEncoder(ensure_ascii=False)


def command_text(command: Command | TurnQuestion) -> str:
    if isinstance(command, TurnQuestion):
        return json.dumps(vars(command))
    return json.dumps({"type": command.value})


def parse_command(text: str) -> Command | TurnQuestion:
    """Parses a client's text message. Raises ProtocolError."""
    message = parse_json(_COMMAND, text, "forbid")
    return Command(message.type) if isinstance(message, _Command) else message


# --- from the server ---


@dataclass(frozen=True)
class Ready:
    """The engine is loaded. Audio sent before this is buffered."""

    engine: str
    model: str
    rate: Count
    max_audio_bytes: Count = MAX_AUDIO_BYTES
    max_unheard_s: Count = MAX_UNHEARD_S
    idle_s: Count = IDLE_S
    id: str = ""
    """Random name of the server's process; empty: it does not tell."""
    version: str = ""
    free: Share = 1.0
    """Free share of the server's streams, 0.0 to 1.0."""
    turns: bool = False
    """Whether it answers `TurnQuestion`s."""
    type: Literal["ready"] = "ready"


@dataclass(frozen=True)
class RecognitionResult:
    """A partial or final of one utterance. Word times count from the stream's first sample,
    including cancelled utterances."""

    utterance: int
    event: Partial | Final
    """The event; its `Timing` is on the local clock and is not transmitted."""
    stages: Stages | None = None


@dataclass(frozen=True)
class TurnAnswer:
    """Answers a `TurnQuestion`."""

    question: Count
    probability: Share | None
    """Probability that the turn is over; None if the server cannot say: it is too busy, or does not
    have the audio (any more)."""
    type: Literal["turn"] = "turn"


ServerMessage = Ready | RecognitionResult | TurnAnswer | Draining | Error


def server_text(message: ServerMessage) -> str:
    match message:
        case Ready() | Draining() | TurnAnswer():
            return json.dumps(vars(message))
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


@dataclass(frozen=True)
class _Text:
    """A partial or a final as it is sent."""

    type: Literal["partial", "final"]
    utterance: Count
    text: str
    audio_ms: Count
    stable_chars: Count = 0
    words: tuple[Word, ...] = ()
    language: str = Final.language
    continues: bool = False
    timing: Stages | None = None


_SERVER: TypeAdapter[Ready | _Text | TurnAnswer | Draining | Error] = TypeAdapter(
    Annotated[Ready | _Text | TurnAnswer | Draining | Error, Field(discriminator="type")]
)


def parse_server(text: str) -> ServerMessage:
    """Parses a server's text message. Unknown fields are ignored for forward compatibility. Raises
    ProtocolError."""
    message = parse_json(_SERVER, text)
    if not isinstance(message, _Text):
        return message
    m = message
    if m.type == "final":
        final = Final(m.text, m.audio_ms, m.words, m.language, m.continues)
        return RecognitionResult(m.utterance, final, m.timing)
    if m.stable_chars > len(m.text):
        raise ProtocolError("stable_chars is not within the text")
    return RecognitionResult(m.utterance, Partial(m.text, m.stable_chars, m.audio_ms), m.timing)


_OPTIONS = {each.name for each in fields(StreamOptions)}
