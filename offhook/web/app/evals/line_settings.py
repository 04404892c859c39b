"""The line of a scenario that is tried by a real call."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

OVER = ("webrtc", "sip", "twilio")
"""How a scenario's caller may call."""
RANGES: Mapping[str, tuple[float, float]] = {
    "loss": (0, 50),
    "jitter": (0, 1000),
    "noise": (-90, -10),
    "level": (-40, 20),
}
"""Lowest and highest value of each key."""


@dataclass(frozen=True)
class LineSettings:
    """How a scenario's caller calls, and how bad the line is. Raises ValueError."""

    over: str = ""
    """One of OVER; "": no line, the caller is in this process."""
    loss: float = 0.0
    """Packets in 100 that are lost in each direction. Twilio's streams lose none: they use TCP."""
    jitter: float = 0.0
    """Time in ms by which packets are late, up to this."""
    noise: float | None = None
    """Level in dBFS of noise behind the caller; None: there is none."""
    level: float = 0.0
    """By how many dB the caller is louder than the voice or recording is; quieter if below 0."""

    def __post_init__(self) -> None:
        if self.over and self.over not in OVER:
            raise ValueError(f"over: {self.over!r} is none of {', '.join(OVER)}")
        for name, (low, high) in RANGES.items():
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"{name}: {value!r} is no number")
            if not low <= value <= high:
                raise ValueError(f"{name}: {value:g} is not from {low:g} to {high:g}")
        if not self.over and any(getattr(self, name) for name in RANGES):
            raise ValueError("over: is missing: loss, jitter, noise and level are of a line")
        if self.over == "twilio" and self.loss:
            raise ValueError("loss: Twilio's streams lose nothing, they use TCP; use jitter")


NO_LINE = LineSettings()
LINE_KEYS = tuple(field.name for field in fields(LineSettings))


def line_of(table: Any, given: Mapping[str, Any]) -> LineSettings:
    """Reads the `line` of a scenario, None if it has none, of which `given` replaces keys. Raises
    ValueError."""
    if table is None:
        table = {}
    elif not isinstance(table, dict):
        raise ValueError("line: has to be a table, as {over: sip}")
    known = {name: value for name, value in table.items() if name in LINE_KEYS}
    try:
        return LineSettings(**{**known, **given})
    except ValueError as error:
        raise ValueError(f"line: {error}") from error
