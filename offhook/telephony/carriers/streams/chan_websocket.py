"""Asterisk's WebSocket channel driver: media in binary messages, commands and events in text.

A text is one line of words, or, where chan_websocket.conf or f(json) in the dial string says so, a
JSON object; Asterisk understands only the form that it speaks. Commands are case-sensitive and have
at most 128 bytes. Media is queued there, at most 1000 frames, and played by Asterisk's own timer,
one frame each `ptime`. What does not fill its last frame is lost unless buffering was asked for.
MEDIA_XOFF comes at 900 frames and MEDIA_XON below 800.

A mark comes back when the queue gets to it; FLUSH_MEDIA empties the queue, of marks as well, which
then never come back. Asterisk has marks since 20.18, 22.8 and 23.2, and does not say which it is,
so one is sent first of all, and marks are relied on once that is back. Sound that cannot be cut
anywhere (Opus), or is not to be (p or u in the dial string), passes through: there is no flush
then, and it has to be sent in time.

Of who calls nothing is said; the dial string may put it into the URL, v(caller=…,called=…), or the
dial plan into variables of the channel, which the JSON form tells.

Source: docs.asterisk.org, Channel Drivers, WebSocket; chan_websocket.c of Asterisk 23.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from offhook.telephony.carriers.streams.json_text import (
    DIGITS,
    MAX_ID_CHARS,
    Json,
    number,
    read_object,
    text_of,
    texts_of,
)
from offhook.telephony.carriers.streams.stream import (
    Answer,
    CarrierError,
    CarrierStream,
    Cleared,
    Congested,
    Event,
    Format,
    Message,
    Played,
    Pressed,
    Sound,
    Started,
)

MAX_MESSAGE_BYTES = 64 * 1024
"""Of either kind. Asterisk's own limit is 65500 bytes; all variables of a channel may be in one."""
MAX_FIELDS = 32
"""Of a line of words."""
PROBE = "probe"
"""The mark that shows whether marks come back."""
PASSTHROUGH_LEAD_MS = 40
"""ms, where what is queued cannot be taken back."""
_EVENT = re.compile("[A-Z_]{1,64}")
_FORMATS = {
    "ulaw": Format("pcmu", 8000),
    "alaw": Format("pcma", 8000),
    "opus": Format("opus", 48000),
    # In the byte order of Asterisk's machine, which is little-endian.
    "slin": Format("l16", 8000),
    "slin16": Format("l16", 16000),
    "slin24": Format("l16", 24000),
}
"""By Asterisk's names."""
_WITH_ID = frozenset(("MEDIA_MARK_PROCESSED", "MEDIA_BUFFERING_COMPLETED"))
"""Events that are followed by an id alone, where they are words."""


class ChanWebSocketStream(CarrierStream):
    """One WebSocket of Asterisk's. `parameters` are those of the URL it asked for."""

    provider = "chan_websocket"
    acknowledges = False
    """Until a mark has come back."""
    clears = True

    def __init__(self, parameters: Mapping[str, str] | None = None) -> None:
        self._parameters = texts_of(dict(parameters or {}))
        self._channel = ""
        """Empty until MEDIA_START."""
        self._json = False
        """Asterisk's form of commands and events."""
        self._reframes = False
        """Asterisk was asked to gather our messages into frames."""

    def receive(self, data: Message) -> list[Event]:
        if isinstance(data, bytes):
            return self._media(data)
        if len(data) > MAX_MESSAGE_BYTES:
            raise CarrierError(f"a text of {len(data)} characters: more than {MAX_MESSAGE_BYTES}")
        fields = read_object(data, MAX_MESSAGE_BYTES) if data[:1] == "{" else _words(data)
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
        # A flush ends buffering too.
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
            raise CarrierError(f"{len(data)} bytes of media in one message: too many")
        # A busy Asterisk may send media before MEDIA_START: there is no telling how it sounds.
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
        # With n in the dial string the caller is not answered until we say so.
        commands = [self._command("ANSWER")]
        if coding.encoding == "opus" or _true(fields, "passthrough") or _true(fields, "unbuffered"):
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

    def _press(self, fields: Json) -> list[Event]:
        digit = text_of(fields.get("digit"), 1).upper()
        if digit in DIGITS:
            return [Pressed(digit)]
        self.malformed += 1
        return []

    def _played(self, fields: Json) -> list[Event]:
        name = text_of(fields.get("correlation_id"), MAX_ID_CHARS)
        self.acknowledges = True
        return [Played(name)] if name and name != PROBE else []

    def _congested(self, fields: Json) -> list[Event]:
        return [Congested(True)]

    def _relieved(self, fields: Json) -> list[Event]:
        return [Congested(False)]

    def _drained(self, fields: Json) -> list[Event]:
        return [Cleared()]

    def _refused(self, fields: Json) -> list[Event]:
        """A command of ours. p in the dial string shows only in this."""
        if "passthrough mode" in text_of(fields.get("error_text"), MAX_MESSAGE_BYTES):
            self._pass_through()
        return []

    # What is not in the table changes nothing: STATUS, MEDIA_BUFFERING_COMPLETED, what is to come.
    _actions: ClassVar[Mapping[str, Callable[[Any, Json], list[Event]]]] = {
        "DTMF_END": _press,
        "MEDIA_MARK_PROCESSED": _played,
        "MEDIA_XOFF": _congested,
        "MEDIA_XON": _relieved,
        "QUEUE_DRAINED": _drained,
        "ERROR": _refused,
    }


def _words(line: str) -> Json:
    """`EVENT key:value key:value`, `EVENT id` or `ERROR key:value error_text:all the rest`."""
    event, _, rest = line.strip().partition(" ")
    if event in _WITH_ID:
        return {"event": event, "correlation_id": rest}
    rest, _, error_text = rest.partition("error_text:")
    pairs = (word.partition(":") for word in rest.split(" ", MAX_FIELDS)[:MAX_FIELDS])
    return {**{key: value for key, _, value in pairs}, "error_text": error_text, "event": event}


def _format(name: str) -> Format:
    """Asterisk's name of a format. Raises CarrierError for one that is not ours."""
    if coding := _FORMATS.get(name.lower()):
        return coding
    raise CarrierError(
        f"Asterisk sends {name or 'a format that it does not name'}, which is not understood: "
        "the dial string must ask for one, as c(slin16)"
    )


def _true(fields: Json, name: str) -> bool:
    """Asterisk's booleans are words where its events are."""
    return fields.get(name) in (True, "true")
