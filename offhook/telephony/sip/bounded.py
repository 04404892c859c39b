"""What is remembered about peers has a bound, and what was heard of longest ago goes first."""

from collections import OrderedDict
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def remember(items: "OrderedDict[K, V]", key: K, value: V, limit: int) -> None:
    """Puts the item last; of more than `limit` the first one goes."""
    items[key] = value
    items.move_to_end(key)
    if len(items) > limit:
        items.popitem(last=False)
