"""Plivo audio streaming, bidirectional, as `<Stream bidirectional="true">` opens it.

The first message is `start`. Sound is mu-law at 8000 Hz or L16 (little-endian) at 8000 or 16000 Hz
in base64, the same in both directions, as the stream's contentType asked for. Plivo plays what it
is sent in order, returns a checkpoint (`playedStream`) once what was sent before it has been
played, and none of those that it was told to clear. `media.chunk` counts the messages of a track;
`media.timestamp` is the sender's wall clock and counts no samples, so it is left aside.

Source: Plivo's "Audio Streaming Protocol Reference".
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Final

from offhook.media.leg import LegError
from offhook.telephony.carriers.streams.json_text import (
    DIGITS,
    MAX_ID_CHARS,
    EventStream,
    Json,
    StreamState,
    number,
    read_object,
    text_of,
    texts_of,
)
from offhook.telephony.carriers.streams.stream import (
    CarrierError,
    Cleared,
    Event,
    Format,
    Message,
    Played,
    Sound,
    Started,
)

MAX_MESSAGE_BYTES = 64 * 1024
"""20 ms of L16 at 16 kHz are 900 bytes; the extra headers, at most 512 bytes, come on top."""

FORMATS: Final = {
    ("audio/x-mulaw", 8000): Format("pcmu", 8000),
    ("audio/x-l16", 8000): Format("l16", 8000),
    ("audio/x-l16", 16000): Format("l16", 16000),
}


class PlivoStream(EventStream):
    """One stream of Plivo's."""

    provider = "plivo"
    max_message_bytes = MAX_MESSAGE_BYTES
    stream_key = "streamId"

    def __init__(self) -> None:
        super().__init__()
        self._content_type = ""
        self._rate = 0

    def read_start(self, start: Json, stream_id: str) -> Started:
        call_id = text_of(start.get("callId"), MAX_ID_CHARS)
        if not call_id:
            raise CarrierError("Plivo's start message has no callId")
        self._content_type, self._rate = _medium(start.get("mediaFormat"))
        spoken = FORMATS[self._content_type, self._rate]
        account = text_of(start.get("accountId"), MAX_ID_CHARS)
        return Started(stream_id, call_id, spoken, spoken, account=account)

    def sound(self, payload: bytes) -> list[Message]:
        more = {"contentType": self._content_type, "sampleRate": self._rate}
        return [self._say_sound("playAudio", payload, **more)]

    def mark(self, name: str) -> list[Message]:
        return [self._say("checkpoint", name=name)]

    def clear(self) -> list[Message]:
        return [self._say("clearAudio")]

    def press(self, digit: str) -> list[Message]:
        if digit not in DIGITS:
            raise LegError(f"{digit!r} is no key of a telephone")
        return [json.dumps({"event": "sendDTMF", "dtmf": digit})]

    def _start(self, message: Json) -> list[Event]:
        parameters = _parameters(message.get("extra_headers"))
        return [
            replace(event, parameters=parameters) if isinstance(event, Started) else event
            for event in super()._start(message)
        ]

    def _media(self, message: Json) -> list[Event]:
        return [
            replace(event, timestamp_ms=None) if isinstance(event, Sound) else event
            for event in super()._media(message)
        ]

    def _played(self, message: Json) -> list[Event]:
        name = text_of(message.get("name"), MAX_ID_CHARS)
        if name:
            return [Played(name)]
        self.malformed += 1
        return []

    def _cleared(self, message: Json) -> list[Event]:
        return [Cleared()]

    # Plivo's documents know no `stop`, its own libraries do: it is in the table of EventStream.
    actions: ClassVar[Mapping[tuple[StreamState, str], Callable[[Any, Json], list[Event]]]] = {
        **EventStream.actions,
        (StreamState.WAITING, "start"): _start,
        (StreamState.WAITING, "playedStream"): EventStream._too_early,
        (StreamState.WAITING, "clearedAudio"): EventStream._too_early,
        (StreamState.STREAMING, "media"): _media,
        (StreamState.STREAMING, "playedStream"): _played,
        (StreamState.STREAMING, "clearedAudio"): _cleared,
    }


def _medium(told: object) -> tuple[str, int]:
    """The content type and the rate in Hz, of those known. Raises CarrierError for another."""
    told = told if isinstance(told, dict) else {}
    encoding = text_of(told.get("encoding"), MAX_ID_CHARS).partition(";")[0].strip().lower()
    rate = number(told.get("sampleRate")) or 0
    if (encoding, rate) in FORMATS:
        return encoding, rate
    raise CarrierError(
        f"Plivo sends {encoding or 'an unnamed encoding'} at {rate} Hz, which is not understood: "
        "contentType must be audio/x-mulaw;rate=8000 or audio/x-l16;rate=8000 or 16000"
    )


def _parameters(headers: object) -> dict[str, str]:
    """The extra headers: texts like "a=1;b=2" or "a=1,b=2", or a JSON object in text."""
    if not isinstance(headers, str):
        return texts_of(headers)
    told = read_object(headers, MAX_MESSAGE_BYTES)
    if told is None:
        pairs = (pair.partition("=") for pair in headers.strip("{} ").replace(",", ";").split(";"))
        told = {name.strip(): value.strip() for name, _, value in pairs}
    return texts_of(told)
