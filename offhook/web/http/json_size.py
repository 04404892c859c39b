"""Limits what JSON from others costs to read: bytes alone do not say it."""

MAX_JSON_VALUES = 1 << 15
"""Maximum commas and brackets in JSON of clients and MCP servers, within texts too; more is refused
as invalid. Reading so many values occupies the event loop, which sends packets meanwhile, for some
20 ms; audio and images have none."""


def check_values(text: str | bytes) -> None:
    """Raises ValueError for JSON of more than MAX_JSON_VALUES values."""
    if len(text) > MAX_JSON_VALUES and count_values(text) > MAX_JSON_VALUES:
        raise ValueError(f"more than {MAX_JSON_VALUES} values")


def count_values(text: str | bytes) -> int:
    """Returns the number of commas and brackets, the values that JSON has at most."""
    if isinstance(text, str):
        return text.count(",") + text.count("[") + text.count("{")
    return text.count(b",") + text.count(b"[") + text.count(b"{")
