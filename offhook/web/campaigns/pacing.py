"""How many calls of a campaign may be placed now, and when each."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

AHEAD_S = 1.0
"""Time in s for which calls are planned at once: as often as the store is looked at."""


@dataclass
class Lines:
    """The lines of a server that are free for campaigns."""

    free: int
    routes: dict[str, int] = field(default_factory=dict)
    """By the ways that calls can go now, see `route_of`."""
    agents: frozenset[str] = frozenset()
    """Names of the agents that can talk, beside that of [agent]."""

    def room(self, settings: Mapping[str, Any]) -> int:
        """Returns how many calls of a campaign with these settings can be placed; one whose way or
        agent is not here is left to other servers."""
        agent = settings.get("agent")
        if agent and agent not in self.agents:
            return 0
        return max(0, min(self.free, self.routes.get(route_of(settings), 0)))

    def use(self, settings: Mapping[str, Any], number: int) -> None:
        self.free -= number
        self.routes[route_of(settings)] -= number


def route_of(settings: Mapping[str, Any]) -> str:
    """Returns by which way a campaign calls: the name of a trunk, "" for the first one, or
    "carrier:" and a name."""
    carrier = settings.get("carrier")
    return f"carrier:{carrier}" if carrier else str(settings.get("trunk") or "")


def slots(
    *, room: int, at_once: int, under_way: int, per_second: float, next_at: float, now: float
) -> list[float]:
    """Returns the times at which the next calls are placed, all within AHEAD_S: as many as there is
    `room` for, so that no more than `at_once` are under way with those that are, and no two of them
    are closer than `per_second` allows. None is before `next_at`, which the last call has left: see
    `next_after`. Times are seconds since 1970."""
    at, times = max(now, next_at), list[float]()
    while len(times) < min(room, at_once - under_way) and at < now + AHEAD_S:
        times.append(at)
        at = next_after(at, per_second)
    return times


def next_after(at: float, per_second: float) -> float:
    """Returns when the next call may be placed after one at that time."""
    return at + 1.0 / per_second
