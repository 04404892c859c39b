"""Analyses wait in the store, once for each call, and what they find can be looked for."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Barrier, Thread

import pytest

from offhook.web.records.analyses import (
    ELSEWHERE_S,
    LEASE_S,
    SETTLES_S,
    Found,
    Outcome,
    WaitingCall,
)
from offhook.web.records.entries import Happened
from offhook.web.records.errors import SearchError
from offhook.web.records.leases import GIVE_UP_S
from offhook.web.records.search import Search
from offhook.web.records.store import CallStore, Writer
from offhook.web.records.webhooks import Receiver
from tests.web.records.made_calls import HERE, NOON, begun, call_of, over, said

CRM = Receiver(
    "http://crm.example/hook", ("a secret of some length",), frozenset(("call.analyzed",))
)
FRONT = frozenset({"front"})
DUE = NOON + SETTLES_S


def front_desk(agents: Sequence[str]) -> str:
    return "front" if "front" in agents else ""


@pytest.fixture
def store(url: str) -> Iterator[CallStore]:
    store = CallStore(url, [CRM], front_desk)
    store.prepare()
    yield store
    store.close()


def found(outcome: Outcome = "failure", cost: float | None = 0.5, **verdicts: str) -> Found:
    verdicts = verdicts or {"booked": outcome}
    criteria = [{"name": name, "verdict": one, "reason": "so"} for name, one in verdicts.items()]
    result = {"summary": "Zarniwoop called.", "criteria": criteria, "extracted": {"size": 3.0}}
    return Found(outcome, result, verdicts, cost)


def claimed(store: CallStore, now: float = DUE, server: str = HERE.server) -> list[WaitingCall]:
    return store.analyses.claim(FRONT, server, now)


def outcome(store: CallStore, call: str = "call") -> str:
    shown = store.show(call)
    assert shown is not None
    return str(shown["outcome"])


def test_a_call_waits_with_its_end_and_is_analysed_once(store: CallStore) -> None:
    store.write(call_of("call", "my card is lost"), HERE, NOON)
    assert claimed(store, NOON) == []  # the record of its line may come yet
    assert outcome(store) == "waiting"
    [waiting] = claimed(store)
    assert (waiting.call, waiting.agent) == ("call", "front")
    assert claimed(store) == []
    assert store.analyses.finish(waiting, found(), NOON + 5)
    assert not store.analyses.finish(waiting, found("success"), NOON + 6)
    assert claimed(store, NOON + 9 * LEASE_S) == []
    call = store.show("call")
    assert call is not None
    assert (call["outcome"], call["analysis_cost"]) == ("failure", 0.5)
    assert call["analysis"]["summary"] == "Zarniwoop called."
    assert call["analysis"]["extracted"] == {"size": 3.0}
    assert call["analysis"]["at"] == "2026-09-21T14:13:25+00:00"
    [webhook] = store.outbox.claim(CRM.url, NOON + 9)
    assert b'"call.analyzed"' in webhook.body
    assert b"Zarniwoop called." in webhook.body


def test_only_conversations_of_agents_with_an_analysis_are_analysed(store: CallStore) -> None:
    store.write(call_of("silent"), HERE, NOON)
    other = call_of("other", "hello")
    store.write([begun("other", agent="billing"), *other[1:]], HERE, NOON)
    assert claimed(store) == []
    changed = Happened("handed", 5, 500, "agent_changed", {"agent": "front", "before": "billing"})
    words = [begun("handed", agent="billing"), said("handed", 0, "caller", "hello")]
    store.write([*words, changed, over("handed")], HERE, NOON)
    assert [one.call for one in claimed(store)] == ["handed"]


def test_entries_that_come_again_ask_for_nothing(store: CallStore) -> None:
    entries = call_of("call", "hello")
    store.write(entries, HERE, NOON)
    [waiting] = claimed(store)
    store.analyses.finish(waiting, found(), DUE)
    store.write([entries[-1]], HERE, NOON)
    assert claimed(store, NOON + 9 * LEASE_S) == []
    assert outcome(store) == "failure"


def test_a_call_that_went_on_elsewhere_is_analysed_as_a_whole(store: CallStore) -> None:
    store.seen(HERE, NOON)
    store.write([begun("call"), said("call", 0, "caller", "hello")], HERE, NOON)
    store.close_lost(NOON + 1, 60, HERE)
    there = Writer("there:7860")
    store.write([begun("call", NOON + 5)], there, NOON)
    assert claimed(store, NOON + LEASE_S) == []  # it is in progress
    store.write([said("call", 10_000_000, "caller", "still here", at_ms=1)], there, NOON)
    store.write([over("call", NOON + 30)], there, NOON + LEASE_S)
    [waiting] = claimed(store, NOON + 2 * LEASE_S)
    assert store.analyses.finish(waiting, found(), NOON + 9 * LEASE_S)


def test_the_call_of_a_process_that_was_killed_waits_too(store: CallStore) -> None:
    store.seen(HERE, NOON)
    store.write([begun("call"), said("call", 0, "caller", "hello")], HERE, NOON)
    store.close_lost(NOON + 1, 60, HERE)
    assert [one.call for one in claimed(store, NOON + 1 + SETTLES_S)] == ["call"]


def test_another_server_does_it_if_this_one_is_gone(store: CallStore) -> None:
    store.write(call_of("call", "hello"), HERE, NOON)
    assert claimed(store, DUE, "there:7860") == []
    [mine] = claimed(store)
    assert claimed(store, NOON + ELSEWHERE_S, "there:7860") == []  # it is under way
    [theirs] = claimed(store, NOON + 2 * LEASE_S, "there:7860")
    assert not store.analyses.finish(mine, found("success"), NOON)
    assert store.analyses.finish(theirs, found("unknown"), NOON)
    assert outcome(store) == "unknown"


def test_of_many_who_ask_at_once_each_call_has_one(url: str) -> None:
    stores = [CallStore(url, (), front_desk) for _ in range(4)]
    stores[0].prepare()
    for number in range(8):
        stores[0].write(call_of(f"c{number}", "hello"), HERE, NOON)
    at_once = Barrier(len(stores))
    got: list[str] = []

    def ask(store: CallStore) -> None:
        at_once.wait()
        while part := claimed(store):
            got.extend(one.call for one in part)

    threads = [Thread(target=ask, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    got += [one.call for one in claimed(stores[0])]
    assert sorted(got) == [f"c{number}" for number in range(8)]
    for store in stores:
        store.close()


def test_what_fails_is_tried_for_three_days(store: CallStore) -> None:
    store.write(call_of("call", "hello"), HERE, NOON)
    now, tries = DUE, 0
    while True:
        [waiting] = claimed(store, now)
        tries += 1
        if store.analyses.failed(waiting, "no server responds there", now):
            break
        assert claimed(store, now) == []
        now += 3700
    assert now - NOON > GIVE_UP_S
    assert tries > 60
    call = store.show("call")
    assert call is not None
    assert call["analysis"]["fault"] == "no server responds there"
    assert call["outcome"] == "error"
    [webhook] = store.outbox.claim(CRM.url, now)
    assert b"no server responds there" in webhook.body


def test_what_would_fail_again_is_given_up_and_can_be_asked_for(store: CallStore) -> None:
    store.write(call_of("call", "hello"), HERE, NOON)
    [waiting] = claimed(store)
    assert store.analyses.failed(waiting, "nonsense", DUE, hopeless=True, cost=0.25)
    assert outcome(store) == "error"
    again = store.analyses.ask_again("call", ["front"], NOON)
    assert again is not None
    assert outcome(store) == "waiting"
    assert store.analyses.finish(again, found("success"), NOON)
    call = store.show("call")
    assert call is not None
    assert (call["outcome"], call["analysis_cost"]) == ("success", 0.75)
    assert store.analyses.ask_again("call", ["billing"], NOON) is None
    assert store.analyses.ask_again("nobody", ["front"], NOON) is None


def test_an_attempt_under_way_is_not_taken_for_the_one_that_was_asked_for(store: CallStore) -> None:
    store.write(call_of("call", "hello"), HERE, NOON)
    [before] = claimed(store)
    again = store.analyses.ask_again("call", ["front"], NOON)
    assert again is not None
    assert not store.analyses.finish(before, found("success"), NOON)
    assert store.analyses.finish(again, found("failure"), NOON)


def test_of_agents_that_are_gone_nothing_waits_for_ever(store: CallStore) -> None:
    store.write(call_of("call", "hello"), HERE, NOON)
    store.analyses.expire(NOON + GIVE_UP_S)
    assert outcome(store) == "waiting"
    store.analyses.expire(NOON + GIVE_UP_S + 1)
    assert outcome(store) == "error"


def analysed(store: CallStore, **verdicts: tuple[str, str]) -> None:
    """Calls with these verdicts on whether something was booked, and the agent polite."""
    for number, (call, (booked, polite)) in enumerate(verdicts.items()):
        store.write(call_of(call, "hello", at=NOON + number), HERE, NOON)
        [waiting] = claimed(store)
        both = {booked, polite}
        whole: Outcome = "success"
        if both != {"success"}:
            whole = "failure" if "failure" in both else "unknown"
        store.analyses.finish(waiting, found(whole, booked=booked, polite=polite), NOON)


@pytest.mark.parametrize(
    ("query", "calls"),
    [
        ({"analysis": "failure"}, "cb"),
        ({"analysis": "success"}, "a"),
        ({"analysis": "unknown"}, "d"),
        ({"analysis": "failure", "criterion": "booked"}, "b"),
        ({"analysis": "failure", "criterion": "polite"}, "c"),
        ({"analysis": "success", "criterion": "polite", "agent": "front", "text": "hello"}, "dba"),
        ({"criterion": "polite"}, "dcba"),
        ({"criterion": "missing"}, ""),
    ],
)
def test_calls_are_found_by_what_became_of_them(
    store: CallStore, query: dict[str, str], calls: str
) -> None:
    good, bad = "success", "failure"
    analysed(store, a=(good, good), b=(bad, good), c=(good, bad), d=("unknown", good))
    assert "".join(one["call_id"] for one in store.find(Search.of(query))[0]) == calls


@pytest.mark.parametrize(
    "query", [{"analysis": "bad"}, {"analysis": "waiting", "criterion": "booked"}]
)
def test_a_search_for_what_there_is_none_of_is_refused(query: dict[str, str]) -> None:
    with pytest.raises(SearchError, match=r"analysis: .*success"):
        Search.of(query)


def test_numbers_have_the_share_of_success(store: CallStore) -> None:
    good, bad = "success", "failure"
    analysed(store, a=(good, good), b=(good, good), c=(good, bad), d=("unknown", good))
    store.write(call_of("waits", "hello", at=NOON + 9), HERE, NOON)
    sums = store.numbers(NOON - 1, NOON + 100)
    [front] = sums["by_agent"]
    for row in (front, sums["all"]):
        judged = row["success"], row["failure"], row["unknown"]
        assert judged == (2, 1, 1)
        assert row["success_share"] == 0.6667
        assert row["analysis_cost"] == 2.0
    assert store.numbers(NOON + 9, NOON + 100)["all"]["success_share"] is None


def test_what_was_found_is_forgotten_with_the_words(store: CallStore, tmp_path: Path) -> None:
    for call, number in (("forget", "+49 30 777888999"), ("old", "+49 30 111222333")):
        store.write(call_of(call, "hello", caller=number), HERE, NOON)
    for waiting in claimed(store):
        store.analyses.finish(waiting, found(), NOON)
    store.outbox.replay(NOON)
    assert store.deletion.forget_number("+4930777888999", NOON).calls == 1
    assert store.deletion.expire_words(NOON + 100, NOON).calls == 1
    assert store.outbox.waiting() == []
    for call in ("forget", "old"):
        shown = store.show(call)
        assert shown is not None
        assert shown["analysis"] is None
        assert shown["outcome"] == "failure"  # for the numbers
        assert store.analyses.ask_again(call, ["front"], NOON) is None
    assert store.find(Search.of({"criterion": "booked"}))[0] == []
    store.deletion.erase()
    if store.kind.title == "SQLite":
        kept = b"".join(path.read_bytes() for path in tmp_path.glob("calls.db*"))
        assert b"Zarniwoop" not in kept
    store.deletion.expire_calls(NOON + 100, NOON)
    assert list(itertools.chain(store.export(Search()))) == []


def test_who_is_forgotten_meanwhile_stays_forgotten(store: CallStore) -> None:
    store.write(call_of("call", "hello"), HERE, NOON)
    [waiting] = claimed(store)
    assert store.deletion.forget_call("call", NOON).calls == 1
    assert not store.analyses.finish(waiting, found(), NOON)
    assert store.analyses.failed(waiting, "late", NOON, hopeless=True)
    shown = store.show("call")
    assert shown is not None
    assert shown["analysis"] is None
    assert store.outbox.waiting() == []


def test_details_of_every_part_of_a_call_are_in_its_record(store: CallStore) -> None:
    """Also those that a process had noted that was killed."""
    noted = {"name": "city", "text": "Berlin"}
    parts = [begun("call"), said("call", 0, "caller", "Berlin")]
    store.write([*parts, Happened("call", 1, 9, "detail_noted", noted)], HERE, NOON)
    store.seen(HERE, NOON)
    store.close_lost(NOON + 1, 60, HERE)
    call = store.show("call")
    assert call is not None
    assert call["collected"] == {"city": "Berlin"}
    store.write([begun("call", NOON + 5), over("call", collected={"rooms": 2.0})], HERE, NOON)
    call = store.show("call")
    assert call is not None
    assert call["collected"] == {"city": "Berlin", "rooms": 2.0}
