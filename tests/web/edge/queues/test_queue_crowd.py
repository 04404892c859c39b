"""Sixty callers, five people and two servers with one queue, one of which is killed in the middle:
real servers, real SIP and real sound."""

import asyncio
import json
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from offhook.telephony.sip.endpoint_io import SipEndpoint
from offhook.telephony.sip.outgoing_calls_io import Dial
from offhook.web.edge.queues.store_io import PREFIX
from tests.support.ports import free_port
from tests.support.waiting import until
from tests.telephony.sip.phones import LOOPBACK, endpoint, port_of
from tests.web.edge.queues.crowd import (
    CALLERS_HZ,
    PEOPLE_HZ,
    STEP_HZ,
    Caller,
    Callers,
    People,
    Person,
)
from tests.web.edge.test_processes import TwoProcesses

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

FIRST, CALLERS = 4000, 60
"""Number of the first, and how many."""
BACKLOG, EVERY_S = 15, 2.5
"""Callers who come before people are ready, and the time in s from one to the next after them."""
SERVED_FIRST = 25
"""Callers who have been served when a server is killed."""
IMPATIENT = {4012: 12.0, 4019: 10.0, 4041: 8.0, 4052: 10.0}
"""Seconds after which a caller hangs up, by number."""
DIE = 2
"""Callers of the server that is killed who hang up as their line is dead."""
LATER_S = 15.0
"""Shorter waits count for the mean alone: a share of them is a second or two."""

CONFIGURATION = """
[agent]
kind = "announcement"
greeting = "One moment."
settings = {{transfer = "queue:support"}}

[queues.support]
members = {members}
announce_seconds = 15
wrap_up_seconds = 1
"""


def serve(folder: Path, port: int, redis: str, people: str, members: Sequence[str]) -> TwoProcesses:
    """One with SIP at this port."""
    folder.mkdir()
    trunks = [
        {"name": "people", "server": people, "codecs": ["pcmu"], "options_seconds": 0},
        {"name": "callers", "addresses": ["127.0.0.0/8"], "codecs": ["pcmu"]},
    ]
    file = folder / "offhook.toml"
    file.write_text(CONFIGURATION.format(members=json.dumps(members)))
    server = TwoProcesses(
        folder,
        *("--config", str(file)),
        SERVER_PORT=str(free_port()),
        SERVER_PROCESSES="1",
        SERVER_MAX_CALLS="200",
        SERVER_REDIS=redis,
        SIP_UDP=str(port),
        SIP_TCP="false",
        SIP_TRUNKS=json.dumps(trunks),
        SIP_INVITES_PER_SECOND="100",
        SIP_REQUESTS_PER_SECOND="1000",
        SIP_RECOVERY_SECONDS="3",
    )
    return server


@dataclass
class Place:
    """What was seen of a caller's place."""

    caller: str
    joined: float
    servers: list[tuple[float, str]]
    calls: list[str]


class Watched:
    """The order in Redis, as it was at times."""

    def __init__(self, url: str) -> None:
        self._redis = Redis.from_url(url)
        self.places: dict[str, Place] = {}
        """By ticket."""
        self.waiting: set[str] = set()
        self.members: dict[str, Any] = {}

    async def watch(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(0.1)

    def look(self) -> None:
        state = json.loads(self._redis.get(PREFIX + "support") or "{}")
        self.waiting = {ticket["id"] for ticket in state.get("tickets", ())}
        self.members = state.get("members", {})
        for ticket in state.get("tickets", ()):
            name = ticket["id"]
            new = Place(ticket["caller"], ticket["joined"], [], [])
            place = self.places.setdefault(name, new)
            assert place.joined == ticket["joined"], (place, ticket)
            if not place.servers or place.servers[-1][1] != ticket["server"]:
                place.servers.append((time.time(), ticket["server"]))
            if ticket["call"] not in place.calls:
                place.calls.append(ticket["call"])


async def counted(server: TwoProcesses) -> dict[str, float]:
    samples = await server.samples("offhook_queue_left")
    return {s.labels["outcome"]: s.value for s in samples if s.name.endswith("_total")}


def announced(server: TwoProcesses) -> list[tuple[float, str, int, float | None]]:
    """When, in which call, the place and the seconds."""
    return [
        (
            *(datetime.fromisoformat(line["time"]).timestamp(), line["call"]),
            *(line["position"], line["wait_seconds"]),
        )
        for line in server.lines()
        if "position" in line
    ]


async def test_sixty_callers_over_sip_when_a_server_is_killed(
    redis_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    people = [
        Person("p1", PEOPLE_HZ),
        Person("p2", PEOPLE_HZ + 100),
        Person("p3", PEOPLE_HZ + 200, declines_every=9),
        Person("p4", PEOPLE_HZ + 300, busy_every=5),
        Person("p5", PEOPLE_HZ + 400),
    ]
    callers = [
        Caller(str(n), CALLERS_HZ + (n - FIRST) * STEP_HZ, IMPATIENT.get(n), server="ab"[n % 2])
        for n in range(FIRST, FIRST + CALLERS)
    ]
    offices, crowd = People(people, callers, 1), Callers(callers, people)
    async with AsyncExitStack() as stack:
        answering, _ = await stack.enter_async_context(endpoint(offices))
        answering.hooks.decision = offices.decision
        where = f"127.0.0.1:{port_of(answering, 'UDP')}"
        members = [f"sip:{one.name}@{where}" for one in people]
        servers: dict[str, TwoProcesses] = {}
        ports = {name: free_port() for name in "ab"}
        for name, port in ports.items():
            of = tmp_path / name, port, redis_url, where, members
            servers[name] = await asyncio.to_thread(serve, *of)
            stack.callback(servers[name].process.kill)
        for server in servers.values():
            await server.ready()
        trunks = tuple(
            replace(LOOPBACK, name=name, server=f"127.0.0.1:{port}", options_seconds=0)
            for name, port in ports.items()
        )
        calling, _ = await stack.enter_async_context(endpoint(crowd, trunks=trunks))
        watched = Watched(redis_url)
        watching = asyncio.create_task(watched.watch())
        stack.callback(watching.cancel)
        await set_ready(servers["a"], members, ready=False)
        alive = {*servers}
        arriving = asyncio.create_task(arrive(calling, callers, alive))
        stack.callback(arriving.cancel)
        await until(lambda: len(watched.waiting) >= BACKLOG)
        await set_ready(servers["a"], members, ready=True)
        await until(lambda: len(offices.accepted) >= SERVED_FIRST)
        before = await counted(servers["a"])
        alive.remove("a")
        servers["a"].process.send_signal(signal.SIGKILL)
        killed = time.time()
        watched.look()
        waiting = {place.caller for id_, place in watched.places.items() if id_ in watched.waiting}
        stranded = [c for c in callers if c.server == "a" and c.number in waiting]
        for one in [c for c in stranded if not c.gives_up_after_s][-DIE:]:
            one.gives_up_when_dead = True
        await until(lambda: all(one.ended for one in callers))
        await until(lambda: not watched.waiting)
        await until(lambda: all(not m["ticket"] for m in watched.members.values()))
        after = await counted(servers["b"])
        watching.cancel()
        found = Found(callers, people, offices, watched, killed)
        found.announced = [a for server in servers.values() for a in announced(server)]
        found.counted = {k: before.get(k, 0) + after.get(k, 0) for k in before | after}
    with capsys.disabled():
        sys.stdout.write(found.table())
    (tmp_path / "table").write_text(found.table())
    found.check()


async def arrive(calling: SipEndpoint, callers: list[Caller], alive: set[str]) -> None:
    """A balancer gives callers to servers that are alive."""
    for number, caller in enumerate(callers, 1):
        if caller.server not in alive:
            (caller.server,) = alive
        calling.dial(Dial("desk", caller.server, caller=caller.number))
        await asyncio.sleep(EVERY_S if number >= BACKLOG else 0.5)


async def set_ready(server: TwoProcesses, members: Sequence[str], *, ready: bool) -> None:
    for member in members:
        asked = {"member": member, "paused": not ready}
        status, _ = await server.ask("POST", "/queues/support/members", **asked)
        assert status == 200


class Found:
    """What has become of all of them."""

    def __init__(
        self,
        callers: list[Caller],
        people: list[Person],
        offices: People,
        watched: Watched,
        killed: float,
    ) -> None:
        self.callers, self.people, self.offices, self.killed = callers, people, offices, killed
        self.places = {place.caller: place for place in watched.places.values()}
        self.tickets = len(watched.places)
        self.announced: list[tuple[float, str, int, float | None]] = []
        self.counted: dict[str, float] = {}
        self.served_at = {one.caller: one.at for one in offices.accepted}
        self.moved = {
            number: place.servers[-1][0]
            for number, place in self.places.items()
            if len(place.servers) > 1
        }

    @property
    def overtaken(self) -> dict[str, int]:
        """How many who came later were rung for before each caller, while that one could be."""
        first: dict[str, float] = {}
        for ring in self.offices.rung:
            first.setdefault(ring.caller, ring.at)
        found = {}
        for number, place in self.places.items():
            if number not in first:
                continue
            found[number] = sum(
                self.places[other].joined > place.joined and at < first[number]
                for other, at in first.items()
                if not (number in self.moved and self.killed - 1 < at < self.moved[number] + 1)
            )
        return found

    @property
    def gave_up(self) -> list[Caller]:
        return [c for c in self.callers if c.gave_up and c.number not in self.served_at]

    def errors(self) -> list[tuple[float, float]]:
        """Announced and real waits in s, of those that no death of a server has changed."""
        of_call = {call: p.caller for p in self.places.values() for call in p.calls}
        found = []
        for at, call, _, wait_s in self.announced:
            end = self.served_at.get(of_call.get(call, ""))
            if wait_s is None or end is None or end < at:
                continue
            if not (at < self.killed + 20 and end > self.killed):
                found.append((wait_s, end - at))
        return found

    def table(self) -> str:
        errors = self.errors()
        later = [abs(a - r) / r for a, r in errors if r > LATER_S]
        rows = {
            "callers": len(self.callers),
            "served": len(self.served_at),
            "served twice": len(self.offices.accepted) - len(self.served_at),
            "gave up": [c.number for c in self.gave_up],
            "lost": [
                (c.number, c.server, c.ended) for c in self.callers if not c.heard and not c.gave_up
            ],
            "bridged at the killed server": [
                c.number for c in self.callers if c.number in self.served_at and not c.heard
            ],
            "continued elsewhere": len(self.moved),
            "tickets": self.tickets,
            "most overtaken by": max(self.overtaken.values()),
            "clashes": [(round(at - self.killed, 1), *who) for at, *who in self.offices.clashes],
            "declined, busy": (
                sum(p.declined for p in self.people),
                sum(p.busy for p in self.people),
            ),
            "counted": self.counted,
            "announcements with a time": len(errors),
            "mean announced, s": round(statistics.mean(a for a, _ in errors), 1),
            "mean of what came, s": round(statistics.mean(r for _, r in errors), 1),
            f"median error beyond {LATER_S:.0f} s": round(statistics.median(later), 2),
        }
        return "\n" + "\n".join(f"{name:36}{value}" for name, value in rows.items())

    def check(self) -> None:
        served = [one.caller for one in self.offices.accepted]
        assert sorted(served) == sorted(set(served))
        gave_up = {one.number for one in self.gave_up}
        assert {*served, *gave_up} == {one.number for one in self.callers}
        assert self.tickets == len(self.callers)  # whoever moved has kept the place
        assert max(self.overtaken.values()) < len(self.people)  # who are rung at the same time
        assert self.counted["abandoned"] == len(gave_up)
        # The phone of a person rings on for a while when the server is dead that has called it.
        assert all(at > self.killed for at, *_ in self.offices.clashes)
