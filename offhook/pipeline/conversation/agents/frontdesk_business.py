"""The configuration section [frontdesk], and opening hours as sentences."""

import re
import tomllib
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from importlib import resources
from itertools import groupby
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from offhook.pipeline.conversation.agents.frontdesk_intents import (
    DAYS,
    Day,
    same_word,
    spoken_time,
    words_of,
)

Span = tuple[int, int]
"""Opening and closing time in minutes since midnight; 1440 is the end of the day."""


def _spans(text: Any) -> tuple[Span, ...]:
    spans: list[Span] = []
    for part in str(text).split(",") if text != "closed" else ():
        match = re.fullmatch(r"\s*(\d\d?):([0-5]\d)\s*-\s*(\d\d?):([0-5]\d)\s*", part, re.ASCII)
        if not match:
            raise ValueError('must be like "9:00-12:00, 13:00-17:30" or "closed"')
        h1, m1, h2, m2 = map(int, match.groups())
        opens, closes = h1 * 60 + m1, h2 * 60 + m2
        if not (spans[-1][1] if spans else 0) <= opens < closes <= 24 * 60:
            raise ValueError("times must rise and end by 24:00")
        spans.append((opens, closes))
    return tuple(spans)


Spans = Annotated[tuple[Span, ...], BeforeValidator(_spans)]
Text = Annotated[str, StringConstraints(strip_whitespace=True, max_length=1000)]
Line = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=160)]
Words = tuple[Annotated[str, StringConstraints(to_lower=True)], ...]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Department(_Table):
    number: Line
    """Telephone number or SIP address to which its calls are transferred."""
    words: Words = ()
    """Other words that callers use for it."""


class Fact(_Table):
    words: Words
    """A question with one of these words gets this answer."""
    answer: Text


class Business(_Table):
    """The business that the front desk represents; frontdesk.toml beside this file is a complete
    example."""

    name: Line
    address: Line
    directions: Text = ""
    about: Text = ""
    """The answer to "tell me about yourself", a few sentences."""
    closing: Line = "Thank you for calling."
    hours: dict[Day, Spans] = {}
    holidays: frozenset[date] = frozenset()
    departments: Annotated[dict[Line, Department], Field(max_length=8)] = {}
    facts: tuple[Fact, ...] = ()

    def spans(self, day: date) -> tuple[Span, ...]:
        return () if day in self.holidays else self.hours.get(DAYS[day.weekday()], ())

    def closes(self, now: datetime) -> int | None:
        """Returns when the business closes today if it is open now; None if it is closed."""
        spans, minutes = self.spans(now.date()), now.hour * 60 + now.minute
        return next((closes for opens, closes in spans if opens <= minutes < closes), None)

    def department_in(self, words: Sequence[str]) -> tuple[str, list[str]]:
        """Returns the name of the department mentioned, "" for none, and the other words."""
        for name, department in self.departments.items():
            names = {*words_of(name), *department.words} - {"the"}
            rest = [word for word in words if not any(same_word(word, other) for other in names)]
            if len(rest) < len(words):
                return name, rest
        return "", list(words)

    def fact_in(self, words: Sequence[str]) -> str:
        """Returns the answer of the first matching fact; "" for none."""
        for fact in self.facts:
            if any(same_word(word, key) for word in words for key in fact.words):
                return fact.answer
        return ""


_DEMO_FILE = resources.files(__package__) / "frontdesk.toml"
DEMO = Business(**tomllib.loads(_DEMO_FILE.read_text())["frontdesk"])


def spoken_list(parts: Sequence[str], last: str = "and") -> str:
    """ "one, two and three" """
    return f" {last} ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))


def spoken_hours(business: Business, when: str, now: datetime) -> str:
    """Returns the opening hours of a day from `frontdesk_intents.day_in`; "" means the week."""
    today, closes = now.date(), business.closes(now)
    if when in ("now", "today") and closes:
        return f"Yes, we are open now. We close at {spoken_time(closes)}."
    if when in ("today", "tomorrow"):
        return _spoken_day(business, today + timedelta(days=when == "tomorrow"), when)
    if when in (*DAYS, "weekend"):
        names = ("saturday", "sunday") if when == "weekend" else (when,)
        days = [today + timedelta(days=(DAYS.index(name) - today.weekday()) % 7) for name in names]
        return " ".join(_spoken_day(business, day, f"on {day:%A}") for day in days)
    lead = {"now": "We are closed right now.", "holiday": "I do not know our hours on holidays."}
    groups = [list(days) for _, days in groupby(DAYS, lambda day: business.hours.get(day, ()))]
    parts = [
        " to ".join(dict.fromkeys((days[0].title(), days[-1].title())))
        + " " + (_spoken_spans(business.hours.get(days[0], ())) or "closed")
        for days in groups
    ]  # fmt: skip
    return f"{lead.get(when, '')} Our opening hours are {spoken_list(parts)}.".strip()


def _spoken_day(business: Business, day: date, name: str) -> str:
    spans = business.spans(day)
    return f"We are open {name} {_spoken_spans(spans)}." if spans else f"We are closed {name}."


def _spoken_spans(spans: Sequence[Span]) -> str:
    return spoken_list([f"from {spoken_time(start)} to {spoken_time(end)}" for start, end in spans])
