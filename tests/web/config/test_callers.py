"""Lists of callers, and the conditions of routes by time: also when clocks are changed."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from offhook.web.config.config import Config, ConfigError, load
from offhook.web.config.hours import Hours
from offhook.web.config.people.callers import MAX_PATTERNS, Callers, plain
from offhook.web.edge.route_conditions import RouteConditions

ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "UTC")


@pytest.mark.parametrize(
    ("caller", "listed"),
    [
        ("+49301234", True),
        ("0049 30 1234", True),
        ("+49 (30) 12-34", True),
        ("+493012345", False),
        ("+498912", True),
        ("+4989", True),
        ("Ann", True),
        ("+1555", True),
        ("", False),
    ],
)
def test_numbers_are_compared_however_they_are_written(caller: str, listed: bool) -> None:
    assert Callers(numbers=("+49 30 1234", "+4989*", "ann", "001-555")).has(caller) is listed


def test_more_of_them_are_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "vip.txt"
    path.write_text("+49301234   # Ann\n\n# nobody\n+4989*\n")
    listed = Callers(file=path)
    assert [listed.has(one) for one in ("+49301234", "+49891", "nobody")] == [True, True, False]


@given(st.text("+0123456789 -./()", max_size=20))
def test_a_number_stays_the_same_however_often_it_is_read(number: str) -> None:
    assert plain(plain(number)) == plain(number)
    if plain(number):
        assert Callers(numbers=(number,)).has(number)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "there is no number"),
        ({"numbers": (" ",)}, "there is no number"),
        ({"file": "/nowhere/vip.txt"}, "file: /nowhere/vip.txt cannot be read"),
        ({"numbers": tuple(f"{n}*" for n in range(MAX_PATTERNS + 1))}, r"have \* or \?"),
    ],
)
def test_a_list_that_cannot_work_is_refused_in_words(settings: dict, says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        Callers(**settings)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "vip.txt"
    path.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ValidationError, match="no text in UTF-8"):
        Callers(file=path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[[sip.routes]]\nhours = "office"', "sip.routes.0.hours: there is no [hours.office]"),
        ('[[sip.routes]]\ncallers = "vip"', "sip.routes.0.callers: there is no [callers.vip]"),
        ('[hours.a]\nopen = ["daily 8:00-9:00"]\notherwise = "agent"', "hours.a.agents: in whose"),
        ('[hours.a]\nopen = ["daily 8:00-9:00"]\nagents = ["agent"]', "hours.a.otherwise: who"),
        ("[callers.vip]\nnumbers = []", "callers.vip: there is no number"),
        ("[sip]\n[[sip.routes]]\nshare = 0", "share is a percentage"),
    ],
)
def test_names_that_nothing_has_are_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "offhook.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as refused:
        load(path, {})
    assert says in str(refused.value)


def conditions(now: datetime, **hours: Hours) -> RouteConditions:
    config = Config(hours=hours, callers={"vip": Callers(numbers=("+49301234",))})
    return RouteConditions(lambda: config, lambda: now)


def test_conditions_are_those_of_the_configuration() -> None:
    office = Hours(open=("Mon-Fri 09:00-18:00",), time_zone="Europe/Berlin")
    monday = datetime(2026, 11, 30, 8, 0, tzinfo=UTC)  # nine in Berlin
    asked = conditions(monday, office=office)
    assert asked.is_within("office")
    assert not asked.is_within("unknown")
    assert not conditions(monday - timedelta(minutes=1), office=office).is_within("office")
    assert asked.is_listed("vip", "+49 30 1234")
    assert not asked.is_listed("vip", "+4930")
    assert not asked.is_listed("unknown", "+49301234")


@given(
    st.sampled_from(ZONES),
    st.datetimes(datetime(2026, 1, 1), datetime(2028, 1, 1), timezones=st.just(UTC)),
    st.integers(0, 23),
    st.integers(1, 24),
)
def test_hours_follow_the_clocks_of_their_zone(
    zone: str, moment: datetime, begins: int, ends: int
) -> None:
    if begins == ends:
        return
    table = Hours(open=(f"daily {begins}:00-{ends}:00",), time_zone=zone)
    hour = moment.astimezone(ZoneInfo(zone)).hour
    within = begins <= hour < ends if begins < ends else hour >= begins or hour < ends
    assert conditions(moment, table=table).is_within("table") is within


@pytest.mark.parametrize(
    ("day", "minutes"),
    [
        (datetime(2026, 3, 29), 60),  # the clocks skip from 2:00 to 3:00
        (datetime(2026, 10, 25), 180),  # 2:00 to 3:00 comes twice
        (datetime(2026, 6, 1), 120),
    ],
)
def test_when_clocks_are_changed_hours_are_those_that_they_show(
    day: datetime, minutes: int
) -> None:
    table = Hours(open=("daily 1:00-3:00",), time_zone="Europe/Berlin")
    midnight = day.replace(tzinfo=ZoneInfo("Europe/Berlin")).astimezone(UTC)
    moments = (midnight + timedelta(minutes=minute) for minute in range(6 * 60))
    assert sum(conditions(one, table=table).is_within("table") for one in moments) == minutes
