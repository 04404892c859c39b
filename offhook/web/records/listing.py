"""How rows of the store are shown: as JSON, with times as ISO 8601 in UTC."""

from datetime import UTC, datetime
from typing import Any

from offhook.web.records.search import LISTED

TIMES = ("started", "answered", "ended", "forgotten")
"""Columns that are times."""


def listed(row: Any) -> dict[str, Any]:
    """Returns the columns of a call as a list shows them."""
    shown = {column.name: row[column.name] for column in LISTED}
    for name in TIMES:
        if shown[name] is not None:
            shown[name] = iso(shown[name])
    return {"call_id": shown.pop("id"), **shown}


def iso(at: float) -> str:
    """Returns a time, seconds since 1970, as ISO 8601."""
    return datetime.fromtimestamp(at, UTC).isoformat("T", "milliseconds")
