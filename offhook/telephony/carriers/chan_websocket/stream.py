"""Asterisk's WebSocket channel driver: media in binary messages, commands and events in text.

A text message is a line of words or, if chan_websocket.conf or f(json) in the dial string says so,
a JSON object; Asterisk accepts only the form it uses. Commands are case-sensitive and at most 128
bytes long. Asterisk queues at most 1000 frames of media and plays one each `ptime`, by its own
timer. An incomplete last frame is lost unless buffering is on. MEDIA_XOFF is sent at 900 frames and
MEDIA_XON below 800.

A mark comes back when the queue reaches it; FLUSH_MEDIA empties the queue, marks included, which
then never come back. Asterisk has marks since 20.18, 22.8 and 23.2 and does not announce its
version, so a mark is sent first, and marks are relied on once it has come back. Audio that cannot
be split (Opus) or must not be (p or u in the dial string) is passed through: it cannot be flushed
then, and must be sent in time.

Nothing identifies the caller; the dial string may put numbers into the URL, v(caller=…,called=…),
or the dialplan into channel variables, which the JSON form reports.

Source: docs.asterisk.org, Channel Drivers, WebSocket; chan_websocket.c of Asterisk 23.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from offhook.telephony.carriers.streams.json_text import (
    MAX_ID_CHARS,
    Json,
    JsonStream,
    number,
    read_object,
    text_of,
    texts_of,
)
from offhook.telephony.carriers.streams.stream import (
    Answer,
    CarrierError,
    Cleared,
    Congested,
    Event,
    Format,
    Message,
    Played,
    Sound,
    Started,
)

MAX_MESSAGE_BYTES = 64 * 1024
"""Maximum size of a message; with a longer one the call ends. Asterisk's own limit is 65500 bytes;
one may hold all channel variables."""
MAX_FIELDS = 32
"""Maximum fields in a line of words; further ones are ignored."""
PROBE = "probe"
"""Name of the mark that tests whether marks come back."""
PASSTHROUGH_LEAD_MS = 40
"""Lead in ms if queued audio cannot be cleared."""
_EVENT = re.compile("[A-Z_]{1,64}")
_FORMATS = {
    "ulaw": Format("pcmu", 8000),
    "alaw": Format("pcma", 8000),
    "opus": Format("opus", 48000),
    # In Asterisk's byte order, which is little-endian on its usual machines.
    "slin": Format("l16", 8000),
    "slin16": Format("l16", 16000),
    "slin24": Format("l16", 24000),
}
"""Formats by Asterisk's names."""
_WITH_ID = frozenset(("MEDIA_MARK_PROCESSED", "MEDIA_BUFFERING_COMPLETED"))
"""Events whose text form has an id as its only field."""


class ChanWebSocketStream(JsonStream):
    """One WebSocket from Asterisk. `parameters` are those of the URL it connected to."""

    provider = "chan_websocket"
    acknowledges = False
    """True once a mark has come back."""
    clears = True

    def __init__(self, parameters: Mapping[str, str] | None = None) -> None:
        self._parameters = texts_of(dict(parameters or {}))
        self._channel = ""
        """Channel name; empty until MEDIA_START."""
        self._json = False
        """Whether Asterisk uses the JSON form."""
        self._reframes = False
        """Whether Asterisk was asked to buffer our messages into frames."""

    def receive(self, data: Message) -> list[Event]:
        if isinstance(data, bytes):
            return self._media(data)
        if len(data) > MAX_MESSAGE_BYTES:
            raise CarrierError(f"a text of {len(data)} characters exceeds {MAX_MESSAGE_BYTES}")
        fields = read_object(data, MAX_MESSAGE_BYTES) if data[:1] == "{" else _parse_words(data)
        event = text_of(fields.get("event"), MAX_ID_CHARS) if fields else ""
        if fields is None or not _EVENT.fullmatch(event):
            self.malformed += 1
            return []
        if event == "MEDIA_START":
            return self._start(fields, data[:1] == "{")
        action = self._actions.get(event)
        return action(self, fields) if action and self._channel else []

    def sound(self, payload: bytes) -> list[Message]:
        return [payload]

    def mark(self, name: str) -> list[Message]:
        return [self._command("MARK_MEDIA", name)] if self.acknowledges else []

    def clear(self) -> list[Message]:
        if not self.clears:
            return []
        # A flush also ends buffering.
        again = [self._command("START_MEDIA_BUFFERING")] if self._reframes else []
        return [self._command("FLUSH_MEDIA"), *again]

    def hang_up(self, reason: str) -> list[Message]:
        return [self._command("HANGUP")] if self._channel else []

    def _command(self, command: str, correlation_id: str = "") -> str:
        if not self._json:
            return f"{command} {correlation_id}".rstrip()
        body = {"command": command}
        if correlation_id:
            body["correlation_id"] = correlation_id
        return json.dumps(body)

    def _media(self, data: bytes) -> list[Event]:
        if len(data) > MAX_MESSAGE_BYTES:
            raise CarrierError(f"a media message of {len(data)} bytes is too long")
        # A busy Asterisk may send media before MEDIA_START, when its format is unknown.
        return [Sound(data)] if data and self._channel else []

    def _start(self, fields: Json, as_json: bool) -> list[Event]:
        channel = text_of(fields.get("channel"), MAX_ID_CHARS)
        if not channel:
            raise CarrierError("Asterisk's MEDIA_START names no channel")
        if self._channel:
            if channel != self._channel:
                raise CarrierError("Asterisk started a second channel on the same socket")
            return []
        coding = _format(text_of(fields.get("format"), MAX_ID_CHARS))
        self._channel, self._json = channel, as_json
        parameters = self._parameters | texts_of(fields.get("channel_variables"))
        started = Started(
            channel,
            text_of(fields.get("channel_id"), MAX_ID_CHARS) or channel,
            coding,
            coding,
            caller=parameters.get("caller", ""),
            called=parameters.get("called", ""),
            parameters=parameters,
        )
        # With n in the dial string the call is not answered until we say so.
        commands = [self._command("ANSWER")]
        if (
            coding.encoding == "opus"
            or _is_true(fields, "passthrough")
            or _is_true(fields, "unbuffered")
        ):
            self._pass_through()
        else:
            commands.append(self._command("MARK_MEDIA", PROBE))
            frame_bytes = number(fields.get("optimal_frame_size"))
            if frame_bytes and self._packet_bytes(coding) % frame_bytes:
                self._reframes = True
                commands.append(self._command("START_MEDIA_BUFFERING"))
        return [started, *map(Answer, commands)]

    def _packet_bytes(self, coding: Format) -> int:
        return coding.rate * self.packet_ms // 1000 * (2 if coding.encoding == "l16" else 1)

    def _pass_through(self) -> None:
        self.clears = False
        self.lead_ms = PASSTHROUGH_LEAD_MS

    def _dtmf(self, fields: Json) -> list[Event]:
        return self._pressed(fields.get("digit"))

    def _played(self, fields: Json) -> list[Event]:
        name = text_of(fields.get("correlation_id"), MAX_ID_CHARS)
        self.acknowledges = True
        return [Played(name)] if name and name != PROBE else []

    def _congested(self, fields: Json) -> list[Event]:
        return [Congested(True)]

    def _uncongested(self, fields: Json) -> list[Event]:
        return [Congested(False)]

    def _drained(self, fields: Json) -> list[Event]:
        return [Cleared()]

    def _command_rejected(self, fields: Json) -> list[Event]:
        """Handle a rejected command, the only sign of p in the dial string."""
        if "passthrough mode" in text_of(fields.get("error_text"), MAX_MESSAGE_BYTES):
            self._pass_through()
        return []

    # Anything not in the table is ignored: STATUS, MEDIA_BUFFERING_COMPLETED, future events.
    _actions: ClassVar[Mapping[str, Callable[[Any, Json], list[Event]]]] = {
        "DTMF_END": _dtmf,
        "MEDIA_MARK_PROCESSED": _played,
        "MEDIA_XOFF": _congested,
        "MEDIA_XON": _uncongested,
        "QUEUE_DRAINED": _drained,
        "ERROR": _command_rejected,
    }


def _parse_words(line: str) -> Json:
    """`EVENT key:value key:value`, `EVENT id` or `ERROR key:value error_text:all the rest`."""
    event, _, rest = line.strip().partition(" ")
    if event in _WITH_ID:
        return {"event": event, "correlation_id": rest}
    rest, _, error_text = rest.partition("error_text:")
    pairs = (word.partition(":") for word in rest.split(" ", MAX_FIELDS)[:MAX_FIELDS])
    return {**{key: value for key, _, value in pairs}, "error_text": error_text, "event": event}


def _format(name: str) -> Format:
    """Map Asterisk's format name. Raises CarrierError if it is not supported."""
    if coding := _FORMATS.get(name.lower()):
        return coding
    raise CarrierError(
        f"Asterisk sends {name or 'an unnamed format'}, which is not supported: "
        "the dial string must ask for one, as c(slin16)"
    )


def _is_true(fields: Json, name: str) -> bool:
    """Read a boolean, which is a word in Asterisk's text form."""
    return fields.get(name) in (True, "true")
