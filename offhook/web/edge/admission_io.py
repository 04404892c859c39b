"""Whether a process has room for one more call."""

import asyncio
import math
from collections.abc import Callable, Collection

from offhook.media.clock_io import PacketClock
from offhook.signaling.peer_io import PeerLeg
from offhook.web.edge.refusals import Busy, Reason
from offhook.web.http.access import is_loopback
from offhook.web.process.loop_io import LoopLoad

LATE_MS = 40
"""Packets leaving this late (99th percentile) mean the process is full, whatever the count."""
BUSY_SHARE = 0.7
"""A loop that is at work for more of its time has no room for another call: a core that is full
has packets late all at once, and those of every call. The rest is for calls that come and go: to
answer twenty a second, or refuse them, takes a sixth of a core."""
FEW_CALLS = 12
"""Fewer do not fill a core but for the moment in which they begin."""
CONNECTING_SHARE = 0.25
FEW_CONNECTING = 2
"""Of the lines, those that callers by WebRTC may hold who have not connected yet; FEW_CONNECTING at
any rate. Half as many of one address."""
LOAD_S = 1
"""How often it is measured how busy the loop is."""


class CallAdmission:
    """What is left for more calls: of lines, of time, and of patience with who never connects."""

    def __init__(self, clock: PacketClock, refuse: Callable[[Reason], None]) -> None:
        """`refuse` counts a refusal."""
        self._clock, self._refuse = clock, refuse
        self._load = LoopLoad()

    def begin(self) -> None:
        """A call begins."""
        self._load.begin()

    async def measure(self, calls: Callable[[], int]) -> None:
        """How busy the loop is, until cancelled."""
        while True:
            await asyncio.sleep(LOAD_S)
            self._load.measure(calls())

    def check(self, calls: int, coming: int, max_calls: int) -> None:
        """Raises Busy when one more call would harm those in progress and the `coming` ones that
        were admitted and have no line yet."""
        expected = calls + coming
        if expected >= max_calls:
            raise self.refusal("full")
        if calls and self._clock.lateness_ms() > LATE_MS:
            raise self.refusal("late")
        if expected >= FEW_CALLS and self._load.with_another(expected) > BUSY_SHARE:
            raise self.refusal("busy")

    def check_connecting(self, legs: Collection[PeerLeg], remote: str, max_calls: int) -> None:
        """An offer costs its sender one request, and us a line until the caller has connected: few
        of the legs may be in that state, and fewer of the address `remote`. Raises Busy."""
        waiting = [leg for leg in legs if not leg.connected and leg.closed is None]
        most = max(FEW_CONNECTING, math.ceil(CONNECTING_SHARE * max_calls))
        of_address = max(FEW_CONNECTING, math.ceil(most / 2))
        # Behind a proxy on this machine there may be anybody.
        alike = 0 if is_loopback(remote) else sum(leg.remote == remote for leg in waiting)
        if len(waiting) >= most or alike >= of_address:
            raise self.refusal("connecting")

    def refusal(self, reason: Reason) -> Busy:
        """Counted; to be raised."""
        self._refuse(reason)
        return Busy(reason)
