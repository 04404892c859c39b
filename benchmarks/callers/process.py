"""Callers as a child of `offhook bench calls`: keeps its share of the calls up until a given time,
and then reports.

It reads its plan, one line of JSON, from standard input, and prints its report, one line, at the
end.
"""

import argparse
import asyncio
import json
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from random import Random
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import numpy as np

from benchmarks.callers import rtp
from benchmarks.callers.browsers import CONNECT_S
from benchmarks.callers.caller import Caller, Habits, SpokenLine
from benchmarks.callers.ear import Ear
from benchmarks.callers.phone import PhoneCall
from benchmarks.callers.records import CODECS, CallRecord, Kind, ProcessRecord, Report
from benchmarks.callers.signalling import Signalling
from benchmarks.callers.twilio import TwilioCall
from benchmarks.callers.webrtc import BrowserCall
from benchmarks.processes.own_server import HOST
from benchmarks.processes.process import OwnCost, input_lines, say
from benchmarks.speech.lines import caller_lines, encode, opus, quiet_room
from benchmarks.speech.number_words import LEAD_MS, level_of, line, sound
from benchmarks.table import percentiles
from offhook.media.clock_io import PacketClock
from offhook.media.codecs.g711 import PcmuEncoder
from offhook.media.pcm import RATE_IN, Pcm
from offhook.media.tasks_io import TaskSet
from offhook.signaling.peer_io import use_addresses
from offhook.web.app.callers.twilio.webhook_io import Application, Refused
from offhook.web.app.callers.way import Way
from offhook.web.config.config import Log
from offhook.web.http.access import LOOPBACK_NAMES
from offhook.web.http.logs_io import set_up
from offhook.web.http.loop_io import freeze_loaded_objects, run

LINES = 24
WORDS = (6, 13)
"""Range of the number of words of a line: 1.5 to 2.9 s."""
FEC_LOSS = 0.05
"""Share of lost packets that the callers' Opus is prepared for, as browsers' is once some are."""
RETRY_S = 2.0
"""Time in s after which a refused caller tries again."""
RESUME_S = 0.25
"""The same for one whose call was cut, doubled with each refusal up to that, as in the page."""


@dataclass(frozen=True)
class Plan:
    """What a process of callers does."""

    calls: dict[Kind, int]
    first: int
    """Number of its first call."""
    rate: float
    """New calls per second of this process."""
    until: float
    """End, by this machine's monotonic clock."""
    web: list[str] = field(default_factory=list)
    """URLs of servers for browsers."""
    sip: list[str] = field(default_factory=list)
    """HOST:PORT of servers for phones."""
    twilio: list[str] = field(default_factory=list)
    """URLs of webhooks."""
    secret: str = field(default="", repr=False)
    """Of the webhooks' signatures."""
    api_key: str = field(default="", repr=False)
    numbers: bool = True
    """Whether callers and agent speak number words."""
    loss: float = 0.0
    jitter_ms: float = 0.0
    habits: Habits = field(default_factory=Habits)

    @classmethod
    def of(cls, table: dict[str, Any]) -> "Plan":
        return cls(**{**table, "habits": Habits(**table["habits"])})


def server_of(servers: Sequence[str], number: int, attempt: int) -> str:
    """Returns the server that a caller calls: the callers of each server are spread over all the
    others with their next attempt, as a balancer does."""
    others = max(1, len(servers) - 1)
    step = 1 + number // len(servers) % others
    return servers[(number + attempt * step) % len(servers)]


class Gate:
    """Lets calls begin at a rate."""

    def __init__(self, rate: float) -> None:
        self._every = 1 / rate
        self._next = 0.0

    async def pass_through(self) -> None:
        now = monotonic()
        self._next = max(now, self._next + self._every)
        await asyncio.sleep(self._next - now)


async def spoken(numbers: bool, chance: Random) -> list[tuple[Pcm, tuple[int, ...]]]:
    """Returns 24 kHz lines and the levels of their number words."""
    if not numbers:
        return [(pcm, ()) for pcm in await caller_lines()]
    lines = [line(chance.randint(*WORDS), chance) for _ in range(LINES)]
    return [(sound(words, lead_ms=LEAD_MS), tuple(map(level_of, words))) for words in lines]


class Callers:
    """All calls of this process."""

    def __init__(self, plan: Plan, said: Sequence[tuple[Pcm, tuple[int, ...]]]) -> None:
        self.report = Report()
        self.late_ms = array("f", [0.0])
        """By how much each packet was sent too late."""
        self._plan = plan
        self._lines = {
            "opus": [SpokenLine(encode(pcm, opus(FEC_LOSS)), words) for pcm, words in said],
            "pcmu": [SpokenLine(encode(pcm, PcmuEncoder()), words) for pcm, words in said],
        }
        room = quiet_room()
        self._silence = {"opus": encode(room, opus()), "pcmu": encode(room, PcmuEncoder())}
        self._clock, self._pace = PacketClock(), rtp.Pace()
        servers = [server.rpartition(":")[0] for server in plan.sip]
        self._signalling = Signalling(servers=servers or (HOST,))
        self._gate = Gate(plan.rate)
        self._goodbyes = TaskSet()
        """Calls hanging up, for which nobody waits who calls again."""
        self._resumable: dict[str, str] = {}
        """`pc_id` of the last call of a browser that its server has cut, by caller."""
        headers = {"Authorization": f"Bearer {plan.api_key}"} if plan.api_key else {}
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(CONNECT_S),
            headers=headers,
        )
        self._webhooks = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

    async def run(self) -> None:
        slots: list[Kind] = [kind for kind, n in self._plan.calls.items() for _ in range(n)]
        numbered = enumerate(slots, self._plan.first)
        try:
            async with asyncio.TaskGroup() as group:
                for number, kind in numbered:
                    group.create_task(self._keep(number, kind))
            await asyncio.gather(*self._goodbyes)
        finally:
            await self._goodbyes.close()
            self._pace.stop()
            self._signalling.close()
            await self._http.close()
            await self._webhooks.close()

    async def _keep(self, number: int, kind: Kind) -> None:
        """Makes one call after another."""
        attempt = refused = 0
        caller = f"{kind} {number}"
        while monotonic() < self._plan.until:
            if caller not in self._resumable:  # whose call was cut is back at once
                await self._gate.pass_through()
            if monotonic() >= self._plan.until:
                break
            record = CallRecord(f"{caller}.{attempt}", kind, monotonic())
            if kind != "webrtc":
                record.number = f"+1{number:06}{attempt:04}"
            self.report.calls.append(record)
            chance = Random(f"{number} {attempt}")
            await self._call(record, number, attempt, chance)
            refused = refused + 1 if record.refused else 0
            if refused:
                resuming = caller in self._resumable
                pause_s = RESUME_S * 2 ** (refused - 1) if resuming else RETRY_S
                await asyncio.sleep(min(pause_s, RETRY_S, max(0.0, self._plan.until - monotonic())))
            attempt += 1

    async def _call(self, record: CallRecord, number: int, attempt: int, chance: Random) -> None:
        plan, codec = self._plan, CODECS[record.kind]
        ear = Ear(RATE_IN, plan.numbers)
        caller = Caller(
            record,
            self.report.turns,
            ear,
            self._lines[codec],
            self._silence[codec],
            plan.habits,
            chance,
            self.late_ms,
        )
        loss = 0.0 if record.kind == "twilio" else plan.loss
        way = Way(loss, plan.jitter_ms, Random(chance.random()))
        by_server = False
        try:
            match record.kind:
                case "webrtc":
                    url = server_of(plan.web, number, attempt)
                    by_server = await self._by_browser(caller, way, chance, url)
                case "sip":
                    host, _, port = server_of(plan.sip, number, attempt).rpartition(":")
                    by_server = await self._by_phone(caller, way, chance, (host, int(port)))
                case "twilio":
                    webhook = server_of(plan.twilio, number, attempt)
                    by_server = await self._by_twilio(caller, way, chance, webhook)
        except Refused as error:
            record.refused = str(error)[-100:]
            return
        if record.setup_ms is not None:
            caller.end(monotonic(), by_server)
            record.mos = ear.mos(codec)

    def _connected(self, caller: Caller) -> None:
        now = monotonic()
        caller.record.setup_ms = round((now - caller.record.began) * 1000, 1)
        caller.connect(now)

    async def _until_end(self, running: Any) -> bool:
        """Returns whether the server ended the call."""
        try:
            async with asyncio.timeout(max(0.0, self._plan.until - monotonic())):
                ended: bool = await running
        except TimeoutError:
            return False
        return ended

    async def _by_browser(self, caller: Caller, way: Way, chance: Random, url: str) -> bool:
        leg = BrowserCall(caller, way, chance)
        who = caller.record.caller
        try:
            resumed = self._resumable.get(who, "")
            await leg.connect_to(self._http, url, resumed)
            self._resumable.pop(who, None)  # a refused caller still has it
            caller.record.resumed = bool(resumed)
            self._connected(caller)
            by_server = await self._until_end(leg.run(self._clock.add))
            if by_server:
                caller.record.heard_until = leg.last_packet_at
            if by_server and leg.pc_id:
                self._resumable[who] = leg.pc_id
            return by_server
        finally:
            caller.ear.one_way_ms = leg.one_way_ms
            self._clock.remove(leg)
            self._goodbyes.spawn(leg.hang_up("goodbye"), f"goodbye {leg.call_id}")

    async def _by_phone(
        self, caller: Caller, way: Way, chance: Random, server: tuple[str, int]
    ) -> bool:
        call = PhoneCall(caller, way, chance, self._signalling)
        try:
            if not await call.connect_to(server):
                raise Refused(str(call.status))
            self._connected(caller)
            self._pace.add(call)
            return await self._until_end(call.run())
        finally:
            self._pace.remove(call)
            call.close()

    async def _by_twilio(self, caller: Caller, way: Way, chance: Random, webhook: str) -> bool:
        call = TwilioCall(caller, way, chance)
        try:
            await call.connect(self._webhooks, Application(webhook, self._plan.secret))
            self._connected(caller)
            self._pace.add(call)
            return await self._until_end(call.run())
        finally:
            self._pace.remove(call)
            await call.hang_up()


async def work() -> None:
    reader = await input_lines()
    say({"ready": True})
    plan = Plan.of(json.loads(await reader.readline()))
    if all(urlsplit(url).hostname in LOOPBACK_NAMES for url in plan.web):
        use_addresses(["127.0.0.1"])
    callers = Callers(plan, await spoken(plan.numbers, Random(plan.first)))
    freeze_loaded_objects()
    cost = OwnCost()
    watching = asyncio.create_task(cost.watch())
    calling = asyncio.create_task(callers.run())
    ending = asyncio.create_task(reader.read())
    await asyncio.wait((calling, ending), return_when=asyncio.FIRST_COMPLETED)
    watching.cancel()
    for task in (calling, ending):
        task.cancel()
    await asyncio.gather(calling, ending, return_exceptions=True)
    if calling.cancelled():
        return  # the benchmark has gone
    calling.result()
    late_ms = percentiles(np.frombuffer(callers.late_ms, np.float32))
    callers.report.processes.append(ProcessRecord(**cost.read(), late_ms=late_ms))
    say(asdict(callers.report))


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    set_up(Log(level="WARNING"))
    run(work())


if __name__ == "__main__":
    main()
