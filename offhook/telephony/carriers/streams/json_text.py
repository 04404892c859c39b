"""JSON text messages of carriers: bounded parsing, and the base class of streams of events.

Several providers name each message by its `event` and put its content into an object of that name.
EventStream is what they share; a provider's module parses its start message and codes its audio.

Input is untrusted: it may be any JSON, or none.
"""

import copy
import json
import re
from abc import abstractmethod
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Any, ClassVar

from offhook.media.untrusted_json import read_json
from offhook.telephony.carriers.streams.media_form import Media, learn
from offhook.telephony.carriers.streams.stream import (
    CarrierError,
    CarrierStream,
    DtmfReceived,
    Event,
    Message,
    Played,
    Sound,
    Started,
    Stopped,
)

DIGITS = frozenset("0123456789*#ABCD")
MAX_ID_CHARS = 256
"""Limit of an identifier, a number called or a mark's name; longer ones are treated as missing."""
MAX_VALUE_CHARS = 4096
"""Maximum length of one custom parameter; a longer one counts as empty."""
MAX_PARAMETERS = 64
"""Limit of custom parameters per stream; further ones are dropped."""

MAX_FORMS = 4
"""Forms of media messages learned in one stream, as a carrier has one, and learning needs a while;
messages of other forms are parsed as JSON."""

_MAX_NUMBER_DIGITS = 18
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")

Json = dict[str, Any]


def read_object(data: Message, limit: int) -> Json | None:
    """Return the JSON object in a message; None if it is anything else.

    Raises CarrierError for a message of more than `limit` bytes (characters, for text), unparsed.
    """
    if len(data) > limit:
        raise CarrierError(f"a message of {len(data)} bytes exceeds {limit}")
    try:
        value = read_json(data)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def decode_base64(text: object) -> bytes | None:
    """Decode base64; None if it is not valid."""
    if not isinstance(text, str):
        return None
    try:
        return b64decode(text, validate=True)
    except ValueError:
        return None


def number(value: object) -> int | None:
    """Return a whole number from 0, also if written as text; None for anything else."""
    if isinstance(value, str):
        fits = len(value) <= _MAX_NUMBER_DIGITS and value.isascii() and value.isdigit()
        return int(value) if fits else None
    if isinstance(value, int) and not isinstance(value, bool):
        return value if 0 <= value < 10**_MAX_NUMBER_DIGITS else None
    return None


def text_of(value: object, limit: int) -> str:
    """Return text, or a number as text; "" for anything else or longer than `limit` characters.

    Characters unsafe in a log line (control characters, lone surrogates) become spaces.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or len(value) > limit:
        return ""
    return _UNPRINTABLE.sub(" ", value)


def texts_of(value: object) -> dict[str, str]:
    """Return custom parameters: the texts and numbers of an object, at most MAX_PARAMETERS."""
    if not isinstance(value, dict):
        return {}
    texts: dict[str, str] = {}
    for key, entry in value.items():
        name = text_of(key, MAX_ID_CHARS)
        if name and isinstance(entry, str | int) and not isinstance(entry, bool):
            texts[name] = text_of(entry, MAX_VALUE_CHARS)
        if len(texts) == MAX_PARAMETERS:
            break
    return texts


class StreamState(Enum):
    WAITING = auto()
    """Waiting for the start message."""
    STREAMING = auto()
    STOPPED = auto()


class JsonStream(CarrierStream):
    """A stream some of whose messages are JSON objects."""

    def _pressed(self, digit: object) -> list[Event]:
        """A key that the caller pressed; anything else is counted as malformed."""
        key = text_of(digit, 1).upper()
        if key in DIGITS:
            return [DtmfReceived(key)]
        self.malformed += 1
        return []

    def _played_to(self, name: object) -> list[Event]:
        """A mark that came back; one without a name is counted as malformed."""
        mark = text_of(name, MAX_ID_CHARS)
        if mark:
            return [Played(mark)]
        self.malformed += 1
        return []


class EventStream(JsonStream):
    """A stream of JSON messages, each with an `event`."""

    acknowledges = True
    clears = True
    max_message_bytes: ClassVar[int]
    stream_key: ClassVar[str]
    """Field that holds the stream id."""
    sends_stream_id: ClassVar[bool] = True
    """Whether our messages carry the stream id."""

    def __init__(self) -> None:
        self._state = StreamState.WAITING
        self._stream_id = ""
        self._around_sound: tuple[str, str] | None = None
        self._around_mark: tuple[str, str] | None = None
        """The text before and after the name, in quotes, of a mark."""
        self._forms_learned = 0

    @abstractmethod
    def read_start(self, start: Json, stream_id: str) -> Started:
        """Parse the object of the start message. Raises CarrierError."""

    def receive(self, data: Message) -> list[Event]:
        if self.form is not None and isinstance(data, str) and len(data) <= self.max_message_bytes:
            media = self.form.read(data)
            if media is not None:
                return [Sound(*media)]
        events = self._parse(data)
        if events and type(events[0]) is Sound and isinstance(data, str):
            self._learn(data)
        return events

    def _learn(self, data: str) -> None:
        """Learn the form of a media message that has been parsed."""
        if self._forms_learned < MAX_FORMS:
            self._forms_learned += 1
            self.form = learn(data, copy.copy(self)._parse_media)

    def _parse_media(self, data: str) -> Media | None:
        """Parse a message, if it is one with sound."""
        events = self._parse(data)
        sound = events[0] if len(events) == 1 else None
        if not isinstance(sound, Sound):
            return None
        return Media(sound.payload, sound.sequence, sound.timestamp_ms)

    def _parse(self, data: Message) -> list[Event]:
        """Process a message as JSON: the specification of `receive`."""
        if self._state is StreamState.STOPPED:
            return []
        message = read_object(data, self.max_message_bytes)
        event = text_of(message.get("event"), MAX_ID_CHARS) if message else ""
        if message is None or not event:
            self.malformed += 1
            return []
        action = self.actions.get((self._state, event))
        return action(self, message) if action else []

    def sound(self, payload: bytes) -> list[Message]:
        before, after = self._around_sound or self._find_around_sound()
        return [f"{before}{b64encode(payload).decode()}{after}"]

    def around_sound(self) -> tuple[str, str] | None:
        return self._around_sound or self._find_around_sound()

    def mark(self, name: str) -> list[Message]:
        before, after = self._around_mark or self._find_around_mark()
        return [f"{before}{json.dumps(name)}{after}"]

    def clear(self) -> list[Message]:
        return [self._message("clear")]

    def _find_around_sound(self) -> tuple[str, str]:
        """Format what is constant within a stream once: 50 messages a second have it."""
        before, _, after = self._media_message("#").rpartition("#")
        self._around_sound = before, after
        return self._around_sound

    def _find_around_mark(self) -> tuple[str, str]:
        before, _, after = self._mark_message("#").rpartition('"#"')
        self._around_mark = before, after
        return self._around_mark

    def _media_message(self, payload: str) -> str:
        """A message with sound, in base64."""
        return self._message("media", media={"payload": payload})

    def _mark_message(self, name: str) -> str:
        return self._message("mark", mark={"name": name})

    def _message(self, event: str, **body: object) -> str:
        address = {self.stream_key: self._stream_id} if self.sends_stream_id else {}
        return json.dumps({"event": event, **address, **body})

    def _body(self, message: Json, event: str) -> Json | None:
        """The object named like the event; if missing, the message is counted as malformed."""
        body = message.get(event)
        if isinstance(body, dict):
            return body
        self.malformed += 1
        return None

    def _id_of(self, message: Json, start: Json) -> str:
        key = self.stream_key
        return text_of(message.get(key), MAX_ID_CHARS) or text_of(start.get(key), MAX_ID_CHARS)

    def _start(self, message: Json) -> list[Event]:
        start = self._body(message, "start")
        if start is None:
            raise CarrierError(f"{self.title}'s start message does not describe the stream")
        started = self.read_start(start, self._id_of(message, start))
        if not started.stream_id:
            raise CarrierError(f"{self.title}'s start message has no {self.stream_key}")
        self._stream_id = started.stream_id
        self._state = StreamState.STREAMING
        return [started]

    def _start_again(self, message: Json) -> list[Event]:
        start = self._body(message, "start")
        if start is not None and self._id_of(message, start) != self._stream_id:
            raise CarrierError(f"{self.title} started a second stream on the same socket")
        return []

    def _unexpected(self, message: Json) -> list[Event]:
        event = text_of(message["event"], MAX_ID_CHARS)
        raise CarrierError(f"{self.title} sent {event} before start")

    def _media(self, message: Json) -> list[Event]:
        media = self._body(message, "media")
        # In a stream of both tracks the outbound one is our own audio.
        if media is None or text_of(media.get("track"), MAX_ID_CHARS).startswith("outbound"):
            return []
        payload = decode_base64(media.get("payload"))
        if payload is None:
            self.malformed += 1
        if not payload:
            return []
        # `chunk` counts the media messages of a track; the sequence number counts all messages.
        return [Sound(payload, number(media.get("chunk")), number(media.get("timestamp")))]

    def _dtmf(self, message: Json) -> list[Event]:
        dtmf = self._body(message, "dtmf")
        return [] if dtmf is None else self._pressed(dtmf.get("digit"))

    def _mark(self, message: Json) -> list[Event]:
        mark = self._body(message, "mark")
        return [] if mark is None else self._played_to(mark.get("name"))

    def _stop(self, message: Json) -> list[Event]:
        self._state = StreamState.STOPPED
        self.form = None
        stop = message.get("stop")
        reason = text_of(stop.get("reason"), MAX_ID_CHARS) if isinstance(stop, dict) else ""
        return [Stopped(f"{self.title} ended the stream" + (f": {reason}" if reason else ""))]

    # Anything not in the table is ignored: `connected`, and future events.
    actions: ClassVar[Mapping[tuple[StreamState, str], Callable[[Any, Json], list[Event]]]] = {
        (StreamState.WAITING, "start"): _start,
        (StreamState.WAITING, "media"): _unexpected,
        (StreamState.WAITING, "dtmf"): _unexpected,
        (StreamState.WAITING, "mark"): _unexpected,
        (StreamState.WAITING, "stop"): _stop,
        (StreamState.STREAMING, "start"): _start_again,
        (StreamState.STREAMING, "media"): _media,
        (StreamState.STREAMING, "dtmf"): _dtmf,
        (StreamState.STREAMING, "mark"): _mark,
        (StreamState.STREAMING, "stop"): _stop,
    }
