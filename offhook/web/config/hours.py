"""`[hours.NAME]`: when agents answer, and who answers in their place at other times."""

from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import cached_property
from zoneinfo import ZoneInfo

from pydantic import Field

from offhook.web.campaigns.week import DAY_MINUTES, Holiday, Holidays, Span, Spans, Zone
from offhook.web.config.section import Section

LOOKED_AHEAD_DAYS = 14
"""Days for which it is said when agents come on duty next, or go off."""


class Hours(Section):
    """When agents answer, or routes take calls. At other times another agent answers calls that
    begin, or the next route takes them."""

    agents: tuple[str, ...] = ()
    """Names of the agents whose hours these are; "agent" is that of [agent]. Without any they are
    only for the routes that name them."""
    open: Spans = Field(min_length=1, max_length=50)
    """Times of the week, such as "Mon-Fri 09:00-18:00", "Sat, Sun 10:00-14:00" or
    "daily 18:00-02:00", which ends on the next day."""
    otherwise: str = ""
    """Name of the agent that answers at other times in the place of `agents`."""
    holidays: Holidays = Field((), max_length=400)
    """Days without hours: "12-25" in every year, "2026-12-31", or
    "2026-12-24..2027-01-01" for all between."""
    time_zone: Zone = ""
    """Time zone of the hours, such as Europe/Berlin; empty: that of this machine."""

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
        for _ in range(LOOKED_AHEAD_DAYS * DAY_MINUTES):
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
