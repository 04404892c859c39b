"""Whom the front desk speaks for: the section [frontdesk] of the configuration, and its opening
hours in sentences."""

import re
import tomllib
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from importlib import resources
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from offhook.pipeline import frontdesk_language as language
from offhook.pipeline.frontdesk_language import DAYS, Day

DAYS_AHEAD = 14
"""How far the next opening is looked for."""

Span = tuple[int, int]
"""Opening and closing in minutes since midnight; 1440 is the midnight that ends the day."""


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
Words = Annotated[
    tuple[Annotated[str, StringConstraints(to_lower=True)], ...], Field(max_length=40)
]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Department(_Table):
    number: Line
    """Where its calls are transferred to: a telephone number or SIP address."""
    words: Words = ()
    """Other words callers use for it."""


class Fact(_Table):
    words: Words
    """A question with one of these is answered by it."""
    answer: Text


class Business(_Table):
    """Whom the front desk speaks for; frontdesk.toml beside this file has an example of all."""

    name: Line
    address: Line
    directions: Text = ""
    about: Text = ""
    """What is told at "tell me about yourself": a few sentences."""
    closing: Line = "Thank you for calling."
    hours: dict[Day, Spans] = {}
    holidays: frozenset[date] = frozenset()
    departments: Annotated[dict[Line, Department], Field(max_length=8)] = {}
    facts: tuple[Fact, ...] = ()

    def spans(self, day: date) -> tuple[Span, ...]:
        return () if day in self.holidays else self.hours.get(DAYS[day.weekday()], ())

    def is_open(self, now: datetime) -> bool:
        minutes = now.hour * 60 + now.minute
        return any(opens <= minutes < closes for opens, closes in self.spans(now.date()))

    def department_in(self, words: Sequence[str]) -> str:
        """The name of the department spoken of; "" for none."""
        for name, department in self.departments.items():
            names = {*language.words_of(name), *department.words} - {"the"}
            if any(language.same_word(word, other) for word in words for other in names):
                return name
        return ""

    def fact_in(self, words: Sequence[str]) -> str:
        """The answer of the first fact that was asked for; "" for none."""
        for fact in self.facts:
            if any(language.same_word(word, key) for word in words for key in fact.words):
                return fact.answer
        return ""


_DEMO_FILE = resources.files(__package__) / "frontdesk.toml"
DEMO = Business(**tomllib.loads(_DEMO_FILE.read_text())["frontdesk"])


def say_hours(business: Business, when: str, now: datetime) -> str:
    """The opening hours of a day as `frontdesk_language.day_in` gives it; "" is the week."""
    today = now.date()
    if when in ("now", "today"):
        return _say_today(business, when, now)
    if when == "tomorrow":
        return _say_day(business, today + timedelta(days=1), "tomorrow")
    if when not in (*DAYS, "weekend"):
        lead = "I do not know our hours on holidays. " if when == "holiday" else ""
        return lead + _say_week(business)
    names = ("saturday", "sunday") if when == "weekend" else (when,)
    days = [today + timedelta(days=(DAYS.index(name) - today.weekday()) % 7) for name in names]
    return " ".join(_say_day(business, day, f"on {day:%A}") for day in days)


def _say_spans(spans: Sequence[Span]) -> str:
    times = [f"from {language.say_clock(a)} to {language.say_clock(b)}" for a, b in spans]
    return language.say_list(times)


def _say_day(business: Business, day: date, name: str) -> str:
    spans = business.spans(day)
    return f"We are open {name} {_say_spans(spans)}." if spans else f"We are closed {name}."


def _say_today(business: Business, when: str, now: datetime) -> str:
    minutes = now.hour * 60 + now.minute
    spans = business.spans(now.date())
    for opens, closes in spans:
        if opens <= minutes < closes:
            return f"Yes, we are open now. We close at {language.say_clock(closes)}."
    if when == "today" and spans and minutes < spans[0][0]:
        return f"Today we are open {_say_spans(spans)}."
    closed = f"We are closed {'right now' if spans else 'today'}."
    for ahead in range(DAYS_AHEAD):
        day = now.date() + timedelta(days=ahead)
        for opens, _ in business.spans(day):
            if ahead or opens > minutes:
                name = {0: "today", 1: "tomorrow"}.get(ahead, f"on {day:%A}")
                return f"{closed} We open again {name} at {language.say_clock(opens)}."
    return f"{closed} I cannot say when we open again."


def _say_week(business: Business) -> str:
    groups: list[list[Any]] = []
    for day in DAYS:
        spans = business.hours.get(day, ())
        if groups and spans == groups[-1][2]:
            groups[-1][1] = day
        else:
            groups.append([day, day, spans])
    if len(groups) > 4:
        return "Our hours differ from day to day. Ask me about the day you want."
    parts = [
        first.title() + (f" to {last.title()}" if last != first else "")
        + " " + (_say_spans(spans) or "closed")
        for first, last, spans in groups
    ]  # fmt: skip
    return f"Our opening hours are {language.say_list(parts)}."
