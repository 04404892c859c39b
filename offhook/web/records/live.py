"""The calls in progress at all servers that share a store, looked at again and again."""

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any, TypeVar

import sqlalchemy as sa

from offhook.web.records.campaigns.rows import under_way
from offhook.web.records.listing import listed
from offhook.web.records.live_look import FOLLOWED, AgentSums, Followed, LiveLook
from offhook.web.records.search import LISTED
from offhook.web.records.tables import call_agents, calls, events, of_tenant

Id = TypeVar("Id")

MAX_CALLS = 500
"""Maximum calls that are followed, those that began last; the others are only counted."""
MAX_CAMPAIGNS = 20
"""Maximum campaigns that are followed, those that began last."""
MAX_EVENTS = 2000
"""Maximum events of one look; the rest comes with the next."""
MAX_AGENTS = 500
"""Maximum agents whose calls are added up, by name; the others are not shown."""
AT_ONCE = 100
"""Calls of one statement."""


class LiveReader:
    """Reads calls in progress. Methods raise StoreError if the store cannot be used now."""

    def __init__(self, begin: Callable[[], AbstractContextManager[sa.Connection]]) -> None:
        """`begin` opens a transaction."""
        self._begin = begin

    def look(
        self, known: Mapping[str, int], campaigns: Collection[str] = (), tenant: str = ""
    ) -> LiveLook:
        """Returns what has happened in the calls of a tenant, "" for all. `known` are the calls of
        the look before, each with the position of its last event, -1 for none; `campaigns` those
        that were under way."""
        is_live = sa.and_(calls.c.state == "live", *of_tenant(calls, tenant))
        with self._begin() as connection:
            found = sa.select(*LISTED).where(is_live).order_by(calls.c.started.desc())
            rows = connection.execute(found.limit(MAX_CALLS)).mappings().all()
            number = len(rows)
            if number == MAX_CALLS:
                counted = sa.select(sa.func.count()).select_from(calls).where(is_live)
                number = connection.execute(counted).scalar_one()
            there = {row["id"] for row in rows}
            gone = [call for call in known if call not in there]
            new = [row["id"] for row in rows if row["id"] not in known]
            happened = [*_last_of(connection, new), *_since(connection, known)]
            over = _ended(connection, gone)
            progress = under_way(connection, campaigns, MAX_CAMPAIGNS, tenant)
        return LiveLook([listed(row) for row in rows], number, happened, over, progress)

    def agents(self, start: float) -> dict[str, AgentSums]:
        """Returns the agents that have calls now, or had any that began since then, seconds since
        1970; by name."""
        sums: dict[str, AgentSums] = defaultdict(AgentSums)
        with self._begin() as connection:
            is_live = calls.c.state == "live"
            last = calls.c.started.desc()
            found = sa.select(calls.c.id, calls.c.agent).where(is_live).order_by(last)
            now: dict[str, str] = {c: a for c, a in connection.execute(found.limit(MAX_CALLS))}
            for event in _last_of(connection, list(now), ("agent_changed",)):
                now[event.call] = event.fields["agent"]
            for agent in now.values():
                sums[agent].in_progress += 1
            names = _agents(connection)
            for agent, number, failures in connection.execute(_sums(names, start)):
                sums[agent].calls, sums[agent].failures = number, failures
            for agent, latency in connection.execute(_medians(names, start)):
                sums[agent].latency_p50_ms = latency
        return dict(sums)


def _parts(ids: Iterable[Id]) -> Iterator[list[Id]]:
    """Yields AT_ONCE of them at a time."""
    left = iter(ids)
    while some := list(islice(left, AT_ONCE)):
        yield some


def _agents(connection: sa.Connection) -> list[str]:
    """Returns the names of agents that have had calls, each by a look into the index: to read the
    distinct ones of all calls takes long."""
    names: list[str] = []
    while len(names) < MAX_AGENTS:
        after = call_agents.c.agent > (names[-1] if names else "")
        found = sa.select(sa.func.min(call_agents.c.agent)).where(after)
        name = connection.execute(found).scalar()
        if name is None:
            break
        names.append(name)
    return names


def _of(names: Sequence[str], start: float) -> sa.ColumnElement[bool]:
    return sa.and_(call_agents.c.agent.in_(names), call_agents.c.started >= start)


def _sums(names: Sequence[str], start: float) -> sa.Select[Any]:
    """Selects each agent with the number of its calls and their failures."""
    of_call = calls.c.id == call_agents.c.call
    return (
        sa.select(call_agents.c.agent, sa.func.count(), sa.func.sum(calls.c.failures))
        .join(calls, of_call)
        .where(_of(names, start))
        .group_by(call_agents.c.agent)
    )


def _medians(names: Sequence[str], start: float) -> sa.Select[Any]:
    """Selects each agent with the lower median of its calls' latencies."""
    agent = call_agents.c.agent
    place = sa.func.row_number().over(partition_by=agent, order_by=calls.c.latency_ms)
    ranked = (
        sa.select(
            call_agents.c.agent,
            calls.c.latency_ms,
            place.label("place"),
            sa.func.count().over(partition_by=agent).label("number"),
        )
        .join(calls, calls.c.id == call_agents.c.call)
        .where(_of(names, start), calls.c.latency_ms.is_not(None))
        .subquery()
    )
    is_middle = 2 * ranked.c.place - ranked.c.number
    return sa.select(ranked.c.agent, ranked.c.latency_ms).where(is_middle.in_((0, 1)))


def _last_of(
    connection: sa.Connection, ids: Sequence[str], kinds: Sequence[str] = FOLLOWED
) -> list[Followed]:
    """Returns the last event of each of these kinds in these calls."""
    found: list[Followed] = []
    for some in _parts(ids):
        of_kind = (
            sa.select(
                events.c.call,
                sa.func.max(events.c.position).label("at"),
                sa.func.count().label("number"),
            )
            .where(events.c.call.in_(some), events.c.kind.in_(kinds))
            .group_by(events.c.call, events.c.kind)
            .subquery()
        )
        is_it = sa.and_(events.c.call == of_kind.c.call, events.c.position == of_kind.c.at)
        rows = connection.execute(
            sa.select(*_COLUMNS, of_kind.c.number).join(of_kind, is_it).order_by(*_ORDER)
        )
        found += (_followed(row) for row in rows)
    return found


def _since(connection: sa.Connection, positions: Mapping[str, int]) -> list[Followed]:
    """Returns the events of calls after these positions."""
    found: list[Followed] = []
    for some in _parts(positions.items()):
        later = (sa.and_(events.c.call == c, events.c.position > at) for c, at in some)
        rows = connection.execute(
            sa.select(*_COLUMNS, sa.literal(1))
            .where(sa.or_(*later), events.c.kind.in_(FOLLOWED))
            .order_by(*_ORDER)
            .limit(MAX_EVENTS - len(found))
        )
        found += (_followed(row) for row in rows)
    return found


_COLUMNS = (events.c.call, events.c.position, events.c.at_ms, events.c.kind, events.c.fields)
_ORDER = (events.c.call, events.c.position)


def _followed(row: Any) -> Followed:
    call, position, at_ms, kind, fields, number = row
    return Followed(call, position, at_ms, kind, json.loads(fields), number)


def _ended(connection: sa.Connection, ids: Sequence[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for some in _parts(ids):
        is_it = sa.and_(calls.c.id.in_(some), calls.c.state == "ended")
        rows = connection.execute(sa.select(*LISTED).where(is_it)).mappings()
        found += map(listed, rows)
    return found
