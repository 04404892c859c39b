"""Decides whether a process has capacity for another call."""

import asyncio
import math
from collections.abc import Callable, Collection, Sequence
from time import monotonic

from loguru import logger

from offhook.media.clock_io import PacketClock
from offhook.media.end_reason import End
from offhook.media.leg import Claim, Leg
from offhook.web.config.people.tenants import Tenants
from offhook.web.edge.refusals import Busy
from offhook.web.edge.tenants.lines import Held, TenantLines
from offhook.web.http.loop_io import LoopLoad
from offhook.web.http.metrics import Reason
from offhook.web.http.overload import Overload, OverloadState
from offhook.web.http.shares import (
    Holders,
    ShareExceeded,
    Shares,
    makes_room,
    waiting_is_full,
    waits_too_often,
)

BUSY_SHARE = 0.7
"""Share of its core that the event loop may use with one more call; beyond it new calls are refused
with 503 and Retry-After. Close to a whole core all calls' packets are late at once, and lateness
would show it dozens of calls too late: at 0.75 50 calls that talk had packets 32 ms late (p99), at
0.86 65 had them 213 ms late. The rest is for calls that start and end."""
FEW_CALLS = 12
"""Number of calls that never saturate a core except while they start."""
BEGIN_S = 0.02
"""Time in s between the beginnings of two conversations, a packet of the others: to build one holds
the loop for some ms, and dozens that come at once would hold it for as long together."""
LOAD_S = 1
"""Measurement interval of the loop's load, in s."""


class CallAdmission:
    """Admits calls by free lines, load, the number of callers who say nothing, and the share of the
    lines that a caller has."""

    def __init__(
        self,
        clock: PacketClock,
        refuse: Callable[[Reason], None],
        max_lateness_ms: float,
        calls: Callable[[], int],
        tenants: Callable[[], Tenants] = dict,
        held: Callable[[], Held] = dict,
    ) -> None:
        """`refuse` counts a refusal; `max_lateness_ms` is that of `[server]`; `calls` returns how
        many there are, and `held` those that hold a line, for the limits of `tenants`."""
        self.tenants = TenantLines(tenants, held, self.refusal)
        self._clock, self._refuse, self._calls = clock, refuse, calls
        self._begun = asyncio.Event()
        self._next_at = 0.0
        self._load = LoopLoad()
        self._overload = Overload(max_lateness_ms or math.inf)

    def begin(self) -> None:
        """Records that a call starts."""
        self._load.begin()
        self._begun.set()

    async def until_may_begin(self) -> None:
        """Waits until another conversation may begin."""
        now = monotonic()
        begins_at = max(now, self._next_at)
        self._next_at = begins_at + BEGIN_S
        if begins_at > now:
            await asyncio.sleep(begins_at - now)

    async def until_in_progress(self) -> None:
        """Waits for a call if there is none, so that an idle process sleeps."""
        if not self._calls():
            self._begun.clear()
            await self._begun.wait()

    async def measure(self) -> None:
        """Measures the load of the event loop while there are calls, until cancelled, and logs when
        calls are shed."""
        while True:
            if not self._calls():
                await self.until_in_progress()
                self._load.restart()
            await asyncio.sleep(LOAD_S)
            self._load.measure(self._calls())
            self.sheds(self._calls())

    def sheds(self, calls: int) -> bool:
        """Returns whether new calls are refused because the packets of the `calls` in progress
        leave late."""
        late_ms = self._clock.recent_lateness_ms()
        if self._overload.update(calls, late_ms):
            if self._overload.state is OverloadState.SHEDDING:
                logger.bind(a_minute="overloaded").warning(
                    "overloaded: packets of {} calls leave {:.0f} ms late (95th percentile): "
                    "new calls are refused",
                    calls,
                    late_ms,
                )
            else:
                logger.bind(a_minute="taken").info("no longer overloaded: new calls are taken")
        return self._overload.state is OverloadState.SHEDDING

    def check(
        self,
        legs: Collection[Leg],
        coming: Sequence[Claim | None],
        max_calls: int,
        holders: Holders | None,
        shares: Shares,
    ) -> Leg | None:
        """Raises Busy if another call would harm those in progress and the `coming` ones, which are
        admitted but have no line yet. `holders`: those for whom the new line is counted, of which
        none may have more than its share; None: somebody whose lines have a limit of their own, as
        a trunk's.

        A call that has ended holds no line while its conversation ends, unless there are as many of
        them as lines.

        A line is cheap to occupy for whoever says nothing, so only some may wait. Returns the leg
        to close first, that of a caller who waits and has to make room for this one.
        """
        ended = [leg for leg in legs if leg.closed]
        leaving = [leg for leg in ended if leg.closed and leg.closed.end is End.GAVE_WAY]
        if len(ended) >= max(max_calls, FEW_CALLS):
            raise self.refusal("busy")
        legs = [leg for leg in legs if leg.closed is None]
        counted = [leg for leg in legs if leg.claim is not None]
        waiting = [leg for leg in counted if leg.waits]
        longest = self._longest_waiting(waiting)
        if waiting_is_full(len(leaving), max_calls):  # calls take a moment to end
            longest = None
        reason = self.reason(len(legs), len(coming), max_calls)
        is_full = reason == "full"
        if is_full and longest is not None:
            reason = self.reason(len(legs) - 1, len(coming), max_calls)
        if reason:
            raise self.refusal(reason)
        if holders is None:
            return longest if is_full else None
        yet_to_come = [claim for claim in coming if claim is not None]
        of_waiting = [*(leg.claim for leg in waiting if leg.claim is not None), *yet_to_come]
        held = [*(leg.claim for leg in counted if leg.claim is not None), *yet_to_come]
        try:
            shares.check(holders, (claim.holders for claim in held), max_calls, "lines")
        except ShareExceeded as fault:
            raise self.refusal("share", str(fault)) from fault
        if waits_too_often(holders, (claim.holders for claim in of_waiting), max_calls):
            raise self.refusal("connecting")
        if is_full:
            return longest
        if not waiting_is_full(len(of_waiting), max_calls):
            return None
        if longest is None:
            raise self.refusal("connecting")
        return longest

    def _longest_waiting(self, waiting: Sequence[Leg]) -> Leg | None:
        """Returns the leg that waits the longest, if that is long enough to make room."""
        since = {leg: leg.claim.since for leg in waiting if leg.claim is not None}
        longest = min(since, key=since.__getitem__, default=None)
        if longest is None or not makes_room(monotonic() - since[longest]):
            return None
        return longest

    def reason(self, calls: int, coming: int, max_calls: int) -> Reason | None:
        """Returns why another call would be refused."""
        expected = calls + coming
        if expected >= max_calls:
            return "full"
        if self.sheds(calls):
            return "late"
        if expected >= FEW_CALLS and self._load.with_another(expected) > BUSY_SHARE:
            return "busy"
        return None

    def refusal(self, reason: Reason, sentence: str = "") -> Busy:
        """Counts a refusal and returns the exception to raise."""
        self._refuse(reason)
        return Busy(reason, sentence)
