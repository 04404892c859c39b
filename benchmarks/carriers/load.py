"""Load by carriers' streams: see `python -m benchmarks carriers load --help`.

The same callers call each server: ours as Twilio does, webhook and signatures included, and stock
Pipecat by its stream alone.
"""

import asyncio
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from benchmarks.carriers.server import SECRET
from offhook.bench.phones.rtp import percentiles
from offhook.bench.process import Child, Footprint, child, get_json

SERVERS = ("echo", "vad", "pipecat")
"""Ours, ours with the voice detector, and stock Pipecat with an echo."""
ANSWER_S = 60.0
"""A server or callers that say nothing for so long have failed."""
SETTLE_S = 3.0
"""From the last call set up to the first count."""
WARM_UP_CALLS = 4
"""For each process: more than one keeps while another has none."""
WARM_UP_S = 6.0
"""Of the first calls: a line, and what is done at its end."""


@dataclass
class Pair:
    """A server, of one process or several, and its callers in a process of their own."""

    kind: str
    servers: list[Child]
    http: list[aiohttp.ClientSession]
    """To each process of the server."""
    callers: Child = field(init=False)

    async def stats(self) -> dict[str, Any]:
        """Of all processes: what they cost together, and the lag of the worst."""
        each = await self._all("/stats")
        return {
            "cpu_s": sum(s["cpu_s"] for s in each),
            "wall_s": each[0]["wall_s"],
            "lag_ms": max((s["lag_ms"] for s in each), key=lambda lag: lag["p99"]),
        }

    async def carried(self) -> dict[str, Any]:
        """What only our server can tell."""
        if self.kind == "pipecat":
            return {}
        each = await self._all("/carried")
        names = [name for name in each[0]["lines"] if name != "mos"]
        return {
            "calls": [len(s["round_trip_ms"]) for s in each],
            "lines": {name: sum(s["lines"][name] for s in each) for name in names},
            "round_trip_ms": [ms for s in each for ms in s["round_trip_ms"]],
            "tick_late_ms": max(s["tick_late_ms"] for s in each),
        }

    async def _all(self, path: str) -> list[dict[str, Any]]:
        return list(await asyncio.gather(*(get_json(http, path) for http in self.http)))

    def rss_mb(self) -> float:
        return sum(Footprint.of(server.pid).rss_mb for server in self.servers)

    async def ask(self, command: str) -> dict[str, Any]:
        """Tell the callers something that they answer. Raises ChildError."""
        with suppress(RuntimeError):  # they are gone: `line` says why
            self.callers.send(command)
        return await self.callers.line(ANSWER_S)


def _on(cpu: int | None) -> tuple[str, ...]:
    return () if cpu is None else ("--cpu", str(cpu))


@asynccontextmanager
async def pair(kind: str, rate: float, pin: bool, processes: int = 1) -> AsyncIterator[Pair]:
    """`pin`: a server of one process, and the callers, keep to a core each. Raises ChildError."""
    allowed = sorted(os.sched_getaffinity(0))
    apart = pin and len(allowed) > 1 and processes == 1
    server_cpu, callers_cpu = (allowed[0], allowed[-1]) if apart else (None, None)
    async with AsyncExitStack() as stack:
        modules, port = await _modules(kind, processes, stack)
        servers = [
            await stack.enter_async_context(child(*module, *_on(server_cpu))) for module in modules
        ]
        timeout = aiohttp.ClientTimeout(ANSWER_S)
        http = [
            await stack.enter_async_context(
                aiohttp.ClientSession(f"http://127.0.0.1:{s.hello['port']}", timeout=timeout)
            )
            for s in servers
        ]
        both = Pair(kind, servers, http)
        if kind == "pipecat":
            target = ["--stream", (await get_json(http[0], "/streams"))["stream"]]
        else:
            port = port or servers[0].hello["port"]
            webhook = f"http://127.0.0.1:{port}/carriers/twilio/voice"
            target = ["--webhook", webhook, "--secret", SECRET]
        arguments = (
            "benchmarks.carriers.callers",
            *target,
            "--rate",
            str(rate),
            *_on(callers_cpu),
        )
        both.callers = await stack.enter_async_context(child(*arguments))
        yield both


async def _modules(
    kind: str, processes: int, stack: AsyncExitStack
) -> tuple[list[tuple[str, ...]], int]:
    """The children that are the server, and the port that they share, if they are several."""
    if kind == "pipecat":
        return [("benchmarks.carriers.stock_carriers",)], 0
    if processes == 1:
        return [("benchmarks.carriers.server", kind)], 0
    directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="offhook-"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    shared = ("--processes", str(processes), "--directory", directory, "--port", str(port))
    numbers = range(1, processes + 1)
    return [
        ("benchmarks.carriers.server", kind, "--number", str(n), *shared) for n in numbers
    ], port


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
    phase: str,
    asked: int,
    seconds: float,
    mb_per_call: float | None = None,
    ramp: dict[str, Any] | None = None,
) -> Row:
    """What happens from now on, for so many seconds; `ramp` is how the calls were set up, where
    none are meanwhile."""
    first, before = await both.stats(), await both.carried()
    both.callers.send("measure")
    await asyncio.sleep(seconds)
    report = await both.ask("report")
    last, after = await both.stats(), await both.carried()
    cpu = 100 * (last["cpu_s"] - first["cpu_s"]) / (last["wall_s"] - first["wall_s"])
    messages, calls = max(1, report["messages"]), max(1, report["up"])
    setup = ramp or report
    return Row(
        server=both.kind,
        processes=len(both.servers),
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
        mark_round_trip_ms=percentiles(after.get("round_trip_ms", [])),
        cpu_percent=round(cpu, 1),
        cpu_per_call_percent=round(cpu / calls, 3),
        mb_per_call=mb_per_call,
        tick_late_ms=after.get("tick_late_ms"),
        lag_p99_ms=last["lag_ms"]["p99"],
        concealed_percent=_concealed(before, after),
        spread=after.get("calls", []),
        own=report["own"],
    )


def _concealed(before: dict[str, Any], after: dict[str, Any]) -> float | None:
    """Of all that the server heard."""
    if not after:
        return None
    lines = {name: n - before["lines"][name] for name, n in after["lines"].items()}
    return round(float(100 * lines["concealed_ms"] / max(1, lines["heard_ms"])), 3)


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
        await both.ask(f"fill {WARM_UP_CALLS * processes}")
        await asyncio.sleep(WARM_UP_S)
        await both.ask("empty")
        empty = both.rss_mb()
        for calls in steps:
            both.callers.send("measure")
            ramp = await both.ask(f"fill {calls}")
            await asyncio.sleep(SETTLE_S)
            mb = (both.rss_mb() - empty) / max(1, ramp["up"])
            rows.append(await _row(both, "held", calls, seconds, round(mb, 3), ramp))
            show(rows[-1])
        await both.ask("empty")
        await both.ask(f"fill {steps[0]}")
        both.callers.send(f"churn {steps[0]}")
        await asyncio.sleep(SETTLE_S)
        rows.append(await _row(both, "churn", steps[0], seconds))
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
