"""Webhooks about calls: at least once, in order for each call, for as long as it takes."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from offhook.web.campaigns.recipients import recipient
from offhook.web.records.entries import Happened, Recorded, RecordingReady, TrunkTurned
from offhook.web.records.leases import GIVE_UP_S
from offhook.web.records.outbox import Outbox
from offhook.web.records.store import CallStore
from offhook.web.records.webhooks import AT_ONCE, LEASE_S, Receiver
from offhook.web.records.writing.spool import entries_of, lines_of
from tests.web.records.made_calls import HERE, NOON, RECORD, begun, call_of, over, said

CRM, SCREEN = "https://crm.example/hook", "https://screen.example/hook"


def opened(url: str, *more: str) -> CallStore:
    receivers = (
        Receiver(CRM, ("s" * 16,), frozenset({"call.started", "call.ended", *more})),
        Receiver(SCREEN, ("s" * 16,), frozenset({"turn.caller", "turn.agent"})),
    )
    store = CallStore(url, receivers)
    store.prepare()
    return store


@pytest.fixture
def store(url: str) -> Iterator[CallStore]:
    store = opened(url)
    yield store
    store.close()


def taken(outbox: Outbox, url: str, now: float = NOON) -> list[tuple[str, dict[str, object]]]:
    """What a receiver that takes everything gets, in order."""
    got = []
    while due := outbox.claim(url, now):
        for delivery in due:
            body = json.loads(delivery.body)
            got.append((body["type"], body["data"]))
            outbox.delivered(delivery)
    return got


def test_a_call_is_told_from_its_beginning_to_its_end(store: CallStore) -> None:
    store.write(call_of("call", "hello", "goodbye", edge="webrtc"), HERE, NOON)
    events = taken(store.outbox, CRM)
    assert [event for event, _ in events] == ["call.started", "call.ended"]
    started, ended = (data for _, data in events)
    assert (started["state"], ended["state"], ended["turns"]) == ("live", "ended", 2)
    assert [e["text"] for e in ended["timeline"] if e["event"] == "caller_turn"] == [
        "hello",
        "goodbye",
    ]
    turns = taken(store.outbox, SCREEN)
    assert [(event, data["text"]) for event, data in turns] == [
        ("turn.caller", "hello"),
        ("turn.agent", "you say hello"),
        ("turn.caller", "goodbye"),
        ("turn.agent", "you say goodbye"),
    ]
    assert all(data["call_id"] == "call" for _, data in (*events, *turns))


def test_the_end_of_a_phone_call_is_told_once_with_its_record(store: CallStore) -> None:
    record = Recorded(RECORD, "the caller hung up")
    for last in ([over("call"), record], [record, over("call")]):
        store.write([begun("call"), said("call", 0, "caller", "hello")], HERE, NOON)
        for entry in last:
            store.write([entry], HERE, NOON)
        ends = [data for event, data in taken(store.outbox, CRM) if event == "call.ended"]
        assert len(ends) == 1
        assert ends[0]["record"]["remote_call_id"] == "x@far"
        assert ends[0]["statistics"]["mos"] == 4.2
        store.deletion.expire_calls(NOON + 10**6, NOON)


def test_a_call_that_nobody_answered_is_told_too(store: CallStore) -> None:
    store.write([Recorded(RECORD, "busy")], HERE, NOON)
    assert [event for event, _ in taken(store.outbox, CRM)] == ["call.ended"]


def test_the_call_of_a_process_that_was_killed_is_told(store: CallStore) -> None:
    store.seen(HERE, NOON)
    store.write([begun("call")], HERE, NOON)
    store.close_lost(NOON + 5, 60, HERE)
    *_, (event, data) = taken(store.outbox, CRM, NOON + 5)
    assert (event, data["end_reason"]) == ("call.ended", "the server stopped")


def test_what_fails_is_tried_again_in_order_and_later_each_time(store: CallStore) -> None:
    store.write(call_of("call", "hello", edge="webrtc"), HERE, NOON)
    store.write(call_of("other", "hello", edge="webrtc"), HERE, NOON)
    now, pauses = NOON, []
    first = {d.id for d in store.outbox.claim(CRM, now)}
    assert len(first) == 2  # of each call the first
    now += LEASE_S
    while True:
        due = [
            d
            for d in store.outbox.claim(CRM, now)
            if json.loads(d.body)["data"]["call_id"] == "call"
        ]
        assert len(due) == 1
        if store.outbox.failed(due[0], "HTTP 500", now):
            break
        [waits] = [row for row in _rows(store) if row["id"] == due[0].id]
        pauses.append(waits["next_at"] - now)
        now = waits["next_at"]
    assert pauses[:4] == [5, 10, 20, 40]
    assert max(pauses) == 3600
    assert now - NOON > GIVE_UP_S
    [dead] = [row for row in store.outbox.waiting() if row["state"] == "dead"]
    assert (dead["event"], dead["call"], dead["fault"]) == ("call.started", "call", "HTTP 500")
    # Those after it go on, and it does too, once somebody says so.
    events = [event for event, _ in taken(store.outbox, CRM, now + LEASE_S)]
    assert events.count("call.ended") == 2
    assert store.outbox.replay(now, "call") == 3  # with those of the other receiver
    assert [event for event, _ in taken(store.outbox, CRM, now)] == ["call.started"]
    assert [row for row in store.outbox.waiting() if row["url"] == CRM] == []


def _rows(store: CallStore) -> list[dict[str, object]]:
    from offhook.web.records.tables import deliveries

    with store._engine.connect() as connection:
        return [dict(row) for row in connection.execute(deliveries.select()).mappings()]


def test_two_processes_do_not_deliver_the_same(url: str) -> None:
    one, two = opened(url), opened(url)
    for number in range(AT_ONCE + 2):
        one.write(call_of(f"c{number}", "hello", edge="webrtc"), HERE, NOON)
    mine = {delivery.id for delivery in one.outbox.claim(CRM, NOON)}
    theirs = {delivery.id for delivery in two.outbox.claim(CRM, NOON)}
    assert (len(mine), mine & theirs) == (AT_ONCE, set())
    # A process that is killed meanwhile keeps them for a minute.
    assert mine < {d.id for _ in range(2) for d in two.outbox.claim(CRM, NOON + LEASE_S + 1)} | mine
    one.close()
    two.close()


def test_entries_that_come_again_are_not_told_again(store: CallStore) -> None:
    turns = [begun("call"), said("call", 0, "caller", "hello")]
    store.write(turns, HERE, NOON)
    store.write(turns, HERE, NOON)
    assert len(taken(store.outbox, SCREEN)) == 1
    assert len(taken(store.outbox, CRM)) == 1


def test_tools_and_transfers_are_told(url: str) -> None:
    store = opened(url, "tool.used", "transfer.failed", "agent.failed")
    used = {"name": "order", "arguments": "{}", "result": "{}", "took_ms": 5, "failed": False}
    store.write(
        [
            begun("call"),
            Happened("call", 0, 10, "tool_used", used),
            Happened("call", 1, 20, "transfer_failed", {"target": "+49", "reason": "busy"}),
            Happened("call", 2, 30, "dtmf", {"digit": "*"}),
        ],
        HERE,
        NOON,
    )
    told = [event for event, _ in taken(store.outbox, CRM)]
    assert told == ["call.started", "tool.used", "transfer.failed"]
    store.close()


def test_who_is_forgotten_is_in_no_webhook_that_waits(url: str, tmp_path: Path) -> None:
    store = opened(url)
    store.write(
        call_of("call", "I am Zaphod", caller="+49 30 777888999", edge="webrtc"), HERE, NOON
    )
    assert store.deletion.forget_number("+4930777888999", NOON).calls == 1
    assert store.outbox.waiting() == []
    store.deletion.erase()
    if store.kind.title == "SQLite":
        kept = b"".join(path.read_bytes() for path in tmp_path.glob("calls.db*"))
        assert b"Zaphod" not in kept
    store.close()


READY = RecordingReady("call", "/sound/call.ogg.sealed", 12.5, True)


def test_a_recording_that_is_ready_is_told_with_its_call(url: str) -> None:
    store = opened(url, "recording.ready")
    store.write([*call_of("call", "hello", edge="webrtc"), READY], HERE, NOON)
    told = taken(store.outbox, CRM)
    assert [event for event, _ in told] == ["call.started", "call.ended", "recording.ready"]
    assert told[-1][1] == {
        "call_id": "call",
        "place": "/sound/call.ogg.sealed",
        "seconds": 12.5,
        "sealed": True,
    }
    store.close()


def test_no_recording_is_told_of_who_was_forgotten_meanwhile(url: str) -> None:
    store = opened(url, "recording.ready")
    store.write(call_of("call", "hello", edge="webrtc"), HERE, NOON)
    assert store.deletion.forget_call("call", NOON).calls == 1
    store.write([READY, RecordingReady("nobody", "/sound/nobody.ogg", 1.0, False)], HERE, NOON)
    assert store.outbox.waiting() == []
    store.close()


def test_each_trunk_has_its_own_order(url: str) -> None:
    store = opened(url, "trunk.registered", "trunk.failed")
    turns = [
        TrunkTurned("line", NOON, False, "403 Forbidden"),
        TrunkTurned("other", NOON + 1, True, ""),
        TrunkTurned("line", NOON + 2, True, ""),
    ]
    store.write(turns, HERE, NOON + 3)
    first = store.outbox.claim(CRM, NOON + 3)
    bodies = [json.loads(delivery.body) for delivery in first]
    assert [(body["type"], body["data"]["trunk"]) for body in bodies] == [
        ("trunk.failed", "line"),
        ("trunk.registered", "other"),
    ]
    assert bodies[0]["data"] == {
        "trunk": "line",
        "server": "here:7860",
        "at": "2026-09-21T14:13:20.000+00:00",
        "reason": "403 Forbidden",
    }
    store.outbox.failed(first[0], "HTTP 500", NOON + 3)
    store.outbox.delivered(first[1])
    assert store.outbox.claim(CRM, NOON + 4) == []  # the second waits for the first
    assert [event for event, _ in taken(store.outbox, CRM, NOON + 3600)] == [
        "trunk.failed",
        "trunk.registered",
    ]
    store.close()


def test_what_is_read_twice_from_a_spool_has_one_id(url: str) -> None:
    store = opened(url, "trunk.failed", "recording.ready")
    entries = [begun("call"), READY, TrunkTurned("line", NOON, False, "timeout")]
    spooled = list(entries_of(lines_of(entries)))
    assert spooled == entries
    for _ in range(2):
        store.write(spooled, HERE, NOON)
    rows = [row for row in _rows(store) if row["event"] != "call.started"]
    assert len(rows) == 4
    assert len({row["id"] for row in rows}) == 2
    store.close()


def test_a_receiver_of_a_tenant_is_told_of_what_is_the_tenants(url: str) -> None:
    events = frozenset({"call.started", "turn.caller", "trunk.failed", "campaign.completed"})
    receivers = [
        Receiver(f"https://{tenant or 'all'}.example", ("s" * 16,), events, tenant=tenant)
        for tenant in ("acme", "beta", "")
    ]
    store = CallStore(url, receivers)
    store.prepare()
    for tenant in ("acme", ""):
        store.write(call_of(f"call-{tenant}", "hello", tenant=tenant), HERE, NOON)
        store.write([TrunkTurned(f"line-{tenant}", NOON, False, "no answer", tenant)], HERE, NOON)
        store.campaigns.add(f"{tenant}.spring", {}, [recipient("+49171")], NOON, tenant=tenant)
        store.campaigns.act(f"{tenant}.spring", "cancel", NOON)
    told = {
        receiver.tenant: [
            data.get("call_id") or data.get("trunk") or data.get("campaign_id")
            for _, data in taken(store.outbox, receiver.url)
        ]
        for receiver in receivers
    }
    assert told["beta"] == []
    assert sorted(map(str, told["acme"])) == ["acme.spring", "call-acme", "call-acme", "line-acme"]
    assert len(told[""]) == 8
    store.close()
