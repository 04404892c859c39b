"""Requests as pydantic dataclasses: strict types, OpenAI's errors, and JSON Schema."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

from annotated_types import Ge, Le
from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from offhook.web.speech_api.errors import ApiError, unknown_field

STRICT = ConfigDict(strict=True, hide_input_in_errors=True)
SHOWN_CHARS = 80
"""Maximum characters of an invalid value quoted in a message; the rest is cut off."""
PLAIN = "^[^\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\x7f-\\x9f]*$"
"""Pattern of text without control characters."""
EXPECTED = {
    "string_type": "a string",
    "string_unicode": "a string",
    "tuple_type": "an array",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "bool_type": "true or false",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_parsing": "true or false",
    "int_parsing": "a whole number",
    "float_parsing": "a number",
}
"""By pydantic's type of an error."""
TOO_LONG = "string_above_max_length"
T = TypeVar("T")
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def plain_text(value: object) -> object:
    """Returns the value unless it is text with invalid characters. Raises ValueError."""
    if isinstance(value, str):
        if found := _SURROGATE.search(value):
            raise ValueError(f"is not Unicode: half a surrogate pair at character {found.start()}")
        if found := _CONTROL.search(value):
            raise ValueError(f"has the control character {found.group()!r} at {found.start()}")
    return value


Text = Annotated[str, BeforeValidator(plain_text), Field(json_schema_extra={"pattern": PLAIN})]


def expected(what: str) -> PydanticCustomError:
    """Returns the error for a value that is not `what`, e.g. "a code such as 'en'"."""
    return PydanticCustomError("expected", "{what}", {"what": what})


def build(
    cls: type[T], table: Mapping[str, Any], *, lenient: bool = False, strings: bool = False
) -> T:
    """Builds a pydantic dataclass from a JSON object, in which null counts as absent. `lenient`
    ignores unknown fields; `strings`: all values are strings, as in a form. Raises ApiError 400
    that names the field."""
    known: dict[str, Any] = cls.__dataclass_fields__  # type: ignore[attr-defined]
    given = {name: table[name] for name in known if table.get(name) is not None}
    try:
        request = TypeAdapter(cls).validate_strings(given) if strings else cls(**given)
    except ValidationError as error:
        raise _fault(cls, error) from error
    if not lenient and (unknown := [name for name in table if name not in known]):
        raise unknown_field(unknown[0], list(known))
    return request


def schema(cls: type[Any], *, form: bool = False) -> dict[str, Any]:
    """Returns the JSON Schema of what `build` accepts; in a `form`, names of lists end with []."""
    found = TypeAdapter(cls).json_schema()
    found.setdefault("required", [])
    for name, field in tuple(found["properties"].items()):
        field.pop("title", None)
        field.pop("default", None)
        if form and field.get("type") == "array":
            found["properties"][f"{name}[]"] = found["properties"].pop(name)
        elif not form and name not in found["required"]:
            found["properties"][name] = {"anyOf": [*field.pop("anyOf", [field]), {"type": "null"}]}
    return {**found, "additionalProperties": False}


def _fault(cls: type[Any], error: ValidationError) -> ApiError:
    first = error.errors(include_url=False)[0]
    field = str(first["loc"][0])
    name = field + "[]" * (len(first["loc"]) > 1)
    words, code = describe(first, name, cls.__pydantic_fields__[field].metadata)
    return ApiError(400, words, name, code)


def describe(
    error: ErrorDetails, name: str, metadata: Sequence[Any] = ()
) -> tuple[str, str | None]:
    """What is wrong with the field that the client knows as `name`, and OpenAI's code of it.
    `metadata`: the field's, for the bounds of a number."""
    value, context = error["input"], error.get("ctx", {})
    match error["type"]:
        case "missing":
            return f"{name} is missing", None
        case "value_error":
            return f"{name} {context['error']}", None
        case "string_too_long" | "too_long":
            size = f"{len(value)} {'items' if isinstance(value, list) else 'characters'}"
            return f"{name} has {size}, not at most {context['max_length']}", TOO_LONG
        case "expected":
            what = context["what"]
        case "greater_than_equal" if not metadata:
            what = f"at least {context['ge']:g}"
        case "less_than_equal" if not metadata:
            what = f"at most {context['le']:g}"
        case "literal_error":
            what = " or ".join(re.findall(r"'([^']*)'", context["expected"]))
        case kind if kind in EXPECTED and not (kind == "float_type" and type(value) is int):
            what = EXPECTED[kind]
        case _:
            limits = {type(each): each for each in metadata}
            what = f"{limits[Ge].ge:g}..{limits[Le].le:g}" if limits else "a number"
    return f"{name} is {shown(value)}, not {what}", "invalid_value"


def shown(value: Any) -> str:
    """Returns the value as sent, shortened and in ASCII, because it is sent back."""
    match value:
        case dict():
            return "an object"
        case list():
            return "an array"
    text = json.dumps(value)
    return text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "..."
