"""How long between tries, and when it is given up."""

from offhook.pipeline.speech.streams.retry import AttemptFailed, RetryPolicy


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
