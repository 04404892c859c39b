"""How rows of the store are shown: as JSON, with times as ISO 8601 in UTC."""

from typing import Any

from offhook.web.records.search import LISTED
from offhook.web.records.times import iso

TIMES = ("started", "answered", "ended", "forgotten")
"""Columns that are times."""


def listed(row: Any) -> dict[str, Any]:
    """Returns the columns of a call as a list shows them."""
    shown = {column.name: row[column.name] for column in LISTED}
    for name in TIMES:
        if shown[name] is not None:
            shown[name] = iso(shown[name])
    return {"call_id": shown.pop("id"), **shown}
