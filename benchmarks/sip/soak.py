"""Calls by SIP that come and go for many minutes: see `offhook bench sip soak --help`.

In three parts; after each all hang up, and once the last transaction has run out (32 s) and the
garbage is collected, what the server still holds is compared. The first part warms it up: its trace
of messages is full by then, if there were calls enough.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.callers.pair import Pair
from benchmarks.calls.soak import NOISE_KB, PARTS, RSS_GROWTH
from benchmarks.processes.memory import HeapUsage
from benchmarks.sip.load import pair

SAMPLE_S = 5.0
REST_S = 60.0
"""The longest waited for calls that hung up to leave nothing behind."""
WARM_UP_CALLS = 300
"""In the first part, with seven messages each: then the trace is full."""
LEAK_KB_PER_CALL = 1.0
"""More left behind than this is a leak."""


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


@dataclass(frozen=True)
class Rest:
    """The server without calls."""

    placed: int
    """Calls so far."""
    settled_s: float | None
    """From the last hang-up to nothing going on any more; None: never."""
    sample: Sample
    held: HeapUsage


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
    def passed(self) -> bool:
        left = self.left_behind
        leaks = self.conclusive and self.kept_kb_per_call > LEAK_KB_PER_CALL
        return (
            all(rest.settled_s is not None for rest in self.rests)
            and all(report["cut"] == 0 for report in self.reports)
            and max(left[name] for name in ("calls", "sessions", "tasks", "files", "ports")) <= 0
            and not leaks
            and self.rss_growth <= RSS_GROWTH
        )


class Watched:
    """The server, looked at from outside."""

    def __init__(self, both: Pair) -> None:
        self._both = both
        self._started = time.monotonic()

    async def sample(self) -> Sample:
        usage, footprint = await self._both.usage(), self._both.footprint()
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
        )

    async def settled(self, tasks: int) -> float | None:
        """How long until nothing is going on any more."""
        began = time.monotonic()
        while (passed := time.monotonic() - began) < REST_S:
            now = await self.sample()
            busy = now.calls or now.sessions or now.transactions or now.ports
            if not busy and now.tasks <= tasks:
                return round(passed, 1)
            await asyncio.sleep(0.5)
        return None


async def soak(
    kind: str,
    calls: int,
    rate: float,
    seconds: float,
    pin: bool,
    show: Callable[[Sample], None],
) -> Soak:
    result = Soak(kind, calls, rate)
    async with pair(kind, rate, pin) as both:
        server = Watched(both)
        await both.warm_up(1)
        idle = (await server.sample()).tasks
        await server.settled(idle)
        result.before = await server.sample()
        placed = 0
        for _ in range(PARTS):
            both.callers.send("measure")
            await both.ask(f"fill {calls}")
            both.callers.send(f"churn {calls}")
            await _watch(server, seconds / PARTS, result, show)
            report = await both.ask("report")
            result.reports.append(report)
            placed += report["calls"]
            await both.ask("empty")
            settled = await server.settled(result.before.tasks)
            rest = Rest(placed, settled, await server.sample(), await both.held())
            result.rests.append(rest)
            show(rest.sample)
    return result


async def _watch(
    server: Watched, seconds: float, result: Soak, show: Callable[[Sample], None]
) -> None:
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        result.series.append(await server.sample())
        show(result.series[-1])
        await asyncio.sleep(min(SAMPLE_S, left))


def print_sample(sample: Sample) -> None:
    print(
        f"{sample.at_s:7.0f} s {sample.calls:4} calls {sample.sessions:5} sessions "
        f"{sample.transactions:6} transactions {sample.tasks:5} tasks {sample.files:5} files "
        f"{sample.ports:5} ports {sample.threads:4} threads {sample.rss_mb:8.1f} MB, loop "
        f"{sample.lag_p99_ms:.1f} ms late, ticks {sample.tick_late_ms:.1f} ms (p99)",
        flush=True,
    )


def print_result(result: Soak) -> None:
    assert result.before is not None
    rests = ", ".join(f"{rest.held.rss_mb}" for rest in result.rests)
    lost = sum(report["missing"] for report in result.reports)
    packets = sum(report["packets"] for report in result.reports)
    refused = [report["refused"] for report in result.reports if report["refused"]]
    cut = sum(report["cut"] for report in result.reports)
    setup = [report["setup_ms"].get("p95") for report in result.reports]
    print(
        f"{result.rests[-1].placed} calls, refused {refused or 0}, cut {cut}; set-up p95 {setup} "
        f"ms; {lost} of {packets} packets lost\n"
        f"settled after {[rest.settled_s for rest in result.rests]} s; left behind: "
        f"{result.left_behind}\n"
        f"without calls and garbage the server holds {rests} MB: {result.rss_growth:+.1%} "
        f"({RSS_GROWTH:+.0%} is allowed), {result.kept_kb_per_call} KB kept of a call "
        f"({LEAK_KB_PER_CALL} KB allowed, {NOISE_KB} KB in all are noise)"
    )
    if not result.conclusive:
        print("so few calls prove nothing about memory: soak longer, or more calls a second")
    print("passed" if result.passed else "FAILED")


def as_dict(result: Soak) -> dict[str, Any]:
    """For --json."""
    return {
        **asdict(result),
        "kept_kb_per_call": result.kept_kb_per_call,
        "left_behind": result.left_behind,
        "passed": result.passed,
    }
