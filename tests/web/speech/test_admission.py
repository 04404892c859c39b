"""Whose turn it is, and who is told to come again."""

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offhook.web.speech.admission import RETRY_MAX_S, Admission, KeyLimits, Limits, Ticket
from offhook.web.speech.errors import ApiError


def admission(running: int = 1, queue: int = 2, streams: int = 2, **keys: KeyLimits) -> Admission:
    return Admission(Limits({"transcription": running, "speech": running}, queue, streams), keys)


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
    tickets = {name: door.ask("speech", "", 0.0, began(name)) for name in "abc"}
    assert began.names == ["a"]
    door.leave(tickets["a"], 1.0)
    assert began.names == ["a", "b"]
    door.leave(tickets["b"], 2.0)
    assert began.names == ["a", "b", "c"]
    door.leave(tickets["c"], 3.0)
    assert not door.is_busy


def test_who_leaves_the_queue_is_passed_over():
    door, began = admission(), Began()
    tickets = {name: door.ask("speech", "", 0.0, began(name)) for name in "abc"}
    door.leave(tickets["b"], 0.5)
    door.leave(tickets["a"], 1.0)
    assert began.names == ["a", "c"]


def test_the_two_kinds_do_not_wait_for_each_other():
    door, began = admission(queue=0), Began()
    door.ask("speech", "", 0.0, began("speech"))
    door.ask("transcription", "", 0.0, began("transcription"))
    assert began.names == ["speech", "transcription"]


def test_beyond_the_queue_it_is_said_when_to_come_again():
    door, began = admission(running=2, queue=2), Began()
    for at in range(6):  # each took 3 s
        door.leave(door.ask("speech", "", 10.0 * at, began("")), 10.0 * at + 3)
    for _ in range(4):
        door.ask("speech", "", 100.0, began(""))
    error = refused(lambda: door.ask("speech", "", 100.0, began("")))
    assert (error.status, error.code) == (503, "queue_full")
    assert error.retry_after_s == 5  # three before it and itself, 3 s each, two at a time: 4.5 s


def test_to_come_again_is_never_said_to_be_far_off_or_at_once():
    for took, least, most in ((0.001, 1, 1), (5000.0, RETRY_MAX_S, RETRY_MAX_S)):
        door = admission(queue=0)
        door.leave(door.ask("speech", "", 0.0, lambda: None), took)
        door.ask("speech", "", took, lambda: None)
        error = refused(lambda door=door, took=took: door.ask("speech", "", took, lambda: None))
        assert least <= (error.retry_after_s or 0) <= most


def test_a_refused_request_leaves_nothing_behind():
    door = admission(queue=0, one=KeyLimits(max_requests=5))
    first = door.ask("speech", "one", 0.0, lambda: None)
    for _ in range(20):
        refused(lambda: door.ask("speech", "one", 0.0, lambda: None))
    door.leave(first, 1.0)
    door.ask("speech", "one", 1.0, lambda: None)  # the key has not used up its five


def test_streams_never_wait():
    door = admission(streams=2)
    first, _ = door.open("speech", "", 0.0), door.open("speech", "", 0.0)
    door.open("transcription", "", 0.0)
    error = refused(lambda: door.open("speech", "", 0.0))
    assert (error.status, error.code) == (503, "streams_full")
    assert error.retry_after_s
    door.leave(first, 1.0)
    door.open("speech", "", 1.0)


def test_a_key_has_so_many_requests_at_a_time_waiting_ones_and_streams_included():
    door = admission(running=1, queue=10, one=KeyLimits(max_requests=3))
    tickets = [door.ask("speech", "one", 0.0, lambda: None) for _ in range(2)]
    tickets.append(door.open("transcription", "one", 0.0))
    error = refused(lambda: door.ask("speech", "one", 0.0, lambda: None))
    assert (error.status, error.code, error.kind) == (
        429,
        "rate_limit_exceeded",
        "rate_limit_error",
    )
    door.ask("speech", "other", 0.0, lambda: None)  # no limit of its own
    door.leave(tickets.pop(), 1.0)
    door.ask("speech", "one", 1.0, lambda: None)


def test_a_key_asks_so_often_a_minute():
    door = admission(running=10, one=KeyLimits(requests_per_minute=3))
    for at in (0.0, 10.0, 20.0):
        door.leave(door.ask("speech", "one", at, lambda: None), at + 1)
    assert door.headers("one", 20.0) == {
        "x-ratelimit-limit-requests": "3",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "40s",
    }
    error = refused(lambda: door.ask("speech", "one", 25.0, lambda: None))
    assert (error.status, error.retry_after_s) == (429, 35)
    door.ask("speech", "one", 60.0, lambda: None)  # the first is a minute ago
    refused(lambda: door.ask("speech", "one", 60.0, lambda: None))
    assert door.headers("other", 0.0) == {}


@settings(max_examples=200, deadline=None)
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
                    door.ask("speech", "", float(number), lambda n=number: began.append(n))
                )
                asked.append(number)
            except ApiError:
                assert len(there) == running + queue
        elif there:
            ticket = there.pop(who % len(there))
            door.leave(ticket, float(number))
        lane = door.lanes["speech"]
        assert len(lane.running) == min(running, len(there))
        assert len(lane.running) + len(lane.waiting) == len(there) <= running + queue
    assert began == sorted(began)
    for ticket in tuple(there):
        door.leave(ticket, 1000.0)
    assert not door.is_busy
