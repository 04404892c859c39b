"""Campaigns as the operator has them: begun, appended to, paused, cancelled, and looked at."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import sqlalchemy as sa

from offhook.web.campaigns.errors import CampaignError, UnknownCampaign
from offhook.web.campaigns.recipients import Recipient
from offhook.web.campaigns.states import Action, changed
from offhook.web.records.campaigns.rows import R, can, finish_if_over, inserted, lock, plan, shown
from offhook.web.records.csv_cells import csv_line
from offhook.web.records.entries import as_json, storable
from offhook.web.records.outbox import Outbox
from offhook.web.records.stores.store_kind import StoreKind
from offhook.web.records.tables import campaign_recipients, campaigns, of_tenant
from offhook.web.records.times import iso

AT_ONCE = 500
"""Recipients of a report that are read at once, and campaigns that are deleted at once."""
SHOWN = 50
"""Maximum campaigns that a list shows, the last ones; older ones are found by their ids."""
MAX_COLUMNS = 200
"""Maximum variables that a report has columns for; further ones are left out."""
REPORTED = (
    *("id", "number", "time_zone", "state", "outcome", "reason"),
    *("attempts", "last_call", "next_call", "call_id"),
)
"""Columns of a report, before those of the variables."""


class Campaigns:
    """The campaigns of one store. Methods raise StoreError if it cannot be used now."""

    def __init__(
        self,
        kind: StoreKind,
        begin: Callable[[], AbstractContextManager[sa.Connection]],
        outbox: Outbox,
    ) -> None:
        """`begin` opens a transaction."""
        self._kind, self._begin, self._outbox = kind, begin, outbox

    def add(
        self,
        campaign: str,
        settings: Mapping[str, Any],
        recipients: Sequence[Recipient],
        now: float,
        *,
        paused: bool = False,
        tenant: str = "",
    ) -> dict[str, int]:
        """Begins a campaign of a tenant, "" for nobody's; see `append` for what is returned. `now`
        is seconds since 1970. Raises CampaignError if there is one of that id."""
        row: dict[str, Any] = {"id": campaign, "state": "paused" if paused else "running"}
        row |= {"created": now, "next_at": now, "settings": as_json(settings), "tenant": tenant}
        insert = self._kind.insert(campaigns).on_conflict_do_nothing()
        with self._begin() as connection:
            if not inserted(connection, insert, [row]):
                raise CampaignError(
                    f"id: there is a campaign {campaign!r}; recipients are appended to "
                    f"/campaigns/{campaign}/recipients"
                )
            return self._insert(connection, campaign, row["settings"], recipients, now)

    def append(self, campaign: str, recipients: Sequence[Recipient], now: float) -> dict[str, int]:
        """Adds recipients, and begins again if the campaign was completed. Returns how many were
        `added`, and how many are `known`: their ids are there already, and nothing is changed.
        Raises UnknownCampaign and CampaignError."""
        with self._begin() as connection:
            row = self._locked(connection, campaign)
            state = changed(row.state, "append")
            is_it = campaigns.c.id == campaign
            again = {"state": state, "ended": None}
            connection.execute(campaigns.update().where(is_it).values(again))
            return self._insert(connection, campaign, row.settings, recipients, now)

    def act(self, campaign: str, action: Action, now: float) -> str:
        """Pauses, resumes or cancels a campaign; returns its state then. Calls in progress go on.
        Raises UnknownCampaign and CampaignError."""
        with self._begin() as connection:
            row = self._locked(connection, campaign)
            state = changed(row.state, action)
            is_it = campaigns.c.id == campaign
            connection.execute(campaigns.update().where(is_it).values(state=state))
            if action == "cancel":
                waiting = campaign_recipients.update().where(R.campaign == campaign, can("cancel"))
                connection.execute(waiting.values(state="cancelled"))
                finish_if_over(connection, self._outbox, campaign, now)
            return state

    # --- for people ---

    def listed(self, tenant: str = "") -> list[dict[str, Any]]:
        """Returns the last campaigns of a tenant, "" for all, with their progress, the last
        first."""
        its = sa.select(campaigns.c.id).where(*of_tenant(campaigns, tenant))
        with self._begin() as connection:
            last = its.order_by(campaigns.c.created.desc()).limit(SHOWN)
            return shown(connection, connection.scalars(last).all())

    def tenant_of(self, campaign: str) -> str | None:
        """Returns whose a campaign is, "" for nobody's; None if there is none."""
        its = sa.select(campaigns.c.tenant).where(campaigns.c.id == campaign)
        with self._begin() as connection:
            return connection.execute(its).scalar()

    def show(self, campaign: str) -> dict[str, Any]:
        """Returns a campaign with its progress. Raises UnknownCampaign."""
        with self._begin() as connection:
            found = shown(connection, [campaign])
        if not found:
            raise UnknownCampaign(campaign)
        return found[0]

    def report(self, campaign: str) -> Iterator[str]:
        """Yields the lines of a CSV file with all recipients, in their order, by parts of AT_ONCE.
        Raises UnknownCampaign before the first."""
        with self._begin() as connection:
            columns = connection.execute(
                sa.select(campaigns.c.columns).where(campaigns.c.id == campaign)
            ).scalar()
        if columns is None:
            raise UnknownCampaign(campaign)
        names = json.loads(columns)
        yield csv_line([*REPORTED, *names])
        after = 0
        while True:
            found = sa.select(campaign_recipients).where(R.campaign == campaign, R.number > after)
            with self._begin() as connection:
                rows = connection.execute(found.order_by(R.number).limit(AT_ONCE)).all()
            if rows:
                yield "".join(csv_line(_cells(row, names)) for row in rows)
                after = rows[-1].number
            if len(rows) < AT_ONCE:
                return

    # --- deleted ---

    def expire(self, before: float) -> int:
        """Deletes the campaigns that ended before a time; returns how many."""
        with self._begin() as connection:
            old = campaigns.c.ended < before
            ids = connection.scalars(sa.select(campaigns.c.id).where(old).limit(AT_ONCE)).all()
            connection.execute(campaign_recipients.delete().where(R.campaign.in_(ids)))
            connection.execute(campaigns.delete().where(campaigns.c.id.in_(ids)))
            return len(ids)

    # --- inside a transaction ---

    def _locked(self, connection: sa.Connection, campaign: str) -> sa.Row[Any]:
        row = lock(connection, campaign)
        if row is None:
            raise UnknownCampaign(campaign)
        return row

    def _insert(
        self,
        connection: sa.Connection,
        campaign: str,
        settings: str,
        recipients: Sequence[Recipient],
        now: float,
    ) -> dict[str, int]:
        when = plan(settings)
        zones = {when.zone(each.time_zone) for each in recipients}
        opens = {zone: when.opening.next_open(now, zone) for zone in zones}
        rows = []
        for each in recipients:
            zone = when.zone(each.time_zone)
            rows.append(_row(campaign, each, zone, opens[zone]))
        insert = self._kind.insert(campaign_recipients).on_conflict_do_nothing()
        added = inserted(connection, insert, rows)
        self._add_columns(connection, campaign, recipients)
        return {"added": added, "known": len(recipients) - added}

    def _add_columns(
        self, connection: sa.Connection, campaign: str, recipients: Sequence[Recipient]
    ) -> None:
        is_it = campaigns.c.id == campaign
        known = connection.execute(sa.select(campaigns.c.columns).where(is_it)).scalar_one()
        names = dict.fromkeys(json.loads(known))
        for each in recipients:
            names |= dict.fromkeys(map(storable, each.variables))
        columns = as_json([*names][:MAX_COLUMNS])
        connection.execute(campaigns.update().where(is_it).values(columns=columns))


def _row(campaign: str, one: Recipient, zone: str, next_at: float) -> dict[str, Any]:
    return {
        "campaign": campaign,
        "id": one.id,
        "called": one.number,
        "key": one.key,
        "time_zone": zone,
        "variables": as_json(one.variables),
        "state": "waiting",
        "outcome": "",
        "reason": "",
        "attempts": 0,
        "next_at": next_at,
        "call": "",
        "server": "",
        "process": 0,
    }


def _cells(row: sa.Row[Any], names: Sequence[str]) -> list[Any]:
    """Returns the cells of a recipient in a report."""
    variables = json.loads(row.variables)
    last_call = "" if row.dialled is None else iso(row.dialled)
    next_call = iso(row.next_at) if row.state == "waiting" else ""
    about = [row.id, row.called, row.time_zone, row.state, row.outcome, row.reason]
    return [
        *about,
        *(row.attempts, last_call, next_call, row.call),
        *(variables.get(name, "") for name in names),
    ]
