"""Times of the week and days of the year as people write them: "Mon-Fri 09:00-18:00", "12-25"."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAILY = "daily"
_DAY = rf"(?:{'|'.join(DAYS)})"
_SPAN = re.compile(
    rf"(?i)({DAILY}|{_DAY}(?:-{_DAY})?(?:, ?{_DAY}(?:-{_DAY})?)*) (\d\d?):(\d\d) ?- ?(\d\d?):(\d\d)"
)
_DATE = r"(?:(\d{4})-)?(\d\d)-(\d\d)"
_DATES = re.compile(rf"{_DATE}(?:\.\.{_DATE})?")
_LEAP_YEAR = 2000
"""A year that has every date."""
DAY_MINUTES = 24 * 60


@dataclass(frozen=True)
class Span:
    """Times of some days of the week."""

    days: frozenset[int]
    """Monday is 0."""
    begins: int
    """Minute of the day."""
    ends: int
    """Minute of the day, or of the next day if it is not after `begins`."""

    @classmethod
    def read(cls, text: str) -> "Span":
        """Reads "Mon-Fri 09:00-18:00". Raises ValueError."""
        found = _SPAN.fullmatch(text.strip())
        if found is None:
            raise ValueError(
                f'{text!r} is no time of the week; one is "Mon-Fri 09:00-18:00", '
                f'"Sat, Sun 10:00-14:00" or "{DAILY} 08:00-20:00"'
            )
        days, *numbers = found.groups()
        hours = [int(number) for number in numbers]
        begins, ends = 60 * hours[0] + hours[1], 60 * hours[2] + hours[3]
        if max(hours[1], hours[3]) > 59 or begins >= DAY_MINUTES or ends > DAY_MINUTES:
            raise ValueError(f"{text!r}: a time is from 00:00 to 23:59, the last one to 24:00")
        if begins == ends:
            raise ValueError(f"{text!r} ends when it begins; a whole day is 00:00-24:00")
        return cls(frozenset(_days(days.lower())), begins, ends)

    def day_of(self, now: datetime) -> date | None:
        """Returns the day to whose hours a moment belongs; None if it is outside of them. The hours
        of a day may end on the next one."""
        minute, today = 60 * now.hour + now.minute, now.date()
        yesterday = today - timedelta(days=1)
        if self.ends > self.begins:
            within = today.weekday() in self.days and self.begins <= minute < self.ends
            return today if within else None
        if today.weekday() in self.days and minute >= self.begins:
            return today
        return yesterday if yesterday.weekday() in self.days and minute < self.ends else None


def _days(text: str) -> Iterator[int]:
    if text == DAILY:
        yield from range(7)
        return
    for part in text.replace(" ", "").split(","):
        first, _, last = part.partition("-")
        begin = DAYS.index(first)
        length = (DAYS.index(last or first) - begin) % 7
        yield from ((begin + n) % 7 for n in range(length + 1))


@dataclass(frozen=True)
class Holiday:
    """A date, or all from one to another, of a year or of every year."""

    first: tuple[int, int, int]
    """Year (0: every), month, day."""
    last: tuple[int, int, int]

    @classmethod
    def read(cls, text: str) -> "Holiday":
        """Reads "12-25", "2026-12-31" or "2026-12-24..2027-01-01". Raises ValueError."""
        found = _DATES.fullmatch(text.strip())
        if found is None:
            raise ValueError(
                f'{text!r} is no date; one is "2026-12-31", "12-25" for every year, '
                'or "2026-12-24..2027-01-01" for all between'
            )
        numbers = [int(number or 0) for number in found.groups()]
        first, last = tuple(numbers[:3]), tuple(numbers[3:])
        last = last if last[1] else first
        if bool(first[0]) != bool(last[0]):
            raise ValueError(f"{text!r}: both dates have a year, or none has")
        try:
            for year, month, day in (first, last):
                date(year or _LEAP_YEAR, month, day)
        except ValueError as error:
            raise ValueError(f"{text!r} is no date: {error}") from error
        if first[0] and first > last:
            raise ValueError(f"{text!r} ends before it begins")
        return cls(first, last)  # type: ignore[arg-type]

    def has(self, day: date) -> bool:
        if self.first[0]:
            return self.first <= (day.year, day.month, day.day) <= self.last
        of_year, first, last = (0, day.month, day.day), self.first, self.last
        if first <= last:
            return first <= of_year <= last
        return of_year >= first or of_year <= last  # over the turn of the year


def check_zone(name: str) -> str:
    """Returns the name of a time zone. Raises ValueError if there is none."""
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(f"{name!r} is no time zone; one is Europe/Berlin") from error
    return name


def _each(read: Callable[[str], object]) -> AfterValidator:
    def validate(texts: tuple[str, ...]) -> tuple[str, ...]:
        for text in texts:
            read(text)
        return texts

    return AfterValidator(validate)


Spans = Annotated[tuple[str, ...], _each(Span.read)]
Holidays = Annotated[tuple[str, ...], _each(Holiday.read)]
Zone = Annotated[str, AfterValidator(lambda name: name and check_zone(name))]
"""The name of a time zone, or empty."""
