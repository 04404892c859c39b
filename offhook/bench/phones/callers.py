"""Callers by SIP as a child of a benchmark: signalling by our own user agent, sound as in sip_rtp.

Commands on standard input, one a line:

    fill N        place calls until there are N; then says how that went
    churn N       from now on calls are placed, and of N or more the oldest answered one hangs up
                  for each; when none of these is answered, none is placed
    hold          no more of that
    attempt N     place N calls more, whatever comes of them
    options N W   send N OPTIONS, W of them unanswered at a time; then says how that went
    measure       the counts begin anew
    report        says the counts
    empty         all hang up; then says what is left
"""

import argparse
import asyncio
import os
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from functools import partial
from random import Random
from time import monotonic
from typing import Any

import numpy as np

from offhook.bench.phones.options import Options
from offhook.bench.phones.rtp import HOST, Pace, Payloads, Sound, lines, offer, percentiles
from offhook.bench.phones.signalling import Signalling
from offhook.bench.process import LoopLag, input_lines, say
from offhook.media.tasks_io import TaskSet
from offhook.telephony.sip.messages import sdp
from offhook.telephony.sip.sessions.session import Session
from offhook.telephony.sip.sessions.session_events import Answered, Ended
from offhook.web.config.config import Log
from offhook.web.http.logs_io import set_up
from offhook.web.http.loop_io import freeze_loaded_objects, run

SETTLE_S = 30.0
"""Time in s for the last responses; unanswered calls are then given up."""
EMPTY_S = 10.0
LATE_MS = (20, 40)


@dataclass
class CallCounters:
    """What the callers have observed since the last "measure"."""

    calls: int = 0
    """Answered calls."""
    setup_ms: list[float] = field(default_factory=list)
    """Time in ms from the INVITE to its 200."""
    refused: Counter[int] = field(default_factory=Counter)
    """Refused calls by status; 408 is a call that was never answered."""
    told_when: int = 0
    """Calls refused with 503 and a Retry-After."""
    cut: int = 0
    """Established calls ended by the server or a timeout."""
    sent: int = 0
    packets: int = 0
    missing: int = 0
    late: list[Any] = field(default_factory=list)
    """Lateness in ms of every packet."""

    def add(self, sound: Sound) -> None:
        """Adds the results of a call, or of a part of one."""
        sent, heard = sound.read()
        self.sent += sent
        self.packets += heard.packets
        self.missing += heard.missing
        self.late.append(heard.late_ms())

    def as_dict(self) -> dict[str, Any]:
        late = np.concatenate(self.late) if self.late else np.zeros(0)
        return {
            "calls": self.calls,
            "setup_ms": percentiles(self.setup_ms),
            "refused": dict(self.refused),
            "told_when": self.told_when,
            "cut": self.cut,
            "sent": self.sent,
            "packets": self.packets,
            "missing": self.missing,
            "late_ms": percentiles(late),
            "late": {str(ms): int(np.count_nonzero(late > ms)) for ms in LATE_MS},
        }


@dataclass(eq=False)
class PlacedCall:
    """One outgoing call."""

    sound: Sound
    began: float
    session: Session | None = None
    up: bool = False
    leaving: bool = False
    """It has hung up, and the server has not confirmed it yet."""


class Callers:
    """All calls of this process."""

    def __init__(
        self, server: tuple[str, int], rate: float, said: list[Payloads], loss: float = 0.0
    ) -> None:
        """`rate` is the number of calls placed per second, `loss` the fraction of their packets
        that get lost on the way to the server."""
        self.counts = CallCounters()
        self._server = server
        self._rate = rate
        self._said = said
        self._loss = loss
        self._chance = Random(1)
        self._pace = Pace()
        self._lag = LoopLag()
        self._calls: list[PlacedCall] = []
        self._up: deque[PlacedCall] = deque()
        """Established calls, oldest first."""
        self._signalling = Signalling(self._received)
        self._churning: asyncio.Task[None] | None = None
        self._tasks = TaskSet()
        self._cpu, self._wall = time.process_time(), monotonic()
        self._tasks.spawn(self._lag.watch(), "lag")

    # --- signalling ---

    def _received(self, data: bytes) -> None:
        if data.startswith(b"SIP/2.0 503") and b"\r\nRetry-After:" in data:
            self.counts.told_when += 1

    def _happened(self, call: PlacedCall, event: object) -> None:
        match event:
            case Answered(str(text)):
                media = sdp.parse(text).resolved()[0]
                call.sound.connect((media.connection or HOST, media.port))
                call.up = True
                self._up.append(call)
                self._pace.add(call.sound)
                self.counts.calls += 1
                self.counts.setup_ms.append((monotonic() - call.began) * 1000)
            case Ended(status, _, by):
                if not call.up:
                    self.counts.refused[status] += 1
                elif by != "local":
                    self.counts.cut += 1
                self._forget(call)

    def _forget(self, call: PlacedCall) -> None:
        self._calls.remove(call)
        if call.up:
            self._up.remove(call)
            self._pace.remove(call.sound)
            self.counts.add(call.sound)
        call.sound.close()

    # --- calls ---

    def place(self) -> None:
        said = self._chance.choice(self._said)
        call = PlacedCall(Sound(said, self._chance, loss=self._loss), monotonic())
        self._calls.append(call)
        sdp_offer = offer(call.sound.port)
        happened = partial(self._happened, call)
        call.session = self._signalling.place(self._server, sdp_offer, happened)

    def hang_up(self, call: PlacedCall) -> None:
        assert call.session is not None
        call.leaving = True
        self._signalling.hang_up(call.session)

    async def attempt(self, calls: int) -> None:
        due = monotonic()
        for _ in range(calls):
            self.place()
            due += 1 / self._rate
            await asyncio.sleep(max(0.0, due - monotonic()))

    async def fill(self, calls: int) -> dict[str, Any]:
        await self.attempt(calls - len(self._calls))
        give_up = monotonic() + SETTLE_S
        while len(self._up) < len(self._calls) and monotonic() < give_up:
            await asyncio.sleep(0.05)
        for call in [c for c in self._calls if not c.up]:
            self.hang_up(call)
        return {"up": len(self._up), **self.counts.as_dict()}

    async def _churn(self, calls: int) -> None:
        due = monotonic()
        while True:
            staying = [call for call in self._calls if not call.leaving]
            oldest = next((call for call in self._up if not call.leaving), None)
            if len(staying) < calls:
                self.place()
            elif oldest is not None:
                self.hang_up(oldest)
                self.place()
            due += 1 / self._rate
            await asyncio.sleep(max(0.0, due - monotonic()))

    def churn(self, calls: int) -> None:
        """0 ends the churn."""
        if self._churning is not None:
            self._churning.cancel()
        self._churning = self._tasks.spawn(self._churn(calls), "churn") if calls else None

    async def empty(self) -> dict[str, Any]:
        self.churn(0)
        for call in tuple(self._calls):
            self.hang_up(call)
        give_up = monotonic() + EMPTY_S
        while self._signalling.sessions and monotonic() < give_up:
            await asyncio.sleep(0.05)
        return {"sessions": self._signalling.sessions}

    # --- counts ---

    def measure(self) -> None:
        self._read_sockets()
        self.counts = CallCounters()
        self._pace.read_late_ms()
        self._lag.read_ms()
        self._cpu, self._wall = time.process_time(), monotonic()

    def report(self) -> dict[str, Any]:
        cpu, wall = time.process_time() - self._cpu, monotonic() - self._wall
        self._read_sockets()
        own = {
            "cpu_percent": round(100 * cpu / wall, 1),
            "sends_late_ms": self._pace.read_late_ms(),
            "lag_ms": self._lag.read_ms(),
        }
        return {"up": len(self._up), **self.counts.as_dict(), "own": own}

    def _read_sockets(self) -> None:
        for call in self._up:
            call.sound.drain()
            self.counts.add(call.sound)

    # --- life ---

    def spawn_attempt(self, calls: int) -> None:
        self._tasks.spawn(self.attempt(calls), "attempt")

    async def close(self) -> None:
        await self.empty()
        await self._tasks.close()
        self._pace.stop()
        self._signalling.close()


async def work(server: tuple[str, int], rate: float, pause: float, loss: float) -> None:
    callers = Callers(server, rate, await lines(pause), loss)
    freeze_loaded_objects()
    say({"ready": True})
    try:
        reader = await input_lines()
        while line := (await reader.readline()).split():
            await _execute(callers, server, line[0].decode(), [int(word) for word in line[1:]])
    finally:
        await callers.close()


async def _execute(
    callers: Callers, server: tuple[str, int], command: str, numbers: list[int]
) -> None:
    match command, numbers:
        case "fill", [calls]:
            say(await callers.fill(calls))
        case "churn", [calls]:
            callers.churn(calls)
        case "hold", []:
            callers.churn(0)
        case "attempt", [calls]:
            callers.spawn_attempt(calls)
        case "options", [count, window]:
            say(await Options(server).ask(count, window))
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
    parser.add_argument("port", type=int, help="of SIP over UDP, on this machine")
    parser.add_argument("--rate", type=float, default=20.0, help="calls placed a second")
    parser.add_argument("--pause", type=float, default=1.0, help="in s, between lines said")
    parser.add_argument("--loss", type=float, default=0.0, help="percent of their packets")
    parser.add_argument("--cpu", type=int, help="to run on, of those there are")
    arguments = parser.parse_args()
    if arguments.cpu is not None:
        os.sched_setaffinity(0, {arguments.cpu})
    set_up(Log(level="WARNING"))
    server = HOST, arguments.port
    run(work(server, arguments.rate, arguments.pause, arguments.loss / 100))


if __name__ == "__main__":
    main()
