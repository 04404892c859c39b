"""Load by carriers' streams: see `offhook bench carriers load --help`.

The same callers call each server: ours as Twilio does, webhook and signatures included, and stock
Pipecat by its stream alone.
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.callers.pair import SETTLE_S, Pair, ResourceUse, cpus, paired
from benchmarks.processes.own_server import HOST, free_port
from benchmarks.processes.process import get_json
from benchmarks.servers.edge_server import SECRET
from benchmarks.table import percentiles

SERVERS = ("echo", "vad", "pipecat")
"""Ours, ours with the voice detector, and stock Pipecat with an echo."""
WARM_UP_CALLS = 4
"""For each process: more than one keeps while another has none."""


@asynccontextmanager
async def pair(kind: str, rate: float, pin: bool, processes: int = 1) -> AsyncIterator[Pair]:
    """`pin`: a server of one process, and the callers, keep to a core each. Raises ChildError."""
    stock = kind == "pipecat"
    shared = free_port() if processes > 1 else 0

    async def callers(both: Pair) -> tuple[str, ...]:
        first = both.edges[0]
        if stock:
            target = ["--stream", (await get_json(first.http, "/streams"))["stream"]]
        else:
            port = shared or first.child.hello["port"]
            webhook = f"http://{HOST}:{port}/carriers/twilio/voice"
            target = ["--webhook", webhook, "--secret", SECRET]
        return ("benchmarks.carriers.callers", *target, "--rate", str(rate))

    with tempfile.TemporaryDirectory(prefix="offhook-") as folder:
        servers: list[tuple[str, ...]] = [("benchmarks.carriers.stock_carriers",)]
        if not stock:
            one = ("benchmarks.servers.edge_server", kind, "--twilio")
            of = ("--processes", str(processes), "--directory", folder, "--port", str(shared))
            servers = [(*one, *of, "--number", str(n)) for n in range(1, processes + 1)]
        cores = cpus(pin and processes == 1, processes)
        async with paired(servers, callers, cores, ours=not stock) as both:
            yield both


@dataclass(frozen=True)
class Row:
    """One server under one load for some seconds."""

    server: str
    processes: int
    phase: str
    """"held": the calls stand; "churn": they come and go."""
    asked: int
    calls: int
    """Up at the end."""
    seconds: float
    setups: int
    setup_ms: dict[str, float]
    """From the webhook, or the request for the stream where there is none, to the first sound."""
    refused: dict[str, int]
    cut: int
    messages: int
    """Of sound, that came back..."""
    sound_percent: float
    """...and how much of the time it lasts."""
    late_ms: dict[str, float]
    """Of those: how much later than the most punctual of the second before."""
    late_percent: dict[str, float]
    """By ms."""
    holes_per_minute: float
    """Of one call, behind a jitter buffer of 60 ms."""
    echo_ms: dict[str, float]
    """From a word said to its being played."""
    marks_per_second: float
    mark_round_trip_ms: dict[str, float]
    """Of all calls, by the server's account; empty where there are none."""
    cpu_percent: float
    cpu_per_call_percent: float
    mb_per_call: float | None
    tick_late_ms: float | None
    lag_p99_ms: float
    concealed_percent: float | None
    spread: list[int]
    """Calls with marks in each process, by the server's account."""
    own: dict[str, Any]
    """The callers': share of a core, how late they sent, how late their loop was."""


async def _row(
    both: Pair,
    kind: str,
    phase: str,
    asked: int,
    seconds: float,
    mb_per_call: float | None = None,
    ramp: dict[str, Any] | None = None,
) -> Row:
    """What happens from now on, for so many seconds; `ramp` is how the calls were set up, where
    none are meanwhile."""
    before, after, report = await both.observe(seconds)
    first, last = before.whole, after.whole
    cpu = last.cpu_percent_since(first)
    messages, calls = max(1, report["messages"]), max(1, report["up"])
    setup = ramp or report
    return Row(
        server=kind,
        processes=len(both.edges),
        phase=phase,
        asked=asked,
        calls=report["up"],
        seconds=seconds,
        setups=setup["calls"],
        setup_ms=setup["setup_ms"],
        refused=setup["refused"],
        cut=report["cut"],
        messages=report["messages"],
        sound_percent=round(report["sound_ms"] / 10 / seconds / calls, 1),
        late_ms=report["late_ms"],
        late_percent={ms: round(100 * n / messages, 3) for ms, n in report["late"].items()},
        holes_per_minute=round(report["holes"] * 60 / seconds / calls, 3),
        echo_ms=report["echo_ms"],
        marks_per_second=round(report["marks"] / seconds / calls, 2),
        mark_round_trip_ms=percentiles(last.round_trip_ms),
        cpu_percent=cpu,
        cpu_per_call_percent=round(cpu / calls, 3),
        mb_per_call=mb_per_call,
        tick_late_ms=last.tick_late_ms if both.ours else None,
        lag_p99_ms=last.lag_ms["p99"],
        concealed_percent=ResourceUse.between(first, last).concealed_percent if both.ours else None,
        spread=[len(edge.round_trip_ms) for edge in after.edges] if both.ours else [],
        own=report["own"],
    )


async def load(
    kind: str,
    steps: Sequence[int],
    rate: float,
    seconds: float,
    pin: bool,
    show: Callable[[Row], None],
    processes: int = 1,
) -> list[Row]:
    """A fresh server: calls are set up step by step and stand for a while; then as many as in the
    first step come and go."""
    rows = []
    async with pair(kind, rate, pin, processes) as both:
        await both.warm_up(WARM_UP_CALLS * processes)
        empty = both.footprint().rss_mb
        for calls in steps:
            ramp = await both.fill(calls)
            mb = (both.footprint().rss_mb - empty) / max(1, ramp["up"])
            rows.append(await _row(both, kind, "held", calls, seconds, round(mb, 3), ramp))
            show(rows[-1])
        await both.ask("empty")
        await both.ask(f"fill {steps[0]}")
        both.callers.send(f"churn {steps[0]}")
        await asyncio.sleep(SETTLE_S)
        rows.append(await _row(both, kind, "churn", steps[0], seconds))
        show(rows[-1])
        await both.ask("empty")
    return rows


HEADER = (
    f"{'server':9}{'phase':7}{'calls':>8}{'new':>6}{'set-up p50':>11}{'p95':>8}{'refused':>8}"
    f"{'cut':>5}{'>20 ms':>9}{'>40 ms':>9}{'late p99':>9}{'max':>8}{'holes/min':>10}"
    f"{'echo p50':>9}{'p95':>7}{'marks/s':>8}{'trip p50':>9}{'p95':>7}{'% core':>8}{'/call':>7}"
    f"{'MB/call':>8}{'tick p99':>9}{'lag p99':>8}{'callers: %':>11}{'sends p99':>10}"
)


def line(row: Row) -> str:
    late, own, trip = row.late_ms, row.own, row.mark_round_trip_ms
    calls = f"{row.calls}" if row.calls == row.asked else f"{row.calls}/{row.asked}"
    mb = "-" if row.mb_per_call is None else f"{row.mb_per_call:.2f}"
    tick = "-" if row.tick_late_ms is None else f"{row.tick_late_ms:.1f}"
    trips = [f"{trip[q]:.0f}" if trip else "-" for q in ("p50", "p95")]
    server = row.server if row.processes == 1 else f"{row.server} x{row.processes}"
    return (
        f"{server:9}{row.phase:7}{calls:>8}{row.setups:>6}{row.setup_ms.get('p50', 0):11.1f}"
        f"{row.setup_ms.get('p95', 0):8.1f}{sum(row.refused.values()):>8}{row.cut:>5}"
        f"{row.late_percent['20']:8.2f}%{row.late_percent['40']:8.2f}%{late.get('p99', 0):9.1f}"
        f"{late.get('max', 0):8.1f}{row.holes_per_minute:10.2f}{row.echo_ms.get('p50', 0):9.0f}"
        f"{row.echo_ms.get('p95', 0):7.0f}{row.marks_per_second:8.1f}{trips[0]:>9}{trips[1]:>7}"
        f"{row.cpu_percent:8.1f}{row.cpu_per_call_percent:7.3f}{mb:>8}{tick:>9}"
        f"{row.lag_p99_ms:8.1f}{own['cpu_percent']:11.0f}"
        f"{own['sends_late_ms'].get('p99', 0):10.1f}"
    )
