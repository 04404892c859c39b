"""Decides whether a process has capacity for another call."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection

from loguru import logger

from offhook.media.clock_io import PacketClock
from offhook.signaling.peer_io import PeerLeg
from offhook.web.edge.refusals import Busy, Reason
from offhook.web.http.access import is_loopback
from offhook.web.process.loop_io import LoopLoad
from offhook.web.process.overload import Overload, OverloadState

BUSY_SHARE = 0.7
"""Share of its core that the event loop may use with one more call. Close to a whole core all
calls' packets are late at once, and lateness would show it dozens of calls too late: at 0.75 50
calls that talk had packets 32 ms late (p99), at 0.86 65 had them 213 ms late. The rest is for calls
that start and end."""
FEW_CALLS = 12
"""Number of calls that never saturate a core except while they start."""
CONNECTING_SHARE = 0.25
FEW_CONNECTING = 2
"""Share of the lines, but at least FEW_CONNECTING, that unconnected WebRTC callers may hold; half
of it per address."""
LOAD_S = 1
"""Measurement interval of the loop's load, in s."""


class CallAdmission:
    """Admits calls by free lines, load, and the number of unconnected callers."""

    def __init__(
        self, clock: PacketClock, refuse: Callable[[Reason], None], max_lateness_ms: float
    ) -> None:
        """`refuse` counts a refusal; `max_lateness_ms` is that of `[server]`."""
        self._clock, self._refuse = clock, refuse
        self._load = LoopLoad()
        self._overload = Overload(max_lateness_ms or math.inf)

    def begin(self) -> None:
        """Records that a call starts."""
        self._load.begin()

    async def measure(
        self, calls: Callable[[], int], call_in_progress: Callable[[], Awaitable[None]]
    ) -> None:
        """Measures the load of the event loop while there are calls, until cancelled, and logs when
        calls are shed. `call_in_progress` waits for a call if there is none."""
        while True:
            if not calls():
                await call_in_progress()
                self._load.restart()
            await asyncio.sleep(LOAD_S)
            self._load.measure(calls())
            self.sheds(calls())

    def sheds(self, calls: int) -> bool:
        """Returns whether new calls are refused because the packets of the `calls` in progress
        leave late."""
        late_ms = self._clock.recent_lateness_ms()
        if self._overload.update(calls, late_ms):
            if self._overload.state is OverloadState.SHEDDING:
                logger.warning(
                    "overloaded: packets of {} calls leave {:.0f} ms late (99th percentile): "
                    "new calls are refused",
                    calls,
                    late_ms,
                )
            else:
                logger.info("no longer overloaded: new calls are taken")
        return self._overload.state is OverloadState.SHEDDING

    def check(self, calls: int, coming: int, max_calls: int) -> None:
        """Raises Busy if another call would harm those in progress and the `coming` ones, which are
        admitted but have no line yet."""
        if reason := self.reason(calls, coming, max_calls):
            raise self.refusal(reason)

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

    def check_connecting(self, legs: Collection[PeerLeg], remote: str, max_calls: int) -> None:
        """Limits unconnected callers, overall and by the address `remote`, because an offer is
        cheap for its sender and occupies a line. Raises Busy."""
        waiting = [leg for leg in legs if not leg.connected and leg.closed is None]
        most = max(FEW_CONNECTING, math.ceil(CONNECTING_SHARE * max_calls))
        of_address = max(FEW_CONNECTING, math.ceil(most / 2))
        # A proxy on this machine may represent anyone.
        alike = 0 if is_loopback(remote) else sum(leg.remote == remote for leg in waiting)
        if len(waiting) >= most or alike >= of_address:
            raise self.refusal("connecting")

    def refusal(self, reason: Reason) -> Busy:
        """Counts a refusal and returns the exception to raise."""
        self._refuse(reason)
        return Busy(reason)
