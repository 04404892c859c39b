"""Plivo audio streaming, bidirectional, as opened by `<Stream bidirectional="true">`.

The first message is `start`. Audio is mu-law at 8000 Hz or L16 (little-endian) at 8000 or 16000 Hz
in base64, the same in both directions, as the stream's contentType requested. Plivo plays audio in
order and returns a checkpoint (`playedStream`) once the audio before it has been played, but not
those it was told to clear. `media.chunk` counts the messages of a track; `media.timestamp` is the
sender's wall clock, not a sample count, and is ignored.

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
    Sound,
    Started,
)

MAX_MESSAGE_BYTES = 64 * 1024
"""Maximum size of a message; with a longer one the call ends. 20 ms of L16 at 16 kHz are 900 bytes,
plus at most 512 bytes of extra headers."""

FORMATS: Final = {
    ("audio/x-mulaw", 8000): Format("pcmu", 8000),
    ("audio/x-l16", 8000): Format("l16", 8000),
    ("audio/x-l16", 16000): Format("l16", 16000),
}


class PlivoStream(EventStream):
    """One Plivo stream."""

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
        return Started(stream_id, call_id, spoken, spoken)

    def _media_message(self, payload: str) -> str:
        more = {"contentType": self._content_type, "sampleRate": self._rate}
        return self._message("playAudio", media={**more, "payload": payload})

    def _mark_message(self, name: str) -> str:
        return self._message("checkpoint", name=name)

    def clear(self) -> list[Message]:
        return [self._message("clearAudio")]

    def press(self, digit: str) -> list[Message]:
        if digit not in DIGITS:
            raise LegError(f"{digit!r} is not a DTMF digit")
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
        return self._played_to(message.get("name"))

    def _cleared(self, message: Json) -> list[Event]:
        return [Cleared()]

    # Plivo's documentation has no `stop`, but its libraries do: it is in EventStream's table.
    actions: ClassVar[Mapping[tuple[StreamState, str], Callable[[Any, Json], list[Event]]]] = {
        **EventStream.actions,
        (StreamState.WAITING, "start"): _start,
        (StreamState.WAITING, "playedStream"): EventStream._unexpected,
        (StreamState.WAITING, "clearedAudio"): EventStream._unexpected,
        (StreamState.STREAMING, "media"): _media,
        (StreamState.STREAMING, "playedStream"): _played,
        (StreamState.STREAMING, "clearedAudio"): _cleared,
    }


def _medium(media_format: object) -> tuple[str, int]:
    """Return content type and rate in Hz. Raises CarrierError if they are not supported."""
    media_format = media_format if isinstance(media_format, dict) else {}
    encoding = text_of(media_format.get("encoding"), MAX_ID_CHARS).partition(";")[0].strip().lower()
    rate = number(media_format.get("sampleRate")) or 0
    if (encoding, rate) in FORMATS:
        return encoding, rate
    raise CarrierError(
        f"Plivo sends {encoding or 'an unnamed encoding'} at {rate} Hz, which is not supported: "
        "contentType must be audio/x-mulaw;rate=8000 or audio/x-l16;rate=8000 or 16000"
    )


def _parameters(headers: object) -> dict[str, str]:
    """Parse the extra headers: text like "a=1;b=2" or "a=1,b=2", or a JSON object as text."""
    if not isinstance(headers, str):
        return texts_of(headers)
    parameters = read_object(headers, MAX_MESSAGE_BYTES)
    if parameters is None:
        pairs = (pair.partition("=") for pair in headers.strip("{} ").replace(",", ";").split(";"))
        parameters = {name.strip(): value.strip() for name, _, value in pairs}
    return texts_of(parameters)
