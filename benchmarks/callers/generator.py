"""The load of a process of callers: calls that are placed at a rate, stand, come and go.

Commands on standard input, one a line:

    fill N        place calls until there are N; then says how that went
    churn N       from now on calls are placed, and of N or more the oldest answered one hangs up
                  for each; when none of these is answered, none is placed
    hold          no more of that
    attempt N     place N calls more, whatever comes of them
    measure       the counts begin anew
    report        says the counts
    standing      says how many calls there are, and how many were placed and hung up so far
    empty         all hang up; then says what is left
"""

import asyncio
from abc import ABC, abstractmethod
from collections import Counter, deque
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from benchmarks.callers.rtp import Pace
from benchmarks.processes.process import OwnCost, input_lines, say
from benchmarks.table import percentiles
from offhook.media.tasks_io import TaskSet
from offhook.web.http.loop_io import freeze_loaded_objects

SETTLE_S = 30.0
"""Time in s for the last responses; unanswered calls are then given up."""
EMPTY_S = 10.0
LATE_MS = (20, 40)


@dataclass
class Counters:
    """What the callers have observed since the last "measure"."""

    calls: int = 0
    """Answered calls."""
    setup_ms: list[float] = field(default_factory=list)
    """Time in ms from the first request to the answer."""
    refused: Counter[Any] = field(default_factory=Counter)
    """Calls that were never answered, by the reason."""
    cut: int = 0
    """Established calls ended by the server or a timeout."""
    sent: int = 0
    """Packets, or messages with sound."""
    late: list[Any] = field(default_factory=list)
    """Arrays of lateness in ms: one value for each packet or message received."""

    def as_dict(self) -> dict[str, Any]:
        late = np.concatenate(self.late) if self.late else np.zeros(0)
        return {
            "calls": self.calls,
            "setup_ms": percentiles(self.setup_ms),
            "refused": dict(self.refused),
            "cut": self.cut,
            "sent": self.sent,
            "late_ms": percentiles(late),
            "late": {str(ms): int(np.count_nonzero(late > ms)) for ms in LATE_MS},
        }


class PlacedCall(Protocol):
    """One outgoing call; `Pace` ticks it."""

    began: float
    up: bool
    """Whether it has been answered."""
    leaving: bool
    """It has hung up, and the server has not confirmed it yet."""

    def tick(self) -> None: ...


Call = TypeVar("Call", bound=PlacedCall)
Counted = TypeVar("Counted", bound=Counters)


class Callers(ABC, Generic[Call, Counted]):
    """All calls of this process, of one kind."""

    def __init__(self, rate: float) -> None:
        """`rate` is the number of calls placed per second."""
        self.counts = self._new_counters()
        self._rate = rate
        self._pace = Pace()
        self._own = OwnCost()
        self._calls: list[Call] = []
        self._up: deque[Call] = deque()
        """Established calls, oldest first."""
        self._placed = self._hung_up = 0
        self._churning: asyncio.Task[None] | None = None
        self._tasks = TaskSet()
        self._tasks.spawn(self._own.watch(), "lag")

    # --- one kind ---

    @abstractmethod
    def _new_counters(self) -> Counted: ...

    @abstractmethod
    def _place(self) -> None:
        """Adds a call to `_calls`, and begins to place it."""

    @abstractmethod
    def _hang_up(self, call: Call) -> None:
        """Begins to end a call; `_ended` follows."""

    @abstractmethod
    def _count(self, call: Call) -> None:
        """Adds to `counts` what a call has sent and received since the last time."""

    @property
    def left(self) -> int:
        """How many calls there are, those included that have hung up."""
        return len(self._calls)

    # --- what becomes of calls ---

    def _answered(self, call: Call) -> None:
        call.up = True
        self._up.append(call)
        self.counts.calls += 1
        self.counts.setup_ms.append((monotonic() - call.began) * 1000)

    def _ended(self, call: Call, reason: object, by_us: bool) -> None:
        self._calls.remove(call)
        self._pace.remove(call)
        self._count(call)
        if call.up:
            self._up.remove(call)
            self.counts.cut += not by_us
        else:
            self.counts.refused[reason] += 1

    # --- commands ---

    def place(self) -> None:
        self._placed += 1
        self._place()

    def hang_up(self, call: Call) -> None:
        call.leaving = True
        self._hung_up += 1
        self._hang_up(call)

    def standing(self) -> dict[str, int]:
        """Returns the calls that are established and stay, all that the server may know of, and
        how many were placed and hung up so far."""
        up = sum(not call.leaving for call in self._up)
        return {"up": up, "all": self.left, "placed": self._placed, "hung_up": self._hung_up}

    async def attempt(self, calls: int) -> None:
        due = monotonic()
        for _ in range(calls):
            self.place()
            due += 1 / self._rate
            await asyncio.sleep(max(0.0, due - monotonic()))

    async def fill(self, calls: int) -> dict[str, Any]:
        await self.attempt(calls - len(self._calls))
        give_up = monotonic() + SETTLE_S
        while len(self._up) < len(self._calls) and monotonic() < give_up:
            await asyncio.sleep(0.05)
        for call in [c for c in self._calls if not c.up]:
            self.hang_up(call)
        return {"up": len(self._up), **self.counts.as_dict()}

    async def _churn(self, calls: int) -> None:
        due = monotonic()
        while True:
            staying = [call for call in self._calls if not call.leaving]
            oldest = next((call for call in self._up if not call.leaving), None)
            if len(staying) < calls:
                self.place()
            elif oldest is not None:
                self.hang_up(oldest)
                self.place()
            due += 1 / self._rate
            await asyncio.sleep(max(0.0, due - monotonic()))

    def churn(self, calls: int) -> None:
        """0 ends the churn."""
        if self._churning is not None:
            self._churning.cancel()
        self._churning = self._tasks.spawn(self._churn(calls), "churn") if calls else None

    async def empty(self) -> dict[str, Any]:
        self.churn(0)
        for call in tuple(self._calls):
            self.hang_up(call)
        give_up = monotonic() + EMPTY_S
        while self.left and monotonic() < give_up:
            await asyncio.sleep(0.05)
        return {"left": self.left}

    def measure(self) -> None:
        for call in self._calls:
            self._count(call)
        self.counts = self._new_counters()
        self._pace.read_late_ms()
        self._own.begin()

    def report(self) -> dict[str, Any]:
        own = {**self._own.read(), "sends_late_ms": self._pace.read_late_ms()}
        for call in self._calls:
            self._count(call)
        return {"up": len(self._up), **self.counts.as_dict(), "own": own}

    # --- life ---

    async def execute(self, command: str, numbers: list[int]) -> None:
        """Raises ValueError for a command that there is none of."""
        match command, numbers:
            case "fill", [calls]:
                say(await self.fill(calls))
            case "churn", [calls]:
                self.churn(calls)
            case "hold", []:
                self.churn(0)
            case "attempt", [calls]:
                self._tasks.spawn(self.attempt(calls), "attempt")
            case "measure", []:
                self.measure()
            case "report", []:
                say(self.report())
            case "standing", []:
                say(self.standing())
            case "empty", []:
                say(await self.empty())
            case _:
                raise ValueError(f"no such command: {command} {numbers}")

    async def obey(self) -> None:
        """Executes the commands of standard input, until it closes; then all hang up."""
        freeze_loaded_objects()
        say({"ready": True})
        try:
            reader = await input_lines()
            while line := (await reader.readline()).split():
                await self.execute(line[0].decode(), [int(word) for word in line[1:]])
        finally:
            await self.close()

    async def close(self) -> None:
        await self.empty()
        await self._tasks.close()
        self._pace.stop()
