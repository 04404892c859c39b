"""No campaign has more calls at once, or more in a second, than it may: any number of looks at the
store, in virtual time."""

import heapq
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from offhook.web.campaigns.pacing import AHEAD_S, Lines, next_after, route_of, slots

SLACK_S = 1e-6
"""Of adding floats."""

looks = st.lists(
    st.tuples(
        st.floats(0.01, 5.0),  # time until the next look
        st.integers(0, 12),  # free lines then
        st.floats(0.1, 20.0),  # how long its calls last
    ),
    min_size=1,
    max_size=40,
)


@given(st.integers(1, 8), st.floats(0.2, 20.0), looks)
def test_limits_are_kept(
    at_once: int, per_second: float, given: list[tuple[float, int, float]]
) -> None:
    now, next_at = 1000.0, 1000.0
    ends: list[float] = []
    placed: list[float] = []
    for pause, free, lasts in given:
        while ends and ends[0] <= now:
            heapq.heappop(ends)
        times = slots(
            room=free,
            at_once=at_once,
            under_way=len(ends),
            per_second=per_second,
            next_at=next_at,
            now=now,
        )
        assert len(times) <= free
        assert all(now <= at < now + AHEAD_S for at in times)
        for at in times:
            heapq.heappush(ends, at + lasts)
            next_at = next_after(at, per_second)
        assert len(ends) <= at_once
        placed += times
        now += pause
    gaps = [later - at for at, later in pairwise(placed)]
    assert all(gap >= 1 / per_second - SLACK_S for gap in gaps)


def test_a_slow_campaign_waits_for_its_next_call() -> None:
    def times(now: float, next_at: float) -> list[float]:
        return slots(room=9, at_once=9, under_way=0, per_second=0.1, next_at=next_at, now=now)

    assert times(1000.0, 1000.0) == [1000.0]
    assert times(1001.0, 1010.0) == []
    assert times(1009.5, 1010.0) == [1010.0]


def test_a_fast_one_has_its_calls_spread_over_the_time_until_the_next_look() -> None:
    times = slots(room=9, at_once=9, under_way=0, per_second=4.0, next_at=0.0, now=100.0)
    assert times == [100.0, 100.25, 100.5, 100.75]


def test_lines_are_those_of_the_server_and_of_the_way() -> None:
    lines = Lines(3, {"": 2, "backup": 5, "carrier:twilio": 1})
    ways = [{}, {"trunk": "backup"}, {"carrier": "twilio"}, {"trunk": "other"}]
    assert [lines.room(one) for one in ways] == [2, 3, 1, 0]
    lines.use({"trunk": "backup"}, 2)
    assert [lines.room(one) for one in ways] == [1, 1, 1, 0]


def test_whose_agent_is_elsewhere_is_not_called_from_here() -> None:
    lines = Lines(3, {"": 2}, frozenset({"sales"}))
    assert [lines.room({"agent": agent}) for agent in ("", "sales", "other")] == [2, 2, 0]


def test_the_way_of_a_campaign() -> None:
    assert route_of({}) == route_of({"trunk": ""}) == ""
    assert route_of({"trunk": "pbx"}) == "pbx"
    assert route_of({"carrier": "twilio"}) == "carrier:twilio"
