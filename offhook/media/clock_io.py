"""The packet clock: one timer for all legs of the process.

Legs are spread over phases so that the work of many calls is not one burst every 20 ms. A late
event loop loses nothing: missed ticks are run at once, and the far end's jitter buffer absorbs the
small burst. Lateness is the best measure of an overloaded process, so admission control uses it.
"""

import asyncio
from collections.abc import Callable
from itertools import chain
from math import ceil
from time import monotonic
from typing import Protocol

import numpy as np
from loguru import logger

from offhook.media.end_reason import End
from offhook.media.lateness import RecentLateness
from offhook.media.pcm import PACKET_MS

PHASES = 2
PHASE_S = PACKET_MS / 1000 / PHASES
CATCH_UP_TICKS = 25
"""Ticks caught up after a stall: half a second. Anything beyond is skipped and counted, because the
far end would discard it."""
STALL_S = 0.060
"""Lateness in s that counts as a stall: more than jitter buffers hold on a quiet line."""
READ_ROUNDS = 2
"""Rounds of the event loop in which it is sure to have looked at its sockets: uvloop runs timers,
and what they call soon, before it does."""
DRAIN_DATAGRAMS = 64
"""Datagrams read in one round of a socket that many calls share, before the event loop attends to
others."""
LATENESS_WINDOW_TICKS = 10_000 // (PACKET_MS // PHASES)
LATENESS_MIN_TICKS = 200
"""Ticks needed before lateness percentiles are reported; they cover the last ten seconds."""


class PacketSource(Protocol):
    """A socket of many legs, which need not be read before a tick: to wake up for each packet costs
    more than the packet."""

    def follow(self, clocked: bool) -> None:
        """From now on `read` is called before each tick; False: no longer, the event loop must read
        packets as they come."""

    def read(self) -> None:
        """Hand the packets that have arrived to their legs, with the time at which they did."""


class Ticked(Protocol):
    """What the clock ticks: a leg, or a room in place of its members' legs; see `Leg`."""

    call_id: str

    def begin_tick(self) -> None: ...

    def unread_since(self, at: float | None) -> None: ...

    def receive_tick(self, now: float) -> None: ...

    def send_tick(self, now: float) -> None: ...

    def send_ahead(self, now: float) -> None: ...

    def close(self, reason: str) -> None: ...


class PacketClock:
    """Ticks every leg each 20 ms. `now` returns monotonic seconds. The event loop's time would not
    do: uvloop rounds it to whole milliseconds, too coarse for jitter and for the next tick."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._phases: list[list[Ticked]] = [[] for _ in range(PHASES)]
        self._due = 0.0
        self._phase = 0
        self._handle: asyncio.Handle | None = None
        self._lateness = np.zeros(LATENESS_WINDOW_TICKS)
        """Seconds, of the last ticks, in no particular order."""
        self._ticks = 0
        self._recent = RecentLateness()
        self.skipped_ticks = 0
        self.after: Callable[[], None] = lambda: None
        """Called every 20 ms after all legs have ticked, for work batched over many calls."""
        self._sources: list[PacketSource] = []

    def add_source(self, source: PacketSource) -> None:
        """Read this source before each tick from now on, while the clock runs."""
        self._sources.append(source)
        source.follow(self._handle is not None)

    def add(self, leg: Ticked) -> None:
        """Tick this leg from the next phase on. The clock runs while it has legs."""
        min(self._phases, key=len).append(leg)
        if self._handle is None:
            self._due = self._now() + PHASE_S
            self._schedule()
            for source in self._sources:
                source.follow(True)

    def replace(self, one: Ticked, other: Ticked) -> None:
        """Tick another in the place of one, in the same phase; if that is not ticked, do
        nothing."""
        for phase in self._phases:
            if one in phase:
                phase[phase.index(one)] = other

    def remove(self, leg: Ticked) -> None:
        for phase in self._phases:
            if leg in phase:
                phase.remove(leg)
        if self._handle is not None and not any(self._phases):
            self._handle.cancel()
            self._handle = None
            self._ticks = 0
            self._recent.clear()
            for source in self._sources:
                source.follow(False)

    def send_ahead(self, stands_still_s: float) -> None:
        """Send now what is due in the next `stands_still_s`, for which the process is about to
        stand still: the far end has it early instead of late, which its jitter buffer absorbs."""
        now = self._now()
        ticks = ceil(stands_still_s * 1000 / PACKET_MS)
        for leg in chain(*self._phases):
            try:
                for _ in range(ticks):
                    leg.send_ahead(now)
            except Exception:
                self._fail(leg)

    def recent_lateness_ms(self) -> float:
        """95th percentile of lateness in ms over the last moments, a stall counted once; 0 until
        the clock has run as long (`lateness.WINDOW_S`)."""
        return self._recent.percentile_ms(self._now())

    def lateness_ms(self, percentile: float = 99) -> float:
        """Lateness, in ms, of the ticks of the last ten seconds; 0 until enough have run."""
        if self._ticks < LATENESS_MIN_TICKS:
            return 0.0
        lateness = self._lateness[: self._ticks]
        # Called for each new call; np.percentile takes ten times as long, and 60 ms the first time.
        rank = ceil(percentile / 100 * (len(lateness) - 1))
        return float(np.partition(lateness, rank)[rank]) * 1000

    def _tick(self, legs: list[Ticked], due: float, now: float) -> None:
        # Three passes, not one per leg: running the same code for many legs in a row keeps the CPU
        # caches warm, which saves a fifth of the time for a hundred legs.
        for leg in tuple(legs):
            try:
                leg.begin_tick()
            except Exception:
                self._fail(leg)
        for leg in tuple(legs):
            try:
                leg.receive_tick(due)
            except Exception:
                self._fail(leg)
        for leg in tuple(legs):
            try:
                leg.send_tick(now)
            except Exception:
                self._fail(leg)

    def _read_sources(self) -> None:
        for source in self._sources:
            try:
                source.read()
            except Exception:
                logger.exception("a packet failed")

    def _fail(self, leg: Ticked) -> None:
        """Drop a leg that raised, so that its failure does not stop the packets of the others."""
        logger.exception("{}: leg failed", leg.call_id)
        self.remove(leg)
        leg.close(End.LINE_FAILED)

    def _schedule(self) -> None:
        # Rounded up: a timer that counts whole milliseconds would fire early, and then again at
        # once.
        wait = max(1, ceil((self._due - self._now()) * 1000)) / 1000
        self._handle = asyncio.get_running_loop().call_later(wait, self._wake)

    def _wake(self) -> None:
        now = self._now()
        late_s = now - self._due
        self._recent.wake(now, late_s)
        if late_s < STALL_S:
            self._run()
            return
        legs = list(chain(*self._phases))
        for leg in legs:
            leg.unread_since(self._due)
        # A socket may be read once a round, and may have a packet for each tick: one that many
        # calls share, of each of them.
        rounds = ceil(late_s * 1000 / PACKET_MS) * ceil(len(legs) / DRAIN_DATAGRAMS)
        self._read(READ_ROUNDS + rounds, now + late_s)

    def _read(self, rounds: int, until: float) -> None:
        """Run the missed ticks once the event loop has read the packets that came in the meantime,
        after so many rounds or at the time `until`. Without these packets jitter buffers would run
        empty, and a caller's word be cut in two."""
        self._read_sources()
        if rounds and self._now() < until:
            self._handle = asyncio.get_running_loop().call_soon(self._read, rounds - 1, until)
            return
        for leg in chain(*self._phases):
            leg.unread_since(None)
        self._run()

    def _run(self) -> None:
        now = self._now()
        behind = int((now - self._due) / PHASE_S) - CATCH_UP_TICKS * PHASES
        if behind > 0:
            self.skipped_ticks += behind // PHASES
            self._due += behind * PHASE_S
        while self._due <= now:
            self._lateness[self._ticks % LATENESS_WINDOW_TICKS] = now - self._due
            self._ticks += 1
            self._read_sources()
            self._tick(self._phases[self._phase], self._due, now)
            self._phase = (self._phase + 1) % PHASES
            if self._phase == 0:
                self.after()
            self._due += PHASE_S
        if any(self._phases):
            self._schedule()
        else:
            self._handle = None
