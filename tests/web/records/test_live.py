"""Calls in progress as live screens see them, at servers that share a store."""

from collections.abc import Iterator
from typing import Any

import pytest

from offhook.web.campaigns.recipients import recipient
from offhook.web.edge.console.live_calls import LAST_TURNS, LiveCalls
from offhook.web.records import live
from offhook.web.records.entries import Happened
from offhook.web.records.live_look import AgentSums
from offhook.web.records.store import CallStore, Writer
from tests.web.records.made_calls import HERE, NOON, begun, call_of, over, said

THERE = Writer("there:7860")


@pytest.fixture
def store(url: str) -> Iterator[CallStore]:
    store = CallStore(url)
    store.prepare()
    yield store
    store.close()


class Screen:
    """A live screen that looks whenever the test wants it to."""

    def __init__(self, store: CallStore) -> None:
        self.store, self.calls = store, LiveCalls()

    def look(self) -> list[tuple[str, Any]]:
        calls = self.calls
        changes = calls.update(self.store.live.look(calls.positions, calls.campaigns))
        return [(change.kind, change.data) for change in changes]

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.look()]

    def shown(self) -> list[Any]:
        return list(self.calls.snapshot().data["calls"])


def happened(call: str, position: int, kind: str, **fields: Any) -> Happened:
    return Happened(call, position, 1000 * position, kind, fields)


def test_what_happens_is_seen_once_and_in_order(store: CallStore) -> None:
    screen = Screen(store)
    assert screen.look() == []
    store.write([begun("call")], HERE, NOON)
    assert screen.kinds() == ["started", "number"]
    changed = happened("call", 3, "agent_changed", agent="sales", before="front", text="")
    failed = happened("call", 4, "agent_failed", fault="slow", place="model", action="apologize")
    latency = happened("call", 5, "turn_latency", turn=1, spans=[], total_ms=432)
    held = happened("call", 6, "call_held", by="caller")
    words = [said("call", 1, "caller", "hello"), said("call", 2, "agent", "good day")]
    store.write([*words, changed, failed, latency, held], HERE, NOON)
    kinds = ["turn", "turn", "agent", "failed", "latency", "hold"]
    seen = screen.look()
    assert [kind for kind, _ in seen] == kinds
    assert [data["who"] for _, data in seen[:2]] == ["caller", "agent"]
    assert screen.look() == []
    [call] = screen.shown()
    assert (call["agent"], call["latency_ms"], call["failures"]) == ("sales", 432, 1)
    assert (call["last_words"], call["turns_so_far"], call["on_hold"]) == ("good day", 1, True)
    store.write([said("call", 7, "caller", "bye"), over("call")], HERE, NOON)
    (turn, _), (ended, row), (number, _) = screen.look()
    assert (turn, ended, number) == ("turn", "ended", "number")
    assert row["end_reason"] == "the caller hung up"
    assert screen.shown() == []


def test_who_looks_later_sees_the_same(store: CallStore) -> None:
    turns = [said("call", n, "caller" if n % 2 else "agent", f"words {n}") for n in range(1, 20)]
    changed = happened("call", 20, "agent_changed", agent="sales", before="front", text="")
    store.write([begun("call"), *turns, changed], HERE, NOON)
    late = Screen(store)
    late.look()
    [call] = late.shown()
    assert (call["agent"], call["turns_so_far"], call["last_words"]) == ("sales", 10, "words 19")
    assert [turn["text"] for turn in call["last_turns"]] == ["words 18", "words 19"]
    more = [said("call", n, "caller", f"words {n}") for n in range(21, 31)]
    store.write(more, HERE, NOON)
    late.look()
    assert len(late.shown()[0]["last_turns"]) == LAST_TURNS


def test_calls_of_all_servers_are_seen_and_their_end_by_a_crash(store: CallStore) -> None:
    store.write([begun("mine")], HERE, NOON)
    store.write([begun("yours", NOON + 1)], THERE, NOON)
    store.seen(THERE, NOON)
    screen = Screen(store)
    screen.look()
    assert [call["server"] for call in screen.shown()] == ["there:7860", "here:7860"]
    store.seen(HERE, NOON + 100)
    assert store.close_lost(NOON + 100, 60) == ["yours"]
    (kind, row), _ = screen.look()
    assert (kind, row["call_id"], row["end_reason"]) == ("ended", "yours", "the server stopped")


def test_words_that_are_not_kept_are_not_seen(store: CallStore) -> None:
    screen = Screen(store)
    screen.look()
    store.write([begun("call"), happened("call", 1, "caller_turn", turn=1)], HERE, NOON)
    [_, (kind, turn), _] = screen.look()
    assert (kind, turn["text"], turn["turns_so_far"]) == ("turn", None, 1)


def test_of_more_calls_than_can_be_followed_the_last_are(
    store: CallStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MAX_CALLS", 3)
    monkeypatch.setattr(live, "AT_ONCE", 2)
    for number in range(3):
        store.write([begun(f"c{number}", NOON + number)], HERE, NOON)
    screen = Screen(store)
    screen.look()
    store.write([begun("c3", NOON + 3), said("c1", 1, "caller", "hello")], HERE, NOON)
    seen = dict(screen.look())
    assert seen["left_out"] == {"call_id": "c0"}
    assert seen["number"] == {"number": 4}
    assert [call["call_id"] for call in screen.shown()] == ["c3", "c2", "c1"]
    store.write([over("c0"), over("c3")], HERE, NOON)
    assert [kind for kind, _ in screen.look()] == ["ended", "number"]


def test_no_more_events_are_read_at_once_than_fit(
    store: CallStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MAX_EVENTS", 5)
    screen = Screen(store)
    store.write([begun("call")], HERE, NOON)
    screen.look()
    store.write([said("call", n, "caller", str(n)) for n in range(1, 13)], HERE, NOON)
    texts = [[data["text"] for _, data in screen.look()] for _ in range(4)]
    assert [len(some) for some in texts] == [5, 5, 2, 0]
    assert [text for some in texts for text in some] == [str(n) for n in range(1, 13)]


def test_agents_have_what_their_calls_add_up_to(store: CallStore) -> None:
    for number in range(4):
        store.write(call_of(f"c{number}", *["hello"] * (number + 1), at=NOON + number), HERE, NOON)
    store.write(call_of("old", "hello", at=NOON - 1000), HERE, NOON)
    changed = happened("now", 3, "agent_changed", agent="sales", before="front", text="")
    store.write([begun("now", NOON + 5), changed], HERE, NOON)
    sums = store.live.agents(NOON)
    assert sums == {"front": AgentSums(0, 5, 0, 400), "sales": AgentSums(1, 0)}
    assert store.live.agents(NOON + 100) == {"sales": AgentSums(1)}


def test_campaigns_are_followed_until_they_have_ended(store: CallStore) -> None:
    screen = Screen(store)
    assert screen.look() == []
    some = [recipient("+49301"), recipient("+49302")]
    store.campaigns.add("spring", {"name": "Spring"}, some, NOON)
    [(kind, data)] = screen.look()
    assert (kind, data["campaign_id"], data["states"]["waiting"]) == ("campaign", "spring", 2)
    assert screen.look() == []
    assert [row["name"] for row in screen.calls.snapshot().data["campaigns"]] == ["Spring"]
    store.campaigns.act("spring", "pause", NOON)
    assert [data["state"] for _, data in screen.look()] == ["paused"]
    store.campaigns.act("spring", "cancel", NOON)
    [(_, data)] = screen.look()
    assert (data["state"], data["states"]["cancelled"]) == ("cancelled", 2)
    assert screen.look() == []
    assert screen.calls.snapshot().data["campaigns"] == []


def test_members_of_a_room_are_seen_with_what_they_say_and_their_hands(store: CallStore) -> None:
    screen = Screen(store)
    screen.look()
    store.write(
        [
            begun("call"),
            happened("call", 1, "member_turn", member="boss", text="good day", began_ms=500),
            happened("call", 2, "member_raised_hand", member="desk"),
            happened("call", 3, "member_raised_hand", member="ann"),
            happened("call", 4, "member_lowered_hand", member="desk"),
        ],
        HERE,
        NOON,
    )
    seen = screen.look()
    assert [data["who"] for kind, data in seen if kind == "turn"] == ["boss"]
    [call] = screen.shown()
    assert (call["last_words"], call["turns_so_far"], call["hands"]) == ("good day", 1, ["ann"])
    store.write([happened("call", 5, "member_left", member="ann", reason="")], HERE, NOON)
    assert [data["hands"] for kind, data in screen.look() if kind == "hands"] == [[]]
    assert screen.shown()[0]["hands"] == []
