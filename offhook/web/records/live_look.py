"""What `LiveReader` finds, without what reads the database: a server may keep no calls."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SPOKEN = ("caller_turn", "caller_typed", "agent_turn", "member_turn")
FOLLOWED = (
    *(*SPOKEN, "agent_changed", "agent_failed", "turn_latency", "call_held", "call_resumed"),
    *("member_raised_hand", "member_lowered_hand", "member_left"),
)
"""Kinds of events that change what a list of calls in progress says."""


@dataclass(frozen=True)
class Followed:
    """An event of a call in progress."""

    call: str
    position: int
    at_ms: int
    kind: str
    fields: Mapping[str, Any]
    number: int = 1
    """How many of its kind there were in the call, of those up to this one that were not given
    before."""


@dataclass(frozen=True)
class LiveLook:
    """What is found at one look."""

    calls: Sequence[dict[str, Any]]
    """Those in progress, as a list shows them, the last first."""
    number: int
    """How many there are, with those that are not followed."""
    events: Sequence[Followed]
    """What has happened since the look before, in order for each call. Of a call that is new, the
    last event of each kind."""
    over: Sequence[dict[str, Any]]
    """Calls that were in progress at the look before and have ended."""
    campaigns: Sequence[dict[str, Any]] = ()
    """Those that are under way, or were at the look before, with their progress."""


@dataclass
class AgentSums:
    """What the calls of an agent add up to, in which others may have answered too."""

    in_progress: int = 0
    """Calls that it has now."""
    calls: int = 0
    failures: int = 0
    latency_p50_ms: int | None = None
    """The median of its calls' medians."""
