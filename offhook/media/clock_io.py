"""The packet clock: one timer for all legs of the process.

Legs are spread over phases so that the work of many calls is not one burst every 20 ms. A late
event loop loses nothing: missed ticks are made up at once, and the far end's jitter buffer takes
the packets as a small burst. How late ticks run is the truest measure of an overloaded process,
so admission looks at it.
"""

import asyncio
from collections.abc import Callable
from math import ceil
from time import monotonic

import numpy as np
from loguru import logger

from offhook.media.end_reason import End
from offhook.media.leg import Leg
from offhook.media.pcm import PACKET_MS

PHASES = 2
PHASE_S = PACKET_MS / 1000 / PHASES
CATCH_UP_TICKS = 25
"""At most half a second is made up after a stall; more than that is skipped (and counted):
a far end would only throw it away."""
LATENESS_WINDOW_TICKS = 10_000 // (PACKET_MS // PHASES)
LATENESS_LEAST_TICKS = 200
"""Lateness percentiles look at the last ten seconds."""


class PacketClock:
    """Ticks every leg each 20 ms. `now` is monotonic seconds: not the event loop's time, which
    uvloop counts in whole milliseconds, too coarse for jitter and for the next tick."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._phases: list[list[Leg]] = [[] for _ in range(PHASES)]
        self._due = 0.0
        self._phase = 0
        self._handle: asyncio.TimerHandle | None = None
        self._lateness = np.zeros(LATENESS_WINDOW_TICKS)
        """Of the last ticks, in no order."""
        self._ticks = 0
        self.skipped_ticks = 0
        self.after: Callable[[], None] = lambda: None
        """Called once every 20 ms, after all legs: where work is done for many at once."""

    def add(self, leg: Leg) -> None:
        """Tick this leg from the next phase on; the clock runs while it has legs."""
        min(self._phases, key=len).append(leg)
        if self._handle is None:
            self._due = self._now() + PHASE_S
            self._schedule()

    def remove(self, leg: Leg) -> None:
        for phase in self._phases:
            if leg in phase:
                phase.remove(leg)
        if self._handle is not None and not any(self._phases):
            self._handle.cancel()
            self._handle = None
            self._ticks = 0

    def lateness_ms(self, percentile: float = 99) -> float:
        """How late the ticks of the last ten seconds ran; 0 while too few have run to tell."""
        if self._ticks < LATENESS_LEAST_TICKS:
            return 0.0
        lateness = self._lateness[: self._ticks]
        # Each new call asks; np.percentile takes ten times as long, and 60 ms the first time.
        rank = ceil(percentile / 100 * (len(lateness) - 1))
        return float(np.partition(lateness, rank)[rank]) * 1000

    def _tick(self, legs: list[Leg], now: float) -> None:
        # All catch up before any hears, and hear before any speaks: the same code for many lines in
        # a row keeps the processor's caches warm, and a tick of a hundred lines takes a fifth less
        # than line after line.
        for leg in tuple(legs):
            try:
                leg.catch_up()
            except Exception:
                self._fail(leg)
        for leg in tuple(legs):
            try:
                leg.hear(now)
            except Exception:
                self._fail(leg)
        for leg in tuple(legs):
            try:
                leg.say(now)
            except Exception:
                self._fail(leg)

    def _fail(self, leg: Leg) -> None:
        """What fails one line must not stop the packets of all others."""
        logger.exception("{}: the line failed", leg.call_id)
        self.remove(leg)
        leg.close(End.LINE_FAILED)

    def _schedule(self) -> None:
        # Rounded up, or a timer of whole milliseconds would fire early and again at once.
        wait = max(1, ceil((self._due - self._now()) * 1000)) / 1000
        self._handle = asyncio.get_running_loop().call_later(wait, self._run)

    def _run(self) -> None:
        now = self._now()
        behind = int((now - self._due) / PHASE_S) - CATCH_UP_TICKS * PHASES
        if behind > 0:
            self.skipped_ticks += behind // PHASES
            self._due += behind * PHASE_S
        while self._due <= now:
            self._lateness[self._ticks % LATENESS_WINDOW_TICKS] = now - self._due
            self._ticks += 1
            self._tick(self._phases[self._phase], now)
            self._phase = (self._phase + 1) % PHASES
            if self._phase == 0:
                self.after()
            self._due += PHASE_S
        if any(self._phases):
            self._schedule()
        else:
            self._handle = None
