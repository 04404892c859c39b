"""What the store has to know of a database beyond the SQL that all of them share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa


@dataclass(frozen=True)
class StoreKind:
    """A database that calls can be kept in. Another package offers one as an entry point of the
    group `offhook.stores`, named as the scheme of its URLs."""

    title: str
    """As shown to people."""
    open: Callable[[str], sa.Engine]
    """Returns an engine for a URL of the configuration. Raises StoreError if a package is
    missing."""
    insert: Callable[[sa.Table], Any]
    """SQLAlchemy's INSERT of this database, with `on_conflict_do_update` and `_do_nothing`."""
    create: tuple[str, ...]
    """Statements that create the index of words, if it is not there."""
    add_words: str
    """Puts the words `:words` of the call `:id` into the index, in place of those before."""
    drop_words: str
    """Takes the words of the call `:id` out of the index."""
    with_words: Callable[[sa.Select[Any], Sequence[str]], sa.Select[Any]]
    """Narrows a SELECT of `calls` down to those in which all these words were said; a word that
    ends in * is the beginning of one."""
    words_order: sa.ColumnElement[int] | None
    """The column by which calls with certain words are found the last first without sorting them
    all, in place of when they began: as good as in that order. None: the database sorts well."""
    erase: Callable[[sa.Engine], None]
    """Makes what was deleted disappear from the files of the database too."""
    size: Callable[[sa.Connection], int]
    """Bytes that the database takes."""
    shared: bool
    """Whether several servers can use it."""
    few: Callable[[sa.Connection, Sequence[str]], Sequence[int] | None] | None = None
    """Returns the numbers of all calls with certain words, None if these are many: for a database
    that does not know beforehand how rare a word is, and would look through all calls for one."""
