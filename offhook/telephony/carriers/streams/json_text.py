"""JSON text messages of carriers: read with bounds, and the stream that Twilio's shape gives.

Twilio names each message by its `event` and puts the rest into an object of that name; Telnyx and
Exotel took this up with field names of their own. EventStream is what they share; a provider's
module says how its start message reads and how its sound is coded.

Nothing in here trusts the text: it may be any JSON, or none.
"""

import json
import re
from abc import abstractmethod
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Any, ClassVar

from offhook.telephony.carriers.streams.stream import (
    CarrierError,
    CarrierStream,
    Event,
    Message,
    Played,
    Pressed,
    Sound,
    Started,
    Stopped,
)

DIGITS = frozenset("0123456789*#ABCD")
MAX_ID_CHARS = 256
"""Of an identifier, a number called, the name of a mark: what is longer is taken as not there."""
MAX_VALUE_CHARS = 4096
"""Of one custom parameter."""
MAX_PARAMETERS = 64
"""Custom parameters of one stream; those beyond are dropped."""

_MAX_NUMBER_DIGITS = 18
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")

Json = dict[str, Any]


def read_object(data: Message, limit: int) -> Json | None:
    """The JSON object that the message is, None when it is something else.

    Raises CarrierError for a message of more than `limit` bytes (characters, of text), unread.
    """
    if len(data) > limit:
        raise CarrierError(f"a message of {len(data)} bytes is longer than {limit}")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def sound_of(text: object) -> bytes | None:
    """The bytes that are there in base64, None when it is not that."""
    if not isinstance(text, str):
        return None
    try:
        return b64decode(text, validate=True)
    except ValueError:
        return None


def number(value: object) -> int | None:
    """A whole number from 0, which some write as text; None for anything else."""
    if isinstance(value, str):
        fits = len(value) <= _MAX_NUMBER_DIGITS and value.isascii() and value.isdigit()
        return int(value) if fits else None
    if isinstance(value, int) and not isinstance(value, bool):
        return value if 0 <= value < 10**_MAX_NUMBER_DIGITS else None
    return None


def text_of(value: object, limit: int) -> str:
    """Text, or a number as text; "" for anything else or longer than `limit` characters.

    What cannot stand on a line of a log (control characters, lone surrogates) becomes a space.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or len(value) > limit:
        return ""
    return _UNPRINTABLE.sub(" ", value)


def texts_of(value: object) -> dict[str, str]:
    """Custom parameters: the texts and numbers of an object, at most MAX_PARAMETERS."""
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
    """For the start message."""
    STREAMING = auto()
    STOPPED = auto()


class EventStream(CarrierStream):
    """A stream of JSON texts with an `event` each."""

    acknowledges = True
    clears = True
    max_message_bytes: ClassVar[int]
    stream_key: ClassVar[str]
    """What the provider calls the id of the stream."""
    addressed: ClassVar[bool] = True
    """Our messages name the stream."""

    def __init__(self) -> None:
        self._state = StreamState.WAITING
        self._stream_id = ""
        self._around: tuple[str, str] | None = None
        """Of the payload, in a message with sound."""

    @abstractmethod
    def read_start(self, start: Json, stream_id: str) -> Started:
        """What the start message's object says. Raises CarrierError."""

    def receive(self, data: Message) -> list[Event]:
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
        return [self._say_sound("media", payload)]

    def mark(self, name: str) -> list[Message]:
        return [self._say("mark", mark={"name": name})]

    def clear(self) -> list[Message]:
        return [self._say("clear")]

    def _say_sound(self, event: str, payload: bytes, **more: object) -> str:
        """Event and fields are the same in the whole stream: only what stands around the payload
        is written as JSON, once."""
        if not self._around:
            text = self._say(event, media={**more, "payload": "#"})
            self._around = text.rpartition("#")[::2]
        before, after = self._around
        return f"{before}{b64encode(payload).decode()}{after}"

    def _say(self, event: str, **body: object) -> str:
        address = {self.stream_key: self._stream_id} if self.addressed else {}
        return json.dumps({"event": event, **address, **body})

    @property
    def _name(self) -> str:
        return self.provider.capitalize()

    def _body(self, message: Json, event: str) -> Json | None:
        """The object that goes with the event; counted as malformed when there is none."""
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
            raise CarrierError(f"{self._name}'s start message says nothing about the stream")
        started = self.read_start(start, self._id_of(message, start))
        if not started.stream_id:
            raise CarrierError(f"{self._name}'s start message has no {self.stream_key}")
        self._stream_id = started.stream_id
        self._state = StreamState.STREAMING
        return [started]

    def _start_again(self, message: Json) -> list[Event]:
        start = self._body(message, "start")
        if start is not None and self._id_of(message, start) != self._stream_id:
            raise CarrierError(f"{self._name} started a second stream on the same socket")
        return []

    def _too_early(self, message: Json) -> list[Event]:
        event = text_of(message["event"], MAX_ID_CHARS)
        raise CarrierError(f"{self._name} sent {event} before start")

    def _media(self, message: Json) -> list[Event]:
        media = self._body(message, "media")
        # Of a stream of both tracks the outbound one is what we said ourselves.
        if media is None or text_of(media.get("track"), MAX_ID_CHARS).startswith("outbound"):
            return []
        payload = sound_of(media.get("payload"))
        if payload is None:
            self.malformed += 1
        if not payload:
            return []
        # `chunk` counts the media messages of a track; the sequence number counts all messages.
        return [Sound(payload, number(media.get("chunk")), number(media.get("timestamp")))]

    def _dtmf(self, message: Json) -> list[Event]:
        dtmf = self._body(message, "dtmf")
        if dtmf is None:
            return []
        digit = text_of(dtmf.get("digit"), 1).upper()
        if digit in DIGITS:
            return [Pressed(digit)]
        self.malformed += 1
        return []

    def _mark(self, message: Json) -> list[Event]:
        mark = self._body(message, "mark")
        if mark is None:
            return []
        name = text_of(mark.get("name"), MAX_ID_CHARS)
        if name:
            return [Played(name)]
        self.malformed += 1
        return []

    def _stop(self, message: Json) -> list[Event]:
        self._state = StreamState.STOPPED
        stop = message.get("stop")
        reason = text_of(stop.get("reason"), MAX_ID_CHARS) if isinstance(stop, dict) else ""
        return [Stopped(f"{self._name} ended the stream" + (f": {reason}" if reason else ""))]

    # What is not in the table changes nothing: `connected`, and events still to be invented.
    actions: ClassVar[Mapping[tuple[StreamState, str], Callable[[Any, Json], list[Event]]]] = {
        (StreamState.WAITING, "start"): _start,
        (StreamState.WAITING, "media"): _too_early,
        (StreamState.WAITING, "dtmf"): _too_early,
        (StreamState.WAITING, "mark"): _too_early,
        (StreamState.WAITING, "stop"): _stop,
        (StreamState.STREAMING, "start"): _start_again,
        (StreamState.STREAMING, "media"): _media,
        (StreamState.STREAMING, "dtmf"): _dtmf,
        (StreamState.STREAMING, "mark"): _mark,
        (StreamState.STREAMING, "stop"): _stop,
    }
