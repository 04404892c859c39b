"""`[agents.X.collect.NAME]`: what an agent is to find out, and how a value is read."""

import math
import re
from collections.abc import Callable
from datetime import date, time
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, field_validator, model_validator

from offhook.web.config.section import Section

DetailName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$")]
Kind = Literal["text", "phone", "email", "date", "time", "number", "digits", "choice", "yes_no"]
Value = str | float | bool
NOTE = "note_details"
"""Name of the tool with which a model notes details of the caller."""
MAX_CHARS = 500
"""Maximum characters of a value."""
MAX_FIELDS = 50
"""Maximum details of an agent."""
READ_BACK = frozenset(("phone", "email", "digits"))
"""Kinds that are read back unless `repeat` says otherwise: a wrong character makes them useless."""
_PHONE = re.compile(r"(\+|00)?[0-9]{3,15}")
_BETWEEN_DIGITS = re.compile(r"[\s().\-/]")
_EMAIL = re.compile(r"[^@\s\"<>()]{1,64}@([A-Za-z0-9.-]{1,190})\.[A-Za-z]{2,63}")
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_HINTS: dict[str, str] = {
    "phone": "a telephone number in digits",
    "email": "an e-mail address, as name@example.com",
    "date": "a date as YYYY-MM-DD",
    "time": "a time of day as HH:MM",
    "digits": "digits alone",
}
_TYPES = {"number": "number", "yes_no": "boolean"}


class Unreadable(ValueError):
    """A value is none of its kind; the message says what would be."""


class Detail(Section):
    """A detail that the agent asks for."""

    type: Kind = "text"
    """What it is; a value of another kind is not noted, and the model is told why."""
    ask: str = Field("", max_length=1000)
    """What the model is told that it is, and how to ask; may contain variables. Empty: its name
    alone."""
    required: bool = False
    """Whether the model is told that it is missing until it is noted."""
    repeat: bool | None = None
    """Whether the model has to repeat it, and the caller to agree, before it is noted; as it is
    not set: telephone numbers, e-mail addresses and digits."""
    secret: bool = False
    """Whether it is kept nowhere, as a card number: the recording is paused while a flow's node
    asks for it, and by the model itself without a flow; records have `****` in its place."""
    choices: tuple[str, ...] = Field((), max_length=100)
    """What a `choice` may be."""
    length: tuple[int, int] = (1, 40)
    """Fewest and most `digits`."""

    @field_validator("length", mode="before")
    @classmethod
    def _is_a_pair(cls, length: Any) -> Any:
        if isinstance(length, list | tuple) and len(length) == 1:
            length = length[0]
        if isinstance(length, int) and not isinstance(length, bool):
            raise ValueError(f"must be [fewest, most]: write length = [{length}, {length}]")
        return length

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        given = self.model_fields_set
        if (self.type == "choice") != bool(self.choices):
            raise ValueError('choices and type = "choice" belong together')
        if twice := _first_twice(self.choices):
            raise ValueError(f"choices has {twice!r} twice: remove one")
        if "length" in given and self.type != "digits":
            raise ValueError('length is for type = "digits"')
        if not 1 <= self.length[0] <= self.length[1] <= 100:
            raise ValueError("length is [fewest, most], from 1 to 100")
        return self

    @property
    def is_repeated(self) -> bool:
        return self.type in READ_BACK if self.repeat is None else self.repeat

    def filled(self, fill: Callable[[str], str]) -> "Detail":
        """Returns it with the variables of a call in what the model is told."""
        return self.model_copy(update={"ask": fill(self.ask)})

    def json_schema(self) -> dict[str, object]:
        """Returns the JSON Schema of a value, as the model is told it."""
        hint = _HINTS.get(self.type, "")
        if self.type == "digits" and "length" in self.model_fields_set:
            fewest, most = self.length
            hint = f"{fewest} digits" if fewest == most else f"{fewest} to {most} digits"
        told = {"description": "; ".join(filter(None, (self.ask, hint)))}
        if self.choices:
            told["enum"] = list(self.choices)  # type: ignore[assignment]
        return {"type": _TYPES.get(self.type, "string"), **{k: v for k, v in told.items() if v}}

    def read(self, value: object) -> Value:
        """Returns a value as it is noted. Raises Unreadable."""
        if self.type == "yes_no":
            if not isinstance(value, bool):
                raise Unreadable("it is true or false")
            return value
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise Unreadable("it is one value")
        if self.type == "number":
            return _number(value)
        text = str(value).strip()
        if not text or len(text) > MAX_CHARS:
            raise Unreadable(f"it has 1 to {MAX_CHARS} characters")
        return self._read_text(text)

    def _read_text(self, text: str) -> str:
        match self.type:
            case "phone":
                return _phone(text)
            case "email":
                return _email(text)
            case "digits":
                digits = _BETWEEN_DIGITS.sub("", text)
                fewest, most = self.length
                if not (digits.isascii() and digits.isdigit() and fewest <= len(digits) <= most):
                    raise Unreadable(f"it has {fewest} to {most} digits and nothing else")
                return digits
            case "date":
                try:
                    return date.fromisoformat(text).isoformat()
                except ValueError as error:
                    raise Unreadable("it is no date of the form YYYY-MM-DD") from error
            case "time":
                try:
                    return time.fromisoformat(text).strftime("%H:%M")
                except ValueError as error:
                    raise Unreadable("it is no time of the form HH:MM") from error
            case "choice":
                for choice in self.choices:
                    if choice.casefold() == text.casefold():
                        return choice
                raise Unreadable(f"it is one of {', '.join(self.choices)}")
        return " ".join(text.split())


def _first_twice(choices: tuple[str, ...]) -> str:
    """Returns the first choice that is there already, in whatever case; empty without one."""
    seen = set[str]()
    for choice in choices:
        if choice.casefold() in seen:
            return choice
        seen.add(choice.casefold())
    return ""


def _number(value: str | float) -> float:
    try:
        number = float(value)
    except (ValueError, OverflowError) as error:
        raise Unreadable("it is no number") from error
    if not math.isfinite(number):
        raise Unreadable("it is no number")
    return number


def _phone(text: str) -> str:
    digits = _BETWEEN_DIGITS.sub("", text)
    number = f"+{digits[2:]}" if digits.startswith("00") else digits
    if not _PHONE.fullmatch(number):
        raise Unreadable("it is no telephone number: those have 3 to 15 digits")
    return number


def _email(text: str) -> str:
    found = _EMAIL.fullmatch(text)
    if found is None or not all(map(_LABEL.fullmatch, found[1].split("."))):
        raise Unreadable("it is no e-mail address")
    name, _, host = text.rpartition("@")
    return f"{name}@{host.lower()}"
