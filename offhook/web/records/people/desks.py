"""What people of a team see of callers at their desks, and note about them."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Literal

import sqlalchemy as sa

from offhook.web.records.analyses import analysis_of
from offhook.web.records.entries import as_json, digits_keys
from offhook.web.records.live_look import SPOKEN
from offhook.web.records.tables import calls, events
from offhook.web.records.times import iso

MAX_TURNS = 100
"""Maximum turns of a call that a desk shows; older ones are dropped."""
MAX_CALLS = 10
"""Maximum calls of a number that a desk shows, the last first; older ones are found in the
console."""
MAX_NOTES = 20
"""Maximum notes about one call; further ones are refused with 409."""


class Desks:
    """The desks of one store. Methods raise StoreError if it cannot be used now."""

    def __init__(self, begin: Callable[[], AbstractContextManager[sa.Connection]]) -> None:
        """`begin` opens a transaction."""
        self._begin = begin

    def words(self, call: str) -> list[dict[str, str]]:
        """Returns what caller and agents have said in a call, in order."""
        query = (
            sa.select(events.c.kind, events.c.fields)
            .where(events.c.call == call, events.c.kind.in_(SPOKEN))
            .order_by(events.c.position.desc())
            .limit(MAX_TURNS)
        )
        with self._begin() as connection:
            found = connection.execute(query).all()
        return [
            {
                "who": "agent" if kind == "agent_turn" else "caller",
                "text": json.loads(fields).get("text") or "",
            }
            for kind, fields in reversed(found)
        ]

    def history(self, number: str, tenant: str, but: str) -> list[dict[str, Any]]:
        """Returns the last calls of a tenant, "" being nobody, with whoever has a number, but for
        one call; the last first. Calls of others to that number, as to an agent's, are not among
        them."""
        keys = digits_keys(number)
        query = (
            sa.select(calls)
            .where(
                sa.or_(
                    sa.and_(calls.c.direction == "inbound", calls.c.caller_key.in_(keys)),
                    sa.and_(calls.c.direction == "outbound", calls.c.called_key.in_(keys)),
                ),
                calls.c.tenant == tenant,
                calls.c.state == "ended",
                calls.c.id != but,
            )
            .order_by(calls.c.started.desc())
            .limit(MAX_CALLS)
        )
        if not keys:
            return []
        with self._begin() as connection:
            return [_shown(connection, row) for row in connection.execute(query).mappings().all()]

    def add_note(
        self, call: str, by: str, text: str, now: float
    ) -> Literal["added", "full", "unknown"]:
        """Adds a note to a call that is in the store and has not been forgotten."""
        is_it = sa.and_(calls.c.id == call, calls.c.forgotten.is_(None))
        with self._begin() as connection:
            found = sa.select(calls.c.details).where(is_it).with_for_update()
            text_now = connection.execute(found).scalar()
            if text_now is None:
                return "unknown"
            details = json.loads(text_now)
            notes = details.get("notes", [])
            if len(notes) >= MAX_NOTES:
                return "full"
            details["notes"] = [*notes, {"at": iso(now), "by": by, "text": text}]
            connection.execute(calls.update().where(is_it).values(details=as_json(details)))
        return "added"


def _shown(connection: sa.Connection, row: sa.RowMapping) -> dict[str, Any]:
    analysis = analysis_of(connection, row["id"]) if row["outcome"] else None
    return {
        "call_id": row["id"],
        **{name: row[name] for name in ("direction", "agent", "trunk", "seconds", "outcome")},
        "started": iso(row["started"]),
        "summary": (analysis or {}).get("summary", ""),
        "notes": json.loads(row["details"]).get("notes", []),
    }
