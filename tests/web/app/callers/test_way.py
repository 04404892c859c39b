"""The network between a caller and a server, made worse."""

from random import Random

from offhook.web.app.callers.way import Way


def test_a_way_loses_the_share_asked_for_and_a_good_one_nothing() -> None:
    bad, good = Way(loss=0.25, chance=Random(1)), Way()
    assert 700 < sum(not bad.loses() for _ in range(1000)) < 800
    assert not any(good.loses() for _ in range(1000))


def test_packets_are_late_by_up_to_the_jitter() -> None:
    late = [Way(jitter_ms=40, chance=Random(seed)).delay_s() for seed in range(200)]
    assert 0 <= min(late) < 0.01
    assert 0.03 < max(late) <= 0.04
    assert Way().delay_s() == 0
