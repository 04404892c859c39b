"""What the doctor says of hours."""

from datetime import datetime
from typing import Any

import pytest

from offhook.web.app.doctor.hours import examine_hours
from offhook.web.config.agents import Agent
from offhook.web.config.config import Config
from offhook.web.config.hours import Hours

MONDAY = "2026-11-30"


def told(at: str, monkeypatch: pytest.MonkeyPatch, **hours: Any) -> list[str]:
    """Returns what is said at a local time of agents "desk", by whom "night" stands in."""
    monkeypatch.setattr(Hours, "now", lambda self: datetime.fromisoformat(at))
    table = {"agents": ["desk"], "otherwise": "night", **hours}
    config = Config(
        agents={name: Agent() for name in ("desk", "night", "late")},
        hours={"office": Hours.model_validate(table), **hours.get("more", {})},
    )
    return [str(finding) for finding in examine_hours(config)]


@pytest.mark.parametrize(
    ("at", "says"),
    [
        (
            f"{MONDAY} 09:30",
            "desk is on duty now (Mon 09:30), until Mon 18:00; then night answers",
        ),
        (
            f"{MONDAY} 18:00",
            "desk is off duty now (Mon 18:00): night answers calls to it, until Tue 09:00",
        ),
        (
            "2026-12-04 18:30",
            "desk is off duty now (Fri 18:30): night answers calls to it, until Mon 09:00",
        ),
        (
            "2026-12-24 12:00",
            "desk is off duty now (Thu 12:00): night answers calls to it, until "
            "Mon 2027-01-04 09:00",
        ),
    ],
)
def test_who_is_on_duty_and_what_follows(
    at: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hours = {"open": ["Mon-Fri 09:00-18:00"], "holidays": ["2026-12-24..2027-01-03"]}
    assert told(at, monkeypatch, **hours) == [f"   ok  hours office: {says}"]


def test_hours_that_never_end_are_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = told(f"{MONDAY} 09:30", monkeypatch, open=["daily 00:00-24:00"])
    assert line.endswith("desk is on duty now (Mon 09:30), and for the next 14 days")
    always = {"open": ["daily 00:00-24:00"], "holidays": ["2026-11-01..2026-12-31"]}
    (line,) = told(f"{MONDAY} 09:30", monkeypatch, **always)
    assert line.endswith(
        "desk is off duty for the next 14 days (now Mon 09:30): night answers calls to it"
    )


def test_without_hours_nothing_is_said() -> None:
    assert not list(examine_hours(Config()))


@pytest.mark.parametrize(
    ("at", "says"),
    [
        ("2026-11-30 10:00", "open now (Mon 10:00), until Mon 18:00"),
        ("2026-11-30 08:00", "closed now (Mon 08:00), until Mon 09:00"),
    ],
)
def test_hours_of_routes_are_open_or_closed(
    at: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hours = {"open": ["Mon-Fri 09:00-18:00"], "agents": [], "otherwise": ""}
    by_it = "routes that name them go by it"
    assert told(at, monkeypatch, **hours) == [f"   ok  hours office: {says}: {by_it}"]
