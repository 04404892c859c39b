"""Calls by SIP that come and go for many minutes: see `offhook bench sip soak --help`.

In two parts; after each all hang up, and after a minute of rest what the server still holds is
compared. The first part, a fifth of the time, warms it up: its trace of messages is full by then.

Server and callers run at the priority of deploy/systemd/offhook.service, where that is permitted:
so they do beside other work.
"""

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.callers.pair import Pair
from benchmarks.calls.soak import NOISE_KB, RSS_GROWTH
from benchmarks.processes.memory import HeapUsage
from benchmarks.processes.process import children
from benchmarks.sip.load import pair

SAMPLE_S = 1.0
SHOWN = 5
"""Every fifth sample is printed."""
REST_S = 60.0
"""Time in s from the last hang-up until memory is compared; by then nothing may go on any more."""
WARM_UP = 0.2
"""Share of the time by which the first part precedes it."""
WARM_UP_CALLS = 300
"""At least in the first part, with seven messages each: then the trace is full."""
LEAK_KB_PER_CALL = 1.0
"""More left behind than this is a leak."""
REST_GROWTH = 0.10
"""Growth of the resident size from one rest to the next that is allowed, garbage included."""
NICE = -5
"""Of deploy/systemd/offhook.service."""
FAULTS = ("Task was destroyed", "never retrieved", "never awaited")
"""What asyncio and Python say of a task that nobody owns."""


@dataclass(frozen=True)
class Sample:
    """The server at one moment, its child processes included."""

    at_s: float
    calls: int
    sessions: int
    transactions: int
    tasks: int
    rss_mb: float
    threads: int
    files: int
    ports: int
    """UDP ports of media that are open."""
    lag_p99_ms: float
    tick_late_ms: float
    lines: int = 0
    """Lines in use."""
    alive: tuple[int, int] = (0, 0)
    """Calls alive as the callers know: at least those established that stay, at most also those
    being placed or hung up at the moment."""

    @property
    def lines_are_right(self) -> bool:
        least, most = self.alive
        return least <= self.lines <= most


@dataclass(frozen=True)
class Rest:
    """The server without calls."""

    placed: int
    """Calls so far."""
    settled_s: float | None
    """From the last hang-up to nothing going on any more; None: never."""
    sample: Sample
    held: HeapUsage


@dataclass(frozen=True)
class Check:
    """What must hold, and what was found."""

    name: str
    found: str
    wanted: str
    passed: bool


@dataclass
class Soak:
    kind: str
    calls: int
    rate: float
    series: list[Sample] = field(default_factory=list)
    before: Sample | None = None
    """After one call, so that what is loaded late is loaded."""
    rests: list[Rest] = field(default_factory=list)
    reports: list[dict[str, Any]] = field(default_factory=list)
    """Of the callers, for each part."""
    faults: list[str] = field(default_factory=list)
    """Lines of the server's log about tasks that nobody owns."""

    @property
    def kept_kb_per_call(self) -> float:
        """Since the first part, at most; what may be noise is taken off."""
        first, last = self.rests[0], self.rests[-1]
        grown = (last.held.at_most_bytes - first.held.at_most_bytes) / 1024
        return round(max(0.0, grown - NOISE_KB) / max(1, last.placed - first.placed), 2)

    @property
    def rss_growth(self) -> float:
        return round(self.rests[-1].held.rss_mb / self.rests[0].held.rss_mb - 1, 4)

    @property
    def rest_growth(self) -> float:
        return round(self.rests[-1].sample.rss_mb / self.rests[0].sample.rss_mb - 1, 4)

    @property
    def conclusive(self) -> bool:
        """So many calls that a leak of the limit is seen above the noise."""
        first, last = self.rests[0].placed, self.rests[-1].placed
        return first >= WARM_UP_CALLS and (last - first) * LEAK_KB_PER_CALL >= NOISE_KB

    @property
    def left_behind(self) -> dict[str, int]:
        """More than before the calls."""
        assert self.before is not None
        after = self.rests[-1].sample
        names = ("calls", "sessions", "transactions", "tasks", "threads", "files", "ports")
        return {name: getattr(after, name) - getattr(self.before, name) for name in names}

    @property
    def checks(self) -> list[Check]:
        refused = {status: n for report in self.reports for status, n in report["refused"].items()}
        cut = sum(report["cut"] for report in self.reports)
        wrong = [sample for sample in self.series if not sample.lines_are_right]
        lines = f"{len(wrong)} of {len(self.series)} samples differ"
        lines += "".join(f"; {s.lines} of {s.alive} at {s.at_s:.0f} s" for s in wrong[:1])
        settled = [rest.settled_s for rest in self.rests]
        names = ("calls", "sessions", "tasks", "files", "ports")
        left = {name: self.left_behind[name] for name in names if self.left_behind[name] > 0}
        kept = self.kept_kb_per_call
        return [
            Check("INVITEs refused", f"{refused or 0}", "0", not refused),
            Check("calls cut", f"{cut}", "0", cut == 0),
            Check("lines in use are calls alive", lines, "0", not wrong),
            Check(
                "at rest after",
                ", ".join("never" if s is None else f"{s} s" for s in settled),
                f"{REST_S:.0f} s",
                None not in settled,
            ),
            Check("left behind", f"{left or 0}", "0", not left),
            Check(
                "memory at rest",
                f"{self.rest_growth:+.1%}",
                f"{REST_GROWTH:+.0%}",
                self.rest_growth <= REST_GROWTH,
            ),
            Check(
                "memory without garbage",
                f"{self.rss_growth:+.1%}",
                f"{RSS_GROWTH:+.0%}",
                self.rss_growth <= RSS_GROWTH,
            ),
            Check(
                "kept of a call",
                f"{kept} KB" if self.conclusive else f"{kept} KB (too few calls to say)",
                f"{LEAK_KB_PER_CALL} KB",
                not self.conclusive or kept <= LEAK_KB_PER_CALL,
            ),
            Check(
                "tasks without an owner",
                f"{len(self.faults)}" + "".join(f"; {line}" for line in self.faults[:1]),
                "0",
                not self.faults,
            ),
        ]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)


class Watched:
    """The server, looked at from outside."""

    def __init__(self, both: Pair) -> None:
        self._both = both
        self._started = time.monotonic()

    async def sample(self) -> Sample:
        earlier = await self._both.ask("standing")
        usage, footprint = await self._both.usage(), self._both.footprint()
        later = await self._both.ask("standing")
        return Sample(
            at_s=round(time.monotonic() - self._started, 1),
            calls=usage.calls,
            sessions=usage.sessions,
            transactions=usage.transactions,
            tasks=usage.tasks,
            rss_mb=footprint.rss_mb,
            threads=footprint.threads,
            files=footprint.files,
            ports=self._both.ports(),
            lag_p99_ms=usage.lag_ms["p99"],
            tick_late_ms=usage.tick_late_ms,
            lines=usage.in_use,
            alive=(
                earlier["up"] - (later["hung_up"] - earlier["hung_up"]),
                earlier["all"] + later["placed"] - earlier["placed"],
            ),
        )

    async def quiet(self) -> Sample:
        """Waits until nothing goes on any more, at most as long as a rest."""
        give_up = time.monotonic() + REST_S
        while True:
            now = await self.sample()
            busy = now.calls or now.sessions or now.transactions or now.ports
            if not busy or time.monotonic() > give_up:
                return now
            await asyncio.sleep(SAMPLE_S)

    async def settled(self, tasks: int) -> float | None:
        """Rests; returns after how long nothing was going on any more."""
        began, found = time.monotonic(), None
        while (passed := time.monotonic() - began) < REST_S:
            now = await self.sample()
            busy = now.calls or now.sessions or now.transactions or now.ports
            if found is None and not busy and now.tasks <= tasks:
                found = round(passed, 1)
            await asyncio.sleep(min(SAMPLE_S, REST_S - passed))
        return found


async def soak(
    kind: str,
    calls: int,
    rate: float,
    seconds: float,
    pin: bool,
    show: Callable[[Sample], None],
    loss: float = 0.0,
    busy: int = 0,
) -> Soak:
    """`loss` is the percentage of the callers' packets and messages that get lost, `busy` the
    number of other processes that each would fill a core."""
    result = Soak(kind, calls, rate)
    warm_up_s = max(WARM_UP * seconds, (WARM_UP_CALLS - calls) / rate)
    async with pair(kind, rate, pin, loss=loss) as both:
        server = Watched(both)
        for pid in (both.edges[0].child.pid, both.callers.pid):
            _prioritize(pid)
        await both.warm_up(1)
        result.before = await server.quiet()
        async with children(busy, "benchmarks.processes.busy"):
            placed = 0
            for part_s in (warm_up_s, seconds):
                both.callers.send("measure")
                both.callers.send(f"churn {calls}")
                await _watch(server, part_s, result, show)
                report = await both.ask("report")
                result.reports.append(report)
                placed += report["calls"]
                await both.ask("empty")
                settled = await server.settled(result.before.tasks)
                rest = Rest(placed, settled, await server.sample(), await both.held())
                result.rests.append(rest)
                show(rest.sample)
    log = both.edges[0].child.errors.splitlines()
    result.faults = [line for line in log if any(fault in line for fault in FAULTS)]
    return result


def _prioritize(pid: int) -> None:
    """Sets the priority of all threads of a process, if that is permitted."""
    with suppress(PermissionError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.setpriority(os.PRIO_PROCESS, int(thread.name), NICE)


async def _watch(
    server: Watched, seconds: float, result: Soak, show: Callable[[Sample], None]
) -> None:
    until, due = time.monotonic() + seconds, time.monotonic()
    while due < until:
        result.series.append(await server.sample())
        if len(result.series) % SHOWN == 1:
            show(result.series[-1])
        due += SAMPLE_S
        await asyncio.sleep(max(0.0, due - time.monotonic()))


def print_sample(sample: Sample) -> None:
    print(
        f"{sample.at_s:7.0f} s {sample.calls:4} calls {sample.lines:4} lines "
        f"({sample.alive[0]}-{sample.alive[1]} alive) {sample.sessions:5} sessions "
        f"{sample.transactions:6} transactions {sample.tasks:5} tasks {sample.files:5} files "
        f"{sample.ports:5} ports {sample.threads:4} threads {sample.rss_mb:8.1f} MB, loop "
        f"{sample.lag_p99_ms:.1f} ms late, ticks {sample.tick_late_ms:.1f} ms (p99)",
        flush=True,
    )


def print_result(result: Soak) -> None:
    lost = sum(report["missing"] for report in result.reports)
    packets = sum(report["packets"] for report in result.reports)
    setup = [report["setup_ms"].get("p95") for report in result.reports]
    print(
        f"{result.rests[-1].placed} calls; set-up p95 {setup} ms; {lost} of {packets} packets from "
        f"the server lost; at rest {[rest.sample.rss_mb for rest in result.rests]} MB, without "
        f"garbage {[rest.held.rss_mb for rest in result.rests]} MB; left behind "
        f"{result.left_behind}"
    )
    for check in result.checks:
        verdict = "ok" if check.passed else "MISS"
        print(f"{check.name:30}{check.found:42}{check.wanted:>8}  {verdict}")
    print("passed" if result.passed else "FAILED")


def as_dict(result: Soak) -> dict[str, Any]:
    """For --json."""
    return {
        **asdict(result),
        "kept_kb_per_call": result.kept_kb_per_call,
        "left_behind": result.left_behind,
        "checks": [asdict(check) for check in result.checks],
        "passed": result.passed,
    }
