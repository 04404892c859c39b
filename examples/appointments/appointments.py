"""A calendar in a file: one appointment every half hour, from eight to twelve."""

import json
from datetime import date
from pathlib import Path
from typing import Any

CALENDAR = Path("calendar.json")
TIMES = [f"{hour:02}:{minute:02}" for hour in range(8, 12) for minute in (0, 30)]


def _booked() -> dict[str, str]:
    """Names by day and time, such as "2026-12-01 08:30"."""
    return json.loads(CALENDAR.read_text()) if CALENDAR.exists() else {}


def free_times(day: str) -> dict[str, Any]:
    """Returns the free times of a day.

    Args:
        day: the day, as YYYY-MM-DD
    """
    if date.fromisoformat(day).weekday() > 4:
        return {"free": [], "note": "closed on weekends"}
    booked = _booked()
    return {"free": [time for time in TIMES if f"{day} {time}" not in booked]}


def book(day: str, time: str, name: str) -> dict[str, Any]:
    """Books a time that is free.

    Args:
        day: the day, as YYYY-MM-DD
        time: the time, as HH:MM
        name: first and last name of the patient
    """
    if time not in free_times(day)["free"]:
        return {"error": "that time is not free"}
    CALENDAR.write_text(json.dumps({**_booked(), f"{day} {time}": name}, indent=1))
    return {"booked": f"{day} {time}"}
