"""The two dialects of WS /v1/audio/speech/ws. The first message of the client selects one:

    the protocol of workers (`tts_protocol`)      a request a message
    ----------------------------------------      -------------------
    {"type": "text", "text": "Good mor"}          {"input": "Good morning.", "voice": "…", …}
    {"type": "end"}                               {"event": "cancel"}
    {"type": "cancel"}                            {"event": "close"}
    {"type": "close"}

    ready, PCM, mark, done; error is the end      PCM, {"event": "done", …}
                                                  {"event": "error", "detail": "…"}

Sound is binary both ways: 16-bit little-endian mono at 24 kHz. A request has the fields of POST
/v1/audio/speech, as far as they make sense here. Every request, and every message that is none, is
answered in order by one done or one error, and the stream goes on; an error in the other way, or of
the whole stream, is the last message of it.

This module is text only; the socket is in `speech_socket_io`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from offhook.pipeline.speech.remote.tts_protocol import (
    Cancel,
    Close,
    Command,
    Done,
    Mark,
    Ready,
    ServerMessage,
    parse_command,
    server_text,
)
from offhook.pipeline.speech.remote.worker_protocol import (
    Draining,
    Error,
    ErrorCode,
    ProtocolError,
    shown,
    table_of,
)
from offhook.pipeline.speech.synthesizer import VoiceOptions
from offhook.web.speech_api.errors import ApiError
from offhook.web.speech_api.http.speech_request import SpeechRequest, find_voice

PATH = "/v1/audio/speech/ws"
Voices = Callable[[], Sequence[str]]
"""Returns the names of the engine's voices, as far as they are known."""
Parse = Callable[[bytes], SpeechRequest]
"""Parses a request for raw PCM and resolves its model and voice names. Raises ApiError."""


@dataclass(frozen=True)
class Say:
    """A complete request to speak."""

    text: str
    options: VoiceOptions


@dataclass(frozen=True)
class Fault:
    """An invalid message, to be answered in order."""

    words: str


class Dialect(Protocol):
    @property
    def decided(self) -> bool:
        """Whether the client's dialect is known."""

    @property
    def one_by_one(self) -> bool:
        """Whether every request stands alone, so that an invalid one does not end the stream."""

    def parse(self, text: str) -> Command | Say | Fault:
        """Parse a text message of the client. Raises ProtocolError, which ends the stream."""

    def to_text(self, message: ServerMessage | Fault) -> str | None:
        """Encode a server message; None if this dialect does not send it."""


class Commands:
    """The protocol of workers (`tts_protocol`)."""

    decided = True
    one_by_one = False

    def parse(self, text: str) -> Command:
        return parse_command(text)

    def to_text(self, message: ServerMessage | Fault) -> str:
        if isinstance(message, Fault):
            message = Error(ErrorCode.BAD_REQUEST, message.words)
        return server_text(message)


class Requests:
    """The dialect with one request per message."""

    decided = one_by_one = True

    def __init__(self, voices: Voices, parse: Parse, given_in_query: bool) -> None:
        self._voices = voices
        self._parse = parse
        self._given_in_query = given_in_query

    def parse(self, text: str) -> Command | Say | Fault:
        try:
            table = table_of(text)
            if "event" in table:
                return _event(table)
            return self._request(text)
        except (ProtocolError, ApiError) as error:
            return Fault(str(error))

    def _request(self, text: str) -> Say:
        """Parse one request. Raises ApiError."""
        if self._given_in_query:
            words = "what is in the address counts for text messages: give it in each request"
            raise ApiError(400, words)
        request = self._parse(text.encode("utf-8", "surrogatepass"))
        if request.faster != 1 or request.stream_format != "audio":
            words = "on this socket speed is 0.5..2, and sound comes as binary messages"
            raise ApiError(400, words)
        options = request.voice_options(known_voice(request.voice, self._voices()))
        return Say(request.input, options)

    def to_text(self, message: ServerMessage | Fault) -> str | None:
        match message:
            case Done(reply, samples, reason):
                done = {"event": "done", "reply": reply, "samples": samples}
                return json.dumps({**done, "reason": reason.value})
            case Error(_, words) | Fault(words):
                return json.dumps({"event": "error", "detail": words}, ensure_ascii=False)
            case Ready() | Mark() | Draining():
                return None


class Undecided:
    """The dialect before the first message; sends errors in a form valid in both others."""

    decided = one_by_one = False

    def parse(self, text: str) -> Command | Say | Fault:
        raise AssertionError("the first message decides")

    def to_text(self, message: ServerMessage | Fault) -> str | None:
        if not isinstance(message, Error):
            return None
        table = json.loads(message.to_text())
        return json.dumps({**table, "event": "error", "detail": message.message})


class SpeechSocket:
    """Detects the dialect from the first message and delegates to it."""

    def __init__(self, voices: Voices, parse: Parse, given_in_query: bool = False) -> None:
        """`given_in_query`: whether the URL query sets a voice or another option."""
        self._requests = Requests(voices, parse, given_in_query)
        self._dialect: Dialect = Undecided()

    @property
    def decided(self) -> bool:
        return self._dialect.decided

    @property
    def one_by_one(self) -> bool:
        return self._dialect.one_by_one

    def parse(self, text: str) -> Command | Say | Fault:
        if not self.decided:
            self._dialect = Commands() if "type" in table_of(text) else self._requests
        return self._dialect.parse(text)

    def to_text(self, message: ServerMessage | Fault) -> str | None:
        return self._dialect.to_text(message)

    def error_text(self, error: Error) -> str:
        """Encode the error that closes the stream."""
        return self.to_text(error) or ""


def _event(table: dict[str, Any]) -> Command:
    """Parse a control event of a client. Raises ProtocolError."""
    event = table.pop("event")
    if not isinstance(event, str) or event not in _EVENTS:
        raise ProtocolError(f"event is {shown(event)}, not one of {', '.join(_EVENTS)}")
    if table:
        raise ProtocolError(f"{event} has no field {min(table)[:50]!r}")
    return _EVENTS[event]


def known_voice(name: str, voices: Sequence[str]) -> str:
    """Resolves a voice name in any case."""
    try:
        return find_voice(name, voices)
    except ApiError:
        return name  # the voice may be newer than the list: let the engine decide


_EVENTS: Mapping[str, Command] = {"cancel": Cancel(), "close": Close()}
