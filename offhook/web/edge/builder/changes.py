"""What is different about a configuration that was read again, in words."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from offhook.web.config.config import Config

CONTENT = "what a file of it says"
"""What has changed of a table with the same keys and values: a flow or a lexicon."""
MAX_NAMED = 12
"""Changes that are named; of more it is said how many they are."""


def changes(old: Config, new: Config) -> str:
    """Returns which tables and keys have other values; empty: none has."""
    found = list(_changes(old, new))
    if len(found) <= MAX_NAMED:
        return ", ".join(found)
    return f"{', '.join(found[:MAX_NAMED])} and {len(found) - MAX_NAMED} more"


def _changes(old: Config, new: Config) -> Iterator[str]:
    for name in Config.model_fields:
        before, now = getattr(old, name), getattr(new, name)
        if isinstance(before, Mapping) and isinstance(now, Mapping):
            for key in dict.fromkeys((*before, *now)):
                yield from _table(f"[{name}.{key}]", before.get(key), now.get(key))
        else:
            yield from _table(f"[{name}]", before, now)


def _table(header: str, before: Any, now: Any) -> Iterator[str]:
    if before == now:
        return
    if before is None or now is None:
        yield f"{header} is {'new' if before is None else 'gone'}"
    elif isinstance(before, BaseModel) and type(before) is type(now):
        keys = [key for key in type(now).model_fields if getattr(before, key) != getattr(now, key)]
        yield from (f"{header} {key}" for key in keys or (CONTENT,))
    else:
        yield header
