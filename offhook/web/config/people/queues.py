"""`[queues.NAME]`: callers who wait for one of several people."""

from fnmatch import fnmatchcase
from typing import Annotated, Literal

from pydantic import Field, field_validator

from offhook.web.config.people.transfers import MAX_PEOPLE, Person, Ringing
from offhook.web.config.targets import checked_target

PREFIX = "queue:"
"""With which the name of a queue begins where a call is transferred to it."""
AGENT = "agent:"
"""With which the name of an agent begins that takes over the callers who cannot wait."""
MAX_CALLERS = 1000
"""Maximum of `max_length`; more is a fault of the configuration."""


class Queue(Ringing):
    """People who speak with callers one after the other, and the callers who wait for them."""

    members: tuple[Person, ...] = Field(
        min_length=1, max_length=MAX_PEOPLE, examples=[["sip:anna@pbx.example", "+4930123456"]]
    )
    """Numbers or SIP addresses of the people, or extensions of this server, "ext:101"; keys of a
    menu follow after a comma."""
    strategy: Literal["longest_idle", "round_robin", "all"] = "longest_idle"
    """Who is rung for the first caller: whoever has spoken with nobody for the longest, one after
    the other in the order of `members`, or all who are free."""
    announce_seconds: float = Field(45, ge=0, le=3600)
    """Interval in s at which callers hear their place and how long it takes; 0: never."""
    max_length: int = Field(50, ge=1, le=MAX_CALLERS)
    """Callers who may wait; a further one goes to `overflow`."""
    max_wait_seconds: float = Field(1800, gt=0, le=86_400)
    """Time in s after which a caller goes to `overflow`."""
    overflow: str = Field("", examples=["+4930123456"])
    """Number, SIP address or name of [transfers] for callers who cannot wait, or "agent:NAME" for
    an agent that takes the call over, such as a voicemail, whose messages are the queue's; empty:
    they are back with the agent that they came from."""
    callback_key: Annotated[str, Field(pattern=r"^[0-9*#]?$", examples=["5"])] = ""
    """Key by which callers ask to be called back when it is their turn; empty: they cannot."""
    wrap_up_seconds: float = Field(10, ge=0, le=3600)
    """Time in s after a call in which its person is not rung."""
    service_seconds: float = Field(20, gt=0, le=3600)
    """Time in s within which a caller is to be answered: the share of those is the service
    level."""
    priorities: dict[str, Annotated[int, Field(ge=-100, le=100)]] = Field(
        {}, examples=[{"+4930*": 10}]
    )
    """Priorities by callers' numbers, or patterns of them: who has a higher one than 0 goes before
    those who have waited longer."""

    @field_validator("members")
    @classmethod
    def _are_different(cls, members: tuple[str, ...]) -> tuple[str, ...]:
        if twice := {one for one in members if members.count(one) > 1}:
            raise ValueError(f"{sorted(twice)[0]} is in it twice")
        return members

    @field_validator("overflow")
    @classmethod
    def _can_be_called(cls, target: str) -> str:
        return checked_target(target) if target and not target.startswith(AGENT) else target

    def priority(self, number: str) -> int:
        """Returns the highest priority of a caller's number."""
        found = (p for pattern, p in self.priorities.items() if fnmatchcase(number, pattern))
        return max(found, default=0)
