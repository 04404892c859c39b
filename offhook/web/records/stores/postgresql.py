"""PostgreSQL: one database for any number of servers."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from offhook.web.records.errors import StoreError
from offhook.web.records.stores.store_kind import StoreKind
from offhook.web.records.tables import METADATA, calls

CONNECT_S = 5
"""Time limit in s of a connection."""
STATEMENT_S = 30
"""Time limit in s of a statement, so that no search goes on for ever."""
FEW = 1000
"""Calls with certain words up to which all of them are sorted; of more, some are soon found among
the last calls."""


def _open(url: str) -> sa.Engine:
    try:
        import psycopg  # noqa: F401
    except ModuleNotFoundError as error:
        words = "PostgreSQL needs the psycopg package: run .venv/bin/pip install 'psycopg[binary]'"
        raise StoreError(words) from error
    address = sa.make_url(url).set(drivername="postgresql+psycopg")
    # A plan for any word is none for a rare one, nor for a common one.
    options = f"-c statement_timeout={STATEMENT_S * 1000} -c plan_cache_mode=force_custom_plan"
    return sa.create_engine(
        address,
        pool_pre_ping=True,
        connect_args={"connect_timeout": CONNECT_S, "options": options},
    )


def _with_words(found: sa.Select[Any], words: Sequence[str]) -> sa.Select[Any]:
    quoted = (
        f"'{word.rstrip('*')}'{':*' if word.endswith('*') else ''}".replace("\\", "\\\\")
        for word in words
    )
    matches = sa.text("calls.words @@ to_tsquery('simple', :match)")
    return found.where(matches.bindparams(match=" & ".join(quoted)))


def _few(connection: sa.Connection, words: Sequence[str]) -> Sequence[int] | None:
    numbers = _with_words(sa.select(calls.c.number), words).limit(FEW + 1)
    found = connection.scalars(numbers).all()
    return found if len(found) <= FEW else None


def _erase(engine: sa.Engine) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("SET statement_timeout = 0")
        connection.exec_driver_sql(f"VACUUM {', '.join(METADATA.tables)}")


def _size(connection: sa.Connection) -> int:
    tables = ("calls", "call_events", "call_agents")
    total = " + ".join(f"pg_total_relation_size('{table}')" for table in tables)
    return int(connection.exec_driver_sql(f"SELECT {total}").scalar_one())


POSTGRESQL = StoreKind(
    title="PostgreSQL",
    open=_open,
    insert=insert,
    create=(
        "ALTER TABLE calls ADD COLUMN IF NOT EXISTS words tsvector",
        "CREATE INDEX IF NOT EXISTS calls_words ON calls USING gin (words)",
    ),
    add_words="UPDATE calls SET words = to_tsvector('simple', :words) WHERE id = :id",
    drop_words="UPDATE calls SET words = NULL WHERE id = :id",
    with_words=_with_words,
    words_order=None,
    erase=_erase,
    size=_size,
    shared=True,
    few=_few,
)
"""The index has words as they are written, without stems: it does not know a call's language."""
