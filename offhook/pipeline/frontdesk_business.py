"""Whom the front desk speaks for: settings, opening hours, and the hours in sentences."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from offhook.pipeline import frontdesk_language as language
from offhook.pipeline.frontdesk_language import DAYS

DAYS_AHEAD = 14
"""How far the next opening is looked for."""


class BusinessError(ValueError):
    """A setting of the business is wrong; the message begins with its key."""


Span = tuple[int, int]
"""Opening and closing in minutes since midnight; 1440 is the midnight that ends the day."""


@dataclass(frozen=True)
class Department:
    name: str
    number: str
    """Where its calls are transferred to: a telephone number or SIP address."""
    words: tuple[str, ...] = ()
    """Other words callers use for it."""


@dataclass(frozen=True)
class Business:
    """Whom the front desk speaks for."""

    name: str
    hours: tuple[tuple[Span, ...], ...]
    """Seven days from Monday; a day without spans is closed."""
    address: str
    directions: str = ""
    about: str = ""
    """What is told at "tell me about the company": a few sentences."""
    closing: str = "Thank you for calling."
    departments: tuple[Department, ...] = ()
    holidays: frozenset[date] = frozenset()

    @classmethod
    def from_table(cls, table: Mapping[str, object]) -> "Business":
        """From a TOML table, laid out as `DEMO_TABLE`; raises BusinessError naming the key."""
        unknown = sorted(set(table) - set(DEMO_TABLE) - {"holidays"})
        if unknown:
            raise BusinessError(f"{unknown[0]}: no such setting")
        holidays = table.get("holidays", [])
        if not isinstance(holidays, list) or any(type(day) is not date for day in holidays):
            raise BusinessError("holidays: must be a list of dates such as 2027-01-01")
        return cls(
            name=_text(table, "name", 60, required=True),
            hours=_hours(table.get("hours", {})),
            address=_text(table, "address", 160, required=True),
            directions=_text(table, "directions", 160),
            about=_text(table, "about", 1000),
            closing=_text(table, "closing", 100) or cls.closing,
            departments=_departments(table.get("departments", {})),
            holidays=frozenset(holidays),
        )

    def spans(self, day: date) -> tuple[Span, ...]:
        return () if day in self.holidays else self.hours[day.weekday()]

    def is_open(self, now: datetime) -> bool:
        minutes = now.hour * 60 + now.minute
        return any(opens <= minutes < closes for opens, closes in self.spans(now.date()))


def _text(table: Mapping[str, object], key: str, limit: int, required: bool = False) -> str:
    text = table.get(key, "")
    if required and key not in table:
        raise BusinessError(f"{key}: is missing; a business is described whole")
    if not isinstance(text, str) or (required and not text.strip()):
        raise BusinessError(f"{key}: must be a text")
    if len(text) > limit:
        raise BusinessError(f"{key}: longer than {limit} characters")
    return language.say_plainly(text)


def _hours(table: object) -> tuple[tuple[Span, ...], ...]:
    if not isinstance(table, Mapping):
        raise BusinessError("hours: must be a table of weekdays")
    for day in table:
        if day not in DAYS:
            raise BusinessError(f"hours.{day}: no such day")
    return tuple(_spans(f"hours.{day}", table.get(day, "closed")) for day in DAYS)


def _spans(key: str, text: object) -> tuple[Span, ...]:
    if text == "closed":
        return ()
    clock = r"(\d{1,2}):([0-5]\d)"
    spans: list[Span] = []
    for part in str(text).split(","):
        match = re.fullmatch(rf"\s*{clock}\s*-\s*{clock}\s*", part, re.ASCII)
        if not match:
            raise BusinessError(f'{key}: must be like "9:00-12:00, 13:00-17:30" or "closed"')
        h1, m1, h2, m2 = map(int, match.groups())
        opens, closes = h1 * 60 + m1, h2 * 60 + m2
        if not (spans[-1][1] if spans else 0) <= opens < closes <= 24 * 60:
            raise BusinessError(f"{key}: times must rise and end by 24:00")
        spans.append((opens, closes))
    return tuple(spans)


def _departments(table: object) -> tuple[Department, ...]:
    if not isinstance(table, Mapping) or len(table) > 8:
        raise BusinessError("departments: must be a table of at most 8 departments")
    departments = []
    for name, entry in table.items():
        key = f"departments.{name}"
        if not isinstance(entry, Mapping) or set(entry) - {"number", "words"}:
            raise BusinessError(f"{key}: must have a number and may have words")
        number, words = entry.get("number"), entry.get("words", [])
        if not isinstance(number, str) or not number.strip():
            raise BusinessError(f"{key}.number: must be a text such as '+12025550110'")
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise BusinessError(f"{key}.words: must be a list of texts")
        name = language.say_plainly(str(name))[:20]
        departments.append(Department(name, number.strip(), tuple(map(str.lower, words))))
    return tuple(departments)


DEMO_TABLE: dict[str, object] = {
    "name": "Lighthouse Bicycles",
    "hours": {**dict.fromkeys(DAYS[:5], "9:00-18:00"), "saturday": "10:00-14:00"},
    "address": "12 Harbour Street, next to the old lighthouse",
    "directions": "Take tram 4 to the harbour, then walk towards the lighthouse.",
    "about": "We are a small bicycle shop by the harbour. It was founded by two sisters who wanted "
    "to see more people ride and fewer people walk uphill. We sell city bikes, cargo bikes and "
    "children's bikes, and our workshop repairs anything that has two wheels. Every Saturday "
    "morning there is a free class on mending a flat tyre. In winter we store your bicycle, clean "
    "it and have it ready for the first warm day. And if you are ever near, come in for a coffee.",
    "closing": "Thank you for calling Lighthouse Bicycles.",
    "departments": {
        "sales": {"number": "+12025550110", "words": ["sale", "buy", "shop"]},
        "the workshop": {"number": "+12025550111", "words": ["repairs", "repair", "support"]},
        "billing": {"number": "+12025550112", "words": ["accounts", "invoice", "bailing"]},
    },
}
"""The settings of a business as the user writes them, and the one that is there to be tried."""
DEMO = Business.from_table(DEMO_TABLE)


# Opening hours in sentences ----------------------------------------------------------------------


def _say_spans(spans: Sequence[Span]) -> str:
    return language.say_list(
        [f"from {language.say_clock(a)} to {language.say_clock(b)}" for a, b in spans]
    )


def _next_opening(business: Business, now: datetime) -> str:
    minutes = now.hour * 60 + now.minute
    for ahead in range(DAYS_AHEAD):
        day = now.date() + timedelta(days=ahead)
        for opens, _ in business.spans(day):
            if ahead or opens > minutes:
                names = {0: "today", 1: "tomorrow"}
                name = names.get(ahead, f"on {DAYS[day.weekday()].title()}")
                return f"We open again {name} at {language.say_clock(opens)}."
    return "I cannot say when we open again."


def say_hours(business: Business, when: str | None, now: datetime) -> str:
    """The hours of a day as `day_in` gives it, or of the week."""
    today = now.date()
    if when is None:
        return _say_week(business)
    if when in ("now", "today"):
        return _say_today(business, when, now)
    if when == "tomorrow":
        return _say_day(business, today + timedelta(days=1), "tomorrow")
    names = ("saturday", "sunday") if when == "weekend" else (when,)
    lines = []
    for name in names:
        ahead = (DAYS.index(name) - today.weekday()) % 7
        lines.append(_say_day(business, today + timedelta(days=ahead), f"on {name.title()}"))
    return " ".join(lines)


def _say_today(business: Business, when: str, now: datetime) -> str:
    minutes = now.hour * 60 + now.minute
    spans = business.spans(now.date())
    for opens, closes in spans:
        if opens <= minutes < closes:
            return f"Yes, we are open now. We close at {language.say_clock(closes)}."
    again = _next_opening(business, now)
    if when == "today" and spans and minutes < spans[0][0]:
        return f"Today we are open {_say_spans(spans)}."
    return f"We are closed {'right now' if spans else 'today'}. {again}"


def _say_day(business: Business, day: date, name: str) -> str:
    spans = business.spans(day)
    return f"We are open {name} {_say_spans(spans)}." if spans else f"We are closed {name}."


def _say_week(business: Business) -> str:
    groups: list[tuple[int, int]] = []
    for day in range(7):
        if groups and business.hours[day] == business.hours[groups[-1][0]]:
            groups[-1] = (groups[-1][0], day)
        else:
            groups.append((day, day))
    parts = []
    for first, last in groups:
        days = DAYS[first].title() + (f" to {DAYS[last].title()}" if last > first else "")
        parts.append(f"{days} {_say_spans(business.hours[first]) or 'closed'}")
    if len(parts) > 4:
        return "Our hours differ from day to day. Ask me about the day you want."
    return f"Our opening hours are {language.say_list(parts)}."
