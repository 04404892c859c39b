"""The names of criteria in scenarios."""

from typing import Any

ALL = "all"


def criteria_of(value: Any) -> tuple[str, ...]:
    """Reads the names of criteria. Raises ValueError."""
    if value is None:
        return ()
    if value == ALL:
        return (ALL,)
    if not isinstance(value, list) or not value or not all(isinstance(one, str) for one in value):
        raise ValueError(f"criteria: a list of names, or {ALL}, not {value!r}")
    return tuple(dict.fromkeys(value))
