"""A server and its callers, in separate processes, while calls stand, come and go.

With enough cores each process is pinned to one, so that the server has exactly a core and the
callers cannot take it away. The callers' own limits show in their report: their CPU share, and how
late they sent.

A server may consist of several edge processes behind Kamailio, configured like deploy/kamailio.
Then each edge has a core, and Kamailio runs where there is room.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.processes.memory import HeapUsage
from benchmarks.processes.own_server import HOST
from benchmarks.processes.process import Child, Footprint, child, get_json
from benchmarks.servers.edge_server import RTP_PORTS
from benchmarks.servers.kamailio import Kamailio

ANSWER_S = 60.0
"""Time in s without a response after which a server or callers have failed."""
SETTLE_S = 3.0
"""Time in s from the last call's setup to the first count."""
WARM_UP_S = 6.0
"""Duration in s of the first calls: a line and its end."""


@dataclass(frozen=True)
class Usage:
    """A server at one moment; times in s, sums since its start."""

    wall_s: float
    cpu_s: float
    tasks: int
    lag_ms: dict[str, float]
    calls: int
    sessions: int
    transactions: int
    tick_late_ms: float
    lines: dict[str, int]
    mos: list[float]
    """MOS of current calls and of those that ended since the last snapshot, sorted."""
    round_trip_ms: list[float] = field(default_factory=list)
    """Of each call of which it is known."""
    in_use: int = 0
    """Lines in use, of phones."""

    def __add__(self, other: "Usage") -> "Usage":
        """Combines two as one server, as late as the later one."""
        return Usage(
            wall_s=self.wall_s,
            cpu_s=self.cpu_s + other.cpu_s,
            tasks=self.tasks + other.tasks,
            lag_ms={name: max(ms, other.lag_ms[name]) for name, ms in self.lag_ms.items()},
            calls=self.calls + other.calls,
            sessions=self.sessions + other.sessions,
            transactions=self.transactions + other.transactions,
            tick_late_ms=max(self.tick_late_ms, other.tick_late_ms),
            lines={name: n + other.lines[name] for name, n in self.lines.items()},
            mos=sorted(self.mos + other.mos),
            round_trip_ms=self.round_trip_ms + other.round_trip_ms,
            in_use=self.in_use + other.in_use,
        )

    def cpu_percent_since(self, first: "Usage") -> float:
        """Share of one core since an earlier moment."""
        return round(100 * (self.cpu_s - first.cpu_s) / (self.wall_s - first.wall_s), 1)


@dataclass(frozen=True)
class Snapshot:
    """All processes of a server at one moment."""

    edges: list[Usage]
    proxy_cpu_s: float
    """CPU time of all Kamailio processes; 0 without it."""

    @property
    def whole(self) -> Usage:
        return reduce(Usage.__add__, self.edges)


@dataclass(frozen=True)
class CpuShares:
    """CPU share of each process, with several edges."""

    calls: list[int]
    """Established calls at each edge at the end."""
    cpu_percent: list[float]
    """Share of one core of each edge."""
    proxy_percent: float
    """Share of one core of Kamailio."""

    @classmethod
    def between(cls, first: Snapshot, last: Snapshot) -> "CpuShares":
        pairs = list(zip(first.edges, last.edges, strict=True))
        wall = last.whole.wall_s - first.whole.wall_s
        return cls(
            [edge.calls for edge in last.edges],
            [b.cpu_percent_since(a) for a, b in pairs],
            round(100 * (last.proxy_cpu_s - first.proxy_cpu_s) / wall, 1),
        )


@dataclass(frozen=True)
class ResourceUse:
    """Resource use of a server between two snapshots."""

    cpu_percent: float
    """Share of one core."""
    lost: int
    """Callers' packets that never arrived."""
    late: int
    """Callers' packets that arrived too late to be played."""
    concealed_percent: float
    """Share of the audio heard that was concealed."""
    mos_mean: float
    mos_least: float
    tick_late_ms: float
    """99th percentile."""
    lag_p99_ms: float

    @classmethod
    def between(cls, first: Usage, last: Usage) -> "ResourceUse":
        lines = {name: last.lines[name] - first.lines[name] for name in last.lines}
        mos = last.mos or [0.0]
        return cls(
            cpu_percent=last.cpu_percent_since(first),
            lost=lines["packets_lost"],
            late=lines["packets_late"],
            concealed_percent=round(100 * lines["concealed_ms"] / max(1, lines["heard_ms"]), 3),
            mos_mean=round(sum(mos) / len(mos), 2),
            mos_least=round(mos[0], 2),
            tick_late_ms=last.tick_late_ms,
            lag_p99_ms=last.lag_ms["p99"],
        )


@dataclass(frozen=True)
class Server:
    """One process of the server."""

    child: Child
    http: aiohttp.ClientSession

    async def usage(self, ours: bool) -> Usage:
        """`ours`: it tells of its calls, too."""
        stats = await get_json(self.http, "/stats")
        found: dict[str, Any] = await get_json(self.http, "/lines") if ours else {"lines": {}}
        names = ("calls", "sessions", "transactions", "tick_late_ms", "in_use")
        return Usage(
            **{name: stats[name] for name in ("wall_s", "cpu_s", "tasks", "lag_ms")},
            **{name: found.get(name, 0) for name in names},
            mos=found["lines"].pop("mos", []),
            lines=found["lines"],
            round_trip_ms=found.get("round_trip_ms", []),
        )


@dataclass
class Pair:
    edges: list[Server]
    ours: bool = True
    proxy: Kamailio | None = None
    """Set with several edges for phones."""
    callers: Child = field(init=False)

    async def look(self) -> Snapshot:
        proxy_cpu_s = self.proxy.cpu_s() if self.proxy is not None else 0.0
        return Snapshot([await edge.usage(self.ours) for edge in self.edges], proxy_cpu_s)

    async def usage(self) -> Usage:
        return (await self.look()).whole

    async def held(self) -> HeapUsage:
        """Memory of the first edge after a garbage collection."""
        return HeapUsage(**await get_json(self.edges[0].http, "/memory"))

    def footprint(self) -> Footprint:
        """Footprint of the edges."""
        each = [Footprint.of(edge.child.pid) for edge in self.edges]
        return Footprint(
            round(sum(one.rss_mb for one in each), 1),
            sum(one.threads for one in each),
            sum(one.files for one in each),
            sum(one.processes for one in each),
        )

    def ports(self) -> int:
        """Number of open UDP media ports of the server."""
        return sum(len(open_ports(edge.child.pid, *RTP_PORTS)) for edge in self.edges)

    async def ask(self, command: str) -> dict[str, Any]:
        """Sends the callers a command and returns their response. Raises ChildError."""
        with suppress(RuntimeError):  # they have exited: `line` says why
            self.callers.send(command)
        return await self.callers.line(ANSWER_S)

    async def warm_up(self, calls: int) -> None:
        """Places so many calls, so that lazy loading is done."""
        await self.ask(f"fill {calls}")
        await asyncio.sleep(WARM_UP_S)
        await self.ask("empty")

    async def fill(self, calls: int) -> dict[str, Any]:
        """Sets up calls until there are so many; returns how that went."""
        self.callers.send("measure")
        ramp = await self.ask(f"fill {calls}")
        await asyncio.sleep(SETTLE_S)
        return ramp

    async def observe(self, seconds: float) -> tuple[Snapshot, Snapshot, dict[str, Any]]:
        """Returns the server before and after the next `seconds`, and the callers' report."""
        first = await self.look()
        self.callers.send("measure")
        await asyncio.sleep(seconds)
        last = await self.look()  # first: a long report keeps the callers from sending
        return first, last, await self.ask("report")


def cpus(pin: bool, edges: int = 1) -> list[int | None]:
    """Returns the core of each edge and, last, of the callers; None if there are too few cores to
    pin."""
    allowed = sorted(os.sched_getaffinity(0))
    if not pin or len(allowed) <= edges:
        return [None] * (edges + 1)
    return [*allowed[:edges], allowed[-1]]


Callers = Callable[[Pair], Awaitable[tuple[str, ...]]]
"""Adds to a pair what its callers need beside the server; returns their module and arguments."""


@asynccontextmanager
async def paired(
    servers: Sequence[tuple[str, ...]],
    callers: Callers,
    cores: Sequence[int | None],
    ours: bool = True,
) -> AsyncIterator[Pair]:
    """Starts the processes of a server, modules and arguments, then its callers. `cores` as of
    `cpus`. Raises ChildError."""
    *server_cpus, callers_cpu = cores
    async with AsyncExitStack() as stack:
        edges = []
        for module, cpu in zip(servers, server_cpus, strict=True):
            server = await stack.enter_async_context(child(*module, *_on(cpu)))
            url, timeout = f"http://{HOST}:{server.hello['port']}", aiohttp.ClientTimeout(ANSWER_S)
            http = await stack.enter_async_context(aiohttp.ClientSession(url, timeout=timeout))
            edges.append(Server(server, http))
        both = Pair(edges, ours)
        arguments = await callers(both)
        both.callers = await stack.enter_async_context(child(*arguments, *_on(callers_cpu)))
        yield both


def _on(cpu: int | None) -> tuple[str, ...]:
    return () if cpu is None else ("--cpu", str(cpu))


def open_ports(pid: int, low: int, high: int) -> set[int]:
    """Returns the UDP ports from `low` to `high` that a process has bound (Linux). Raises OSError
    if it has exited."""
    sockets = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = file.readlink().name
        except OSError:  # closed in the meantime
            continue
        if target.startswith("socket:["):
            sockets.add(target[8:-1])
    rows = [line.split() for line in Path(f"/proc/{pid}/net/udp").read_text().splitlines()[1:]]
    ports = {int(row[1].rpartition(":")[2], 16) for row in rows if row[9] in sockets}
    return {port for port in ports if low <= port <= high}
