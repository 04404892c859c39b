"""The findings of `offhook doctor` on hours: who answers now, and what follows."""

from collections.abc import Iterator
from datetime import datetime

from offhook.web.app.doctor.finding import Finding
from offhook.web.config.config import Config
from offhook.web.config.hours import LOOKED_AHEAD_DAYS, Hours, on_duty


def examine_hours(config: Config) -> Iterator[Finding]:
    """Yields for each agent that has hours whether it is on duty, and for hours of routes alone
    whether they are open."""
    for name, hours in config.hours.items():
        now = hours.now()
        if not hours.agents:
            yield Finding(f"hours {name}", "ok", _words_of_routes(hours, now))
        for agent in hours.agents:
            words = _words(hours, now, on_duty(config.hours, hours.otherwise))
            yield Finding(f"hours {name}", "ok", f"{agent} {words}")


def _at(hours: Hours, now: datetime) -> str:
    return f"{now:%a %H:%M}" + (f" in {hours.time_zone}" if hours.time_zone else "")


def _words_of_routes(hours: Hours, now: datetime) -> str:
    changes = hours.next_change(now)
    until = f"until {_when(changes, now)}" if changes else f"for {LOOKED_AHEAD_DAYS} days"
    is_open = "open" if hours.are_at(now) else "closed"
    return f"{is_open} now ({_at(hours, now)}), {until}: routes that name them go by it"


def _words(hours: Hours, now: datetime, otherwise: str) -> str:
    """Returns whether agents with these hours are on duty, and until when; `otherwise` answers in
    their place."""
    at, changes = _at(hours, now), hours.next_change(now)
    if hours.are_at(now):
        if changes is None:
            return f"is on duty now ({at}), and for the next {LOOKED_AHEAD_DAYS} days"
        return f"is on duty now ({at}), until {_when(changes, now)}; then {hours.otherwise} answers"
    if changes is None:
        words = f"is off duty for the next {LOOKED_AHEAD_DAYS} days"
        return f"{words} (now {at}): {otherwise} answers calls to it"
    return f"is off duty now ({at}): {otherwise} answers calls to it, until {_when(changes, now)}"


def _when(then: datetime, now: datetime) -> str:
    """Returns a moment, with its date if its day of the week says too little."""
    return f"{then:%a %H:%M}" if (then - now).days < 6 else f"{then:%a %Y-%m-%d %H:%M}"
