"""SQLite: one file, which all processes of a server write to."""

import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from offhook.web.records.errors import StoreError
from offhook.web.records.stores.store_kind import StoreKind
from offhook.web.records.tables import calls

BUSY_S = 5.0
"""How long in s a write waits for that of another process."""
CACHE_KIB = 8192
"""Pages of the file kept in memory, a connection."""


def _open(url: str) -> sa.Engine:
    address = sa.make_url(url)
    if not address.database or address.database == ":memory:":
        raise StoreError(f"{url} names no file: write sqlite:///calls.db, or a path after ///")
    path = Path(address.database)
    if not path.exists():  # whoever calls whom is nobody else's business
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    engine = sa.create_engine(address, connect_args={"timeout": BUSY_S})
    sa.event.listen(engine, "connect", _set_up)
    return engine


def _set_up(connection: sqlite3.Connection, _: Any) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    # A power cut may cost the last moments, and never the file.
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA secure_delete = ON")
    connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")


_words = sa.table("call_words", sa.column("rowid", sa.Integer), sa.column("words", sa.Text))


def _with_words(found: sa.Select[Any], words: Sequence[str]) -> sa.Select[Any]:
    quoted = (f'"{word.rstrip("*")}"{"*" if word.endswith("*") else ""}' for word in words)
    matches = sa.text("call_words MATCH :match").bindparams(match=" ".join(quoted))
    return found.join(_words, _words.c.rowid == calls.c.number).where(matches)


def _erase(engine: sa.Engine) -> None:
    """The index keeps deleted words until its parts are merged, and the log of writes has them
    until it is emptied."""
    with engine.begin() as connection:
        connection.exec_driver_sql("INSERT INTO call_words(call_words) VALUES('optimize')")
    with engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")


def _size(connection: sa.Connection) -> int:
    pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
    return int(pages * connection.exec_driver_sql("PRAGMA page_size").scalar_one())


SQLITE = StoreKind(
    title="SQLite",
    open=_open,
    insert=insert,
    create=(
        "CREATE VIRTUAL TABLE IF NOT EXISTS call_words USING fts5("
        "words, tokenize = 'unicode61 remove_diacritics 2')",
    ),
    add_words=(
        "INSERT OR REPLACE INTO call_words(rowid, words) "
        "SELECT number, :words FROM calls WHERE id = :id"
    ),
    drop_words="DELETE FROM call_words WHERE rowid = (SELECT number FROM calls WHERE id = :id)",
    with_words=_with_words,
    words_order=_words.c.rowid,
    erase=_erase,
    size=_size,
    shared=False,
)
