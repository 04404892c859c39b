"""One rule for all that hold a line or a stream: whoever sends neither sound nor an event loses it.

Where the far end sends packets all the time (WebRTC, SIP), its leg notices sooner that they stop;
see `signaling/peer_io.py` and `media_timeout_seconds` of `[sip]`.
"""

import asyncio
from collections.abc import Callable

FIRST_S = 30.0
"""Time in s from its opening to the first sound or event of a connection; then it is closed: nobody
is there."""
QUIET_S = 600.0
"""Time in s without sound or an event, and without anything to listen to, after which a connection
is closed that was used before. Long, because people pause: they listen, think, type, or hold a key
to talk."""
LOOKS = 10
"""How often a connection is looked at in QUIET_S: it is closed up to a tenth later."""


class SilenceWatch:
    """Watches one connection from its opening until `stop`. It counts nothing itself, so that it
    costs nothing per packet."""

    def __init__(self, activity: Callable[[], int], silent: Callable[[str], None]) -> None:
        """`activity` returns a number that changes with everything that comes from the far end, or
        that it is sent to listen to, and is 0 until something came. `silent` is called once, with
        what is said about it."""
        self._activity, self._silent = activity, silent
        self._loop = asyncio.get_running_loop()
        self._last = 0
        self._at = self._loop.time()
        """When `_last` was seen first."""
        self._timer = self._loop.call_later(FIRST_S, self._look)

    def stop(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        activity, now = self._activity(), self._loop.time()
        if not activity:
            self._silent(f"neither sound nor an event came within {FIRST_S:g} s")
            return
        if activity != self._last:
            self._last, self._at = activity, now
        elif now - self._at >= QUIET_S:
            self._silent(f"neither sound nor an event came for {QUIET_S:g} s")
            return
        self._timer = self._loop.call_later(QUIET_S / LOOKS, self._look)
