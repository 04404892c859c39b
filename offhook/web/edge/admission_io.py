"""Decides whether a process has capacity for another call."""

import asyncio
import math
from collections.abc import Callable, Collection

from offhook.media.clock_io import PacketClock
from offhook.signaling.peer_io import PeerLeg
from offhook.web.edge.refusals import Busy, Reason
from offhook.web.http.access import is_loopback
from offhook.web.process.loop_io import LoopLoad

LATE_MS = 40
"""99th percentile of packet lateness in ms at which the process is full, whatever the number of
calls."""
BUSY_SHARE = 0.7
"""Event loop utilization above which no call is admitted: on a saturated core all calls' packets
are late at once. The rest is for calls that start and end; answering or refusing 20 a second takes
a sixth of a core."""
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

    def __init__(self, clock: PacketClock, refuse: Callable[[Reason], None]) -> None:
        """`refuse` counts a refusal."""
        self._clock, self._refuse = clock, refuse
        self._load = LoopLoad()

    def begin(self) -> None:
        """Records that a call starts."""
        self._load.begin()

    async def measure(self, calls: Callable[[], int]) -> None:
        """Measures the load of the event loop until cancelled."""
        while True:
            await asyncio.sleep(LOAD_S)
            self._load.measure(calls())

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
        if calls and self._clock.lateness_ms() > LATE_MS:
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
