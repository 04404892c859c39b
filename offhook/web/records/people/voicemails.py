"""The messages that callers have left: they are calls, of which a table says for whom they are. One
is heard once somebody has listened to the recording of its call."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import sqlalchemy as sa

from offhook.web.records.listing import listed
from offhook.web.records.stores.store_kind import StoreKind
from offhook.web.records.tables import calls, events, looks, of_tenant, voicemails

KIND = "voicemail_left"
"""Kind of the event that says that a message was left."""
MAX_LISTED = 500
"""Messages of one list, the last first; older ones are found among the calls."""


class Voicemails:
    """The messages of one store. Methods raise StoreError if it cannot be used now."""

    def __init__(
        self, kind: StoreKind, begin: Callable[[], AbstractContextManager[sa.Connection]]
    ) -> None:
        """`begin` opens a transaction."""
        self._kind, self._begin = kind, begin

    def add(self, connection: sa.Connection, rows: Sequence[Mapping[str, Any]], now: float) -> None:
        """Adds the messages among rows of events; those that are there stay as they are."""
        for row in rows:
            if row["kind"] == KIND:
                fields = json.loads(row["fields"])
                of_call = {"call": row["call"], "mailbox": fields["mailbox"], "left_at": now}
                insert = self._kind.insert(voicemails).values(of_call)
                connection.execute(insert.on_conflict_do_nothing())

    def list(
        self, mailbox: str = "", *, new: bool = False, tenant: str = ""
    ) -> list[dict[str, Any]]:
        """Returns messages, the last first: of one mailbox, or "" of all, and with `new` only those
        that nobody has heard; left in calls of a tenant, or "" in any."""
        which = of_tenant(calls, tenant)
        if mailbox:
            which.append(voicemails.c.mailbox == mailbox)
        if new:
            which.append(~_heard())
        query = (
            sa.select(calls, voicemails.c.mailbox, _heard().label("heard"), events.c.fields)
            .join(voicemails, voicemails.c.call == calls.c.id)
            .outerjoin(events, sa.and_(events.c.call == calls.c.id, events.c.kind == KIND))
            .where(*which)
            .order_by(voicemails.c.left_at.desc())
            .limit(MAX_LISTED)
        )
        with self._begin() as connection:
            return [_shown(row) for row in connection.execute(query).mappings()]

    def is_there(self, call: str) -> bool:
        """Returns whether a message was left in a call."""
        found = sa.select(voicemails.c.call).where(voicemails.c.call == call)
        with self._begin() as connection:
            return connection.execute(found).first() is not None

    def counts(self) -> dict[str, tuple[int, int]]:
        """Returns how many messages each mailbox has, new and heard ones."""
        heard = sa.func.sum(sa.case((_heard(), 1), else_=0))
        query = sa.select(voicemails.c.mailbox, sa.func.count(), heard).group_by(
            voicemails.c.mailbox
        )
        with self._begin() as connection:
            found = connection.execute(query).all()
        return {mailbox: (total - heard, int(heard)) for mailbox, total, heard in found}


def _heard() -> sa.ColumnElement[bool]:
    return sa.exists().where(looks.c.call == voicemails.c.call, looks.c.what == "recording")


def _shown(row: sa.RowMapping) -> dict[str, Any]:
    fields = json.loads(row["fields"] or "{}")
    call = listed(row)
    kept = ("call_id", "started", "caller", "caller_name")
    return {
        **{name: call[name] for name in kept},
        "mailbox": row["mailbox"],
        "seconds": fields.get("seconds"),
        "text": fields.get("text", ""),
        "heard": bool(row["heard"]),
        "recording": f"/calls/{call['call_id']}/recording" if row["recording"] else "",
    }
