"""Describes what is wrong with a configuration: where, what was meant, and what to do.

Pydantic finds the errors; the words come from the type of the key, since its own messages speak of
Python.
"""

import dataclasses
import difflib
import json
import re
import types
from collections.abc import Collection, Iterator, Mapping, Set
from datetime import date
from enum import Enum
from functools import cache
from itertools import islice
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from offhook.web.config.reading.environment import PREFIX
from offhook.web.config.reading.other_names import here
from offhook.web.config.reading.toml_text import KeyPath

REFERENCE = "docs/reference/configuration.md lists all keys"
_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
_KEY = "[key]"
_UNITS = {"seconds": "seconds", "minutes": "minutes", "ms": "milliseconds", "mb": "megabytes"}
_MAX_SHOWN = 60
MAX_FAULT_CHARS = 400
"""Limit of the description of an error, which may contain the value; the rest is left out."""
_UNIONS = (Union, types.UnionType)
_MAPS = (dict, Mapping)
BARE = re.compile(r"[A-Za-z0-9_-]+")
"""A name that needs no quotes in TOML."""


@dataclasses.dataclass(frozen=True)
class Known:
    """What a place of the configuration takes."""

    kind: Any
    """Its type, without Annotated."""
    limits: tuple[Any, ...] = ()
    """Limits of its value, as of `annotated_types`."""
    secret: bool = False
    """Whether its value must not be shown."""
    examples: tuple[Any, ...] = ()

    @property
    def kinds(self) -> tuple[Any, ...]:
        """The alternatives of a union, without None."""
        if get_origin(self.kind) not in _UNIONS:
            return (self.kind,)
        return tuple(_known(kind).kind for kind in get_args(self.kind) if kind is not type(None))

    def tagged(self, tag: str | int) -> "Known | None":
        """The alternative of a union with this tag, its class's name; None: there is none."""
        found = (kind for kind in self.kinds if getattr(kind, "__name__", "") == tag)
        kind = next(found, None) if len(self.kinds) > 1 else None
        return dataclasses.replace(self, kind=kind) if kind is not None else None


def faults_of(
    error: ValidationError,
    model: type,
    places: Mapping[KeyPath, str] | None = None,
    above: KeyPath = (),
    told: Collection[KeyPath] = (),
) -> list[str]:
    """Describes each error in a line.

    `model` is the class that was validated; `places` says where keys come from, such as
    "offhook.toml:3" or "OFFHOOK_SERVER_PORT"; `above` is the path to the table that it was. Errors
    below the keys of `told` are left out: their cause is known."""
    faults: dict[str, None] = {}
    unknown_at: set[KeyPath] = set()
    errors = error.errors()
    for one in sorted(errors, key=lambda one: one["loc"][-1:] != (_KEY,)):
        if any(one["loc"][: len(at)] == at for at in told):
            continue
        path, known, unknown = _walk(model, one["loc"], above)
        last = one["loc"][-1] if one["loc"] else ""
        if one["type"] == "value_error":
            if path not in unknown_at:
                for words in str(one["ctx"]["error"]).splitlines():
                    faults[placed(path, _named(path, known, words), places or {})] = None
            continue
        if one["type"] in _UNKNOWN or unknown is not None:
            name = str(last if unknown is None else unknown)
            words = _unknown_words(model, path, known, name, one["input"])
            path = (*path, name)
            unknown_at.add(path)
        elif one["type"] == "missing" and isinstance(last, str):
            words = "is missing"
        elif one["type"] == "missing":  # an entry of a list with a fixed length
            path, known, _ = _walk(model, one["loc"][:-1], above)
            words = _type_words(path, known, one["input"])
        else:
            words = _type_words(path, known, one["input"])
        faults[placed(path, f"{_dotted(path)}: {words}", places or {})] = None
    return list(faults)


def mistaken_types(
    table: Mapping[str, Any], model: type, places: Mapping[KeyPath, str]
) -> list[str]:
    """Describes each true or false where a number belongs, which pydantic reads as 1 or 0, and each
    text or number where true or false belongs. Variables of the environment are texts anyway."""

    def within(path: KeyPath, known: Known, value: Any) -> Iterator[str]:
        if isinstance(value, dict | list):
            steps = value.items() if isinstance(value, dict) else enumerate(value)
            for step, one in steps:
                if (below := inner(known, step)) is not None:
                    yield from within((*path, step), below, one)
        elif _is_mistaken(known, value) and not _is_variable(path, value, places):
            yield placed(path, f"{_dotted(path)}: {_type_words(path, known, value)}", places)

    return list(within((), Known(model), dict(table)))


def _is_mistaken(known: Known, value: Any) -> bool:
    if isinstance(value, bool):
        return known.kind in (int, float)
    return known.kinds == (bool,) and isinstance(value, str | int | float)


def _is_variable(path: KeyPath, value: Any, places: Mapping[KeyPath, str]) -> bool:
    """Whether a text is the value of a variable."""
    is_variable = len(path) == 2 and places.get(path, "").startswith(PREFIX)
    return is_variable and isinstance(value, str)


def _dotted(path: KeyPath) -> str:
    return ".".join(map(str, path))


def _named(path: KeyPath, known: Known, words: str) -> str:
    """Prefixes the key, with the one in a table that the words begin with."""
    first = re.match(r"\w*", words)
    keys = {key for kind in known.kinds for key in fields_of(kind)}
    joint = "." if first and first[0] in keys else ": "
    return f"{_dotted(path)}{joint}{words}" if path else words


def placed(path: KeyPath, words: str, places: Mapping[KeyPath, str]) -> str:
    """Prefixes the place of the key: of the one that the words begin with, if they name one within
    `path`."""
    start = re.match(r"[\w.]+", words.removeprefix(_dotted(path)).lstrip(".: "))
    rest = tuple(int(p) if p.isdecimal() else p for p in start[0].split(".")) if start else ()
    full: KeyPath = (*path, *rest)
    for end in range(len(full), 0, -1):
        if place := places.get(full[:end]):
            return f"{place}: {_cut(words)}"
    inside = (place for at, place in places.items() if path and at[: len(path)] == path)
    return ": ".join((*islice(inside, 1), _cut(words)))


def _cut(words: str) -> str:
    return words if len(words) <= MAX_FAULT_CHARS else f"{words[:MAX_FAULT_CHARS]}…"


# --- what a key takes ---


def _known(kind: Any, field: Any = None) -> Known:
    limits: list[Any] = []
    secret, examples = False, ()
    if isinstance(field, FieldInfo):
        limits += field.metadata
        secret, examples = field.repr is False, tuple(field.examples or ())
    elif isinstance(field, dataclasses.Field):
        secret = not field.repr
    while get_origin(kind) is Annotated:
        kind, *more = get_args(kind)
        for part in more:
            if isinstance(part, FieldInfo):
                limits += part.metadata
                secret = secret or part.repr is False
                examples = examples or tuple(part.examples or ())
            else:
                limits.append(part)
    return Known(kind, tuple(limits), secret, examples)


@cache
def fields_of(kind: Any) -> dict[str, Known]:
    """The keys of a table whose keys are fixed; none for anything else."""
    if not isinstance(kind, type):
        return {}
    if issubclass(kind, BaseModel):
        hints = get_type_hints(kind, include_extras=True)
        return {name: _known(hints[name], field) for name, field in kind.model_fields.items()}
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind, include_extras=True)
        return {f.name: _known(hints[f.name], f) for f in dataclasses.fields(kind) if f.init}
    return {}


def inner(known: Known, step: str | int) -> Known | None:
    """What is under a key or index of something; None if nothing can be there."""
    for kind in known.kinds:
        origin, parts = get_origin(kind), get_args(kind)
        if fields := fields_of(kind):
            if step in fields:
                return fields[str(step)]
        elif origin in _MAPS and isinstance(step, str):
            return dataclasses.replace(_known(parts[1]), secret=known.secret)
        elif _is_list(kind) and isinstance(step, int):
            part = parts[min(step, len(parts) - 1)]
            part = parts[0] if part is Ellipsis else part
            return dataclasses.replace(_known(part), secret=known.secret)
    return None


def _walk(
    model: type, loc: tuple[str | int, ...], above: KeyPath
) -> tuple[KeyPath, Known, str | None]:
    """Follows an error's location, and returns the path to the last key that exists, what is known
    of it, and, if a key of a table is wrong, that key."""
    known, path = Known(model), above
    for index, step in enumerate(loc):
        if loc[index + 1 : index + 2] == (_KEY,):
            return path, known, str(step)
        below = inner(known, step)
        if below is None and (one := known.tagged(step)) is not None:
            known = one
            continue
        if below is None:  # an unknown key, or the name of an alternative
            break
        known, path = below, (*path, step)
    return path, known, None


# --- wrong values ---


def _is_list(kind: Any) -> bool:
    origin = get_origin(kind)
    return isinstance(origin, type) and issubclass(origin, (list, tuple, Set))


def is_table(kind: Any) -> bool:
    return bool(fields_of(kind)) or get_origin(kind) in _MAPS


def names_tables(kind: Any) -> bool:
    """Whether it is a table of tables, whose names are the user's."""
    return get_origin(kind) in _MAPS and bool(fields_of(_known(get_args(kind)[1]).kind))


def _name_in(given: list[Any]) -> str:
    """The name that the first entry of a list has where its table should have one."""
    first = given[0] if given else None
    name = first.get("name") if isinstance(first, dict) else None
    return name if isinstance(name, str) and BARE.fullmatch(name) else "NAME"


def _is_fixed(kind: Any) -> bool:
    """Whether it is a list of so many values."""
    return get_origin(kind) is tuple and Ellipsis not in get_args(kind)


def _entry(kind: Any) -> Known:
    return _known(get_args(kind)[0])


def _shown(value: Any) -> str:
    """A value as TOML has it."""
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list | tuple):
        return "a list" if value else "an empty list"
    if isinstance(value, bool | int | float | str):
        text = json.dumps(value, ensure_ascii=False)
        return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
    return str(value)


def _limits(known: Known) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in known.limits:
        for name in ("ge", "gt", "le", "lt", "min_length", "max_length"):
            if (limit := getattr(part, name, None)) is not None:
                found[name] = limit
    return found


def _range(known: Known) -> str:
    limits = _limits(known)
    low, high = limits.get("ge"), limits.get("le")
    if low is not None and high is not None:
        return f" from {low:g} to {high:g}"
    words = {"ge": "of at least", "gt": "above", "le": "of at most", "lt": "below"}
    parts = [f"{words[name]} {limits[name]:g}" for name in words if name in limits]
    return f" {' and '.join(parts)}" if parts else ""


def _choices(kind: Any) -> list[Any]:
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [member.value for member in kind]
    return []


def _expected(known: Known) -> Iterator[str]:
    """The alternatives of what a key takes, in words."""
    choices = [choice for kind in known.kinds for choice in _choices(kind)]
    if choices:
        yield ("one of " if len(choices) > 2 else "") + _either([_shown(c) for c in choices])
    for kind in known.kinds:
        if _choices(kind):
            continue
        limits = _limits(known)
        if known.examples and not _is_list(kind):
            yield f"like {_either([_shown(example) for example in known.examples])}"
        elif kind is bool:
            yield "true or false"
        elif kind is int:
            yield f"a whole number{_range(known)}"
        elif kind is float:
            yield f"a number{_range(known)}"
        elif kind is date:
            yield "a date, as 2026-12-24"
        elif is_table(kind):
            yield "a table"
        elif _is_list(kind):
            yield _list_words(kind, limits)
        else:
            shortest, longest = limits.get("min_length"), limits.get("max_length")
            few = " that is not empty" if shortest else ""
            many = f" of at most {longest} characters" if longest is not None else ""
            yield f"a text in quotes{few}{many}"


def _list_words(kind: Any, limits: Mapping[str, Any]) -> str:
    if _is_fixed(kind):
        return f"a list of {len(get_args(kind))} values"
    many = f" of at most {limits['max_length']} entries" if "max_length" in limits else ""
    return f"a list{many}"


def _either(words: list[str]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _type_words(path: KeyPath, known: Known, given: Any) -> str:
    """Describes a value that is not of its key's type or beyond its limits."""
    key = str(path[-1]) if path else ""
    lists = [kind for kind in known.kinds if _is_list(kind)]
    tables = [kind for kind in known.kinds if is_table(kind)]
    header = ".".join(str(step) for step in path if isinstance(step, str))
    if lists and is_table(_entry(lists[0]).kind) and not isinstance(given, list):
        return f"is a list of tables: write [[{header}]] above each"
    if tables and isinstance(path[-1], int):
        return f"must be a table: write [[{header}]], and its keys below it"
    if tables and path[0] == "agents" and len(path) <= 2:
        return "must be a table: write [agents.NAME]; keys of the default agent are below [agent]"
    if tables and isinstance(given, list):
        if names_tables(tables[0]):
            return f"is no list: each has a name, write [{header}.{_name_in(given)}]"
        return f"is one table: write [{header}], once"
    if tables:
        return f"must be a table: write [{header}], and its keys below it"
    words = f"must be {_either(list(_expected(known)))}"
    if known.secret:
        return f'{words}: write {key} = ["…"]' if lists else words
    only_list = len(lists) == len(known.kinds) and not any(map(_is_fixed, lists))
    if only_list and isinstance(given, str):
        return f"{words}: write {key} = [{_shown(given)}]"
    if str in known.kinds and isinstance(given, int | float) and not known.examples:
        text = f'"{_shown(given)}"'
        return f"{words}: write {text if isinstance(path[-1], int) else f'{key} = {text}'}"
    words += f", not {_shown(given)}"
    if isinstance(given, str):
        return words + _hint(key, known, given)
    return words


def _hint(key: str, known: Known, given: str) -> str:
    if {int, float} & set(known.kinds):
        number = re.fullmatch(r"\s*[+-]?(\d+(?:[.,]\d+)?)\s*[A-Za-z%]+\s*", given)
        unit = _UNITS.get(key.rpartition("_")[2])
        if unit:
            return f": write the number of {unit}, without a unit"
        if number:
            return ": write the number without a unit"
        return ""
    choices = [c for kind in known.kinds for c in _choices(kind) if isinstance(c, str)]
    near = nearest(given, choices)
    return f"; did you mean {_shown(near)}?" if near is not None else ""


# --- unknown keys ---


def nearest(name: str, names: list[str]) -> str | None:
    """The name that was probably meant."""

    def plain(text: str) -> str:
        return text.lower().replace("-", "_").replace(" ", "_")

    by_plain = {plain(one): one for one in reversed(names)}
    found = difflib.get_close_matches(plain(name), list(by_plain), 1, 0.6)
    return by_plain[found[0]] if found else None


def _headers(model: type) -> Iterator[tuple[str, str, Known]]:
    """Yields the header of each section of the file, one of its keys, and what that takes."""
    for section, known in fields_of(model).items():
        for kind in known.kinds:
            listed = _is_list(kind)
            entry = _entry(kind).kind if listed else kind
            for key, of_key in fields_of(entry).items():
                yield (f"[[{section}]]" if listed else f"[{section}]"), key, of_key


def _as_header(section: str, known: Known) -> str:
    """A table or list of tables as a header, anything else as it is."""
    for kind in known.kinds:
        if is_table(kind):
            return f"[{section}]"
        if _is_list(kind) and is_table(_entry(kind).kind):
            return f"[[{section}]]"
    return section.rpartition(".")[2]


def _unknown_words(model: type, path: KeyPath, known: Known, name: str, given: Any) -> str:
    """Describes a key that does not exist, and the one that was meant."""
    fields = {key: one for kind in known.kinds for key, one in fields_of(kind).items()}
    if not fields:  # a table whose keys are of a kind, such as the days of a week
        keys = [k for kind in known.kinds if get_origin(kind) in _MAPS for k in get_args(kind)[:1]]
        names = [str(choice) for kind in keys for choice in _choices(_known(kind).kind)]
        if not names:
            return "cannot be a name: it has letters, digits, _ and -, 64 at most"
        near = nearest(name, names)
        return f"is unknown; {f'did you mean {near}?' if near else f'use {_either(names)}'}"
    what = "section" if not path and isinstance(given, dict | list) else "key"
    words = f"there is no such {what}"
    prefix = ".".join(str(step) for step in path if isinstance(step, str))
    if isinstance(given, dict | list):
        for header, key, of_key in _headers(model):
            meant = _as_header(f"{header.strip('[]')}.{key}", of_key)
            if key == name and meant.startswith("["):
                return f"{words}; did you mean {meant}?"
    if others := here(name, fields):
        meant = _either(
            [_as_header(".".join(filter(None, (prefix, one))), fields[one]) for one in others]
        )
        return f"{words}; did you mean {meant}?"
    near = nearest(name, list(fields))
    if near is not None:
        full = f"{prefix}.{near}" if prefix else near
        meant = _as_header(full, fields[near]) if isinstance(given, dict | list) else near
        if not path and not isinstance(given, dict | list):
            meant = _as_header(full, fields[near])
        return f"{words}; did you mean {meant}?"
    found = list(dict.fromkeys(header for header, key, _ in _headers(model) if key == name))
    if found:
        return f"{words}; it belongs below {_either(found)}"
    return f"{words}: remove it; {REFERENCE}"
