"""Limits what JSON from clients costs to read: bytes alone do not say it."""

MAX_JSON_VALUES = 1 << 15
"""Maximum commas and brackets in a client's JSON, within texts too; more is refused as invalid.
Reading so many values occupies the event loop, which sends packets meanwhile, for some 20 ms; audio
and images have none."""


def check_values(text: str | bytes) -> None:
    """Raises ValueError for JSON of more than MAX_JSON_VALUES values."""
    if len(text) <= MAX_JSON_VALUES:
        return
    if isinstance(text, str):
        values = text.count(",") + text.count("[") + text.count("{")
    else:
        values = text.count(b",") + text.count(b"[") + text.count(b"{")
    if values > MAX_JSON_VALUES:
        raise ValueError(f"more than {MAX_JSON_VALUES} values")
