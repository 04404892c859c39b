"""Work that waits in a table: who takes it has it to itself for a while, and what has failed is
tried again later."""

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

FIRST_RETRY_S, MAX_RETRY_S = 5.0, 3600.0
"""Delay in s of the second attempt; it doubles with each further one, up to the maximum."""
GIVE_UP_S = 3 * 86_400.0
"""Time in s after which what was never done is given up."""


def retry_at(created: float, attempts: int, now: float) -> float | None:
    """Returns when work is tried again whose attempt has failed, after as many before; None:
    never. Times are seconds since 1970."""
    if now - created > GIVE_UP_S:
        return None
    return now + min(FIRST_RETRY_S * 2.0 ** min(attempts, 20), MAX_RETRY_S)


def claim_rows(
    connection: sa.Connection,
    first: sa.Select[Any],
    due: sa.ColumnElement[bool],
    values: Mapping[str, Any],
    columns: Sequence[sa.Column[Any]],
) -> Sequence[sa.Row[Any]]:
    """Changes the rows of a table whose keys `first` selects, and returns columns of those that
    are still `due`: of two processes that ask, one has each."""
    (key,) = first.selected_columns
    assert isinstance(key, sa.Column)
    keys = connection.scalars(first).all()
    if not keys:
        return []
    claimed = sa.update(key.table).where(key.in_(keys), due).values(values)
    return connection.execute(claimed.returning(*columns)).all()
