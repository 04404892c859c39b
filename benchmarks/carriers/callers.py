"""Callers by Twilio as a child of a benchmark: each a far end as light as it can be.

Commands on standard input, one a line:

    fill N        place calls until there are N; then says how that went
    churn N       from now on calls are placed, and of N or more the oldest hangs up for each
    measure       the counts begin anew
    report        says the counts
    empty         all hang up; then says what is left
"""

import argparse
import asyncio
import base64
import json
import os
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from math import ceil
from random import Random
from time import monotonic
from typing import Any

import aiohttp
import numpy as np

from benchmarks.carriers.ear import Ear, Judged, is_loud
from offhook.bench.callers.twilio import TwilioStream
from offhook.bench.callers.webhook import Application, CallFacts, Refused
from offhook.bench.phones.rtp import PHASE_S, PHASES, lines, percentiles
from offhook.bench.process import LoopLag, input_lines, say
from offhook.web.config.config import Log
from offhook.web.http.logs_io import set_up
from offhook.web.http.loop_io import freeze_loaded_objects, run

EMPTY_S = 10.0
LATE_MS = (20, 40)
SETUP_S = 20.0
"""The first sound of a call comes within this, or the call has failed."""


@dataclass(frozen=True)
class Spoken:
    """20 ms of a line, as it is sent."""

    payload: str
    loud: bool


@dataclass
class CallCounters:
    """What the callers saw since the last "measure"."""

    calls: int = 0
    """Whose first sound came."""
    setup_ms: list[float] = field(default_factory=list)
    """From the webhook, or the request for the stream, to the first sound."""
    refused: Counter[str] = field(default_factory=Counter)
    cut: int = 0
    """Calls that were up and that the server ended."""
    sent: int = 0
    marks: int = 0
    clears: int = 0
    heard: list[Judged] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        lates = [1000 * late for judged in self.heard for late in judged.late]
        late = np.concatenate(lates) if lates else np.zeros(0)
        return {
            "calls": self.calls,
            "setup_ms": percentiles(self.setup_ms),
            "refused": dict(self.refused),
            "cut": self.cut,
            "sent": self.sent,
            "marks": self.marks,
            "clears": self.clears,
            "messages": sum(judged.messages for judged in self.heard),
            "sound_ms": round(sum(judged.sound_ms for judged in self.heard)),
            "holes": sum(judged.holes for judged in self.heard),
            "hole_ms": round(sum(judged.hole_ms for judged in self.heard)),
            "late_ms": percentiles(late),
            "late": {str(ms): int(np.count_nonzero(late > ms)) for ms in LATE_MS},
            "echo_ms": percentiles([ms for judged in self.heard for ms in judged.echo_ms]),
        }


class TwilioCall(TwilioStream):
    """One call."""

    def __init__(self, facts: CallFacts, line: list[Spoken], at: int) -> None:
        super().__init__(facts)
        self.ear = Ear()
        self.began = monotonic()
        self.up = False
        self.sent = 0
        self.ended = False
        self._line, self._at = line, at

    async def tick(self, now: float) -> int:
        """Send 20 ms, and the marks that are due; how many of those."""
        spoken = self._line[self._at]
        self._at = (self._at + 1) % len(self._line)
        self.ear.say(spoken.loud, now)
        await self.send(self.media(spoken.payload))
        self.sent += 1
        marks = self.ear.reached(now)
        for name in marks:
            await self._mark(name)
        return len(marks)

    async def _mark(self, name: str) -> None:
        await self.send(self.message("mark", mark={"name": name}))

    async def listen(self, counts: "Callers") -> None:
        """Until the stream ends."""
        assert self.socket is not None
        async for message in self.socket:
            now = monotonic()
            read = json.loads(message.data)
            match read["event"]:
                case "media":
                    self.ear.take(base64.b64decode(read["media"]["payload"]), now)
                    if not self.up:
                        self.up = True
                        counts.answered(self, now)
                case "mark":
                    self.ear.mark(read["mark"]["name"], now)
                case "clear":
                    counts.counts.clears += 1
                    for name in self.ear.clear(now):
                        await self._mark(name)

    async def hang_up(self) -> None:
        self.ended = True
        await super().hang_up()


class Callers:
    """All calls of this process."""

    def __init__(
        self, application: Application, rate: float, said: list[list[Spoken]], http: Any
    ) -> None:
        """`rate`: calls placed a second."""
        self.counts = CallCounters()
        self._application, self._rate, self._said = application, rate, said
        self._http: aiohttp.ClientSession = http
        self._chance = Random(1)
        self._lag = LoopLag()
        self._phases: list[list[TwilioCall]] = [[] for _ in range(PHASES)]
        self._calls: dict[TwilioCall, asyncio.Task[None]] = {}
        self._up: deque[TwilioCall] = deque()
        """The oldest first."""
        self._late: list[float] = []
        self._churning: asyncio.Task[None] | None = None
        self._placed = 0
        self.measure()

    async def run(self) -> None:
        """The callers' clock; never ends."""
        watching = asyncio.create_task(self._lag.watch())
        due, phase = monotonic(), 0
        try:
            while True:
                now = monotonic()
                while due <= now:
                    if self._phases[phase]:
                        self._late.append(now - due)
                    for call in tuple(self._phases[phase]):
                        self.counts.marks += await call.tick(now)
                    phase = (phase + 1) % PHASES
                    due += PHASE_S
                await asyncio.sleep(max(1, ceil((due - monotonic()) * 1000)) / 1000)
        finally:
            watching.cancel()

    # --- calls ---

    def _place(self) -> None:
        self._placed += 1
        facts = CallFacts(f"MZ{self._placed:032x}", f"CA{self._placed:032x}")
        line = self._chance.choice(self._said)
        call = TwilioCall(facts, line, self._chance.randrange(len(line)))
        self._calls[call] = asyncio.create_task(self._live(call))

    async def _live(self, call: TwilioCall) -> None:
        phase: list[TwilioCall] = []
        try:
            await call.connect(self._http, self._application)
            phase = min(self._phases, key=len)
            phase.append(call)
            await call.listen(self)
            if not call.ended:
                self.counts.cut += 1
        except Refused as error:
            self.counts.refused[str(error)[-60:]] += 1
        finally:
            if call in phase:
                phase.remove(call)
            if call in self._up:
                self._up.remove(call)
            self._take(call)
            del self._calls[call]
            await call.hang_up()

    def answered(self, call: TwilioCall, now: float) -> None:
        self._up.append(call)
        self.counts.calls += 1
        self.counts.setup_ms.append((now - call.began) * 1000)

    def _take(self, call: TwilioCall) -> None:
        self.counts.sent += call.sent
        call.sent = 0
        self.counts.heard.append(call.ear.judge())

    async def fill(self, calls: int) -> dict[str, Any]:
        due = monotonic()
        for _ in range(calls - len(self._calls)):
            self._place()
            due += 1 / self._rate
            await asyncio.sleep(max(0.0, due - monotonic()))
        give_up = monotonic() + SETUP_S
        while len(self._up) < len(self._calls) and monotonic() < give_up:
            await asyncio.sleep(0.05)
        return {"up": len(self._up), **self.counts.as_dict()}

    async def _churn(self, calls: int) -> None:
        due = monotonic()
        while True:
            if self._up and len(self._calls) >= calls:
                await self._up[0].hang_up()
            self._place()
            due += 1 / self._rate
            await asyncio.sleep(max(0.0, due - monotonic()))

    def churn(self, calls: int) -> None:
        """0: no more of that."""
        if self._churning is not None:
            self._churning.cancel()
        self._churning = asyncio.create_task(self._churn(calls)) if calls else None

    async def empty(self) -> dict[str, Any]:
        self.churn(0)
        for call in tuple(self._calls):
            await call.hang_up()
        give_up = monotonic() + EMPTY_S
        while self._calls and monotonic() < give_up:
            await asyncio.sleep(0.05)
        for task in self._calls.values():
            task.cancel()
        return {"left": len(self._calls)}

    # --- counts ---

    def measure(self) -> None:
        for call in self._calls:
            self._take(call)
        self.counts = CallCounters()
        self._late = []
        self._lag.read_ms()
        self._cpu, self._wall = time.process_time(), monotonic()

    def report(self) -> dict[str, Any]:
        cpu, wall = time.process_time() - self._cpu, monotonic() - self._wall
        for call in self._calls:
            self._take(call)
        own = {
            "cpu_percent": round(100 * cpu / wall, 1),
            "sends_late_ms": percentiles([late * 1000 for late in self._late]),
            "lag_ms": self._lag.read_ms(),
        }
        return {"up": len(self._up), **self.counts.as_dict(), "own": own}


async def work(application: Application, rate: float, pause: float) -> None:
    said = [
        [Spoken(base64.b64encode(pcmu).decode(), is_loud(pcmu)) for pcmu in line]
        for line in await lines(pause)
    ]
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        callers = Callers(application, rate, said, http)
        clock = asyncio.create_task(callers.run())
        freeze_loaded_objects()
        say({"ready": True})
        try:
            reader = await input_lines()
            while line := (await reader.readline()).split():
                await _execute(callers, line[0].decode(), [int(word) for word in line[1:]])
        finally:
            await callers.empty()
            clock.cancel()


async def _execute(callers: Callers, command: str, numbers: list[int]) -> None:
    match command, numbers:
        case "fill", [calls]:
            say(await callers.fill(calls))
        case "churn", [calls]:
            callers.churn(calls)
        case "measure", []:
            callers.measure()
        case "report", []:
            say(callers.report())
        case "empty", []:
            say(await callers.empty())
        case _:
            raise ValueError(f"no such command: {command} {numbers}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--webhook", default="", help="URL that is asked for a stream")
    parser.add_argument("--secret", default="", help="that signs what the webhook is sent")
    parser.add_argument("--stream", default="", help="URL of a stream, without a webhook")
    parser.add_argument("--rate", type=float, default=10.0, help="calls placed a second")
    parser.add_argument("--pause", type=float, default=1.0, help="in s, between lines said")
    parser.add_argument("--cpu", type=int, help="to run on, of those there are")
    arguments = parser.parse_args()
    if arguments.cpu is not None:
        os.sched_setaffinity(0, {arguments.cpu})
    set_up(Log(level="WARNING"))
    application = Application(arguments.webhook, arguments.secret, arguments.stream)
    run(work(application, arguments.rate, arguments.pause))


if __name__ == "__main__":
    main()
