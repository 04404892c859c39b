"""What is asked for of a campaign: when, how many at a time, and who is called again."""

import json
from collections.abc import Mapping
from datetime import timedelta
from functools import cached_property
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from offhook.web.campaigns.outcomes import Outcome, Retried
from offhook.web.campaigns.week import Holiday, Holidays, Span, Spans, Zone
from offhook.web.campaigns.windows import Windows

MAX_NAME = 200
"""Maximum characters of a campaign's name; a longer one is refused with 400."""
MAX_AT_ONCE = 1000
"""Maximum of `at_once`; more is refused with 400."""
MAX_PER_SECOND, MIN_PER_SECOND = 50.0, 0.001
"""Limits of `per_second`; what is beyond them is refused with 400."""
MAX_REPEATS = 20
"""Maximum of `times` in `retries`; more is refused with 400."""
MAX_AFTER_MINUTES = 7 * 24 * 60
"""Maximum of `after_minutes`; more is refused with 400. It is also the longest time between two
attempts."""


class Retry(BaseModel):
    """Whether a recipient is called again after an outcome."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    times: int = Field(0, ge=0, le=MAX_REPEATS)
    """Maximum repeats of a recipient who was called with this outcome; 0: none."""
    after_minutes: float = Field(15, ge=0, le=MAX_AFTER_MINUTES)
    """Minutes until the first repeat; they double with each further one."""


RETRIES: Mapping[Retried, Retry] = {
    "busy": Retry(times=2, after_minutes=15),
    "no_answer": Retry(times=2, after_minutes=60),
    "machine": Retry(times=1, after_minutes=180),
    "failed": Retry(times=2, after_minutes=5),
    "unknown": Retry(times=0),
}
"""What applies to outcomes that `retries` does not name."""


class CampaignPlan(BaseModel):
    """When the recipients of a campaign are called, and how often."""

    model_config = ConfigDict(extra="ignore")

    name: str = Field("", max_length=MAX_NAME)
    """As lists show it."""
    windows: Spans = Field((), max_length=50)
    """Times of the week, such as "Mon-Fri 09:00-18:00", on the clock of each recipient; without
    any, they are called at all times."""
    holidays: Holidays = Field((), max_length=400)
    """Days without calls: "12-25", "2026-12-31" or "2026-12-24..2027-01-01"."""
    time_zone: Zone = ""
    """Time zone of the recipients who name none, such as Europe/Berlin."""
    at_once: Annotated[int, Field(ge=1, le=MAX_AT_ONCE)] = 5
    """Maximum calls in progress, at all servers together."""
    per_second: Annotated[float, Field(ge=MIN_PER_SECOND, le=MAX_PER_SECOND)] = 1.0
    """Maximum calls that are placed in a second; 0.1 is one in ten seconds."""
    retries: dict[Retried, Retry] = {}
    """By the outcome: busy, no_answer, machine, failed, unknown."""

    @field_validator("name")
    @classmethod
    def _is_printable(cls, name: str) -> str:
        if not name.isprintable():
            raise ValueError("has characters that cannot be printed")
        return name

    @model_validator(mode="after")
    def _have_a_zone(self) -> "CampaignPlan":
        if (self.windows or self.holidays) and not self.time_zone:
            raise ValueError("time_zone: windows and holidays need one, such as Europe/Berlin")
        return self

    @cached_property
    def opening(self) -> Windows:
        return Windows([*map(Span.read, self.windows)], [*map(Holiday.read, self.holidays)])

    def zone(self, of_recipient: str) -> str:
        """Returns the time zone on whose clock a recipient is called."""
        return of_recipient or self.time_zone or "UTC"

    def again_at(self, outcome: Outcome, attempts: int, zone: str, now: float) -> float | None:
        """Returns when a recipient is called again, after as many attempts of which the last had
        that outcome; None: never."""
        retries: Mapping[Any, Retry] = {**RETRIES, **self.retries}
        retry = retries.get(outcome)
        if retry is None or attempts > retry.times:
            return None
        minutes = min(retry.after_minutes * 2.0 ** (attempts - 1), MAX_AFTER_MINUTES)
        return self.opening.next_open(now + timedelta(minutes=minutes).total_seconds(), zone)


def plan_of(settings: str) -> CampaignPlan:
    """Returns the plan that was stored as JSON."""
    return CampaignPlan.model_validate(json.loads(settings))
