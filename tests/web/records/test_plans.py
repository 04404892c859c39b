"""How SQLite finds calls among a million: by its indexes, not by reading whole tables."""

from pathlib import Path

import pytest
import sqlalchemy as sa

from offhook.web.records.search import Search
from offhook.web.records.store import CallStore
from tests.web.records.made_calls import HERE, NOON, call_of

LOOKED_UP = (
    {"criterion": "booked"},
    {"criterion": "booked", "agent": "front"},
    {"criterion": "booked", "analysis": "failure", "agent": "front"},
    {"criterion": "booked", "text": "card"},
    {"criterion": "booked", "analysis": "failure", "text": "card"},
    {"text": "card", "agent": "front"},
)


def plan(store: CallStore, query: sa.Select[tuple[object, ...]]) -> list[str]:
    with store._engine.connect() as connection:
        compiled = query.compile(connection)
        values = tuple(compiled.params[name] for name in compiled.positiontup or ())
        rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {compiled}", values)
        return [row.detail for row in rows]


@pytest.mark.parametrize("query", LOOKED_UP)
def test_what_is_asked_of_each_call_is_looked_up_by_its_id(
    tmp_path: Path, query: dict[str, str]
) -> None:
    store = CallStore(f"sqlite:///{tmp_path}/calls.db")
    store.prepare()
    steps = plan(store, Search.of(query).select(store.kind))
    asked = steps[steps.index("CORRELATED SCALAR SUBQUERY 1") + 1]
    assert "(call=? AND " in asked
    assert "COVERING INDEX" in asked
    store.close()


def test_one_call_is_shown_and_forgotten_by_its_id(tmp_path: Path) -> None:
    store = CallStore(f"sqlite:///{tmp_path}/calls.db")
    store.prepare()
    store.write(call_of("call", "hello"), HERE, NOON)
    found: list[str] = []

    @sa.event.listens_for(store._engine, "before_cursor_execute")
    def keep(*arguments: object) -> None:
        found.append(str(arguments[2]))

    assert store.show("call") is not None
    assert store.deletion.forget_call("call", NOON).calls == 1
    sa.event.remove(store._engine, "before_cursor_execute", keep)
    with store._engine.connect() as connection:
        for statement in found:
            values = (0,) * statement.count("?")
            rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values)
            read = [row.detail for row in rows if row.detail.startswith("SCAN ")]
            assert [one for one in read if "call_words" not in one] == [], statement
    store.close()
