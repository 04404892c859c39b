"""The recipients who are due: taken before they are called, and settled with the record of the call
in one transaction, so that no crash has anybody called twice."""

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from offhook.telephony.call_record import CallRecord
from offhook.web.campaigns.outcomes import Outcome, outcome_of
from offhook.web.campaigns.pacing import AHEAD_S, Lines, next_after, slots
from offhook.web.campaigns.states import RECIPIENT, RecipientEvent
from offhook.web.records.campaigns.rows import R, can, finish_if_over, lock, plan
from offhook.web.records.entries import storable
from offhook.web.records.errors import StoreError
from offhook.web.records.leases import claim_rows
from offhook.web.records.outbox import Outbox
from offhook.web.records.tables import campaign_recipients, campaigns, do_not_call

CAMPAIGNS_AT_ONCE = 100
"""Campaigns that are looked at together, those first that have waited longest."""
NO_LINE_S = 2.0
"""Time in s after which a recipient is due again for whom there was no line."""
LONGEST_S = 86_400.0
"""Time in s after which a call that no record has ended is not waited for any more."""
STOPPED = "the server stopped: it is not known whether they were called"


@dataclass(frozen=True)
class DueCall:
    """A call that is to be placed by whoever has claimed it."""

    campaign: str
    number: int
    """Of the recipient's row."""
    call: str
    """The id that the call has to have."""
    at: float
    """When, in seconds since 1970."""
    to: str
    variables: dict[str, Any]
    settings: dict[str, Any]
    """Of the campaign."""


class Calling:
    """The calls of the campaigns of one store. Methods raise StoreError if it cannot be used."""

    def __init__(
        self, begin: Callable[[], AbstractContextManager[sa.Connection]], outbox: Outbox
    ) -> None:
        """`begin` opens a transaction."""
        self._begin, self._outbox = begin, outbox
        self.count: Callable[[Outcome], None] = lambda outcome: None
        """Counts the outcome of each call that this process has settled."""

    # --- placed ---

    def claim(
        self, lines: Lines, server: str, process: int, new_id: Callable[[], str], now: float
    ) -> list[DueCall]:
        """Returns calls that are due within AHEAD_S, for as many lines as there are; whoever gets
        one places it, once. `now` is seconds since 1970."""
        is_due = sa.and_(campaigns.c.state == "running", campaigns.c.next_at < now + AHEAD_S)
        first = sa.select(campaigns.c.id, campaigns.c.settings).where(is_due)
        first = first.order_by(campaigns.c.next_at).limit(CAMPAIGNS_AT_ONCE)
        found: list[DueCall] = []
        with self._begin() as connection:
            due = connection.execute(first).all()
        for row in due:
            settings = json.loads(row.settings)
            room = lines.room(settings)
            if not room:
                continue
            try:
                with self._begin() as connection:
                    calls = self._claim_of(connection, row.id, room, now)
                    taken = _dial(connection, calls, server, process, new_id, now)
            except StoreError:
                if not found:
                    raise
                break  # what is claimed has to be placed
            lines.use(settings, len(taken))
            found += taken
        return found

    def _claim_of(
        self, connection: sa.Connection, campaign: str, room: int, now: float
    ) -> "list[_Chosen]":
        """Returns who is called next of a campaign, and when; closed windows and numbers that are
        not to be called are seen to on the way."""
        row = lock(connection, campaign)
        if row is None or row.state != "running":
            return []
        when = plan(row.settings)
        of_campaign = R.campaign == campaign
        under_way = sa.select(sa.func.count()).where(of_campaign, R.state == "dialling")
        times = slots(
            room=room,
            at_once=when.at_once,
            under_way=connection.execute(under_way).scalar_one(),
            per_second=when.per_second,
            next_at=row.next_at,
            now=now,
        )
        if not times:
            return []
        due = sa.and_(of_campaign, can("dial"), R.next_at <= now)
        for zone in connection.scalars(sa.select(R.time_zone).where(due).distinct()).all():
            for at in (now, times[-1]):
                if (opens := when.opening.next_open(at, zone)) > at:
                    closed = campaign_recipients.update().where(due, R.time_zone == zone)
                    connection.execute(closed.values(next_at=opens))
                    break
        chosen = _next(connection, due, len(times))
        if chosen:
            after = next_after(times[len(chosen) - 1], when.per_second)
            is_it = campaigns.c.id == campaign
            connection.execute(campaigns.update().where(is_it).values(next_at=after))
        else:
            finish_if_over(connection, self._outbox, campaign, now)
        settings = json.loads(row.settings)
        return [_Chosen(each, at, settings) for each, at in zip(chosen, times, strict=False)]

    def release(self, calls: Sequence[DueCall], now: float) -> None:
        """Has recipients wait again for whom nothing was sent, as there was no line."""
        with self._begin() as connection:
            for call in calls:
                row = {"state": "waiting", "attempts": R.attempts - 1, "call": ""}
                is_it = sa.and_(R.number == call.number, R.call == call.call, can("no_line"))
                waits = campaign_recipients.update().where(is_it)
                connection.execute(waits.values(**row, next_at=now + NO_LINE_S))

    def refuse(self, call: DueCall, outcome: Outcome, why: str, now: float) -> None:
        """Settles a call that could not be placed, and has no record."""
        with self._begin() as connection:
            self._settle(connection, call.call, outcome, why, now)

    # --- ended ---

    def settle(self, connection: sa.Connection, record: CallRecord, now: float) -> None:
        """Keeps what became of a recipient whose call has ended, and has them called again later if
        that is wanted."""
        if record.direction == "outbound":
            why = storable(record.end_reason)
            self._settle(connection, record.call_id, outcome_of(record), why, now)

    def lose(
        self, connection: sa.Connection, gone: sa.ColumnElement[bool], servers: sa.Table, now: float
    ) -> None:
        """Settles the calls of processes that are `gone`, a condition on `servers`, and those that
        have no end in LONGEST_S: nobody knows whether the recipients were called."""
        of_process = sa.and_(servers.c.server == R.server, servers.c.process == R.process)
        lost = sa.or_(
            sa.exists().where(of_process, gone).correlate(campaign_recipients),
            R.dialled < now - LONGEST_S,
        )
        for call in connection.scalars(sa.select(R.call).where(can("lose"), lost)).all():
            self._settle(connection, call, "unknown", STOPPED, now)

    def _settle(
        self, connection: sa.Connection, call: str, outcome: Outcome, why: str, now: float
    ) -> None:
        open_ = sa.or_(R.state == "dialling", R.outcome == "unknown")
        found = sa.select(campaign_recipients, campaigns.c.settings)
        found = found.join(campaigns, campaigns.c.id == R.campaign).where(R.call == call, open_)
        row = connection.execute(found).first()
        if row is None:  # of no campaign, or known by now
            return
        state = lock(connection, row.campaign)
        again = None
        if state is not None and state.state in ("running", "paused"):
            when = plan(row.settings)
            again = when.again_at(outcome, row.attempts, row.time_zone, now)
        event: RecipientEvent = "end"
        if again is not None:
            event = "again"
        elif outcome == "unknown":
            event = "lose"
        values: dict[str, Any] = {"outcome": outcome, "reason": why[:500]}
        values["state"] = RECIPIENT.get((row.state, event), row.state)
        if again is not None:
            values["next_at"] = again
        is_it = campaign_recipients.update().where(R.number == row.number, R.call == call, open_)
        connection.execute(is_it.values(values))
        self.count(outcome)
        finish_if_over(connection, self._outbox, row.campaign, now)


@dataclass(frozen=True)
class _Chosen:
    row: sa.Row[Any]
    at: float
    settings: dict[str, Any]


def _next(connection: sa.Connection, due: sa.ColumnElement[bool], most: int) -> list[Any]:
    """Returns the rows of those who have waited longest, but for numbers that are not to be called,
    which are blocked."""
    found: list[Any] = []
    forbidden = sa.select(do_not_call.c.key)
    while len(found) < most:
        after = due if not found else sa.and_(due, R.number.not_in([row.number for row in found]))
        first = sa.select(R.number, R.key, campaigns.c.tenant).where(after)
        first = first.join(campaigns, campaigns.c.id == R.campaign).order_by(R.next_at, R.number)
        rows = connection.execute(first.limit(most - len(found))).all()
        if not rows:
            break
        keys = {key for row in rows for key in (row.key, forbidden_key(row.key, row.tenant))}
        listed = set(connection.scalars(forbidden.where(do_not_call.c.key.in_(keys))).all())
        blocked = {
            row.number
            for row in rows
            if not listed.isdisjoint((row.key, forbidden_key(row.key, row.tenant)))
        }
        if blocked:
            block(connection, R.number.in_(blocked))
        found += [row for row in rows if row.number not in blocked]
    return found


def forbidden_key(key: str, tenant: str) -> str:
    """Returns the key of a number in the do-not-call list of a tenant, "" for that of all."""
    return f"{tenant}/{key}" if tenant else key


def block(connection: sa.Connection, which: sa.ColumnElement[bool]) -> None:
    """Has waiting recipients not called, since their numbers are on the do-not-call list."""
    blocked = campaign_recipients.update().where(which, can("block"))
    reason = "the number is on the do-not-call list"
    connection.execute(blocked.values(state="blocked", reason=reason))


def _dial(
    connection: sa.Connection,
    chosen: Sequence[_Chosen],
    server: str,
    process: int,
    new_id: Callable[[], str],
    now: float,
) -> list[DueCall]:
    """Notes who is about to be called, and returns their calls."""
    calls = []
    columns = [R.campaign, R.number, R.called, R.variables]
    for one in chosen:
        call = new_id()
        first = sa.select(R.number).where(R.number == one.row.number)
        values = {"state": "dialling", "call": call, "server": server, "process": process}
        values |= {"dialled": one.at, "attempts": R.attempts + 1}
        for row in claim_rows(connection, first, can("dial"), values, columns):
            variables = json.loads(row.variables)
            where = (row.campaign, row.number, call, one.at)
            calls.append(DueCall(*where, row.called, variables, one.settings))
    return calls
