"""What the parts of the store that know campaigns have in common."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from offhook.web.campaigns.errors import CampaignError
from offhook.web.campaigns.plan import CampaignPlan, plan_of
from offhook.web.campaigns.recipients import check_number, number_key
from offhook.web.campaigns.states import RECIPIENT_STATES, RecipientEvent, before
from offhook.web.records.outbox import Outbox
from offhook.web.records.tables import campaign_recipients, campaigns, of_tenant
from offhook.web.records.times import iso

R = campaign_recipients.c
"""The columns of recipients."""


@lru_cache(maxsize=256)
def plan(settings: str) -> CampaignPlan:
    """Returns the plan of a campaign's settings."""
    return plan_of(settings)


def can(event: RecipientEvent) -> sa.ColumnElement[bool]:
    """Whether an event can happen to a recipient."""
    return R.state.in_(before(event))


def inserted(
    connection: sa.Connection, insert: sa.Insert, rows: Sequence[Mapping[str, Any]]
) -> int:
    """Inserts rows; returns how many of them are new."""
    counts = {"preserve_rowcount": True}  # else only some drivers do
    return connection.execute(insert, list(rows), execution_options=counts).rowcount


def lock(connection: sa.Connection, campaign: str) -> sa.Row[Any] | None:
    """Returns a campaign that nobody else changes until the end of the transaction; None if there
    is none."""
    is_it = campaigns.c.id == campaign
    same = campaigns.update().where(is_it).values(state=campaigns.c.state)
    return connection.execute(same.returning(*campaigns.c)).first()


def finish_if_over(connection: sa.Connection, outbox: Outbox, campaign: str, now: float) -> None:
    """Ends a campaign of which nobody waits and no call is in progress, and has programs told."""

    def ended(state: str, becomes: str, *under_way: str) -> sa.Update:
        left = sa.select(R.number).where(R.campaign == campaign, R.state.in_(under_way))
        is_over = sa.and_(campaigns.c.state == state, campaigns.c.ended.is_(None))
        found = campaigns.update().where(campaigns.c.id == campaign, is_over, ~left.exists())
        return found.values(state=becomes, ended=now)

    over = (
        ended("running", "completed", "waiting", "dialling"),
        ended("cancelled", "cancelled", "dialling"),
    )
    if any([connection.execute(each).rowcount for each in over]):
        [row] = shown(connection, [campaign])
        outbox.add_campaign(connection, campaign, row, now)


def shown(connection: sa.Connection, ids: Collection[str]) -> list[dict[str, Any]]:
    """Returns campaigns with their settings and progress, the last first."""
    rows = connection.execute(
        sa.select(campaigns)
        .where(campaigns.c.id.in_(ids))
        .order_by(campaigns.c.created.desc(), campaigns.c.id)
    ).all()
    progress = _progress(connection, [row.id for row in rows])
    return [_described(row, progress[row.id]) for row in rows]


def under_way(
    connection: sa.Connection, known: Collection[str], most: int, tenant: str = ""
) -> list[dict[str, Any]]:
    """Returns the campaigns of a tenant, "" for all, that have not ended, the last first, and those
    that are `known`."""
    is_open = sa.and_(campaigns.c.ended.is_(None), *of_tenant(campaigns, tenant))
    open_ = sa.select(campaigns.c.id).where(is_open)
    ids = connection.scalars(open_.order_by(campaigns.c.created.desc()).limit(most)).all()
    return shown(connection, {*ids, *known}) if ids or known else []


@dataclass
class _Progress:
    states: dict[str, int]
    """How many recipients are in each."""
    outcomes: dict[str, int]
    """Of those who are not called again."""
    calls: int = 0
    next_at: float | None = None
    """When the next recipient is due."""


def _progress(connection: sa.Connection, ids: Sequence[str]) -> dict[str, _Progress]:
    """Returns that of each of these campaigns."""
    found = {each: _Progress(dict.fromkeys(RECIPIENT_STATES, 0), {}) for each in ids}
    sums = (sa.func.count(), sa.func.sum(R.attempts), sa.func.min(R.next_at))
    groups = (R.campaign, R.state, R.outcome)
    counted = sa.select(*groups, *sums).where(R.campaign.in_(ids))
    grouped = counted.group_by(*groups).order_by(R.outcome)
    for campaign, state, outcome, number, attempts, first in connection.execute(grouped):
        one = found[campaign]
        one.states[state] += number
        one.calls += attempts
        if state == "waiting":
            one.next_at = first if one.next_at is None else min(first, one.next_at)
        elif state in ("done", "unknown"):
            one.outcomes[outcome] = one.outcomes.get(outcome, 0) + number
    return found


def _described(row: sa.Row[Any], progress: _Progress) -> dict[str, Any]:
    """Returns a campaign as JSON has it."""
    settings = json.loads(row.settings)
    next_at = progress.next_at if row.state == "running" else None
    return {
        "campaign_id": row.id,
        "name": settings.pop("name", ""),
        "tenant": row.tenant,
        "state": row.state,
        "created": iso(row.created),
        "ended": None if row.ended is None else iso(row.ended),
        "recipients": sum(progress.states.values()),
        "states": progress.states,
        "outcomes": progress.outcomes,
        "calls": progress.calls,
        "next_call": None if next_at is None else iso(max(next_at, row.next_at)),
        "settings": settings,
    }


def forget_recipient(connection: sa.Connection, number: str, tenant: str = "") -> int:
    """Deletes a number and its variables from all campaigns, or those of a tenant; whoever waits is
    not called. Returns how many entries it had; 0 for what is no number, as the id of a call."""
    try:
        of_number: sa.ColumnElement[bool] = R.key == number_key(check_number(number))
    except CampaignError:
        return 0
    if tenant:
        its = sa.select(campaigns.c.id).where(campaigns.c.tenant == tenant)
        of_number = sa.and_(of_number, R.campaign.in_(its))
    waiting = campaign_recipients.update().where(of_number, can("cancel"))
    connection.execute(waiting.values(state="cancelled"))
    anonymous = sa.literal("forgotten ").concat(sa.cast(R.number, sa.Text))
    blank = {"called": "", "key": "", "variables": "{}", "id": anonymous}
    return connection.execute(campaign_recipients.update().where(of_number).values(blank)).rowcount
