"""`[hours.NAME]`: when agents answer, and who answers in their place at other times."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field, field_validator

from offhook.web.config.section import Section

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
_DAY_MINUTES = 24 * 60
LOOKED_AHEAD_DAYS = 14
"""Days for which it is said when agents come on duty next, or go off."""


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
        if max(hours[1], hours[3]) > 59 or begins >= _DAY_MINUTES or ends > _DAY_MINUTES:
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


class Hours(Section):
    """When agents answer, or routes take calls. At other times another agent answers calls that
    begin, or the next route takes them."""

    agents: tuple[str, ...] = ()
    """Names of the agents whose hours these are; "agent" is that of [agent]. Without any they are
    only for the routes that name them."""
    open: tuple[str, ...] = Field(min_length=1, max_length=50)
    """Times of the week, such as "Mon-Fri 09:00-18:00", "Sat, Sun 10:00-14:00" or
    "daily 18:00-02:00", which ends on the next day."""
    otherwise: str = ""
    """Name of the agent that answers at other times in the place of `agents`."""
    holidays: tuple[str, ...] = Field((), max_length=400)
    """Days without hours: "12-25" in every year, "2026-12-31", or
    "2026-12-24..2027-01-01" for all between."""
    time_zone: str = ""
    """Time zone of the hours, such as Europe/Berlin; empty: that of this machine."""

    @field_validator("open")
    @classmethod
    def _are_spans(cls, spans: tuple[str, ...]) -> tuple[str, ...]:
        for text in spans:
            Span.read(text)
        return spans

    @field_validator("holidays")
    @classmethod
    def _are_dates(cls, dates: tuple[str, ...]) -> tuple[str, ...]:
        for text in dates:
            Holiday.read(text)
        return dates

    @field_validator("time_zone")
    @classmethod
    def _is_a_zone(cls, name: str) -> str:
        if name:
            try:
                ZoneInfo(name)
            except (ZoneInfoNotFoundError, ValueError, OSError) as error:
                raise ValueError(f"{name!r} is no time zone; one is Europe/Berlin") from error
        return name

    @cached_property
    def _spans(self) -> tuple[Span, ...]:
        return tuple(map(Span.read, self.open))

    @cached_property
    def _closed(self) -> tuple[Holiday, ...]:
        return tuple(map(Holiday.read, self.holidays))

    def now(self) -> datetime:
        """Returns the time in the zone of these hours."""
        return self.local(datetime.now(UTC))

    def local(self, moment: datetime) -> datetime:
        """Returns a moment, which has a zone, as the clocks show it in the zone of these hours."""
        if self.time_zone:
            return moment.astimezone(ZoneInfo(self.time_zone))
        return moment.astimezone().replace(tzinfo=None)

    def next_change(self, now: datetime) -> datetime | None:
        """Returns the local time at which the agents come on duty, or go off; None if neither is
        within LOOKED_AHEAD_DAYS. All that is configured begins and ends with a minute."""
        then, are = now.replace(second=0, microsecond=0), self.are_at(now)
        for _ in range(LOOKED_AHEAD_DAYS * _DAY_MINUTES):
            then += timedelta(minutes=1)
            if self.are_at(then) != are:
                return then
        return None

    def are_at(self, now: datetime) -> bool:
        """Returns whether the agents answer at a local time."""
        days = (span.day_of(now) for span in self._spans)
        return any(day and not any(one.has(day) for one in self._closed) for day in days)


def faults_of_hours(hours: Mapping[str, Hours], agents: Collection[str]) -> Iterator[str]:
    """Yields what is wrong with the names in `[hours]`. Agents are called as `agents` has them."""
    instead: dict[str, str] = {}
    for name, table in hours.items():
        if table.agents and not table.otherwise:
            yield f"hours.{name}.otherwise: who answers in the place of {table.agents[0]!r}?"
        if table.otherwise and not table.agents:
            yield f"hours.{name}.agents: in whose place does {table.otherwise!r} answer?"
        for agent in filter(None, (*table.agents, table.otherwise)):
            if agent not in agents:
                yield f"hours.{name}: no agent is called {agent!r}"
        for agent in table.agents:
            if agent in instead:
                yield f"hours.{name}: {agent!r} has other hours already"
            instead[agent] = table.otherwise
    for agent in instead:
        seen = {agent}
        while (agent := instead.get(agent, "")) and agent not in seen:
            seen.add(agent)
        if agent:
            yield f"hours: nobody is left to answer for {agent!r}: it stands in for itself"
            return


def on_duty(hours: Mapping[str, Hours], agent: str) -> str:
    """Returns who answers now where an agent was called."""
    while table := next((one for one in hours.values() if agent in one.agents), None):
        if table.are_at(table.now()):
            break
        agent = table.otherwise
    return agent
