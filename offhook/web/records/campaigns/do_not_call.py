"""The numbers that no campaign calls, or none of one tenant."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import sqlalchemy as sa

from offhook.web.campaigns.recipients import check_number, number_key
from offhook.web.records.campaigns.calling import block, forbidden_key
from offhook.web.records.campaigns.rows import R, inserted
from offhook.web.records.entries import storable
from offhook.web.records.stores.store_kind import StoreKind
from offhook.web.records.tables import campaigns, do_not_call, of_tenant
from offhook.web.records.times import iso

AT_ONCE = 500
"""Numbers of one statement."""
SHOWN = 1000
"""Numbers that a list shows, those that were added last."""


class DoNotCall:
    """The do-not-call lists of one store: that of all campaigns, for which `tenant` is "", and one
    of each tenant. Methods raise StoreError if they cannot be used now."""

    def __init__(
        self, kind: StoreKind, begin: Callable[[], AbstractContextManager[sa.Connection]]
    ) -> None:
        """`begin` opens a transaction."""
        self._kind, self._begin = kind, begin

    def add(self, numbers: Sequence[str], reason: str, now: float, tenant: str = "") -> int:
        """Has numbers not called from now on, however they are written; returns how many are new.
        Raises CampaignError for what is no number."""
        keys = {number_key(number): number for number in map(check_number, numbers)}
        rows = [
            {
                "key": forbidden_key(key, tenant),
                "called": number,
                "reason": storable(reason),
                "added": now,
                "tenant": tenant,
            }
            for key, number in keys.items()
        ]
        its = sa.select(campaigns.c.id).where(*of_tenant(campaigns, tenant))
        known = list(keys)
        insert = self._kind.insert(do_not_call).on_conflict_do_nothing()
        with self._begin() as connection:
            added = inserted(connection, insert, rows)
            for start in range(0, len(known), AT_ONCE):
                waits = R.key.in_(known[start : start + AT_ONCE])
                block(connection, sa.and_(waits, R.campaign.in_(its)))
        return added

    def remove(self, number: str, tenant: str = "") -> bool:
        """Lets a number be called again; returns whether it was listed."""
        is_it = do_not_call.c.key == forbidden_key(number_key(number), tenant)
        with self._begin() as connection:
            return bool(connection.execute(do_not_call.delete().where(is_it)).rowcount)

    def listed(self, tenant: str = "") -> tuple[list[dict[str, Any]], int]:
        """Returns the last numbers of a tenant's list, "" for all lists, and how many there are."""
        is_its = of_tenant(do_not_call, tenant)
        last = sa.select(do_not_call).where(*is_its)
        last = last.order_by(do_not_call.c.added.desc(), do_not_call.c.key)
        with self._begin() as connection:
            rows = connection.execute(last.limit(SHOWN)).all()
            total = sa.select(sa.func.count()).select_from(do_not_call).where(*is_its)
            number = connection.execute(total).scalar_one()
        found = [
            {
                "number": row.called,
                "reason": row.reason,
                "added": iso(row.added),
                "tenant": row.tenant,
            }
            for row in rows
        ]
        return found, number
