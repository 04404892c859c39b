"""Who is rung when, and what becomes of each, in every order of events."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.web.edge.transfers import transfers_io
from offhook.web.edge.transfers.briefed import Action, BriefedTransfer, Event, Stage
from offhook.web.edge.transfers.decision import decision
from offhook.web.edge.transfers.phrases import PHRASES, Phrase

E, A = Event, Action
AWAITED = {Stage.RINGING, Stage.AGREED, Stage.BRIEFING, Stage.CHOSEN}
OF_PEOPLE = [e for e in Event if e not in (E.TURN, E.CALLER_GONE, E.OTHER_CHOSEN)]


def actions(core: BriefedTransfer) -> list[tuple[Action, int]]:
    due = []
    while (one := core.next_action()) is not None:
        due.append(one)
    return due


def test_the_next_is_rung_once_one_is_over() -> None:
    core = BriefedTransfer(3, all_at_once=False)
    assert actions(core) == [(A.RING, 0)]
    core.receive(E.UNREACHED, 0, "busy")
    assert actions(core) == [(A.RING, 1)]
    core.receive(E.ANSWERED, 1)
    core.receive(E.DECLINED, 1)
    assert actions(core) == [(A.SAY_DECLINED, 1), (A.RING, 2)]
    core.receive(E.ANSWERED, 2)
    core.receive(E.ACCEPTED, 2)
    assert actions(core) == [(A.CONNECT, 2)]
    core.receive(E.BRIDGED, 2)
    assert core.result == "connected"


def test_all_at_once_the_first_who_accepts_has_the_caller() -> None:
    core = BriefedTransfer(3, all_at_once=True)
    assert actions(core) == [(A.RING, 0), (A.RING, 1), (A.RING, 2)]
    core.receive(E.ANSWERED, 0)
    core.receive(E.ANSWERED, 1)
    core.receive(E.ACCEPTED, 1)
    assert actions(core) == [(A.CONNECT, 1), (A.SAY_OTHER_CHOSEN, 0), (A.CANCEL, 2)]
    core.receive(E.ACCEPTED, 0)
    assert actions(core) == []


def test_a_person_who_leaves_before_the_bridge_is_followed_by_the_next() -> None:
    core = BriefedTransfer(2, all_at_once=False)
    for event in (E.ANSWERED, E.ACCEPTED, E.HUNG_UP):
        core.receive(event, 0)
    assert actions(core) == [(A.RING, 0), (A.CONNECT, 0), (A.RING, 1)]


def test_who_accepts_at_a_desk_is_connected_without_a_briefing() -> None:
    core = BriefedTransfer(2, all_at_once=True)
    for event in (E.AGREED, E.ANSWERED, E.ACCEPTED):
        core.receive(event, 0)
    assert actions(core) == [(A.RING, 0), (A.RING, 1), (A.CONNECT, 0), (A.CANCEL, 1)]
    states = []
    while (report := core.next_report()) is not None:
        states.append(report.state)
    assert states == ["requested", "ringing", "ringing", "accepted"]


def test_who_declines_at_a_desk_that_rings_is_followed_by_the_next() -> None:
    core = BriefedTransfer(2, all_at_once=False)
    core.receive(E.DECLINED, 0)
    assert actions(core) == [(A.RING, 0), (A.CANCEL, 0), (A.RING, 1)]


def test_a_caller_who_leaves_releases_everybody() -> None:
    core = BriefedTransfer(2, all_at_once=True)
    core.receive(E.ANSWERED, 0)
    actions(core)
    core.caller_gone()
    assert actions(core) == [(A.SAY_CALLER_GONE, 0), (A.CANCEL, 1)]
    assert core.result == "canceled"
    core.caller_gone()
    assert actions(core) == []


@given(
    st.integers(1, 4),
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([*OF_PEOPLE, None])), max_size=40),
)
def test_nobody_is_rung_twice_or_left(
    people: int, all_at_once: bool, events: list[tuple[int, Event | None]]
) -> None:
    """Whatever happens in whatever order; None: the caller hangs up."""
    core = BriefedTransfer(people, all_at_once=all_at_once)
    due = actions(core)
    for person, event in events:
        if event is None:
            core.caller_gone()
        elif person < people:
            core.receive(event, person)
        due += actions(core)
        assert core.stages.count(Stage.CHOSEN) + core.stages.count(Stage.CONNECTED) <= 1
        assert (core.result is None) == (not AWAITED.isdisjoint(core.stages))
    rung = [person for action, person in due if action is A.RING]
    assert len(rung) == len(set(rung))
    core.caller_gone()
    assert AWAITED.isdisjoint(core.stages)


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("Yes.", "accept"),
        ("yes please put him through", "accept"),
        ("No problem.", "accept"),
        ("Ja, gerne.", "accept"),
        ("oui", "accept"),
        ("Sí, claro.", "accept"),
        ("はい、お願いします", "accept"),
        ("好的", "accept"),
        ("No.", "decline"),
        ("I can't right now, maybe later", "decline"),
        ("Nein, keine Zeit", "decline"),
        ("いいえ", "decline"),
        ("不行", "decline"),
        ("Hello?", None),
        ("who is it", None),
        ("yes no", None),
        ("", None),
    ],
)
def test_what_a_person_has_decided(text: str, meaning: str | None) -> None:
    assert decision(text) == meaning


def test_every_language_has_every_phrase() -> None:
    assert {frozenset(phrases) for phrases in PHRASES.values()} == {frozenset(Phrase)}
    assert all("{caller}" in phrases[Phrase.CALLS] for phrases in PHRASES.values())


@pytest.mark.parametrize("model", ["fast", "slow", "failing", "wordy", "none"])
async def test_a_slow_model_keeps_nobody_waiting(model: str) -> None:
    async def summary() -> str:
        if model == "slow":
            await asyncio.Event().wait()
        return {"fast": "Ann wants a bicycle. ", "wordy": "word " * 200}.get(model, "")

    asked: Any = None if model == "none" else asyncio.ensure_future(summary())
    text = await transfers_io._briefing_text(asked, "A call from Ann.", 0.05)
    if asked is not None:
        asked.cancel()
    if model == "wordy":
        assert len(text) <= transfers_io.MAX_BRIEFING_CHARS
        assert text.endswith("word")
    else:
        assert text == {"fast": "Ann wants a bicycle."}.get(model, "A call from Ann.")
