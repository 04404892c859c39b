"""The store of calls, in a file of SQLite and in a PostgreSQL server."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offhook.telephony.call_record import CallRecord
from offhook.web.records.entries import Happened, Recorded, digits_key
from offhook.web.records.errors import SearchError, StoreError
from offhook.web.records.search import Search
from offhook.web.records.store import CRASHED, CallStore, Writer, rehearse
from offhook.web.records.stores import postgresql
from tests.web.records.made_calls import (
    HERE,
    NOON,
    RECORD,
    begun,
    call_of,
    over,
    said,
)

THERE = Writer("there:7860")


@pytest.fixture
def store(url: str) -> Iterator[CallStore]:
    store = CallStore(url)
    store.prepare()
    yield store
    store.close()


def ids(store: CallStore, **query: str) -> list[str]:
    return [call["call_id"] for call in store.find(Search.of(query))[0]]


def test_what_was_said_and_done_is_there(store: CallStore) -> None:
    store.write(call_of("call", "my card is lost", "thank you", variables={"order": 7}), HERE, NOON)
    call = store.show("call")
    assert call is not None
    assert (call["state"], call["caller"], call["called"]) == ("ended", "+49 30 1234567", "100")
    assert (call["turns"], call["latency_ms"], call["latency_max_ms"]) == (2, 400, 401)
    assert (call["agents"], call["variables"]) == (["front"], {"order": 7})
    assert (call["end_reason"], call["seconds"], call["mos"]) == ("the caller hung up", 20, 4.2)
    assert call["started"] == "2026-09-21T14:13:20.000+00:00"
    timeline = store.timeline("call")
    assert [e["text"] for e in timeline if e["event"] == "caller_turn"] == [
        "my card is lost",
        "thank you",
    ]
    assert store.show("another") is None
    assert store.timeline("another") == []


@pytest.mark.parametrize("recorded_at", [0, 4, 5])
def test_a_phone_call_is_found_by_words_of_an_agent_and_page_by_page(
    store: CallStore, recorded_at: int
) -> None:
    for number in range(3):
        entries = call_of(f"c{number}", "my card is lost", at=NOON)
        record = replace(RECORD, call_id=f"c{number}")  # which began before it was answered
        entries.insert(recorded_at, Recorded(record, "the caller hung up"))
        store.write(entries, HERE, NOON)
    assert ids(store, text="card", agent="front") == ["c2", "c1", "c0"]
    found, cursor = store.find(Search(agent="front", limit=1))
    while cursor:
        more, cursor = store.find(Search(agent="front", limit=1, cursor=cursor))
        found += more
    assert [call["call_id"] for call in found] == ["c2", "c1", "c0"]


def test_words_of_many_calls_and_of_few_are_found_alike(
    store: CallStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql, "FEW", 2)
    for number in range(3):
        store.write(call_of(f"c{number}", "my card is lost", at=NOON + number), HERE, NOON)
    store.write(call_of("rare", "a zebra", at=NOON + 9), HERE, NOON)
    assert ids(store, text="card") == ["c2", "c1", "c0"]
    assert ids(store, text="zebra") == ids(store, text="zeb*", agent="front") == ["rare"]
    assert ids(store, text="zebra", to="2026-09-21T14:13:20") == ids(store, text="giraffe") == []


def test_a_call_in_progress_is_there_with_what_was_said(store: CallStore) -> None:
    store.write([begun("call"), said("call", 0, "caller", "hello")], HERE, NOON)
    assert ids(store, state="live") == ["call"]
    assert [event["text"] for event in store.timeline("call")] == ["hello"]


def test_a_phone_call_has_its_record_whichever_comes_first(store: CallStore) -> None:
    for name, order in (("a", 1), ("b", -1)):
        last = [over(name), Recorded(_record(name), "the caller hung up")]
        store.write([begun(name), said(name, 0, "caller", "hello"), *last[::order]], HERE, NOON)
        call = store.show(name)
        assert call is not None
        assert (call["seconds"], call["ended_by"], call["turns"]) == (20.0, "remote", 1)
        assert call["started"] == "2026-09-21T14:13:18.000+00:00"
        assert call["record"]["remote_call_id"] == "x@far"
        assert call["statistics"] == {"mos": 4.2, "packets_lost": 3}


def test_a_call_that_reached_no_agent_is_there(store: CallStore) -> None:
    store.write([Recorded(_record("busy"), "busy")], HERE, NOON)
    assert ids(store, reason="busy") == ["busy"]


def test_a_rehearsal_leaves_nothing(store: CallStore) -> None:
    rehearse(store, HERE)
    assert ids(store) == []
    store.write(call_of("call", "hello"), HERE, NOON)
    rehearse(store, HERE)
    assert ids(store) == ids(store, text="hello") == ["call"]


def test_entries_that_come_again_change_nothing(store: CallStore) -> None:
    entries = call_of("call", "hello", "goodbye")
    store.write(entries, HERE, NOON)
    once = store.show("call"), store.timeline("call")
    store.write(entries, HERE, NOON)
    assert (store.show("call"), store.timeline("call")) == once
    assert ids(store, text="hello") == ["call"]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({}, "cba"),
        ({"text": "card"}, "a"),
        ({"text": "MY Card"}, "a"),
        ({"text": "car"}, ""),
        ({"text": "car*"}, "ba"),
        ({"text": "card carpet"}, ""),
        ({"number": "+49 30 1234567"}, "ca"),
        ({"number": "0301234567"}, "ca"),
        ({"number": "1234567"}, "ca"),
        ({"number": "4567"}, "ca"),
        ({"number": "200"}, "b"),
        ({"agent": "front"}, "ca"),
        ({"agent": "billing"}, "b"),
        ({"agent": "nobody"}, ""),
        ({"trunk": "line", "edge": "sip"}, "ca"),
        ({"edge": "webrtc"}, "b"),
        ({"from": "2026-09-21T14:13:30"}, "cb"),
        ({"to": "2026-09-21T14:13:30Z"}, "a"),
        ({"from": "2026-09-21", "to": "2026-09-21T16:13:40+02:00", "agent": "billing"}, ""),
        ({"min_latency": "400"}, "cba"),
        ({"min_latency": "401"}, "c"),
        ({"min_seconds": "21"}, ""),
        ({"reason": "the caller hung up"}, "cba"),
        ({"reason": "the agent"}, ""),
        ({"failed": "true"}, ""),
        ({"state": "live"}, ""),
    ],
)
def test_calls_are_found(url: str, query: dict[str, str], found: str) -> None:
    store = CallStore(url)
    store.prepare()
    store.write(call_of("a", "my card is lost"), HERE, NOON)
    other = {"edge": "webrtc", "caller": "", "called": "200", "trunk": ""}
    carpet = call_of("b", "a carpet", at=NOON + 20, **other)
    carpet[0] = begun("b", NOON + 20, "billing", **other)
    store.write(carpet, HERE, NOON)
    store.write(call_of("c", "hello", "goodbye", at=NOON + 40), HERE, NOON)
    assert ids(store, **query) == list(found)
    store.close()


@pytest.mark.parametrize(
    "query",
    [
        *({"form": "1"}, {"from": "yesterday"}, {"limit": "0"}, {"limit": "1001"}),
        *(
            {"text": "?!"},
            {"text": "a " * 21},
            {"number": "12"},
            {"cursor": "x"},
            {"state": "dead"},
        ),
        *({"cursor": "WzEsMiwzXQ"}, {"failed": "yes"}, {"min_latency": "-1"}, {"agent": "a" * 201}),
    ],
)
def test_a_search_that_makes_no_sense_is_refused(store: CallStore, query: dict[str, str]) -> None:
    with pytest.raises(SearchError):
        store.find(Search.of(query))


def test_pages_have_every_call_once(store: CallStore) -> None:
    for number in range(25):  # five begin at the same time
        store.write(call_of(f"c{number:02}", "hello", at=NOON + number // 5), HERE, NOON)
    for query in ({}, {"agent": "front"}, {"text": "hello"}, {"number": "1234567"}):
        seen, cursor = [], ""
        while True:
            calls, cursor = store.find(Search.of({**query, "limit": "4", "cursor": cursor}))
            seen += [call["call_id"] for call in calls]
            if not cursor:
                break
        assert seen == [f"c{number:02}" for number in reversed(range(25))]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.text(max_size=60))
def test_any_words_are_kept_and_looked_for(store: CallStore, text: str) -> None:
    store.write(
        [begun("any", caller=text), Happened("any", 0, 0, "caller_turn", {"text": text})],
        HERE,
        NOON,
    )
    store.write([over("any")], HERE, NOON)
    try:
        store.find(Search.of({"text": text}))
    except SearchError:
        return
    assert ids(store, number=text) in (["any"], []) if digits_key(text) else True


def test_agents_that_took_the_call_over_are_found(store: CallStore) -> None:
    changed = Happened("call", 0, 500, "agent_changed", {"agent": "billing", "before": "front"})
    store.write([begun("call"), changed, over("call")], HERE, NOON)
    assert ids(store, agent="billing") == ids(store, agent="front") == ["call"]


# --- processes that are gone ---


def test_the_calls_of_a_process_that_was_killed_are_over_when_it_starts(store: CallStore) -> None:
    store.seen(HERE, NOON)
    store.seen(THERE, NOON)
    store.write([begun("mine"), said("mine", 0, "caller", "my card", at_ms=7000)], HERE, NOON)
    store.write([begun("theirs")], THERE, NOON)
    assert store.close_lost(NOON + 9, 60, HERE) == ["mine"]
    call = store.show("mine")
    assert call is not None
    assert (call["end_reason"], call["seconds"], call["turns"]) == (CRASHED, 7.0, 1)
    assert ids(store, text="card") == ["mine"]
    assert ids(store, state="live") == ["theirs"]
    assert store.close_lost(NOON + 59, 60) == []
    assert store.close_lost(NOON + 61, 60) == ["theirs"]  # by any server, if it never comes back


def test_a_call_that_goes_on_at_another_server_is_that_ones(store: CallStore) -> None:
    store.seen(HERE, NOON)
    store.write([begun("call"), said("call", 0, "caller", "hello")], HERE, NOON)
    store.close_lost(NOON + 1, 60, HERE)
    store.write(
        [begun("call", NOON + 5), said("call", 10_000_000, "caller", "still here", at_ms=1)],
        THERE,
        NOON,
    )
    assert ids(store, state="live") == ["call"]
    store.write([over("call", NOON + 30)], THERE, NOON)
    call = store.show("call")
    assert call is not None
    assert (call["end_reason"], call["seconds"], call["turns"]) == ("the caller hung up", 30.0, 2)
    assert [event["text"] for event in store.timeline("call")] == ["hello", "still here"]


# --- what cannot be used ---


def test_a_store_of_a_newer_version_is_left_alone(store: CallStore) -> None:
    with store._engine.begin() as connection:
        connection.execute(sa.text("UPDATE offhook_version SET version = 99"))
    with pytest.raises(StoreError, match="newer offhook"):
        store.prepare()


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("mysql://host/calls", "mysql: calls cannot be kept in that"),
        ("sqlite://", "names no file"),
        ("sqlite:////proc/nothing/calls.db", "proc"),
    ],
)
def test_a_url_of_nothing_is_refused(url: str, why: str) -> None:
    with pytest.raises((StoreError, OSError), match=why):
        CallStore(url).prepare()


def test_a_password_is_not_told() -> None:
    store = CallStore("postgresql://offhook:verysecret@127.0.0.1:1/calls")
    with pytest.raises(StoreError) as fault:
        store.prepare()
    assert "verysecret" not in f"{fault.value} {store.place}"


def test_a_file_is_nobody_elses(tmp_path: Path) -> None:
    store = CallStore(f"sqlite:///{tmp_path}/new/calls.db")
    store.prepare()
    assert (tmp_path / "new/calls.db").stat().st_mode & 0o077 == 0
    store.close()


def _record(call: str) -> CallRecord:
    return replace(RECORD, call_id=call)
