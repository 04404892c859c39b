"""Entries on disk while the store cannot be reached: a file of JSON lines a process."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from typing import Any

from offhook.telephony.call_record import Attempt, CallRecord
from offhook.web.records.entries import (
    Began,
    Entry,
    Happened,
    Over,
    Recorded,
    RecordingReady,
    TrunkTurned,
    as_json,
)

KINDS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (Began, Happened, Over, Recorded, RecordingReady, TrunkTurned)
}


def lines_of(entries: Sequence[Entry]) -> bytes:
    """Returns entries as JSON lines."""
    return b"".join(
        as_json({"entry": type(entry).__name__, **asdict(entry)}).encode() + b"\n"
        for entry in entries
    )


def entries_of(data: bytes) -> Iterator[Entry]:
    """Reads JSON lines; what is none, as a line that a crash has cut, is left out."""
    for line in data.split(b"\n"):
        try:
            values = json.loads(line)
            kind = KINDS[values.pop("entry")]
            if kind is Recorded:
                values["record"] = _record(values["record"])
            yield kind(**values)
        except (ValueError, KeyError, TypeError, AttributeError):
            continue


def _record(values: dict[str, Any]) -> CallRecord:
    known = {field.name for field in fields(CallRecord)}
    attempts = tuple(Attempt(**attempt) for attempt in values.pop("attempts", ()))
    return CallRecord(**{k: v for k, v in values.items() if k in known}, attempts=attempts)
