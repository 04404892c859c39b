"""A store that an older offhook has written is brought up to date, with the calls in it."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa

from offhook.web.campaigns.recipients import recipient
from offhook.web.records.errors import StoreError
from offhook.web.records.search import Search
from offhook.web.records.store import CallStore
from offhook.web.records.tables import VERSION
from tests.web.records.made_calls import HERE, NOON, call_of

VERSION_1 = Path(__file__).parent / "version_1"
CALL = """
INSERT INTO calls (id, state, server, process, edge, direction, caller, caller_name, called,
caller_key, called_key, trunk, agent, started, answered, ended, seconds, "end", end_reason,
ended_by, turns, interruptions, failures, input_tokens, output_tokens, transferred_to, recording,
details)
VALUES ('old', 'ended', 'here:7860', 1, 'sip', 'inbound', '+49301234567', 'Ada', '100',
'76543210394', '001', 'line', 'front', 1789999000, 1789999000, 1789999020, 20,
'the caller hung up', 'the caller hung up', 'remote', 1, 0, 0, 5, 3, '', '',
'{"variables": {"order": 7}}')
"""


def old_store(url: str) -> None:
    """A store of version 1 with a call in it."""
    store = CallStore(url)
    name = "sqlite" if url.startswith("sqlite") else "postgresql"
    statements = (VERSION_1 / f"{name}.sql").read_text().split(";\n")
    with store._engine.begin() as connection:
        for statement in (*filter(str.strip, statements), *store.kind.create, CALL):
            connection.exec_driver_sql(statement)
        connection.exec_driver_sql(
            "INSERT INTO call_events (call, position, at_ms, kind, fields) VALUES "
            """('old', 0, 900, 'caller_turn', '{"turn": 1, "text": "my card is lost"}')"""
        )
        connection.exec_driver_sql(
            "INSERT INTO call_agents (agent, started, call) VALUES ('front', 1789999000, 'old')"
        )
        connection.exec_driver_sql("INSERT INTO offhook_version (version) VALUES (1)")
        connection.execute(sa.text(store.kind.add_words), {"id": "old", "words": "my card is lost"})
    store.close()


def check(store: CallStore) -> None:
    """The old call is whole, and a new one can be written."""
    call = store.show("old")
    assert call is not None
    assert (call["outcome"], call["analysis_cost"], call["turns"]) == ("", None, 1)
    assert (call["tenant"], store.campaigns.listed()) == ("", [])
    assert call["variables"] == {"order": 7}
    assert "analysis" not in call
    store.write(call_of("new", "my card is lost"), HERE, NOON)
    for query in ({"text": "card"}, {"agent": "front"}, {"number": "1234567"}):
        assert [one["call_id"] for one in store.find(Search.of(query))[0]] == ["new", "old"]
    assert store.deletion.forget_call("old", NOON).calls == 1


def version_of(store: CallStore) -> list[int]:
    with store._begin() as connection:
        found = connection.exec_driver_sql("SELECT version FROM offhook_version")
        return [row.version for row in found]


def test_a_store_of_version_1_goes_on_with_its_calls(url: str) -> None:
    old_store(url)
    store = CallStore(url)
    store.prepare()
    store.prepare()
    assert version_of(store) == [VERSION]
    check(store)
    store.close()


def test_servers_that_start_together_bring_it_up_to_date_once(url: str) -> None:
    old_store(url)
    stores = [CallStore(url) for _ in range(4)]

    def prepare(store: CallStore) -> None:
        while True:
            try:
                return store.prepare()
            except StoreError:  # the writer tries again too
                continue

    with ThreadPoolExecutor(len(stores)) as threads:
        list(threads.map(prepare, stores))
    assert version_of(stores[0]) == [VERSION]
    check(stores[0])
    for store in stores:
        store.close()


def test_calls_and_campaigns_of_before_there_were_tenants_are_nobodys(url: str) -> None:
    store = CallStore(url)
    store.prepare()
    store.write(call_of("old", "hello"), HERE, NOON)
    store.campaigns.add("spring", {}, [recipient("+49171")], NOON)
    with store._begin() as connection:
        for table in ("calls", "campaigns"):
            connection.exec_driver_sql(f"DROP INDEX {table}_tenant")
            connection.exec_driver_sql(f"ALTER TABLE {table} DROP COLUMN tenant")
        connection.exec_driver_sql("UPDATE offhook_version SET version = 3")
    store.prepare()
    assert store.campaigns.tenant_of("spring") == ""
    store.write(call_of("new", "hello", tenant="acme"), HERE, NOON)
    for tenant, found in (("acme", ["new"]), ("", ["new", "old"])):
        kept = store.find(Search(tenant=tenant))[0]
        assert sorted(call["call_id"] for call in kept) == found
    store.close()


def test_an_old_store_has_the_indexes_of_a_new_one(url: str, tmp_path: Path) -> None:
    old_store(url)
    store = CallStore(url)
    store.prepare()
    fresh = CallStore(f"sqlite:///{tmp_path}/fresh.db")
    fresh.prepare()
    for table in ("calls", "call_agents", "analyses", "analysis_criteria", "campaigns"):
        found = [
            {index["name"] for index in sa.inspect(one._engine).get_indexes(table)}
            for one in (store, fresh)
        ]
        assert found[0] - {"calls_words", "calls_id_key"} == found[1]
        columns = [
            {column["name"] for column in sa.inspect(one._engine).get_columns(table)} - {"words"}
            for one in (store, fresh)
        ]
        assert columns[0] == columns[1]
    store.close()
    fresh.close()


def test_a_store_of_a_newer_offhook_is_left_alone(url: str) -> None:
    store = CallStore(url)
    store.prepare()
    with store._begin() as connection:
        connection.exec_driver_sql(f"UPDATE offhook_version SET version = {VERSION + 1}")
    with pytest.raises(StoreError, match="newer offhook"):
        store.prepare()
    store.close()
