"""A queue in virtual time: its order, who is rung, and how long it is said to take."""

import heapq
import random
import statistics
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offhook.web.edge.queues.queue import (
    CALLBACK_AGAIN_S,
    CALLBACK_TRIES,
    KEPT_S,
    LEASE_S,
    REST_S,
    Queue,
    Ticket,
)

FIVE = ("a", "b", "c", "d", "e")


def queue(members: Any = FIVE, strategy: Any = "longest_idle", wrap_up_s: float = 0) -> Queue:
    return Queue(members, strategy, wrap_up_s)


def ticket(number: int, joined: float = 0, **more: Any) -> Ticket:
    return Ticket(f"t{number:02}", f"c{number}", "+49", joined, server="s", renewed=joined, **more)


def offered(there: Queue) -> dict[str, list[str]]:
    return {t.id: t.offered for t in there.order if t.offered}


def conversations(there: Queue) -> dict[str, str]:
    return {member.ticket: a for a, member in there.members.items() if member.speaks}


def test_the_first_is_offered_to_who_is_idle_for_the_longest() -> None:
    there = queue(("a", "b"))
    there.members["a"].since, there.members["b"].since = 5, 3
    for number in (1, 2, 3):
        there.join(ticket(number, number), 10)
    there.assign(10)
    assert offered(there) == {"t01": ["b"], "t02": ["a"]}
    assert there.accepted("t01", "b", 11)
    assert [there.position(t) for t in ("t01", "t02", "t03")] == [0, 1, 2]
    there.released("b", "t01", 20)
    there.assign(20)
    assert offered(there) == {"t02": ["a"], "t03": ["b"]}


def test_a_priority_goes_first() -> None:
    there = queue()
    there.join(ticket(1, 1), 1)
    there.join(ticket(2, 2, priority=5), 2)
    assert [t.id for t in there.order] == ["t02", "t01"]


def test_one_after_the_other() -> None:
    there, order = queue(strategy="round_robin"), []
    for number in range(7):
        there.join(ticket(number, number), number)
        there.assign(number)
        (address,) = offered(there)[f"t{number:02}"]
        order.append(address)
        there.accepted(f"t{number:02}", address, number)
        there.released(address, f"t{number:02}", number)
    assert order == [*FIVE, "a", "b"]


def test_all_are_rung_and_the_others_are_free_again() -> None:
    there = queue(("a", "b", "c"), "all")
    there.join(ticket(1), 0)
    there.join(ticket(2, 1), 1)
    there.assign(1)
    assert offered(there) == {"t01": ["a", "b", "c"]}
    there.accepted("t01", "b", 2)
    there.assign(2)
    assert offered(there) == {"t02": ["a", "c"]}


def test_who_declines_rests_and_another_is_rung() -> None:
    there = queue(("a", "b"))
    there.join(ticket(1), 0)
    there.assign(0)
    there.passed("t01", "a", 5)
    there.assign(5)
    assert offered(there) == {"t01": ["b"]}
    there.passed("t01", "b", 6)
    there.assign(6)
    assert offered(there) == {}
    there.renew("s", there.order, {}, 5 + REST_S)
    there.assign(5 + REST_S)
    assert offered(there) == {"t01": ["a"]}


def test_wrap_up_and_pause() -> None:
    there = queue(("a",), wrap_up_s=10)
    there.join(ticket(1), 0)
    there.assign(0)
    there.accepted("t01", "a", 0)
    there.join(ticket(2, 1), 1)
    there.released("a", "t01", 30)
    assert there.members["a"].state(35) == "wrap_up"
    there.assign(35)
    assert offered(there) == {}
    there.pause("a", True)
    there.renew("s", there.order, {}, 45)
    there.assign(45)
    assert offered(there) == {}
    there.pause("a", False)
    there.assign(45)
    assert offered(there) == {"t02": ["a"]}


def test_who_has_no_phone_at_any_server_is_not_rung() -> None:
    there = queue(["ext:101", "sip:b@x"])
    there.see_phones("one", {"ext:101": False}, now=0)
    there.join(ticket(1), 0)
    there.join(ticket(2), 0)
    there.assign(0)
    assert offered(there) == {"t01": ["sip:b@x"]}
    assert there.members["ext:101"].state(0) == "no_phone"
    there.see_phones("two", {"ext:101": True}, now=1)
    there.see_phones("one", {"ext:101": False}, now=2)
    assert there.members["ext:101"].state(2) == "ready"
    there.assign(2)
    assert offered(there)["t02"] == ["ext:101"]
    there.leave("t02", 3)
    there.see_phones("one", {"ext:101": False}, now=3 + LEASE_S)  # the other has died
    assert there.members["ext:101"].state(20) == "no_phone"


def test_who_is_not_reached_is_called_back_again_in_the_same_place() -> None:
    there, now = queue(["a"]), 0.0
    called = ticket(1, calls_back=True)
    there.join(called, now)
    for tried in range(1, CALLBACK_TRIES + 1):
        there.renew("s", [called], {}, now)
        there.assign(now)
        assert offered(there) == {"t01": ["a"]}
        assert there.presence("a", now)["calls_back"] == "+49"
        assert there.not_reached("t01", now) == (tried < CALLBACK_TRIES)
        there.assign(now)
        assert offered(there) == {}
        assert there.presence("a", now)["state"] == "ready"
        if tried == 1:
            there.join(ticket(2, now), now)  # goes first until then, and keeps behind
            assert there.position("t02") == 2
            there.assign(now)
            assert offered(there) == {"t02": ["a"]}
            there.leave("t02", now)
        now += CALLBACK_AGAIN_S
    assert there.order == []


def test_a_server_that_died_leaves_the_places_of_its_callers() -> None:
    there = queue(("a", "b"))
    for number in range(3):
        one = ticket(number, number)
        one.server = "dead" if number == 0 else "alive"
        there.join(one, 3)
    there.assign(3)
    assert offered(there) == {"t00": ["a"], "t01": ["b"]}
    later = 3 + LEASE_S + 1
    alive = [t for t in there.order if t.server == "alive"]
    there.renew("alive", alive, {}, later)
    there.assign(later)
    assert offered(there) == {"t01": ["b"], "t02": ["a"]}
    back = Ticket("t00", "other call", "+49", later, server="alive")
    there.join(back, later)
    assert [t.id for t in there.order] == ["t00", "t01", "t02"]
    there.renew("alive", alive, {}, later + KEPT_S + 1)
    assert [t.id for t in there.order] == ["t01", "t02"]


def test_a_member_of_a_server_that_died_is_free() -> None:
    there = queue(("a",))
    there.join(ticket(1), 0)
    there.assign(0)
    there.accepted("t01", "a", 0)
    there.renew("other", (), {}, LEASE_S + 1)
    assert there.members["a"].state(LEASE_S + 1) == "ready"


def test_a_place_that_was_lost_is_made_anew() -> None:
    there = queue()
    first, second = ticket(1, 1), ticket(2, 2)
    there.join(second, 2)
    there.renew("s", [first, second], {}, 3)
    assert [t.id for t in there.order] == ["t01", "t02"]


def test_who_has_been_accepted_waits_no_more_however_late_a_server_knows_it() -> None:
    there = queue()
    one = ticket(1)
    there.join(one, 0)
    there.assign(0)
    there.accepted("t01", "a", 1)
    there.renew("s", [one], {}, 1)
    assert there.order == []
    there.released("a", "t01", 2)  # the person had hung up
    there.renew("s", [one], {}, 2)
    assert [t.id for t in there.order] == ["t01"]


def test_an_acceptance_that_was_lost_is_made_anew() -> None:
    there = queue()
    there.renew("s", [], {"t01": "a"}, 1)
    assert there.members["a"].state(1) == "speaking"
    there.released("a", "t01", 61)
    assert there.members["a"].state(61) == "ready"


def test_members_of_another_server_s_configuration_keep_their_state() -> None:
    ours, theirs = queue(("a", "b")), queue(("b", "c"))
    theirs.join(ticket(1), 0)
    theirs.pause("b", True)
    theirs.assign(0)
    ours.load(theirs.dump())
    theirs.load(ours.dump())
    assert theirs.members["c"].state(1) == "ringing"
    assert ours.wait_s(1, 1) is None


def test_callers_who_have_not_come_back_are_given_up() -> None:
    there = queue()
    there.join(ticket(1), 0)
    assert there.renew("other", [], {}, KEPT_S) == []
    assert [t.id for t in there.renew("other", [], {}, KEPT_S + 1)] == ["t01"]


@pytest.mark.parametrize("seed", range(5))
def test_waiting_times_count_ringing_briefing_and_those_who_decline(seed: int) -> None:
    """Two members, who need 5 to 15 s to accept, and decline every fourth caller."""
    chance, there = random.Random(seed), queue(("a", "b"), wrap_up_s=2)
    due: dict[str, float] = {}
    said: dict[str, list[tuple[float, float]]] = {}
    ratios = []
    for number in range(60):
        there.join(ticket(number), 0)
    now = 0.0
    while there.tickets:
        now += 0.5
        there.renew("s", there.order, conversations(there), now)
        there.assign(now)
        for address, member in there.members.items():
            if member.ticket and address not in due:
                due[address] = now + chance.uniform(5, 15)
            if not member.ticket or now < due[address]:
                continue
            one = member.ticket
            del due[address]
            if member.speaks:
                there.released(address, one, now)
            elif chance.random() < 0.25:
                there.passed(one, address, now)
            elif there.accepted(one, address, now):
                due[address] = now + chance.uniform(20, 40)
                ratios += [w / (now - at) for at, w in said.pop(one, []) if now - at > 60]
        for place, one in enumerate(there.order, 1):
            if now % 45 == 0 and (wait := there.wait_s(place, now)) is not None:
                said.setdefault(one.id, []).append((now, wait))
    assert len(ratios) > 100
    assert abs(statistics.median(ratios) - 1) < 0.2


EVENTS = ("join", "leave", "accept", "pass", "release", "assign", "pause", "ready", "reload")


@settings(max_examples=150)
@given(
    st.sampled_from(("longest_idle", "round_robin", "all")),
    st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 5)), max_size=80),
)
def test_nobody_is_lost_or_served_twice(strategy: str, events: list[tuple[str, int]]) -> None:
    there, joined, gone, served = queue(strategy=strategy), set(), set(), []
    for now, (event, number) in enumerate(events, 1):
        member = FIVE[number % 5]
        waiting = there.order
        match event:
            case "join" if f"t{number:02}" not in joined:
                there.join(ticket(number, now), now)
                joined.add(f"t{number:02}")
            case "leave" if waiting:
                gone.add(waiting[-1].id)
                there.leave(waiting[-1].id, now)
            case "accept":
                for one in waiting:
                    if member in one.offered and there.accepted(one.id, member, now):
                        served.append(one.id)
            case "pass":
                for one in waiting:
                    if member in one.offered:
                        there.passed(one.id, member, now)
            case "release":
                there.released(member, there.members[member].ticket, now)
            case "pause" | "ready":
                there.pause(member, event == "pause")
            case "reload":
                there = queue(strategy=strategy).load(there.dump())
            case "assign":
                there.renew("s", there.order, conversations(there), now)
                there.assign(now)
        rung = [address for one in there.order for address in one.offered]
        assert len(rung) == len(set(rung))
        busy = {address for address, m in there.members.items() if m.ticket}
        speaking = {address for address, m in there.members.items() if m.speaks}
        assert set(rung) == busy - speaking
        assert len(served) == len(set(served))
        assert joined == {t.id for t in there.order} | gone | set(served)


class Office:
    """60 callers and five people in virtual time."""

    def __init__(self, seed: int, callers: int = 60) -> None:
        self.random = random.Random(seed)
        self.there = queue(wrap_up_s=5)
        self.joined: dict[str, float] = {}
        self.announced: dict[str, tuple[float, float]] = {}
        """By caller: when, and how long it is said to take."""
        self.served: dict[str, float] = {}
        self._agenda: list[tuple[float, int, Callable[[float], None]]] = []
        self._count = 0
        for number in range(callers):
            self.at(self.random.uniform(0, 600), lambda now, n=number: self.joins(n, now))

    def at(self, when: float, what: Callable[[float], None]) -> None:
        self._count += 1
        heapq.heappush(self._agenda, (when, self._count, what))

    def joins(self, number: int, now: float) -> None:
        one = ticket(number, now)
        self.there.join(one, now)
        self.joined[one.id] = now
        wait = self.there.wait_s(self.there.position(one.id), now)
        if wait is not None:
            self.announced[one.id] = now, wait

    def ends(self, address: str, ticket_id: str, now: float) -> None:
        self.there.released(address, ticket_id, now)

    def run(self) -> None:
        now = 0.0
        while self._agenda or self.there.tickets:
            if self._agenda and self._agenda[0][0] <= now:
                now, _, what = heapq.heappop(self._agenda)
                what(now)
            else:
                now += 1.0
            self.there.renew("s", self.there.order, conversations(self.there), now)
            self.there.assign(now)
            for one in self.there.order:
                for address in tuple(one.offered):
                    if self.there.accepted(one.id, address, now):
                        self.served[one.id] = now
                        lasts = self.random.uniform(120, 240)
                        self.at(now + lasts, lambda t, a=address, i=one.id: self.ends(a, i, t))


@pytest.mark.parametrize("seed", range(5))
def test_sixty_callers_and_five_people(seed: int) -> None:
    office = Office(seed)
    office.run()
    by_turn = sorted(office.served, key=office.served.__getitem__)
    assert len(by_turn) == 60
    assert by_turn == sorted(by_turn, key=office.joined.__getitem__)
    ratios = []
    for one, (when, wait) in office.announced.items():
        waited = office.served[one] - when
        if waited > 120:
            ratios.append(abs(wait - waited) / waited)
    assert len(ratios) > 20
    assert sum(ratios) / len(ratios) < 0.2


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"tickets": 7}', "[" * 8000])
def test_what_is_no_state_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no state|Expecting|nested"):
        queue().load(text)
