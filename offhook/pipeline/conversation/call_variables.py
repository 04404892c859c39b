"""Variables in the texts of an agent: `{{caller}}`, `{{header.X-Department}}`, and those that the
agent declares."""

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from offhook.media.leg import CallInfo
from offhook.pipeline.conversation.call_info import bounded

PLACEHOLDER = re.compile(r"\{\{ *([A-Za-z_][\w. -]*?) *\}\}")
_HEADER = "header."
"""What the names of an INVITE's headers begin with."""
_NAMES_HEADER = re.compile(r"header\.[\w-]+")
_OF_INFO = ("caller", "caller_name", "called", "trunk", "direction")
_OF_CALLS = (*_OF_INFO, "now", "date", "time", "weekday")
_VARIABLE = re.compile(r"[A-Za-z_]\w*")


def unknown_names(text: str, declared: Mapping[str, str]) -> list[str]:
    """Returns the names in a text that no call has a value for."""
    names = dict.fromkeys(found[1] for found in PLACEHOLDER.finditer(text))
    known = {*_OF_CALLS, *declared}
    return [name for name in names if name not in known and not _NAMES_HEADER.fullmatch(name)]


def known_names(declared: Iterable[str]) -> str:
    """Returns the names that a text may have, in words."""
    return ", ".join((*_OF_CALLS, f"{_HEADER}NAME", *declared))


def is_free(name: str) -> bool:
    """Returns whether an agent may declare a variable of this name."""
    return bool(_VARIABLE.fullmatch(name)) and name not in _OF_CALLS


def filled(text: str, info: CallInfo, declared: Mapping[str, str], now: datetime) -> str:
    """Returns a text with the values of a call in place of the names. `declared` has the values of
    variables that the call does not set; headers that it lacks are empty. Values come from others:
    each is a single line of limited length, and names within it stay as they are."""
    values = dict(_values(info, declared, now))
    return PLACEHOLDER.sub(lambda found: bounded(values.get(_key(found[1]), "")), text)


def _key(name: str) -> str:
    """Headers have the same name in any case."""
    return name.lower() if name.startswith(_HEADER) else name


def _values(
    info: CallInfo, declared: Mapping[str, str], now: datetime
) -> Iterator[tuple[str, object]]:
    yield from declared.items()
    yield from ((name, info.variables[name]) for name in declared if name in info.variables)
    yield from ((f"{_HEADER}{name}".lower(), value) for name, value in info.headers.items())
    yield from ((name, getattr(info, name) or "") for name in _OF_INFO)
    yield "now", f"{now:%A, %d %B %Y, %H:%M}"
    yield "date", f"{now:%Y-%m-%d}"
    yield "time", f"{now:%H:%M}"
    yield "weekday", f"{now:%A}"
