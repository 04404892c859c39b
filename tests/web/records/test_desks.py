"""What desks are shown of callers, and what becomes of their notes."""

from offhook.web.app.cli.calls_io import story
from offhook.web.records.people.desks import MAX_CALLS, MAX_TURNS
from offhook.web.records.store import CallStore, Writer
from tests.web.records.made_calls import NOON, begun, call_of, over, said

WRITER = Writer("here:7860")


def opened(url: str) -> CallStore:
    store = CallStore(url)
    store.prepare()
    return store


def test_words_are_in_order_and_the_last_ones(url: str) -> None:
    store = opened(url)
    turns = [said("one", number, "caller", f"word {number}") for number in range(MAX_TURNS + 5)]
    store.write([begun("one"), *turns], WRITER, NOON)
    found = store.desks.words("one")
    assert len(found) == MAX_TURNS
    assert found[-1] == {"who": "caller", "text": f"word {MAX_TURNS + 4}"}
    assert store.desks.words("two") == []


def test_the_history_is_of_that_number_alone(url: str) -> None:
    store = opened(url)
    for number in range(MAX_CALLS + 2):
        call = f"call {number}"
        store.write(call_of(call, "hello", at=NOON + number, caller="+49301234"), WRITER, NOON)
        store.write([over(call, at=NOON + number + 10)], WRITER, NOON)
    store.write(call_of("other", "hello", caller="+4930991234"), WRITER, NOON)
    store.write([over("other")], WRITER, NOON)
    found = store.desks.history("0049301234", "", but="call 11")
    assert [row["call_id"] for row in found] == [f"call {10 - n}" for n in range(MAX_CALLS)]
    assert store.desks.history("1234", "", but="") == []
    assert store.desks.history("", "", but="") == []


def test_the_history_is_of_that_tenant_and_of_calls_with_the_number_not_to_it(url: str) -> None:
    store = opened(url)
    for call, about in {
        "acme": {"caller": "+49301234", "tenant": "acme"},
        "beta": {"caller": "+49301234", "tenant": "beta"},
        "to it": {"caller": "+4930555", "called": "+49301234", "tenant": "acme"},
        "placed": {"direction": "outbound", "called": "+49301234", "tenant": "acme"},
    }.items():
        store.write([*call_of(call, "hello", **about), over(call)], WRITER, NOON)
    found = store.desks.history("+49301234", "acme", but="")
    assert {row["call_id"] for row in found} == {"acme", "placed"}
    assert store.desks.history("+49301234", "", but="") == []


def test_notes_stay_when_the_call_ends_and_go_when_it_is_forgotten(url: str) -> None:
    store = opened(url)
    assert store.desks.add_note("one", "101", "early", NOON) == "unknown"
    store.write([begun("one", caller="+49301234")], WRITER, NOON)
    assert store.desks.add_note("one", "101", "red \0 one", NOON) == "added"
    store.write([over("one", collected={"name": "Ann"})], WRITER, NOON)
    assert store.desks.add_note("one", "101", "\x1b[31mand blue", NOON) == "added"
    call = store.show("one")
    assert call is not None
    assert [note["text"] for note in call["notes"]] == ["red \ufffd one", "\x1b[31mand blue"]
    assert call["collected"] == {"name": "Ann"}
    lines = [line for line in story(call, []) if line.startswith("note of 101")]
    assert len(lines) == 2
    assert "\x1b" not in lines[1]
    store.deletion.forget_number("+49301234", NOON)
    assert "notes" not in (store.show("one") or {})
    assert store.desks.add_note("one", "101", "late", NOON) == "unknown"
