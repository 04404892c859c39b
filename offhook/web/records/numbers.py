"""What calls add up to: by time, agent, trunk and reason."""

from typing import Any

import sqlalchemy as sa

from offhook.web.records.analyses import VERDICTS
from offhook.web.records.tables import calls, of_tenant

MOST = 20
"""Agents, trunks and reasons that are told, those with the most calls first."""
HOUR_S, DAY_S = 3600, 86_400
HOURS_UP_TO_S = 3 * DAY_S
"""Of a longer time, days are told instead of hours."""

_SUMS: dict[str, sa.ColumnElement[Any]] = {
    "calls": sa.func.count(),
    "answered": sa.func.count(calls.c.answered),
    "seconds": sa.func.coalesce(sa.func.sum(calls.c.seconds), 0.0),
    "turns": sa.func.coalesce(sa.func.sum(calls.c.turns), 0),
    "interruptions": sa.func.coalesce(sa.func.sum(calls.c.interruptions), 0),
    "failures": sa.func.coalesce(sa.func.sum(calls.c.failures), 0),
    "cost": sa.func.sum(calls.c.cost),
    "analysis_cost": sa.func.sum(calls.c.analysis_cost),
    **{
        name: sa.func.coalesce(sa.func.sum(sa.case((calls.c.outcome == name, 1), else_=0)), 0)
        for name in VERDICTS
    },
}


def numbers(
    connection: sa.Connection, start: float, end: float, tenant: str = ""
) -> dict[str, Any]:
    """Returns what the calls that began in a time add up to, seconds since 1970; of one tenant, or
    "" for all."""
    within = sa.and_(calls.c.started >= start, calls.c.started < end, *of_tenant(calls, tenant))
    bucket_s = HOUR_S if end - start <= HOURS_UP_TO_S else DAY_S
    bucket = sa.cast(sa.func.floor((calls.c.started - start) / bucket_s), sa.Integer)
    return {
        "from": start,
        "to": end,
        "bucket_seconds": bucket_s,
        "all": {**_row(connection, within), **_latencies(connection, within)},
        "by_time": _grouped(connection, within, bucket, None),
        "by_agent": _grouped(connection, within, calls.c.agent),
        "by_trunk": _grouped(connection, within, calls.c.trunk),
        "by_edge": _grouped(connection, within, calls.c.edge),
        "by_reason": _grouped(connection, within, calls.c.end),
    }


def _row(connection: sa.Connection, within: sa.ColumnElement[bool]) -> dict[str, Any]:
    columns = [column.label(name) for name, column in _SUMS.items()]
    return _shared(connection.execute(sa.select(*columns).where(within)).mappings().one())


def _shared(row: sa.RowMapping) -> dict[str, Any]:
    """Returns sums with the share of the calls judged that were a success; None without one."""
    judged = row["success"] + row["failure"]
    share = round(row["success"] / judged, 4) if judged else None
    return {**row, "success_share": share}


def _latencies(connection: sa.Connection, within: sa.ColumnElement[bool]) -> dict[str, Any]:
    """Returns percentiles over calls: the median of calls' medians, and the slowest answer that 95
    of 100 calls stay within."""
    found: dict[str, Any] = {}
    for name, column, share in (
        ("latency_p50_ms", calls.c.latency_ms, 0.5),
        ("latency_p95_ms", calls.c.latency_max_ms, 0.95),
    ):
        of_calls = sa.and_(within, column.is_not(None))
        number = connection.execute(
            sa.select(sa.func.count()).select_from(calls).where(of_calls)
        ).scalar_one()
        offset = min(int(number * share), max(0, number - 1))
        found[name] = connection.execute(
            sa.select(column).where(of_calls).order_by(column).limit(1).offset(offset)
        ).scalar()
    return found


def _grouped(
    connection: sa.Connection,
    within: sa.ColumnElement[bool],
    by: sa.ColumnElement[Any],
    most: int | None = MOST,
) -> list[dict[str, Any]]:
    columns = [column.label(name) for name, column in _SUMS.items()]
    found = sa.select(by.label("of"), *columns).where(within).group_by(sa.text("1"))
    found = found.order_by(sa.text("1") if most is None else sa.text("2 DESC"))
    return [_shared(row) for row in connection.execute(found.limit(most)).mappings()]
