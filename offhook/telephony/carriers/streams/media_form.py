"""How one stream writes its media messages, so that they can be read without parsing JSON.

A carrier sends 50 media messages a second, and within a stream they differ only in their numbers
and their payload. What surrounds those is learned from a message that was parsed: which number is
which is not guessed, but found by putting other numbers in their places and parsing again. A
message that differs in anything else is not of this form, and is parsed.
"""

import re
from base64 import b64encode
from binascii import a2b_base64
from collections.abc import Callable, Sequence
from enum import Enum

from offhook.telephony.carriers.streams.stream import Event, Sound

MAX_LEARNED_CHARS = 8192
"""Limit of a message that a form is learned from: 100 ms of L16 at 24 kHz have 6400."""
MAX_FIELDS = 8
"""Numbers in a message and its payload; one with more has no form."""
MAX_DIGITS = 18
"""Of a number, as `json_text.number` takes it."""

Read = Callable[[str], Sequence[Event]]
"""Parses a message, without an effect on the stream."""


class Field(Enum):
    """What stands between two pieces of text that are always the same."""

    PAYLOAD = "p"
    CHUNK = "c"
    TIMESTAMP = "t"
    OTHER = "o"
    """A number that says nothing about the audio."""


_PAYLOAD = '[^"]+'
_QUOTED = f"[0-9]{{1,{MAX_DIGITS}}}"
_PLAIN = f"0|[1-9][0-9]{{0,{MAX_DIGITS - 1}}}"
_NUMBER = re.compile(f'(?<="){_QUOTED}(?=")|(?:(?<=[:,])|(?<=[:,] ))(?:{_PLAIN})(?=[,}}])')
"""A number in quotes, or a whole one without."""
_PROBES = (0, 123_456_789_012_345_678)
"""Put in place of a number to find out what it is."""


class MediaForm:
    """The form of a stream's media messages: `literals[0]`, `fields[0]`, `literals[1]` and so on up
    to the last literal. Every field but OTHER is there once at most, and PAYLOAD always."""

    def __init__(self, literals: Sequence[str], fields: Sequence[Field]) -> None:
        """Literals are ASCII, without escapes of JSON. A number whose literal before ends with a
        quote may have leading zeros."""
        self.literals, self.fields = tuple(literals), tuple(fields)
        pattern = re.escape(literals[0])
        for field, before, after in zip(fields, literals[:-1], literals[1:], strict=True):
            number = _QUOTED if before.endswith('"') else _PLAIN
            between = _PAYLOAD if field is Field.PAYLOAD else number
            pattern += f"({between}){re.escape(after)}"
        self._match = re.compile(pattern).fullmatch
        self._payload = fields.index(Field.PAYLOAD) + 1
        self._chunk = fields.index(Field.CHUNK) + 1 if Field.CHUNK in fields else 0
        self._timestamp = fields.index(Field.TIMESTAMP) + 1 if Field.TIMESTAMP in fields else 0

    def read(self, text: str) -> Sound | None:
        """The audio of a message of this form; None if it has another."""
        found = self._match(text)
        if found is None:
            return None
        try:
            payload = a2b_base64(found[self._payload], strict_mode=True)
        except ValueError:
            return None
        chunk = int(found[self._chunk]) if self._chunk else None
        return Sound(payload, chunk, int(found[self._timestamp]) if self._timestamp else None)


def learn(text: str, read: Read) -> MediaForm | None:
    """The form of a media message that `read` has parsed; None if it has nothing to go by."""
    if len(text) > MAX_LEARNED_CHARS or not text.isascii() or "\\" in text:
        return None
    said = _sound(text, read)
    payload = "" if said is None else b64encode(said.payload).decode()
    if said is None or text.count(f'"{payload}"') != 1:
        return None
    at = text.index(f'"{payload}"') + 1
    end = at + len(payload)
    places = [found.span() for found in _NUMBER.finditer(text) if not at <= found.start() < end]
    if len(places) >= MAX_FIELDS:
        return None
    fields = {(at, end): Field.PAYLOAD}
    for start, stop in places:
        field = _meaning([text[:start] + str(n) + text[stop:] for n in _PROBES], said, read)
        if field is None:
            return None
        fields[start, stop] = field
    starts, ends = zip(*sorted(fields), strict=True)
    literals = [text[a:b] for a, b in zip((0, *ends), (*starts, len(text)), strict=True)]
    return MediaForm(literals, [fields[place] for place in sorted(fields)])


def _sound(text: str, read: Read) -> Sound | None:
    events = read(text)
    sound = events[0] if len(events) == 1 else None
    return sound if isinstance(sound, Sound) else None


def _meaning(probes: Sequence[str], said: Sound, read: Read) -> Field | None:
    """What the number is in whose place `probes` have those of _PROBES."""
    sounds = [_sound(probe, read) for probe in probes]
    for field in (Field.OTHER, Field.CHUNK, Field.TIMESTAMP):
        if sounds == [_with(said, field, number) for number in _PROBES]:
            return field
    return None


def _with(said: Sound, field: Field, number: int) -> Sound:
    chunk = number if field is Field.CHUNK else said.sequence
    return Sound(said.payload, chunk, number if field is Field.TIMESTAMP else said.timestamp_ms)
