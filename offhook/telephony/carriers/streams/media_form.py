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
from itertools import pairwise
from typing import NamedTuple

MAX_LEARNED_CHARS = 8192
"""Maximum length of a message that a form is learned from, of which 100 ms of L16 at 24 kHz have
6400; longer ones are parsed as JSON."""
MAX_FIELDS = 8
"""Maximum numbers in a message, payload included; one with more has no form and is parsed as
JSON."""
MAX_DIGITS = 18
"""Maximum digits of a number, as of `json_text.number`; a message with a longer one does not match
the form and is parsed as JSON."""


class Media(NamedTuple):
    """What a media message says."""

    payload: bytes
    chunk: int | None
    timestamp_ms: int | None


Parse = Callable[[str], Media | None]
"""Parses a message, without an effect on the stream; None if it is no media message."""


class Field(Enum):
    """What stands between two pieces of text that are always the same."""

    PAYLOAD = "p"
    CHUNK = "c"
    TIMESTAMP = "t"
    OTHER = "o"
    """A number that says nothing about the audio."""


_QUOTE = '"'
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
        at = fields.index(Field.PAYLOAD)
        # Apart, since a long payload is found faster than it is matched.
        self._head = re.compile(_pattern(literals[: at + 1])).match
        self._tail = re.compile(_pattern(literals[at + 1 :])).fullmatch
        numbers = [field for field in fields if field is not Field.PAYLOAD]
        self._chunk = numbers.index(Field.CHUNK) if Field.CHUNK in numbers else None
        self._timestamp = numbers.index(Field.TIMESTAMP) if Field.TIMESTAMP in numbers else None

    def read(self, text: str) -> Media | None:
        """What a message of this form says; None if it has another."""
        head = self._head(text)
        if head is None:
            return None
        start = head.end()
        end = text.find('"', start)
        tail = self._tail(text, end) if end > start else None
        if tail is None:
            return None
        try:
            payload = a2b_base64(text[start:end], strict_mode=True)
        except ValueError:
            return None
        numbers = head.groups() + tail.groups()
        chunk = None if self._chunk is None else int(numbers[self._chunk])
        return Media(
            payload, chunk, None if self._timestamp is None else int(numbers[self._timestamp])
        )


def _pattern(literals: Sequence[str]) -> str:
    """What matches literals with numbers between them."""
    pattern = re.escape(literals[0])
    for before, after in pairwise(literals):
        pattern += f"({_QUOTED if before.endswith(_QUOTE) else _PLAIN}){re.escape(after)}"
    return pattern


def learn(text: str, parse: Parse) -> MediaForm | None:
    """The form of a media message that `parse` understands; None if it has nothing to go by."""
    if len(text) > MAX_LEARNED_CHARS or not text.isascii() or "\\" in text:
        return None
    said = parse(text)
    payload = "" if said is None else b64encode(said.payload).decode()
    if said is None or text.count(f'"{payload}"') != 1:
        return None
    at = text.index(f'"{payload}"') + 1
    end = at + len(payload)
    if parse(text[:at] + "/wD/" + text[end:]) != said._replace(payload=b"\xff\0\xff"):
        return None  # it stands there by chance, and the payload is written otherwise
    places = [found.span() for found in _NUMBER.finditer(text) if not at <= found.start() < end]
    if len(places) >= MAX_FIELDS:
        return None
    fields = {(at, end): Field.PAYLOAD}
    for start, stop in places:
        field = _meaning([text[:start] + str(n) + text[stop:] for n in _PROBES], said, parse)
        if field is None:
            return None
        fields[start, stop] = field
    starts, ends = zip(*sorted(fields), strict=True)
    literals = [text[a:b] for a, b in zip((0, *ends), (*starts, len(text)), strict=True)]
    return MediaForm(literals, [fields[place] for place in sorted(fields)])


def _meaning(probes: Sequence[str], said: Media, parse: Parse) -> Field | None:
    """What the number is in whose place `probes` have those of _PROBES."""
    found = [parse(probe) for probe in probes]
    for field in (Field.OTHER, Field.CHUNK, Field.TIMESTAMP):
        if found == [_with(said, field, number) for number in _PROBES]:
            return field
    return None


def _with(said: Media, field: Field, number: int) -> Media:
    match field:
        case Field.CHUNK:
            return said._replace(chunk=number)
        case Field.TIMESTAMP:
            return said._replace(timestamp_ms=number)
    return said
