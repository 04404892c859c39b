"""`offhook bench edge`: the cost of a call, and the number of calls that one process holds.

Our edge and a stock Pipecat bot on SmallWebRTC, each in its own process, are driven by the same
callers from further processes, with the same dummy engines (`scripted`), on 127.0.0.1. A server
that fails under a load is reported as failed, and the next load uses a new one.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field, fields
from math import ceil
from typing import Any, Literal

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.callers.browsers import CallCounters, Manner
from benchmarks.callers.summary import ANSWERED, HOLES_PER_MINUTE
from benchmarks.command import command
from benchmarks.processes.process import Child, ChildError, Footprint, child, get_json
from benchmarks.processes.process import run as run_loop
from benchmarks.table import percentiles
from offhook.web.config.config import Log
from offhook.web.http.logs_io import set_up

Kind = Literal["edge", "kept", "port", "stock"]
"""kept: our edge with calls that are kept, in SQLite; port: with all calls on one UDP port."""
SERVERS: tuple[Kind, ...] = ("edge", "stock")
MODULES: dict[Kind, tuple[str, ...]] = {
    "edge": ("benchmarks.servers.edge_server", "scripted"),
    "kept": ("benchmarks.servers.edge_server", "scripted", "--kept"),
    "port": ("benchmarks.servers.edge_server", "scripted", "--one-port"),
    "stock": ("benchmarks.servers.stock_server", "scripted"),
}

Meanwhile = Callable[[aiohttp.ClientSession], Awaitable[None]]
"""Asks a server."""

MANNERS: tuple[Manner, ...] = ("listening", "talking")
CALLS = (1, 10, 25, 50)
SECONDS = 20.0
SEARCH_S = 10.0
WORDS = 13
"""Words of a reply, 3.9 s, so that the agent speaks half of the time."""
CALLS_PER_LOAD = 25
"""Callers per process."""
SETTLE_S = 7.0
"""Time in s from the last connection to the first count, when all callers have started."""
ANSWER_S = 30
"""Time in s without a response after which a server has failed."""
MOST_CALLS = 256
"""Upper end of the search."""

# Criteria for holding a number of calls.
LATE_P99_MS = 40.0
"""Maximum packet lateness in ms: two packets, which a jitter buffer absorbs without a gap."""


@dataclass(frozen=True)
class Row:
    """One server under one load; `_percent` is of one core."""

    server: Kind
    manner: Manner
    calls: int
    connected: int
    refusals: int
    """Attempts refused before they connected or gave up."""
    cpu_percent: float
    cpu_per_call_percent: float
    cpu_per_call_by_thread: dict[str, float]
    """The same by thread; the rest of the sum are threads unknown to Python."""
    packets_per_s: float
    """Packets received per call."""
    agent_share: float
    """Share of the time in which the agent speaks."""
    missing: int
    holes_per_minute: float
    late_ms: dict[str, float]
    early: int
    """Packets that were sent ahead, as before the server collects garbage."""
    answered: float | None
    response_ms: dict[str, float]
    rss_mb: float
    rss_per_call_mb: float
    rss_growth_mb: float
    """What memory grew by while it was measured."""
    threads: int
    tasks: int
    lag_ms: dict[str, float]
    """Lag of the server's event loop."""
    tick_late_ms: float | None
    """99th percentile from /metrics; only for our server."""
    load_cpu_percent: float
    """The busiest process of callers; near 100 the load generator is the bottleneck."""
    load_lag_p99_ms: float

    @property
    def holds(self) -> bool:
        """Whether no call was refused, there were no gaps and no late packets, and every line was
        answered."""
        return (
            self.connected == self.calls
            and self.holes_per_minute <= HOLES_PER_MINUTE
            and self.late_ms.get("p99", 0.0) <= LATE_P99_MS
            and (self.answered is None or self.answered >= ANSWERED)
        )


@dataclass(frozen=True)
class Failed:
    """A server that stopped responding under a load."""

    server: Kind
    manner: Manner
    calls: int
    why: str

    @property
    def holds(self) -> bool:
        return False


@dataclass
class Capacity:
    """The maximum number of talking calls without gaps."""

    server: Kind
    calls: int
    cpu_percent: float
    calls_per_core: float
    tried: list[Row | Failed] = field(default_factory=list)


async def measure(
    server: Kind,
    manner: Manner,
    calls: int,
    seconds: float,
    options: Sequence[str] = (),
    meanwhile: Meanwhile = lambda http: asyncio.sleep(0),
) -> Row | Failed:
    """Measures a new server under a new load. `options` are further ones of the server's, and
    `meanwhile` runs while it is measured, and ends by itself within that time."""
    try:
        return await _measure(server, manner, calls, seconds, options, meanwhile)
    except (ChildError, aiohttp.ClientError, TimeoutError) as error:
        why = str(error).splitlines()  # the last line of a child's log is the most informative
        return Failed(server, manner, calls, why[-1] if why else type(error).__name__)


async def _measure(
    server: Kind,
    manner: Manner,
    calls: int,
    seconds: float,
    options: Sequence[str],
    meanwhile: Meanwhile,
) -> Row:
    words = 0 if manner == "listening" else WORDS
    async with (
        child(*MODULES[server], *options, "--words", str(words)) as running,
        AsyncExitStack() as loads,
        aiohttp.ClientSession(
            f"http://127.0.0.1:{running.hello['port']}",
            timeout=aiohttp.ClientTimeout(ANSWER_S),
        ) as http,
    ):
        empty = Footprint.of(running.pid)
        callers = await _callers(loads, running.hello["port"], manner, calls)
        await asyncio.sleep(SETTLE_S)
        before = await get_json(http, "/stats")
        filled = Footprint.of(running.pid)
        for caller in callers:
            caller.send("measure")
        await asyncio.gather(asyncio.sleep(seconds), meanwhile(http))
        for caller in callers:
            caller.send("report")
        reports = [await caller.line(ANSWER_S) for caller in callers]
        after = await get_json(http, "/stats")
        full = Footprint.of(running.pid)
        late = await _tick_late_ms(http) if server != "stock" else None
        connected = sum(caller.hello["connected"] for caller in callers)
    wall = after["wall_s"] - before["wall_s"]
    cpu = 100 * (after["cpu_s"] - before["cpu_s"]) / wall
    threads_before = before["thread_cpu_s"]
    by_thread = {
        name: round(100 * (cpu_s - threads_before.get(name, 0.0)) / wall / max(1, connected), 2)
        for name, cpu_s in after["thread_cpu_s"].items()
    }
    counts = _together([report["counts"] for report in reports])
    return Row(
        server=server,
        manner=manner,
        calls=calls,
        connected=connected,
        refusals=sum(caller.hello["refusals"] for caller in callers),
        cpu_percent=round(cpu, 1),
        cpu_per_call_percent=round(cpu / max(1, connected), 2),
        cpu_per_call_by_thread={name: cpu for name, cpu in by_thread.items() if cpu},
        packets_per_s=round(counts.packets / seconds / max(1, connected), 1),
        agent_share=round(counts.speech_packets / 50 / seconds / max(1, connected), 2),
        missing=counts.missing,
        holes_per_minute=_rate(counts.holes, counts.speech_packets / 50 / 60),
        late_ms=percentiles(counts.late_ms),
        early=counts.early,
        answered=round(counts.answered / counts.lines, 3) if counts.lines else None,
        response_ms=percentiles(counts.response_ms),
        rss_mb=full.rss_mb,
        rss_per_call_mb=round((full.rss_mb - empty.rss_mb) / max(1, connected), 2),
        rss_growth_mb=round(full.rss_mb - filled.rss_mb, 1),
        threads=full.threads,
        tasks=after["tasks"],
        lag_ms=after["lag_ms"],
        tick_late_ms=late,
        load_cpu_percent=max(report["own"]["cpu_percent"] for report in reports),
        load_lag_p99_ms=max(report["own"]["lag_ms"]["p99"] for report in reports),
    )


async def _callers(loads: AsyncExitStack, port: int, manner: Manner, calls: int) -> list[Child]:
    """Starts processes of callers, evenly divided, and connects them all."""
    processes = ceil(calls / CALLS_PER_LOAD)
    shares = [calls * (i + 1) // processes - calls * i // processes for i in range(processes)]
    started = [
        loads.enter_async_context(
            child(
                *("benchmarks.callers.browsers", f"http://127.0.0.1:{port}", "--manner", manner),
                *("--calls", str(share), "--first", str(i * CALLS_PER_LOAD)),
            )
        )
        for i, share in enumerate(shares)
    ]
    return [await one for one in started]


async def _tick_late_ms(http: aiohttp.ClientSession) -> float:
    async with http.get("/metrics") as response:
        families = text_string_to_metric_families(await response.text())
    late = [s.value for f in families for s in f.samples if s.name.endswith("lateness_seconds")]
    return round(max(late) * 1000, 1)


def _together(parts: list[dict[str, Any]]) -> CallCounters:
    """Adds up the counters and concatenates the lists."""
    total = CallCounters()
    for part in parts:
        for item in fields(CallCounters):
            setattr(total, item.name, getattr(total, item.name) + part[item.name])
    return total


def _rate(count: int, minutes: float) -> float:
    return round(count / minutes, 2) if minutes else 0.0


async def capacity(
    server: Kind,
    known: Sequence[Row | Failed],
    seconds: float,
    show: Callable[[Row | Failed], None],
) -> Capacity:
    """Searches by doubling from the known result, then by bisection to a sixteenth."""
    talking = [row for row in known if row.server == server and row.manner == "talking"]
    low = max((row.calls for row in talking if row.holds), default=0)
    failed = [row.calls for row in talking if not row.holds]
    high = min(failed, default=MOST_CALLS + 1)
    low = min(low, high - 1)
    rows = {row.calls: row for row in talking}
    tried: list[Row | Failed] = []
    while high - low > max(1, low // 16):
        calls = (low + high) // 2 if failed else min(MOST_CALLS, max(4, 2 * low))
        row = rows[calls] = await measure(server, "talking", calls, seconds)
        tried.append(row)
        show(row)
        if row.holds:
            low = calls
        else:
            high = calls
            failed.append(calls)
    held = rows.get(low)
    cpu = held.cpu_percent if isinstance(held, Row) else 0.0
    per_core = round(100 * low / cpu, 1) if cpu else 0.0
    return Capacity(server, low, cpu, per_core, tried)


HEADER = (
    f"{'server':7}{'manner':13}{'calls':>6}{'ref.':>5}{'% core':>8}{'/call':>7}{'pkt/s':>7}"
    f"{'agent':>7}{'miss':>6}{'holes/min':>10}{'late p50':>9}{'p95':>7}{'p99':>7}{'max':>7}"
    f"{'early':>6}{'answ.':>7}{'resp p50':>9}{'p95':>7}{'RSS MB':>8}{'/call':>7}{'grew':>6}"
    f"{'lag p99':>8}{'tick p99':>9}{'load %':>7}  threads, % core/call"
)


def line(row: Row | Failed) -> str:
    if isinstance(row, Failed):
        return f"{row.server:7}{row.manner:13}{row.calls:>6}  failed: {row.why}"
    late, response = row.late_ms, row.response_ms
    answered = "-" if row.answered is None else f"{row.answered:.0%}"
    tick = "-" if row.tick_late_ms is None else f"{row.tick_late_ms:.1f}"
    threads = ", ".join(f"{name} {cpu}" for name, cpu in row.cpu_per_call_by_thread.items())
    calls = f"{row.connected}" if row.connected == row.calls else f"{row.connected}/{row.calls}"
    return (
        f"{row.server:7}{row.manner:13}{calls:>6}{row.refusals:5}{row.cpu_percent:8.1f}"
        f"{row.cpu_per_call_percent:7.2f}{row.packets_per_s:7.1f}{row.agent_share:7.0%}"
        f"{row.missing:6}{row.holes_per_minute:10.1f}{late.get('p50', 0):9.1f}"
        f"{late.get('p95', 0):7.1f}{late.get('p99', 0):7.1f}{late.get('max', 0):7.1f}{row.early:6}"
        f"{answered:>7}{response.get('p50', 0):9.0f}{response.get('p95', 0):7.0f}"
        f"{row.rss_mb:8.0f}{row.rss_per_call_mb:7.2f}{row.rss_growth_mb:6.1f}"
        f"{row.lag_ms['p99']:8.1f}{tick:>9}"
        f"{row.load_cpu_percent:7.0f}  {threads}"
    )


def run(
    as_json: bool,
    calls: Sequence[int] = CALLS,
    seconds: float = SECONDS,
    search: bool = True,
    servers: Sequence[Kind] = SERVERS,
    manners: Sequence[Manner] = MANNERS,
) -> int:
    """Prints every row as it is measured, then the capacities. Returns 0."""
    rows: list[Row | Failed] = []

    def show(row: Row | Failed) -> None:
        if not as_json:
            print(line(row), flush=True)

    async def all_of_it() -> list[Capacity]:
        for count in calls:
            for manner in manners:
                for server in servers:
                    rows.append(await measure(server, manner, count, seconds))
                    show(rows[-1])
        if not search:
            return []
        return [await capacity(server, rows, SEARCH_S, show) for server in servers]

    if not as_json:
        print(HEADER, flush=True)
    found = run_loop(all_of_it())
    if as_json:
        plain = {"rows": [asdict(r) for r in rows], "capacity": [asdict(c) for c in found]}
        print(json.dumps(plain))
        return 0
    for one in found:
        print(
            f"{one.server}: {one.calls} talking calls without gaps in one process, "
            f"{one.cpu_percent:.0f} % of a core, {one.calls_per_core:.0f} calls a core"
        )
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = command("edge", __doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--calls", default=",".join(map(str, CALLS)), metavar="N,N,...")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument(
        "--servers",
        nargs="+",
        choices=MODULES,
        default=SERVERS,
        help="kept: edge that keeps calls; port: edge on one UDP port",
    )
    parser.add_argument(
        "--manners", nargs="+", choices=MANNERS, default=MANNERS, help="of the callers (both)"
    )
    parser.add_argument("--no-search", action="store_true", help="leave out the largest number")
    arguments = parser.parse_args(argv)
    set_up(Log(level="WARNING"))
    calls = [int(number) for number in arguments.calls.split(",")]
    search = not arguments.no_search
    return run(
        arguments.json, calls, arguments.seconds, search, arguments.servers, arguments.manners
    )


if __name__ == "__main__":
    raise SystemExit(main())
