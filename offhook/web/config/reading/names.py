"""Finds tables whose names TOML reads otherwise than they were meant: a dot without quotes makes
two tables of one, and a section of named tables may have been written without a name."""

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from offhook.web.config.reading.faults import BARE, Known, fields_of, inner, names_tables, nearest
from offhook.web.config.reading.toml_text import KeyPath


@dataclass(frozen=True)
class MisreadName:
    """A table that has another name than was meant."""

    at: KeyPath
    words: str
    """What to write instead."""
    explains: tuple[KeyPath, ...]
    """Keys below which all other errors follow from it."""


def misread_names(table: Mapping[str, Any], model: type) -> list[MisreadName]:
    """Returns these tables of a file that `model` describes."""
    return list(_within((), Known(model), table, fields_of(model).keys()))


def _within(path: KeyPath, known: Known, value: Any, sections: Set[str]) -> Iterator[MisreadName]:
    if isinstance(value, dict):
        for kind in filter(names_tables, known.kinds):
            entry = get_args(kind)[1]
            yield from _nameless(path, entry, value)
            yield from _with_dots(path, kind, value, sections)
    if isinstance(value, dict | list):
        for step, one in value.items() if isinstance(value, dict) else enumerate(value):
            if (below := inner(known, step)) is not None:
                yield from _within((*path, step), below, one, sections)


def _nameless(path: KeyPath, entry: Any, value: dict[str, Any]) -> Iterator[MisreadName]:
    keys = [key for key, one in value.items() if key in fields_of(entry) and _is_value(one)]
    if not keys or path == ("agents",):  # whose keys belong to [agent]: told with each
        return
    words = f"{_dotted(path)}: each has a name: write [{_header(path)}.NAME]"
    yield MisreadName(path, words, tuple((*path, key) for key in keys))


def _is_value(value: Any) -> bool:
    """Whether it is neither a table nor a list of tables."""
    if isinstance(value, list):
        return not any(isinstance(one, dict) for one in value)
    return not isinstance(value, dict)


def _with_dots(
    path: KeyPath, kind: Any, value: dict[str, Any], sections: Set[str]
) -> Iterator[MisreadName]:
    of_names, entry = get_args(kind)
    for name, one in value.items():
        if not isinstance(one, dict):
            continue
        for rest in _rest_of_names(one, fields_of(entry).keys(), sections):
            full = ".".join((name, *rest))
            words = "a name with a dot needs quotes"
            meant = f'"{full}"'
            if _has_pattern(of_names):
                words, meant = "a name has no dot", full.replace(".", "_")
            at = (*path, name, *rest)
            words = f"{_dotted(at)}: {words}: write [{_header(path)}.{meant}]"
            own = one.keys() & fields_of(entry).keys()
            yield MisreadName(at, words, (at if own else (*path, name),))


def _rest_of_names(
    table: dict[str, Any], keys: Set[str], sections: Set[str]
) -> Iterator[tuple[str, ...]]:
    """Yields what comes after the first dot of the names of tables that have such keys."""
    for name, one in table.items():
        is_key = name in keys or name in sections or nearest(name, list(keys)) is not None
        if is_key or not isinstance(one, dict):
            continue
        if not one or one.keys() & keys:
            yield (name,)
        else:
            yield from ((name, *rest) for rest in _rest_of_names(one, keys, sections))


def _has_pattern(of_names: Any) -> bool:
    parts = get_args(of_names) if get_origin(of_names) is not None else ()
    return any(getattr(part, "pattern", None) for part in parts)


def _dotted(path: KeyPath) -> str:
    return ".".join(map(str, path))


def _header(path: KeyPath) -> str:
    names = (str(step) for step in path if isinstance(step, str))
    return ".".join(name if BARE.fullmatch(name) else f'"{name}"' for name in names)
