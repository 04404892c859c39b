"""The packet clock: one timer for all legs of the process.

Legs are spread over phases so that the work of many calls is not one burst every 20 ms. A late
event loop loses nothing: missed ticks are made up at once, and the far end's jitter buffer takes
the packets as a small burst. How late ticks run is the truest measure of an overloaded process,
so admission looks at it.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

import numpy as np

from offhook.media.leg import Leg
from offhook.media.pcm import PACKET_MS

PHASES = 4
PHASE_SECONDS = PACKET_MS / 1000 / PHASES
CATCH_UP_TICKS = 25
"""At most half a second is made up after a stall; more than that is skipped (and counted):
a far end would only throw it away."""
LATENESS_WINDOW_TICKS = 2000
"""Lateness percentiles look at the last ten seconds."""

log = logging.getLogger(__name__)


class PacketClock:
    """Ticks every leg each 20 ms, `now` being the event loop's time in seconds."""

    def __init__(self) -> None:
        self._phases: list[list[Leg]] = [[] for _ in range(PHASES)]
        self._due = 0.0
        self._phase = 0
        self._handle: asyncio.TimerHandle | None = None
        self._lateness: deque[float] = deque(maxlen=LATENESS_WINDOW_TICKS)
        self.skipped_ticks = 0
        self.after: Callable[[], None] = lambda: None
        """Called after each phase: where work is done for many legs at once."""

    def add(self, leg: Leg) -> None:
        """Tick this leg from the next phase on; the clock runs while it has legs."""
        min(self._phases, key=len).append(leg)
        if self._handle is None:
            self._due = asyncio.get_running_loop().time() + PHASE_SECONDS
            self._schedule()

    def remove(self, leg: Leg) -> None:
        for phase in self._phases:
            if leg in phase:
                phase.remove(leg)
        if self._handle is not None and not any(self._phases):
            self._handle.cancel()
            self._handle = None
            self._lateness.clear()

    def lateness_ms(self, percentile: float = 99) -> float:
        """How late the ticks of the last ten seconds ran."""
        return float(np.percentile(self._lateness, percentile)) * 1000 if self._lateness else 0.0

    def _tick(self, leg: Leg, now: float) -> None:
        try:
            leg.tick(now)
        except Exception:  # what fails one line must not stop the packets of all others
            log.exception("%s: the line failed", leg.call_id)
            self.remove(leg)
            leg.close("the line failed")

    def _schedule(self) -> None:
        self._handle = asyncio.get_running_loop().call_at(self._due, self._run)

    def _run(self) -> None:
        now = asyncio.get_running_loop().time()
        behind = int((now - self._due) / PHASE_SECONDS) - CATCH_UP_TICKS * PHASES
        if behind > 0:
            self.skipped_ticks += behind // PHASES
            self._due += behind * PHASE_SECONDS
        while self._due <= now:
            self._lateness.append(now - self._due)
            for leg in tuple(self._phases[self._phase]):
                self._tick(leg, now)
            self.after()
            self._phase = (self._phase + 1) % PHASES
            self._due += PHASE_SECONDS
        if any(self._phases):
            self._schedule()
        else:
            self._handle = None
