"""The analyses of calls that wait in the store, and what they have found: asked for with the end of
a call, in one transaction, so that no crash loses one."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, get_args

import sqlalchemy as sa

from offhook.web.records.entries import as_json
from offhook.web.records.leases import GIVE_UP_S, claim_rows, retry_at
from offhook.web.records.outbox import Outbox
from offhook.web.records.stores.store_kind import StoreKind
from offhook.web.records.tables import analyses, analysis_criteria, calls, events

Outcome = Literal["waiting", "success", "failure", "unknown", "done", "error"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
"""Of an analysis: it waits for a model; the verdict on its criteria; "done" has none; "error": the
model gave nothing that could be used."""
VERDICTS: tuple[Outcome, ...] = ("success", "failure", "unknown")

AT_ONCE = 2
"""Maximum analyses that a process has under way."""
LEASE_S = 300.0
"""Time in s for which a process that analyses a call has it to itself."""
SETTLES_S = 2.0
"""Time in s after a call's end before it is analysed: the record of its line comes by then."""
ELSEWHERE_S = 60.0
"""Time in s after which another server may analyse a call: that one is gone, or has too many."""


@dataclass(frozen=True)
class WaitingCall:
    """A call that waits for its analysis."""

    call: str
    agent: str
    """Name of the agent by whose settings it is analysed."""
    created: float
    """Seconds since 1970."""
    attempts: int
    """With this one."""


@dataclass(frozen=True)
class Found:
    """What an analysis has found."""

    outcome: Outcome
    result: Mapping[str, Any]
    verdicts: Mapping[str, str]
    """By the names of the criteria."""
    cost: float | None
    """What the model cost; None if that is not known."""


class Analyses:
    """The analyses of one store. Methods raise StoreError if it cannot be used now."""

    def __init__(
        self,
        kind: StoreKind,
        begin: Callable[[], AbstractContextManager[sa.Connection]],
        outbox: Outbox,
        agent_of: Callable[[Sequence[str]], str],
    ) -> None:
        """`begin` opens a transaction. `agent_of` returns, of the agents of a call in their order,
        the one by whose settings it is analysed, "" if it is not."""
        self._kind, self._begin, self._outbox = kind, begin, outbox
        self._agent_of = agent_of

    # --- asked for ---

    def add(
        self,
        connection: sa.Connection,
        call: str,
        agents: Sequence[str],
        server: str,
        now: float,
    ) -> None:
        """Has a call that has ended analysed, if that is wanted. One that was analysed with all of
        its events already is left as it is; `now` is seconds since 1970."""
        if not (agent := self._agent_of(agents)):
            return
        last = connection.execute(_last(call)).scalar() or 0
        before = sa.select(analyses.c.position).where(analyses.c.call == call)
        known = connection.execute(before).scalar()
        if known is not None and known >= last:
            return
        row = {
            "call": call,
            "agent": agent,
            "server": server,
            "position": last,
            **_anew(now, now + SETTLES_S),
        }
        insert = self._kind.insert(analyses).values(row)
        changed = {name: insert.excluded[name] for name in row if name != "call"}
        connection.execute(insert.on_conflict_do_update(index_elements=["call"], set_=changed))
        _set_outcome(connection, call, "waiting")

    def ask_again(self, call: str, agents: Sequence[str], now: float) -> WaitingCall | None:
        """Has a call analysed now, by whoever asks for that and nobody else for LEASE_S. Returns
        None if none of its agents has an analysis, or its words are gone, or the caller has said
        nothing."""
        if not (agent := self._agent_of(agents)):
            return None
        with self._begin() as connection:
            usable = sa.and_(
                calls.c.id == call,
                calls.c.state == "ended",
                calls.c.forgotten.is_(None),
                calls.c.turns > 0,
            )
            server = connection.execute(sa.select(calls.c.server).where(usable)).scalar()
            if server is None:
                return None
            row = {
                "agent": agent,
                "server": server,
                "position": connection.execute(_last(call)).scalar() or 0,
                **_anew(now, now + LEASE_S),
            }
            before = sa.select(analyses.c.attempts).where(analyses.c.call == call)
            # Counted on, so that an attempt under way elsewhere is not taken for this one.
            row["attempts"] = (connection.execute(before).scalar() or 0) + 1
            insert = self._kind.insert(analyses).values({"call": call, **row})
            connection.execute(insert.on_conflict_do_update(index_elements=["call"], set_=row))
            _set_outcome(connection, call, "waiting")
        return WaitingCall(call, agent, now, row["attempts"])

    # --- done ---

    def claim(self, agents: Collection[str], server: str, now: float) -> list[WaitingCall]:
        """Returns calls that are due, of those agents, and has them to itself for LEASE_S."""
        if not agents:
            return []
        due = sa.and_(
            analyses.c.state == "waiting",
            analyses.c.next_at <= now,
            analyses.c.agent.in_(sorted(agents)),
            sa.or_(analyses.c.server == server, analyses.c.created <= now - ELSEWHERE_S),
            # One that the server has lost may go on elsewhere.
            sa.exists().where(calls.c.id == analyses.c.call, calls.c.state == "ended"),
        )
        first = sa.select(analyses.c.call).where(due).order_by(analyses.c.next_at).limit(AT_ONCE)
        values = {"next_at": now + LEASE_S, "attempts": analyses.c.attempts + 1}
        columns = [analyses.c[name] for name in ("call", "agent", "created", "attempts")]
        with self._begin() as connection:
            rows = claim_rows(connection, first, due, values, columns)
        return [WaitingCall(row.call, row.agent, row.created, row.attempts) for row in rows]

    def finish(self, waiting: WaitingCall, found: Found, now: float) -> bool:
        """Keeps what was found, and has it told. Returns False, and keeps nothing, if the call was
        forgotten meanwhile, or is another process's by now."""
        result = {**found.result, "at": datetime.fromtimestamp(now, UTC).isoformat("T", "seconds")}
        row = {"state": "done", "fault": "", "result": as_json(result)}
        with self._begin() as connection:
            if not connection.execute(_of(waiting).values(row)).rowcount:
                return False
            _set_outcome(connection, waiting.call, found.outcome, found.cost)
            of_call = analysis_criteria.c.call == waiting.call
            connection.execute(analysis_criteria.delete().where(of_call))
            began = sa.select(calls.c.started).where(calls.c.id == waiting.call)
            about = {"call": waiting.call, "started": connection.execute(began).scalar_one()}
            verdicts = [
                {"criterion": name, "verdict": verdict, **about}
                for name, verdict in found.verdicts.items()
            ]
            if verdicts:
                connection.execute(analysis_criteria.insert(), verdicts)
            self._announce(connection, waiting.call, now)
        return True

    def failed(
        self,
        waiting: WaitingCall,
        why: str,
        now: float,
        *,
        hopeless: bool = False,
        after_s: float = 0.0,
        cost: float | None = None,
    ) -> bool:
        """Has a call analysed again later, not before `after_s`; returns whether it is given up
        instead, as a `hopeless` one is at once."""
        again = None if hopeless else retry_at(waiting.created, waiting.attempts - 1, now)
        row: dict[str, Any] = {"fault": why}
        if again is None:
            row["state"] = "error"
        else:
            row["next_at"] = max(again, now + min(after_s, GIVE_UP_S))
        with self._begin() as connection:
            if connection.execute(_of(waiting).values(row)).rowcount:
                outcome: Outcome = "error" if again is None else "waiting"
                _set_outcome(connection, waiting.call, outcome, cost)
                if again is None:
                    self._announce(connection, waiting.call, now)
        return again is None

    def expire(self, now: float) -> None:
        """Gives up what no server has done in GIVE_UP_S, as their agents are gone."""
        late = sa.and_(
            analyses.c.state == "waiting",
            analyses.c.created < now - GIVE_UP_S,
            analyses.c.next_at < now,
        )
        with self._begin() as connection:
            for call in connection.scalars(sa.select(analyses.c.call).where(late)).all():
                values = {"state": "error", "fault": "no server could do it in time"}
                connection.execute(
                    analyses.update().where(analyses.c.call == call, late).values(values)
                )
                _set_outcome(connection, call, "error")

    def _announce(self, connection: sa.Connection, call: str, now: float) -> None:
        if self._outbox.wants("call.analyzed"):
            data = {"analysis": analysis_of(connection, call)}
            self._outbox.add(connection, call, "call.analyzed", data, now)


def analysis_of(connection: sa.Connection, call: str) -> dict[str, Any] | None:
    """Returns what is known of a call's analysis; None if there is none."""
    columns = [analyses.c[name] for name in ("agent", "state", "attempts", "fault", "result")]
    row = connection.execute(sa.select(*columns).where(analyses.c.call == call)).first()
    if row is None:
        return None
    outcome = sa.select(calls.c.outcome).where(calls.c.id == call)
    about = {"outcome": connection.execute(outcome).scalar(), "agent": row.agent}
    if row.state != "done":
        return {**about, "attempts": row.attempts, "fault": row.fault}
    return {**about, **json.loads(row.result)}


def drop_analyses(connection: sa.Connection, ids: Sequence[str]) -> None:
    """Deletes what was found of calls; their outcome stays."""
    connection.execute(analyses.delete().where(analyses.c.call.in_(ids)))
    connection.execute(analysis_criteria.delete().where(analysis_criteria.c.call.in_(ids)))


def _last(call: str) -> sa.Select[Any]:
    """Returns the SELECT of the position of a call's last event."""
    return sa.select(sa.func.max(events.c.position)).where(events.c.call == call)


def _anew(now: float, next_at: float) -> dict[str, Any]:
    """Returns the columns of what was not tried yet."""
    about = {"state": "waiting", "created": now, "attempts": 0, "next_at": next_at}
    return {**about, "fault": "", "result": "{}"}


def _of(waiting: WaitingCall) -> sa.Update:
    """Returns the UPDATE of a call's row while it is ours."""
    return analyses.update().where(
        analyses.c.call == waiting.call,
        analyses.c.state == "waiting",
        analyses.c.attempts == waiting.attempts,
    )


def _set_outcome(
    connection: sa.Connection, call: str, outcome: Outcome, cost: float | None = None
) -> None:
    row: dict[str, Any] = {"outcome": outcome}
    if cost is not None:
        row["analysis_cost"] = sa.func.coalesce(calls.c.analysis_cost, 0.0) + cost
    connection.execute(calls.update().where(calls.c.id == call).values(row))
