"""How long between tries, and when it is given up."""

import pytest

from offhook.pipeline.speech.streams.retry import SPREAD_S, AttemptFailed, Losses, RetryPolicy


def test_each_pause_is_twice_the_last_up_to_a_bound_and_success_begins_anew() -> None:
    policy = RetryPolicy(first_s=1.0, max_s=5.0)
    assert [policy.next_s() for _ in range(5)] == [1, 2, 4, 5, 5]
    policy.reset()
    assert policy.next_s() == 1


def test_it_is_given_up_when_the_next_try_would_come_too_late() -> None:
    policy, failed = RetryPolicy(give_up_s=4.0, first_s=1.0), AttemptFailed("busy")
    assert policy.pause_s(failed, now=100.0) == 1
    assert policy.pause_s(failed, now=101.0) == 2
    assert policy.pause_s(failed, now=103.0) is None
    policy.reset()
    assert policy.pause_s(AttemptFailed("busy", after_s=3.0), now=110.0) == 3
    assert policy.pause_s(AttemptFailed("no", hopeless=True), now=110.0) is None


def test_work_is_given_up_only_after_some_losses_and_some_time() -> None:
    losses = Losses()
    for now in (5.0, 5.1, 5.2):
        losses.add(now)
        assert not losses.are_too_many(now)
    assert losses.is_suspect
    assert losses.pause_s(5.2) == pytest.approx(9.8)
    assert losses.pause_s(15.0) == 0.0
    assert losses.are_too_many(15.0)
    losses.clear()
    assert (losses.count, losses.is_suspect, losses.pause_s(5.2)) == (0, False, 0.0)
    for now in (5.0, 20.0):
        losses.add(now)
        assert not losses.are_too_many(now), "two may be chance, however far apart"


def test_where_there_are_other_workers_losses_of_one_are_its_own_fault() -> None:
    losses = Losses()
    for now in (0.0, 5.0, 10.0, 15.0):
        losses.add(now, "a")
    assert losses.are_too_many(15.0)
    assert not losses.are_too_many(15.0, has_others=True)
    losses.add(16.0, "b")
    assert losses.are_too_many(16.0, has_others=True)


def test_who_lost_the_same_server_does_not_come_back_at_the_same_moment() -> None:
    pauses = {RetryPolicy(first_s=0.05, spread_s=SPREAD_S).next_s() for _ in range(100)}
    assert len(pauses) > 50
    assert min(pauses) >= 0.05
    assert max(pauses) <= 0.15
