"""Callers by Twilio as a child of a benchmark: each a far end as light as it can be. Commands as in
`callers.generator`."""

import argparse
import asyncio
import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from time import monotonic
from typing import Any

import aiohttp

from benchmarks.callers import generator
from benchmarks.callers.rtp import lines
from benchmarks.carriers.ear import Ear, Judged, is_loud
from benchmarks.processes.process import core_argument, keep_to
from benchmarks.table import percentiles
from offhook.web.app.callers.twilio.stream_io import TwilioStream
from offhook.web.app.callers.twilio.webhook_io import Application, CallFacts, Refused
from offhook.web.config.config import Log
from offhook.web.http.logs_io import set_up
from offhook.web.http.loop_io import run


@dataclass(frozen=True)
class Spoken:
    """20 ms of a line, as it is sent."""

    payload: str
    loud: bool


@dataclass
class Counters(generator.Counters):
    """What callers by Twilio have observed; a call is answered by its first sound."""

    marks: int = 0
    clears: int = 0
    heard: list[Judged] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return {
            **super().as_dict(),
            "marks": self.marks,
            "clears": self.clears,
            "messages": sum(judged.messages for judged in self.heard),
            "sound_ms": round(sum(judged.sound_ms for judged in self.heard)),
            "holes": sum(judged.holes for judged in self.heard),
            "hole_ms": round(sum(judged.hole_ms for judged in self.heard)),
            "echo_ms": percentiles([ms for judged in self.heard for ms in judged.echo_ms]),
        }


class PlacedCall(TwilioStream):
    """One outgoing call."""

    up = leaving = False

    def __init__(self, facts: CallFacts, line: Sequence[Spoken], at: int, callers: "Callers"):
        super().__init__(facts)
        self.ear = Ear()
        self.began = monotonic()
        self.sent = 0
        self._line, self._at = line, at
        self._callers = callers

    def tick(self) -> None:
        now = monotonic()
        spoken = self._line[self._at]
        self._at = (self._at + 1) % len(self._line)
        self.ear.say(spoken.loud, now)
        self._callers.counts.marks += self.say(spoken.payload, now)
        self.sent += 1

    def receive(self, pcmu: bytes, now: float) -> None:
        self.ear.take(pcmu, now)
        self.play_until = self.ear.play_until
        if not self.up:
            self._callers.answered(self)

    def clear(self, now: float) -> None:
        self._callers.counts.clears += 1
        self.ear.clear(now)
        self.play_until = self.ear.play_until


class Callers(generator.Callers[PlacedCall, Counters]):
    """All calls of this process."""

    def __init__(
        self,
        application: Application,
        rate: float,
        said: Sequence[Sequence[Spoken]],
        http: aiohttp.ClientSession,
    ) -> None:
        """`rate` is the number of calls placed per second."""
        super().__init__(rate)
        self._application, self._said, self._http = application, said, http
        self._chance = Random(1)
        self._placed = 0
        self._endings: dict[PlacedCall, asyncio.Task[None]] = {}

    def _new_counters(self) -> Counters:
        return Counters()

    def answered(self, call: PlacedCall) -> None:
        """Its first sound has come."""
        self._answered(call)

    def _place(self) -> None:
        self._placed += 1
        facts = CallFacts(f"MZ{self._placed:032x}", f"CA{self._placed:032x}")
        line = self._chance.choice(self._said)
        call = PlacedCall(facts, line, self._chance.randrange(len(line)), self)
        self._calls.append(call)
        self._endings[call] = self._tasks.spawn(self._live(call), f"call {self._placed}")

    async def _live(self, call: PlacedCall) -> None:
        reason = "no sound"
        try:
            await call.connect(self._http, self._application)
            self._pace.add(call)
            await call.until_closed()
        except Refused as error:
            reason = str(error)[-60:]
        finally:
            self._ended(call, reason, call.leaving)
            del self._endings[call]
            await call.hang_up()

    def _hang_up(self, call: PlacedCall) -> None:
        self._endings[call].cancel()

    def _count(self, call: PlacedCall) -> None:
        self.counts.sent += call.sent
        call.sent = 0
        judged = call.ear.judge()
        self.counts.heard.append(judged)
        self.counts.late += [1000 * late for late in judged.late]


async def work(application: Application, rate: float, pause: float) -> None:
    said = [
        [Spoken(base64.b64encode(pcmu).decode(), is_loud(pcmu)) for pcmu in line]
        for line in await lines(pause)
    ]
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        await Callers(application, rate, said, http).obey()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--webhook", default="", help="URL that is asked for a stream")
    parser.add_argument("--secret", default="", help="that signs what the webhook is sent")
    parser.add_argument("--stream", default="", help="URL of a stream, without a webhook")
    parser.add_argument("--rate", type=float, default=10.0, help="calls placed a second")
    parser.add_argument("--pause", type=float, default=1.0, help="in s, between lines said")
    core_argument(parser)
    arguments = parser.parse_args()
    keep_to(arguments.cpu)
    set_up(Log(level="WARNING"))
    application = Application(arguments.webhook, arguments.secret, arguments.stream)
    run(work(application, arguments.rate, arguments.pause))


if __name__ == "__main__":
    main()
