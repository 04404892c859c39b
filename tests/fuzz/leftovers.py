"""What objects keep: how many entries their containers have."""

from collections import Counter, deque
from collections.abc import Iterator

APART = frozenset({"UserAgent", "Request", "Response", "SipSettings"})
"""Classes of objects that others know but are not made of."""
SHARED = APART | {"MessageSender", "NextHops"}
"""Likewise, of sessions."""


def sizes(
    root: object,
    packages: tuple[str, ...] = ("offhook.telephony",),
    apart: frozenset[str] = APART,
) -> Counter[str]:
    """Entries of the containers in an object and in those of our own it is made of, by where they
    are; of objects in one container, the most that one of them has."""
    found: Counter[str] = Counter()
    seen: set[int] = set()
    waiting: list[tuple[str, object]] = [("", root)]
    while waiting:
        path, thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        kind = type(thing)
        if isinstance(thing, dict | list | set | deque):
            found[path] = max(found[path], len(thing))
            values = thing.values() if isinstance(thing, dict) else thing
            waiting += [(f"{path}[]", value) for value in values]
        elif kind.__module__.startswith(packages) and not (path and kind.__name__ in apart):
            waiting += [(f"{path}.{name}", value) for name, value in _attributes(thing)]
    return found


def _attributes(thing: object) -> Iterator[tuple[str, object]]:
    names = [*getattr(thing, "__dict__", ())]
    for base in type(thing).__mro__:
        names += base.__dict__.get("__slots__", ())
    for name in names:
        if hasattr(thing, name):
            yield name, getattr(thing, name)
