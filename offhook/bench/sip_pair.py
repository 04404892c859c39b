"""A server with phones and its callers, each in a process of its own, for the benchmarks by SIP.

Where there are two cores or more each process is kept to one: the server has then a whole core and
no more, and the callers cannot take it away. What the callers cannot do shows in their own report:
how much of a core they took, and how late they sent.
"""

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from offhook.bench.memory import Held
from offhook.bench.process import Child, Footprint, child, get_json
from offhook.bench.sip_server import RTP_PORTS

ANSWER_SECONDS = 60.0
"""A server or callers that say nothing for so long have failed."""


@dataclass(frozen=True)
class Usage:
    """A server at one moment. Times in s, sums since its start."""

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
    """Of the calls there are and of those that ended since the last look, sorted."""


@dataclass(frozen=True)
class Spent:
    """What a server did between two looks at it."""

    cpu_percent: float
    """Of one core."""
    lost: int
    """Packets of the callers that never came."""
    late: int
    """...that came too late to be played."""
    concealed_percent: float
    """Of all that was heard: filled in for packets that were not there."""
    mos_mean: float
    mos_least: float
    tick_late_ms: float
    """99th percentile."""
    lag_p99_ms: float

    @classmethod
    def between(cls, first: Usage, last: Usage) -> "Spent":
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


@dataclass
class Pair:
    server: Child
    http: aiohttp.ClientSession
    callers: Child = field(init=False)

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

    async def held(self) -> Held:
        """Collects the server's garbage first."""
        return Held(**await get_json(self.http, "/memory"))

    def footprint(self) -> Footprint:
        return Footprint.of(self.server.pid)

    def ports(self) -> int:
        """UDP ports of media that the server has open."""
        return len(open_ports(self.server.pid, *RTP_PORTS))

    async def ask(self, command: str) -> dict[str, Any]:
        """Tell the callers something that they answer. Raises ChildError."""
        with suppress(RuntimeError):  # they are gone: `line` says why
            self.callers.tell(command)
        return await self.callers.line(ANSWER_SECONDS)


def cpus(pin: bool) -> tuple[int | None, int | None]:
    """Of the server and of the callers; None where they may run anywhere."""
    allowed = sorted(os.sched_getaffinity(0))
    return (allowed[0], allowed[-1]) if pin and len(allowed) > 1 else (None, None)


PAUSES = {"echo": 1.0, "vad": 1.0, "scripted": 6.0}
"""s between the lines that a caller says. A scripted reply takes 4 s: it is heard to its end."""


@asynccontextmanager
async def pair(
    kind: str, rate: float, pin: bool, server_options: Sequence[str] = ()
) -> AsyncIterator[Pair]:
    """`kind` as in sip_server. Raises ChildError."""
    server_cpu, callers_cpu = cpus(pin)
    async with (
        child("sip_server", kind, *server_options, *_on(server_cpu)) as server,
        aiohttp.ClientSession(
            f"http://127.0.0.1:{server.hello['port']}",
            timeout=aiohttp.ClientTimeout(ANSWER_SECONDS),
        ) as http,
    ):
        both = Pair(server, http)
        port = (await get_json(http, "/sip"))["port"]
        async with child(
            *("sip_callers", str(port), "--rate", str(rate), "--pause", str(PAUSES[kind])),
            *_on(callers_cpu),
        ) as callers:
            both.callers = callers
            yield both


def _on(cpu: int | None) -> tuple[str, ...]:
    return () if cpu is None else ("--cpu", str(cpu))


def open_ports(pid: int, low: int, high: int) -> set[int]:
    """UDP ports from `low` to `high` that a process has bound (Linux). Raises OSError when it is
    gone."""
    sockets = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = file.readlink().name
        except OSError:  # closed meanwhile
            continue
        if target.startswith("socket:["):
            sockets.add(target[8:-1])
    rows = [line.split() for line in Path(f"/proc/{pid}/net/udp").read_text().splitlines()[1:]]
    ports = {int(row[1].rpartition(":")[2], 16) for row in rows if row[9] in sockets}
    return {port for port in ports if low <= port <= high}
