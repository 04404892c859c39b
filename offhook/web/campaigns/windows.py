"""When the recipients of a campaign may be called, on their own clocks."""

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from zoneinfo import ZoneInfo

from offhook.web.campaigns.week import DAY_MINUTES, DAYS, Holiday, Span

ALWAYS = Span(frozenset(range(len(DAYS))), 0, DAY_MINUTES)
LOOKED_AHEAD_DAYS = 400
"""Days in which a window has to open: more than a year of holidays, and then it is looked again."""


class Windows:
    """Spans of the week without holidays. Times are seconds since 1970."""

    def __init__(self, spans: Sequence[Span], closed: Sequence[Holiday]) -> None:
        """Without spans, all days are open but for the holidays."""
        self._spans = tuple(spans) or (ALWAYS,)
        self._closed = tuple(closed)
        self._always = not spans and not closed

    def are_open(self, at: float, zone: str) -> bool:
        """Returns whether a recipient in that time zone may be called then."""
        if self._always:
            return True
        now = datetime.fromtimestamp(at, zone_of(zone))
        days = (span.day_of(now) for span in self._spans)
        return any(day and not any(one.has(day) for one in self._closed) for day in days)

    def next_open(self, at: float, zone: str) -> float:
        """Returns the first time, not before `at`, at which they may be called. If there is none in
        LOOKED_AHEAD_DAYS, returns when they are over.

        Where clocks are put back or forward into a window, it opens with the next one instead: that
        is at night, and no recipient is called too early by it."""
        if self.are_open(at, zone):
            return at
        today = datetime.fromtimestamp(at, zone_of(zone)).date()
        for number in range(LOOKED_AHEAD_DAYS):
            day = today + timedelta(days=number)
            begins = [t for t in self._openings(day, zone) if t > at and self.are_open(t, zone)]
            if begins:
                return min(begins)
        return at + timedelta(days=LOOKED_AHEAD_DAYS).total_seconds()

    def _openings(self, day: date, zone: str) -> Iterator[float]:
        for span in self._spans:
            if day.weekday() in span.days:
                minute = time(span.begins // 60, span.begins % 60)
                for fold in (0, 1):  # an hour that there is twice
                    local = datetime.combine(day, minute, zone_of(zone)).replace(fold=fold)
                    yield local.astimezone(UTC).timestamp()


@cache
def zone_of(name: str) -> ZoneInfo:
    return ZoneInfo(name)
