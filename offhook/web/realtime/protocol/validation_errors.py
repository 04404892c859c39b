"""Errors of pydantic as errors of client events: a code, and the dotted path of the field."""

from collections.abc import Collection
from typing import Any

from pydantic import ValidationError

from offhook.web.realtime.protocol.session_object import EventError
from offhook.web.speech_api.errors import did_you_mean
from offhook.web.speech_api.validation import describe, shown

MAX_SHOWN_CHARS = 100
"""Maximum characters of an invalid value quoted in an error; the rest is cut off."""


def printable(text: str) -> str:
    """Return the beginning of a client's text as it can be sent back."""
    return text[:MAX_SHOWN_CHARS].encode(errors="backslashreplace").decode()


def path_of(location: tuple[int | str, ...], table: Any) -> tuple[list[str], Any]:
    """Return the names on the way to an invalid value and the value; pydantic's location also has
    the tags of unions, which are left out."""
    path, inner = list[str](), table
    for part in location:
        if isinstance(inner, dict) and part in inner:
            path.append(printable(str(part)))
            inner = inner[part]
        elif isinstance(part, int) and isinstance(inner, list | tuple) and part < len(inner):
            path.append(str(part))
            inner = inner[part]
    return path, inner


def event_error(
    error: ValidationError, table: dict[str, Any], name: str, fields: Collection[str]
) -> EventError:
    """Return the error for a table that is the value of `name` (empty for a whole event). `fields`:
    known names, to suggest from."""
    first = error.errors(include_url=False)[0]
    for each in error.errors(include_url=False):  # the alternatives of a union: the nearest
        if len(each["loc"]) > len(first["loc"]) and each["type"] != "missing":
            first = each
    kind, code = first["type"], "invalid_value"
    path, inner = path_of(first["loc"], table)
    if name:
        path.insert(0, name)
    if kind == "extra_forbidden":
        words = f"{'.'.join(path)} is not known here{did_you_mean(path[-1], fields)}"
        return EventError(words, "unknown_parameter", ".".join(path))
    if kind == "union_tag_not_found":
        path.append(first["ctx"]["discriminator"].strip("'"))
        return EventError(f"{'.'.join(path)} is missing", _MISSING, ".".join(path))
    if kind == "union_tag_invalid":
        tag = first["ctx"]["discriminator"].strip("'")
        path.append(tag)
        known = first["ctx"]["expected_tags"].replace("'", "").replace(", ", " or ")
        given = shown(inner.get(tag) if isinstance(inner, dict) else inner)
        return EventError(f"{'.'.join(path)} is {given}, not {known}", code, ".".join(path))
    if kind in _WORDS:
        return EventError(f"{'.'.join(path)} {_WORDS[kind]}", code, ".".join(path))
    if kind == "missing":
        path.append(str(first["loc"][-1]))
        code = _MISSING
    words, usual = describe(first, ".".join(path))
    if usual and usual != "invalid_value":
        code = usual
    return EventError(words, code, ".".join(path))


_MISSING = "missing_required_parameter"
_WORDS = {
    "too_short": "is empty",
    "string_too_short": "is empty",
    "string_pattern_mismatch": "is not such a text",
}
