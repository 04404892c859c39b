"""The numbers that no campaign calls."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import sqlalchemy as sa

from offhook.web.campaigns.recipients import check_number, number_key
from offhook.web.records.campaigns.calling import block
from offhook.web.records.campaigns.rows import R, inserted
from offhook.web.records.entries import storable
from offhook.web.records.stores.store_kind import StoreKind
from offhook.web.records.tables import do_not_call
from offhook.web.records.times import iso

AT_ONCE = 500
"""Numbers of one statement."""
SHOWN = 1000
"""Numbers that a list shows, those that were added last."""


class DoNotCall:
    """The do-not-call list of one store. Methods raise StoreError if it cannot be used now."""

    def __init__(
        self, kind: StoreKind, begin: Callable[[], AbstractContextManager[sa.Connection]]
    ) -> None:
        """`begin` opens a transaction."""
        self._kind, self._begin = kind, begin

    def add(self, numbers: Sequence[str], reason: str, now: float) -> int:
        """Has numbers not called from now on, however they are written; returns how many are new.
        Raises CampaignError for what is no number."""
        keys = {number_key(number): number for number in map(check_number, numbers)}
        rows = [
            {"key": key, "called": number, "reason": storable(reason), "added": now}
            for key, number in keys.items()
        ]
        insert = self._kind.insert(do_not_call).on_conflict_do_nothing()
        with self._begin() as connection:
            added = inserted(connection, insert, rows)
            for start in range(0, len(rows), AT_ONCE):
                block(connection, R.key.in_([row["key"] for row in rows[start : start + AT_ONCE]]))
        return added

    def remove(self, number: str) -> bool:
        """Lets a number be called again; returns whether it was listed."""
        is_it = do_not_call.c.key == number_key(number)
        with self._begin() as connection:
            return bool(connection.execute(do_not_call.delete().where(is_it)).rowcount)

    def listed(self) -> tuple[list[dict[str, Any]], int]:
        """Returns the last numbers, and how many there are in all."""
        last = sa.select(do_not_call).order_by(do_not_call.c.added.desc(), do_not_call.c.key)
        with self._begin() as connection:
            rows = connection.execute(last.limit(SHOWN)).all()
            total = sa.select(sa.func.count()).select_from(do_not_call)
            number = connection.execute(total).scalar_one()
        found = [
            {"number": row.called, "reason": row.reason, "added": iso(row.added)} for row in rows
        ]
        return found, number
