"""When agents answer, and who does at other times."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from offhook.web.campaigns.week import DAYS, Span
from offhook.web.config.config import Config
from offhook.web.config.hours import Hours, on_duty

WEEK = ("Mon-Fri 09:00-18:00", "Sat, Sun 10:00-14:00")


def hours(*spans: str, holidays: tuple[str, ...] = ()) -> Hours:
    return Hours(agents=("desk",), open=spans, otherwise="night", holidays=holidays)


@pytest.mark.parametrize(
    ("spans", "holidays", "at", "open_then"),
    [
        (WEEK, (), "2026-11-30 09:00", True),  # a Monday
        (WEEK, (), "2026-11-30 08:59", False),
        (WEEK, (), "2026-11-30 18:00", False),
        (WEEK, (), "2026-12-05 13:59", True),  # a Saturday
        (WEEK, (), "2026-12-05 09:30", False),
        (("daily 00:00-24:00",), (), "2026-12-05 23:59", True),
        (("Sat-Mon 8:00-9:00",), (), "2026-11-30 08:30", True),  # over the end of the week
        (("Sat-Mon 8:00-9:00",), (), "2026-12-01 08:30", False),
        (("Mon,Wed,Fri 08:00-09:00",), (), "2026-12-02 08:30", True),
        (("Mon,Wed,Fri 08:00-09:00",), (), "2026-12-01 08:30", False),
        (("Fri 22:00-02:00",), (), "2026-12-05 01:59", True),  # Friday's hours, on Saturday
        (("Fri 22:00-02:00",), (), "2026-12-04 01:59", False),
        (WEEK, ("12-25",), "2026-12-25 10:00", False),
        (WEEK, ("12-25",), "2028-12-25 10:00", False),
        (WEEK, ("2026-12-25",), "2028-12-25 10:00", True),
        (WEEK, ("2026-12-24..2027-01-01",), "2026-12-31 10:00", False),
        (WEEK, ("2026-12-24..2027-01-01",), "2027-01-04 10:00", True),
        (WEEK, ("12-24..01-01",), "2029-01-01 10:00", False),
        (WEEK, ("12-24..01-01",), "2029-01-02 10:00", True),
        (WEEK, ("02-29",), "2028-02-29 10:00", False),
        (("Thu 22:00-02:00",), ("12-25",), "2026-12-25 01:00", True),  # of the 24th, a Thursday
        (("Fri 22:00-02:00",), ("12-25",), "2026-12-26 01:00", False),
    ],
)
def test_agents_answer_in_their_hours(
    spans: tuple[str, ...], holidays: tuple[str, ...], at: str, open_then: bool
) -> None:
    moment = datetime.strptime(at, "%Y-%m-%d %H:%M")
    assert hours(*spans, holidays=holidays).are_at(moment) == open_then


@given(
    st.sets(st.integers(0, 6), min_size=1),
    st.integers(0, 1439),
    st.integers(1, 1440),
    st.integers(0, 10079),
)
def test_a_moment_belongs_to_the_last_beginning_unless_that_has_ended(
    days: set[int], begins: int, length: int, minute: int
) -> None:
    ends = (begins + length - 1) % 1440 + 1
    if ends == begins:
        return
    monday = datetime(2026, 11, 30)
    moment = monday + timedelta(days=14, minutes=minute)
    starts = [monday + timedelta(days=day, minutes=begins) for day in range(22) if day % 7 in days]
    lasts = timedelta(minutes=ends - begins if ends > begins else ends - begins + 1440)
    within = any(start <= moment < start + lasts for start in starts)
    assert (Span(frozenset(days), begins, ends).day_of(moment) is not None) == within


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"open": ["Mon-Fri"]}, "'Mon-Fri' is no time of the week"),
        ({"open": ["Mon 09:00-25:00"]}, "the last one to 24:00"),
        ({"open": ["Mon 24:00-25:00"]}, "from 00:00 to 23:59"),
        ({"open": ["Mon 09:60-10:00"]}, "from 00:00 to 23:59"),
        ({"open": ["Mon 09:00-09:00"]}, "ends when it begins"),
        ({"open": []}, "open"),
        ({"holidays": ["Christmas"]}, "'Christmas' is no date"),
        ({"holidays": ["02-30"]}, "'02-30' is no date: day"),
        ({"holidays": ["2026-12-24..01-01"]}, "both dates have a year"),
        ({"holidays": ["2026-12-24..2026-12-01"]}, "ends before it begins"),
        ({"time_zone": "Berlin"}, "'Berlin' is no time zone"),
        ({"agents": []}, "agents"),
        ({"agents": ["nobody"]}, "no agent is called 'nobody'"),
        ({"otherwise": "nobody"}, "no agent is called 'nobody'"),
        ({"otherwise": "desk"}, "nobody is left to answer for 'desk'"),
        ({"agents": ["desk", "desk"]}, "'desk' has other hours already"),
    ],
)
def test_what_cannot_work_is_refused_at_the_start(table: dict[str, Any], words: str) -> None:
    whole = {"agents": ["desk"], "open": ["daily 09:00-18:00"], "otherwise": "night", **table}
    agents: dict[str, Any] = {"desk": {}, "night": {}}
    with pytest.raises(ValidationError, match=words):
        Config.model_validate({"agents": agents, "hours": {"office": whole}})


def test_two_that_stand_in_for_one_another_are_refused() -> None:
    def shift(agent: str, otherwise: str) -> dict[str, Any]:
        return {"agents": [agent], "open": ["daily 09:00-18:00"], "otherwise": otherwise}

    agents: dict[str, Any] = {"day": {}, "night": {}}
    table = {"a": shift("day", "night"), "b": shift("night", "day")}
    with pytest.raises(ValidationError, match="nobody is left to answer"):
        Config.model_validate({"agents": agents, "hours": table})


def test_the_one_who_stands_in_may_have_hours_too() -> None:
    today = datetime.now().weekday()
    other = DAYS[(today + 3) % 7]  # whatever midnight does to this test

    def closed(agent: str, otherwise: str) -> Hours:
        return Hours(agents=(agent,), open=(f"{other} 00:00-24:00",), otherwise=otherwise)

    table = {"office": closed("agent", "evening"), "evening": closed("evening", "night")}
    assert on_duty(table, "agent") == "night"
    assert on_duty(table, "someone") == "someone"
    always = Hours(agents=("agent",), open=("daily 00:00-24:00",), otherwise="night")
    assert on_duty({"office": always}, "agent") == "agent"
