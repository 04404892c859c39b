"""Recipients are called within the windows of a campaign, on their own clocks, also in the nights
in which these are put back or forward."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.web.campaigns.week import DAY_MINUTES, Holiday, Span
from offhook.web.campaigns.windows import LOOKED_AHEAD_DAYS, Windows

ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "UTC")
YEAR = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
MINUTE_S, DAY_S = 60.0, 86_400.0

moments = st.integers(0, 365 * DAY_MINUTES - 1).map(lambda minute: YEAR + minute * MINUTE_S)
minutes = st.integers(0, DAY_MINUTES - 1)


@st.composite
def spans(draw: st.DrawFn) -> Span:
    begins, ends = draw(minutes), draw(minutes)
    days = draw(st.frozensets(st.integers(0, 6), min_size=1))
    return Span(days, begins, ends if ends != begins else begins + 1)


def at(text: str, zone: str = "Europe/Berlin") -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


def windows(*texts: str, closed: str = "") -> Windows:
    return Windows([Span.read(text) for text in texts], [Holiday.read(closed)] if closed else [])


@given(st.lists(spans(), min_size=1, max_size=3), moments, st.sampled_from(ZONES))
def test_the_next_opening_is_open_and_not_before(some: list[Span], now: float, zone: str) -> None:
    when = Windows(some, [])
    opens = when.next_open(now, zone)
    assert opens >= now
    assert opens == now or not when.are_open(now, zone)
    if opens < now + LOOKED_AHEAD_DAYS * DAY_S:
        assert when.are_open(opens, zone)


@given(st.lists(spans(), min_size=1, max_size=2), moments, st.sampled_from(ZONES), st.data())
def test_nothing_before_the_next_opening_is_open_but_where_clocks_change(
    some: list[Span], now: float, zone: str, data: st.DataObject
) -> None:
    when = Windows(some, [])
    opens = when.next_open(now, zone)
    between = data.draw(st.floats(now, max(now, opens - 0.001)))
    if opens == now or not when.are_open(between, zone):
        return
    moment = datetime.fromtimestamp(between, ZoneInfo(zone))
    day = timedelta(days=1)
    assert (moment - day).utcoffset() != (moment + day).utcoffset()


@pytest.mark.parametrize(
    ("now", "opens"),
    [
        ("2026-03-27 12:00", "2026-03-27 12:00"),  # a Friday
        ("2026-03-27 18:00", "2026-03-30 09:00"),  # over the night that is an hour shorter
        ("2026-03-30 08:59", "2026-03-30 09:00"),
        ("2026-10-23 20:00", "2026-10-26 09:00"),  # and the one that is an hour longer
        ("2026-12-24 19:00", "2026-12-28 09:00"),  # over a holiday
    ],
)
def test_weekdays_in_berlin(now: str, opens: str) -> None:
    when = windows("Mon-Fri 09:00-18:00", closed="12-25")
    assert when.next_open(at(now), "Europe/Berlin") == at(opens)


def test_each_recipient_has_a_clock_of_their_own() -> None:
    when, now = windows("daily 09:00-18:00"), at("2026-06-01 10:00")
    assert when.are_open(now, "Europe/Berlin")
    assert not when.are_open(now, "America/New_York")
    assert when.next_open(now, "America/New_York") == at("2026-06-01 09:00", "America/New_York")


def test_an_hour_that_there_is_twice_is_open_twice() -> None:
    when, zone = windows("Sun 02:00-03:00"), "Europe/Berlin"
    first = at("2026-10-25 02:30")
    assert when.are_open(first, zone)
    assert when.are_open(first + 3600, zone)
    assert not when.are_open(first + 7200, zone)


def test_an_hour_that_is_left_out_is_not_open() -> None:
    when = windows("Sun 02:00-03:00")
    assert when.next_open(at("2026-03-29 00:00"), "Europe/Berlin") == at("2026-04-05 02:00")


def test_without_windows_it_is_always_open() -> None:
    assert Windows([], []).next_open(123.4, "UTC") == 123.4


def test_a_year_of_holidays_is_looked_at_again_when_it_is_over() -> None:
    when = windows(closed="01-01..12-31")
    assert when.next_open(YEAR, "UTC") == YEAR + LOOKED_AHEAD_DAYS * DAY_S
