"""A bounded, least-recently-used store of what is known about peers."""

from collections import OrderedDict
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def remember(items: "OrderedDict[K, V]", key: K, value: V, limit: int) -> None:
    """Store the item as the most recent; beyond `limit` the least recent is dropped."""
    items[key] = value
    items.move_to_end(key)
    if len(items) > limit:
        items.popitem(last=False)
