"""Whose turn it is, and who is told to come again."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.web.http.shares import NOBODY, PATIENCE_S, Shares, by_address
from offhook.web.speech_api.admission import (
    MAX_RECEIVING,
    RETRY_MAX_S,
    Admission,
    ByteBudget,
    KeyLimits,
    Kind,
    Limits,
    Ticket,
)
from offhook.web.speech_api.errors import ApiError


def admission(running: int = 1, queue: int = 2, streams: int = 2, **keys: KeyLimits) -> Admission:
    return Admission(Limits({"transcription": running, "speech": running}, queue, streams), keys)


def ask(door: Admission, kind: Kind, key: str, now: float, your_turn) -> Ticket:
    """A request whose body is there at once."""
    ticket = door.receive(kind, key, now)
    try:
        door.enqueue(ticket, now, your_turn)
    except ApiError:
        door.release(ticket, now)
        raise
    return ticket


class Began:
    """Notes in which order turns come."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, name: str):
        return lambda: self.names.append(name)


def refused(act) -> ApiError:
    with pytest.raises(ApiError) as caught:
        act()
    return caught.value


def test_turns_come_in_the_order_in_which_they_were_asked_for():
    door, began = admission(), Began()
    tickets = {name: ask(door, "speech", "", 0.0, began(name)) for name in "abc"}
    assert began.names == ["a"]
    door.release(tickets["a"], 1.0)
    assert began.names == ["a", "b"]
    door.release(tickets["b"], 2.0)
    assert began.names == ["a", "b", "c"]
    door.release(tickets["c"], 3.0)
    assert not door.is_busy


def test_who_leaves_the_queue_is_passed_over():
    door, began = admission(), Began()
    tickets = {name: ask(door, "speech", "", 0.0, began(name)) for name in "abc"}
    door.release(tickets["b"], 0.5)
    door.release(tickets["a"], 1.0)
    assert began.names == ["a", "c"]


def test_the_two_kinds_do_not_wait_for_each_other():
    door, began = admission(queue=0), Began()
    ask(door, "speech", "", 0.0, began("speech"))
    ask(door, "transcription", "", 0.0, began("transcription"))
    assert began.names == ["speech", "transcription"]


def test_beyond_the_queue_it_is_said_when_to_come_again():
    door, began = admission(running=2, queue=2), Began()
    for at in range(6):  # each took 3 s
        door.release(ask(door, "speech", "", 10.0 * at, began("")), 10.0 * at + 3)
    for _ in range(4):
        ask(door, "speech", "", 100.0, began(""))
    error = refused(lambda: ask(door, "speech", "", 100.0, began("")))
    assert (error.status, error.code) == (503, "queue_full")
    assert error.retry_after_s == 5  # three before it and itself, 3 s each, two at a time: 4.5 s


def test_to_come_again_is_never_said_to_be_far_off_or_at_once():
    for took, least, most in ((0.001, 1, 1), (5000.0, RETRY_MAX_S, RETRY_MAX_S)):
        door = admission(queue=0)
        door.release(ask(door, "speech", "", 0.0, lambda: None), took)
        ask(door, "speech", "", took, lambda: None)
        error = refused(lambda door=door, took=took: ask(door, "speech", "", took, lambda: None))
        assert least <= (error.retry_after_s or 0) <= most


def test_a_refused_request_leaves_nothing_behind():
    door = admission(queue=0, one=KeyLimits(max_requests=5))
    first = ask(door, "speech", "one", 0.0, lambda: None)
    for _ in range(20):
        refused(lambda: ask(door, "speech", "one", 0.0, lambda: None))
    door.release(first, 1.0)
    ask(door, "speech", "one", 1.0, lambda: None)  # the key has not used up its five


def test_streams_never_wait():
    door = admission(streams=2)
    first, _ = door.open("speech", "", 0.0), door.open("speech", "", 0.0)
    door.open("transcription", "", 0.0)
    error = refused(lambda: door.open("speech", "", 0.0))
    assert (error.status, error.code) == (503, "streams_full")
    assert error.retry_after_s
    door.release(first, 1.0)
    door.open("speech", "", 1.0)


def test_a_key_has_so_many_requests_at_a_time_waiting_ones_and_streams_included():
    door = admission(running=1, queue=10, one=KeyLimits(max_requests=3))
    tickets = [ask(door, "speech", "one", 0.0, lambda: None) for _ in range(2)]
    tickets.append(door.open("transcription", "one", 0.0))
    error = refused(lambda: ask(door, "speech", "one", 0.0, lambda: None))
    assert (error.status, error.code, error.kind) == (
        429,
        "rate_limit_exceeded",
        "rate_limit_error",
    )
    ask(door, "speech", "other", 0.0, lambda: None)  # no limit of its own
    door.release(tickets.pop(), 1.0)
    ask(door, "speech", "one", 1.0, lambda: None)


def test_a_key_asks_so_often_a_minute():
    door = admission(running=10, one=KeyLimits(requests_per_minute=3))
    for at in (0.0, 10.0, 20.0):
        door.release(ask(door, "speech", "one", at, lambda: None), at + 1)
    assert door.headers("one", 20.0) == {
        "x-ratelimit-limit-requests": "3",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "40s",
    }
    error = refused(lambda: ask(door, "speech", "one", 25.0, lambda: None))
    assert (error.status, error.retry_after_s) == (429, 35)
    ask(door, "speech", "one", 60.0, lambda: None)  # the first is a minute ago
    refused(lambda: ask(door, "speech", "one", 60.0, lambda: None))
    assert door.headers("other", 0.0) == {}


@given(
    running=st.integers(1, 3),
    queue=st.integers(0, 3),
    steps=st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=60),
)
def test_whatever_comes_and_goes_turns_are_few_in_order_and_never_lost(running, queue, steps):
    door, began = admission(running, queue), []
    there: list[Ticket] = []
    asked: deque[int] = deque()
    for number, (comes, who) in enumerate(steps):
        if comes:
            try:
                there.append(
                    ask(door, "speech", "", float(number), lambda n=number: began.append(n))
                )
                asked.append(number)
            except ApiError:
                assert len(there) == running + queue
        elif there:
            ticket = there.pop(who % len(there))
            door.release(ticket, float(number))
        lane = door.lanes["speech"]
        assert len(lane.running) == min(running, len(there))
        assert len(lane.running) + len(lane.waiting) == len(there) <= running + queue
    assert began == sorted(began)
    for ticket in tuple(there):
        door.release(ticket, 1000.0)
    assert not door.is_busy


# --- receiving ---


def test_requests_that_are_being_received_take_no_turn():
    door, began = admission(running=1, queue=1), Began()
    slow = [door.receive("speech", "", 0.0) for _ in range(50)]
    quick = ask(door, "speech", "", 0.0, began("quick"))
    assert began.names == ["quick"]
    assert door.is_busy
    door.release(quick, 1.0)
    door.enqueue(slow[0], 2.0, began("slow"))
    assert began.names == ["quick", "slow"]
    for ticket in slow:
        door.release(ticket, 3.0)
    assert not door.is_busy


def test_requests_being_received_have_a_bound():
    door = admission()
    there = [door.receive("speech", "", 0.0) for _ in range(MAX_RECEIVING)]
    error = refused(lambda: door.receive("speech", "", 0.0))
    assert (error.status, error.code) == (503, "queue_full")
    assert error.retry_after_s
    door.release(there.pop(), 1.0)
    door.receive("speech", "", 1.0)


def test_what_is_received_when_the_queue_has_filled_is_told_to_come_again():
    door = admission(running=1, queue=0)
    late = door.receive("speech", "", 0.0)
    ask(door, "speech", "", 0.0, lambda: None)
    assert refused(lambda: door.enqueue(late, 1.0, lambda: None)).code == "queue_full"
    door.release(late, 1.0)


def test_uploads_together_have_so_much_room():
    room = ByteBudget(3 << 20)
    room.reserve(2 << 20)
    error = refused(lambda: room.reserve(2 << 20))
    assert (error.status, error.code) == (503, "uploads_full")
    room.release(1 << 20)
    room.reserve(2 << 20)
    assert room.taken == 3 << 20


def test_the_free_share_counts_idle_streams_and_is_0_only_when_full():
    door = Admission(Limits({}, 0, streams=4, idle_streams=12), {})
    assert door.free_share("speech") == 1.0
    idle = [door.open("speech", "", 0.0, idle=True) for _ in range(10)]
    assert door.free_share("speech") == pytest.approx(1 - 10 / 20)
    for ticket in idle[:4]:
        assert door.free_share("speech") > 0.25
        door.use(ticket)
    assert door.free_share("speech") == 0.0
    door.rest(idle[0], 0.0)
    assert door.free_share("speech") == pytest.approx(1 - 13 / 20)
    for _ in range(6):
        door.open("speech", "", 0.0, idle=True)
    assert door.free_share("speech") == 0.0


def test_a_stream_that_is_open_may_be_used_however_many_are():
    door = Admission(Limits({}, 0, streams=1, idle_streams=2), {})
    one, two, three = (door.open("transcription", "", 0.0, idle=True) for _ in range(3))
    with pytest.raises(ApiError, match="all 3 streams are open"):
        door.open("transcription", "", 0.0, idle=True)
    for ticket in (one, two):
        door.use(ticket, always=True)
    with pytest.raises(ApiError, match="all 1 streams are in use"):
        door.use(three)
    door.rest(one, 0.0)
    door.release(three, 0.0)
    with pytest.raises(ApiError, match="all 1 streams are in use"):
        door.open("transcription", "", 0.0, idle=True)


def test_the_free_share_of_a_server_without_idle_streams_is_that_of_streams():
    door = admission(streams=4)
    door.open("speech", "", 0.0)
    assert door.free_share("speech") == 0.75


STRANGER = by_address("203.0.113.9")


def test_a_stream_that_waits_makes_room_for_another_client():
    door, gone = admission(streams=8), []
    for number in range(4):
        ticket = door.open("speech", "", float(number), holders=NOBODY)
        ticket.give_way = lambda number=number: gone.append(number)
    with pytest.raises(ApiError, match="4 streams have been opened and not used") as refusal:
        door.open("speech", "", PATIENCE_S / 2, holders=NOBODY)
    assert refusal.value.status == 503
    new = door.open("speech", "", 10.0, holders=NOBODY)
    assert gone == [0]
    assert len(door.lanes["speech"].streams) == 4
    new.waits = False
    door.open("speech", "", 10.0, holders=NOBODY)
    assert gone == [0]  # one of four does not wait any more
    door.open("transcription", "", 10.0, holders=NOBODY)


def test_a_stream_that_is_used_stays_when_all_are_open():
    door, gone = admission(streams=2), []
    used, waiting = (door.open("speech", "", 0.0, holders=NOBODY) for _ in range(2))
    used.waits = False
    used.give_way = lambda: gone.append("used")
    waiting.give_way = lambda: gone.append("waiting")
    third = door.open("speech", "", 10.0, holders=NOBODY)
    assert gone == ["waiting"]
    third.waits = False
    with pytest.raises(ApiError, match="all 2 streams are in use"):
        door.open("speech", "", 20.0, holders=NOBODY)
    for ticket in (used, waiting, third):
        door.release(ticket, 30.0)
    assert not door.is_busy


def test_an_address_has_its_share_of_streams_and_uploads():
    door = admission(streams=8)
    for _ in range(4):
        door.open("speech", "", 0.0, holders=STRANGER).waits = False
    with pytest.raises(ApiError, match="has 4 of 8 streams for speech") as refusal:
        door.open("speech", "", 0.0, holders=STRANGER)
    assert (refusal.value.status, refusal.value.code) == (429, "rate_limit_exceeded")
    door.open("speech", "", 0.0, holders=by_address("203.0.113.8"))
    door.shares = Shares(per_address=1.0)
    door.open("speech", "", 0.0, holders=STRANGER)
    for _ in range(MAX_RECEIVING // 2):
        door.receive("speech", "", 0.0, holders=STRANGER)
    door.shares = Shares()
    with pytest.raises(ApiError, match="uploads for speech"):
        door.receive("speech", "", 0.0, holders=STRANGER)
    door.receive("speech", "", 0.0, holders=by_address("203.0.113.8"))


def test_our_own_servers_have_no_share():
    door = Admission(Limits({}, 0, streams=4, idle_streams=12), {})
    for _ in range(16):
        door.open("speech", "", 0.0, idle=True)
