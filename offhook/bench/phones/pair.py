"""A server with phones and its callers, in separate processes, for the SIP benchmarks.

With enough cores each process is pinned to one, so that the server has exactly a core and the
callers cannot take it away. The callers' own limits show in their report: their CPU share, and how
late they sent.

A server may consist of several edge processes behind Kamailio, configured like deploy/kamailio.
Then each edge has a core, and Kamailio runs where there is room.
"""

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any

import aiohttp

from offhook.bench.memory import HeapUsage
from offhook.bench.phones.kamailio import Kamailio, kamailio
from offhook.bench.phones.server import RTP_PORTS
from offhook.bench.process import Child, Footprint, child, get_json

ANSWER_S = 60.0
"""Time in s without a response after which a server or callers have failed."""


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
        )


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
            [round(100 * (b.cpu_s - a.cpu_s) / (b.wall_s - a.wall_s), 1) for a, b in pairs],
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
            cpu_percent=round(100 * (last.cpu_s - first.cpu_s) / (last.wall_s - first.wall_s), 1),
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

    async def usage(self) -> Usage:
        stats = await get_json(self.http, "/stats")
        sip = await get_json(self.http, "/sip")
        mos = sip["lines"].pop("mos")
        return Usage(
            **{name: stats[name] for name in ("wall_s", "cpu_s", "tasks", "lag_ms")},
            **{name: sip[name] for name in ("calls", "sessions", "transactions", "tick_late_ms")},
            lines=sip["lines"],
            mos=mos,
        )


@dataclass
class Pair:
    edges: list[Server]
    proxy: Kamailio | None
    """Set with several edges."""
    callers: Child = field(init=False)

    async def look(self) -> Snapshot:
        proxy_cpu_s = self.proxy.cpu_s() if self.proxy is not None else 0.0
        return Snapshot([await edge.usage() for edge in self.edges], proxy_cpu_s)

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


def cpus(pin: bool, edges: int = 1) -> list[int | None]:
    """Returns the core of each edge and, last, of the callers; None if there are too few cores to
    pin."""
    allowed = sorted(os.sched_getaffinity(0))
    if not pin or len(allowed) <= edges:
        return [None] * (edges + 1)
    return [*allowed[:edges], allowed[-1]]


PAUSES = {"echo": 1.0, "vad": 1.0, "scripted": 6.0}
"""Pause in s between a caller's lines. A scripted reply takes 4 s and is heard to its end."""


@asynccontextmanager
async def pair(
    kind: str,
    rate: float,
    pin: bool,
    server_options: Sequence[str] = (),
    edges: int = 1,
    loss: float = 0.0,
) -> AsyncIterator[Pair]:
    """Starts server and callers, `kind` as in `server`; several edges run behind Kamailio. `loss`
    is the percentage of the callers' packets that get lost. Raises ChildError, KamailioError."""
    *edge_cpus, callers_cpu = cpus(pin, edges)
    async with AsyncExitStack() as stack:
        servers, ports = [], []
        for cpu in edge_cpus:
            server = await stack.enter_async_context(
                child("offhook.bench.phones.server", kind, *server_options, *_on(cpu))
            )
            http = await stack.enter_async_context(
                aiohttp.ClientSession(
                    f"http://127.0.0.1:{server.hello['port']}",
                    timeout=aiohttp.ClientTimeout(ANSWER_S),
                )
            )
            servers.append(Server(server, http))
            ports.append((await get_json(http, "/sip"))["port"])
        proxy = await stack.enter_async_context(kamailio(ports)) if edges > 1 else None
        both = Pair(servers, proxy)
        port = proxy.port if proxy is not None else ports[0]
        both.callers = await stack.enter_async_context(
            child(
                *(
                    "offhook.bench.phones.callers",
                    str(port),
                    "--rate",
                    str(rate),
                    "--pause",
                    str(PAUSES[kind]),
                    "--loss",
                    str(loss),
                ),
                *_on(callers_cpu),
            )
        )
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
