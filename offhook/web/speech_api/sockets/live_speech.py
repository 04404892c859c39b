"""The protocol nari.speech.v1 of WS /v1/audio/speech/ws: one reply, its text as it is written.

A client asks for it by its name in Sec-WebSocket-Protocol (RFC 6455 §1.9).

    client                                          server
    ------                                          ------
                                                    {"type": "session.created",
                                                     "protocol": "nari.speech.v1", "audio": {…}}
    {"type": "request.start", "voice": "…", …}      {"type": "request.configured"}
    {"type": "input_text.append",                   {"type": "input_text.ack",
     "sequence": 0, "text": "Good "}                 "event": "input_text.append", "sequence": 0}
    {"type": "input_text.end", "sequence": 1}       {"type": "input_text.ack",
                                                     "event": "input_text.end", "sequence": 1}
                                                    {"type": "response.started",
                                                     "request_id": "…", "audio": {…}}
                                                    binary: PCM, 16-bit little-endian mono, 24 kHz
    {"type": "response.cancel"}                     {"type": "response.done", "request_id": "…",
                                                     "stop_reason": "stop", "audio_chunks": 9}
                                                    {"type": "error", "error": {…}}

A start has the fields of POST /v1/audio/speech except input. Sequence numbers count from 0. Sound
comes as soon as there are words for it. After done or error the server closes.

Source: nari-labs/benchmarks, docs/tts_bench/methodology.md, and what its client accepts. This
module is text only; the socket is in `live_speech_io`.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from offhook.media.pcm import RATE_OUT
from offhook.pipeline.speech.remote.worker_protocol import (
    Count,
    Error,
    ProtocolError,
    parse_json,
    table_of,
)
from offhook.pipeline.speech.synthesizer import VoiceOptions
from offhook.web.speech_api.errors import ApiError
from offhook.web.speech_api.http.speech_request import SpeechRequest

PROTOCOL = "nari.speech.v1"
AUDIO = {"encoding": "pcm_s16le", "sample_rate": RATE_OUT, "channels": 1}
START = "request.start"
_ANY_INPUT = "…"
"""In place of the text, which comes later, when a start is checked like a whole request."""


@dataclass(frozen=True)
class Append:
    sequence: Count
    text: str
    type: Literal["input_text.append"] = "input_text.append"


@dataclass(frozen=True)
class End:
    sequence: Count
    type: Literal["input_text.end"] = "input_text.end"


@dataclass(frozen=True)
class Cancel:
    type: Literal["response.cancel"] = "response.cancel"


@dataclass(frozen=True)
class Start:
    options: VoiceOptions


Message = Append | End | Cancel
_MESSAGE: TypeAdapter[Message] = TypeAdapter(Annotated[Message, Field(discriminator="type")])


class LiveSpeech:
    """What the client may send next. It is sans-io."""

    def __init__(
        self, parse: Callable[[bytes], SpeechRequest], voice_of: Callable[[str], str]
    ) -> None:
        """`parse` parses a request for raw PCM, `voice_of` finds a voice of the engine by its name
        in any case. Both raise ApiError."""
        self._parse, self._voice_of = parse, voice_of
        self._started = self._ended = False
        self._sequence = 0

    def parse(self, text: str) -> Start | Message:
        """Parses a text message. Raises ProtocolError, ApiError."""
        table = table_of(text)
        if table.get("type") == START:
            return self._start(table)
        message = parse_json(_MESSAGE, text, "forbid")
        if isinstance(message, Cancel):
            return message
        if not self._started:
            raise ProtocolError(f"{message.type} before {START}")
        if self._ended:
            raise ProtocolError(f"{message.type} after {End.type}")
        if message.sequence != self._sequence:
            raise ProtocolError(f"sequence is {message.sequence}, not {self._sequence}")
        self._sequence += 1
        self._ended = isinstance(message, End)
        return message

    def _start(self, table: dict[str, Any]) -> Start:
        if self._started:
            raise ProtocolError("one request a connection: open another for the next")
        if "input" in table:
            raise ProtocolError(f"{START} has no input: send {Append.type}")
        fields = {name: value for name, value in table.items() if name != "type"}
        request = self._parse(json.dumps({**fields, "input": _ANY_INPUT}).encode())
        if request.faster != 1 or request.stream_format != "audio":
            words = "on this socket speed is 0.5..2, and sound comes as binary messages"
            raise ApiError(400, words)
        self._started = True
        options = request.voice_options(self._voice_of(request.voice))
        return Start(replace(options, live=True, whole_text=False))


def created() -> str:
    return json.dumps({"type": "session.created", "protocol": PROTOCOL, "audio": AUDIO})


def configured() -> str:
    return json.dumps({"type": "request.configured"})


def acknowledged(message: Append | End) -> str:
    return json.dumps(
        {"type": "input_text.ack", "event": message.type, "sequence": message.sequence}
    )


def started(request_id: str) -> str:
    return json.dumps({"type": "response.started", "request_id": request_id, "audio": AUDIO})


def done(request_id: str, cancelled: bool, chunks: int) -> str:
    return json.dumps(
        {
            "type": "response.done",
            "request_id": request_id,
            "stop_reason": "cancelled" if cancelled else "stop",
            "audio_chunks": chunks,
        }
    )


def error_text(error: Error) -> str:
    fault = {"code": error.code.value, "message": error.message}
    return json.dumps({"type": "error", "error": fault}, ensure_ascii=False)
