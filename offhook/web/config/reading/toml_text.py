"""Reads TOML together with the line of every key, and describes all of its syntax errors.

`tomllib` stops at the first error and keeps no lines, so a text is read statement by statement: a
header, or a key with its value, is TOML by itself.
"""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

KeyPath = tuple[str | int, ...]
"""Keys of the tables and indices of the lists on the way to a value."""

_AT = re.compile(r" \(at [^)]*\)$")
_END = "(at end of document)"
_HEADER = re.compile(r"\[\[?\s*([^\]#]*?)\s*\]")
_SMART_QUOTES = "“”„‟‘’«»"
_SECRET = re.compile("key|secret|password|credential|token|redis|url")
"""Names of keys whose values are not shown."""
_CLOSED_BY = {
    "[": ("list", "]"),
    "{": ("table, which is written in one line,", "}"),
    '"': ("text", '"'),
    "'": ("text", "'"),
}
_BEGINS_A_VALUE = "\"'[{+-0123456789"


@dataclass
class TomlText:
    """What a text says, as far as it can be read."""

    table: dict[str, Any] = field(default_factory=dict)
    """Its keys and values, without the statements that have errors."""
    lines: dict[KeyPath, int] = field(default_factory=dict)
    """The line, from 1, of each table, key and entry of a list."""
    faults: list[tuple[int, str]] = field(default_factory=list)
    """The line and description of each syntax error."""


def read_toml(text: str) -> TomlText:
    """Returns the content of `text`, its lines and its errors; it raises nothing."""
    return _Reader(text).read()


class _Reader:
    def __init__(self, text: str) -> None:
        self._lines = text.splitlines(keepends=True)
        self._read = TomlText()
        self._kept = list(self._lines)
        self._under: KeyPath | None = ()  # the last header; None if it was wrong
        self._lengths: dict[KeyPath, int] = {}  # of lists of tables
        self._values: set[KeyPath] = set()

    def read(self) -> TomlText:
        for start, end, table in self._statements():
            first = self._lines[start].strip()
            if first.startswith("["):
                known = self._header(start, table, many=first.startswith("[["))
            else:
                known = self._under is not None and self._keys(start, table)
            if not known:
                self._drop(start, end)
        try:
            self._read.table = tomllib.loads("".join(self._kept))
        except tomllib.TOMLDecodeError as error:  # keys that exclude each other
            found = re.search(r"at line (\d+)", str(error))
            self._add(int(found[1]) - 1 if found else 0, _plainly(error))
        self._read.faults.sort()
        return self._read

    def _statements(self) -> Iterator[tuple[int, int, dict[str, Any]]]:
        """Yields the first line of each valid statement, from 0, the line after it, its content."""
        start = 0
        while start < len(self._lines):
            end, table, error = self._statement(start)
            if error is None:
                if table:
                    yield start, end, table
            else:
                end = self._wrong(start, end, error)
            start = end

    def _statement(self, start: int) -> tuple[int, dict[str, Any], tomllib.TOMLDecodeError | None]:
        for end in range(start + 1, len(self._lines) + 1):
            statement = "".join(self._lines[start:end]).rstrip("\r\n") + "\n"
            try:
                return end, tomllib.loads(statement), None
            except tomllib.TOMLDecodeError as error:
                if _END not in str(error) or end == len(self._lines):
                    return end, {}, error
        raise AssertionError("unreachable: there is a line at `start`")

    def _wrong(self, start: int, end: int, error: tomllib.TOMLDecodeError) -> int:
        """Notes an error, and returns the line at which the next statement may begin."""
        line = self._lines[start].strip()
        if line.startswith("["):
            self._under = None
        several = end - start > 1 or _END in str(error) or line.endswith(("{", ","))
        self._add(start, _words(line, error, several))
        after = start + 1
        while several and after < len(self._lines) and not _is_statement(self._lines[after]):
            after += 1
        self._drop(start, after)
        return after

    def _drop(self, start: int, end: int) -> None:
        self._kept[start:end] = ["\n"] * (end - start)

    def _add(self, line: int, words: str) -> None:
        self._read.faults.append((line + 1, words))

    def _header(self, line: int, table: dict[str, Any], many: bool) -> bool:
        names: list[str] = []
        inner: Any = table
        while isinstance(inner, dict) and inner:
            ((name, inner),) = inner.items()
            names.append(name)
        path = (*self._resolved((), names[:-1]), names[-1])
        header = ".".join(names)
        if many and (path in self._lengths or path not in self._read.lines):
            index = self._lengths.get(path, 0)
            self._lengths[path] = index + 1
            self._read.lines.setdefault(path, line + 1)
            path += (index,)
        elif many or path in self._values or path in self._lengths:
            before = f"is in line {self._read.lines[path]} already"
            self._add(line, f"[{header}] {before}: keep one, with the keys of both")
            self._under = None
            return False
        for length in range(1, len(path)):
            self._read.lines.setdefault(path[:length], line + 1)
        self._read.lines[path] = line + 1
        self._values.add(path)
        self._under = path
        return True

    def _keys(self, line: int, table: dict[str, Any]) -> bool:
        assert self._under is not None
        under, (key,) = self._under, table
        path = (*under, key)
        if path in self._values:
            self._add(
                line, f"{key} has a value in line {self._read.lines[path]} already: remove one"
            )
            return False
        self._note(path, table[key], line + 1)
        return True

    def _note(self, path: KeyPath, value: Any, line: int) -> None:
        self._read.lines.setdefault(path, line)
        if isinstance(value, dict):
            for name, one in value.items():
                self._note((*path, name), one, line)
            return
        self._values.add(path)
        for index, one in enumerate(value if isinstance(value, list) else ()):
            self._note((*path, index), one, line)

    def _resolved(self, path: KeyPath, names: list[str]) -> KeyPath:
        """Adds the index of the last entry after each list of tables."""
        for name in names:
            path += (name,)
            if path in self._lengths:
                path += (self._lengths[path] - 1,)
        return path


def _is_statement(line: str) -> bool:
    try:
        return bool(tomllib.loads(line))
    except tomllib.TOMLDecodeError:
        return False


def _plainly(error: tomllib.TOMLDecodeError) -> str:
    words = re.sub(r"\('([^)]*?)',?\)", lambda m: f"[{m[1]}]", _AT.sub("", str(error)))
    return f"is not TOML: {words.replace(chr(39) + ', ' + chr(39), '.')}"


def _words(line: str, error: tomllib.TOMLDecodeError, several: bool) -> str:
    """Describes what is wrong with a statement that begins with `line`, and the remedy."""
    if any(quote in line for quote in _SMART_QUOTES):
        return 'has typographic quotes: use "'
    if line.startswith("["):
        name = _HEADER.match(line)
        name_or = name[1].strip("[] ") if name and name[1].strip("[] ") else "server"
        return f"is not a header: write [{name_or}], or [[{name_or}]] for an entry of a list"
    if line.startswith(("//", ";", "--")):
        return "is not TOML: comments begin with #"
    key, equals, value = (part.strip() for part in line.partition("="))
    shown = "VALUE" if _SECRET.search(key.lower()) else value
    if not equals:
        before, colon, after = (part.strip() for part in line.partition(":"))
        if colon and re.fullmatch(r"[\w.-]+", before):
            secret = bool(_SECRET.search(before.lower()))
            return f"is YAML: write {before} = {'VALUE' if secret or not after else after}"
        return "is neither KEY = VALUE nor a [header]"
    if not key:
        return "has no key before ="
    if re.fullmatch(r"[\w-]+(\s+[\w-]+)+", key):
        return f'"{key}" has a space: write {"_".join(key.split())} = {shown}'
    return f"{key} {_value_words(key, value, error, several)}"


def _value_words(key: str, value: str, error: tomllib.TOMLDecodeError, several: bool) -> str:
    bare = re.sub(r"\s*(#.*|[;,])$", "", value)
    if not bare:
        return "has no value"
    if several and value[0] in _CLOSED_BY:
        kind, end = _CLOSED_BY[value[0]]
        missing = end * 3 if value.startswith(end * 3) else end
        return f"begins a {kind} that is not closed: {missing} is missing"
    if bare.lower() in ("true", "false"):
        return f"must be {bare.lower()}, in lower case"
    if bare.lower() in ("yes", "no", "on", "off"):
        return f"must be true or false, not {bare}"
    if bare.lower() in ("null", "none", "nil"):
        return "has no value: TOML has no null; leave the key out"
    if value.startswith("="):
        return "has two =: one is enough"
    if value[0] == "{":
        return "has a table that is not valid: its entries are separated by commas"
    if value[0] in "\"'":
        if "\\" in value and value[0] == '"':
            return "has a backslash in double quotes: write it twice, or use single quotes"
        if value.count(value[0]) == 1:
            return f"begins a text that is not closed: {value[0]} is missing"
        return "has something after the text"
    if value[0] == "[":
        return "has a list that is not valid: its entries are separated by commas, ] ends it"
    if re.fullmatch(r"\d+,\d+", bare):
        return f"must have a decimal point: write {bare.replace(',', '.')}"
    if _SECRET.search(key.lower()):
        return "must have its text in quotes"
    if re.fullmatch(r"0\d+", bare):
        return f"must not begin with 0: write {bare.lstrip('0') or 0}"
    if number := re.fullmatch(r"([+-]?\d+(?:\.\d+)?)\s*[A-Za-z%]+", bare):
        return f"must be a number without a unit: write {number[1]}"
    if bare != value.rstrip() and "#" not in value:
        return f"must not end with {value.rstrip()[-1]}: write {key} = {bare}"
    if value[0] in _BEGINS_A_VALUE and not re.search("[^\\W\\d_]", bare):
        return "is no number, list, or text in quotes"
    return f'must have its text in quotes: write {key} = "{bare}"'
