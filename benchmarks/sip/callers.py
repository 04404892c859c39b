"""Callers by SIP as a child of a benchmark: signalling by our own user agent, sound as in
`callers.rtp`. Commands as in `callers.generator`, and

    options N W   send N OPTIONS, W of them unanswered at a time; then says how that went
"""

import argparse
from dataclasses import dataclass
from functools import partial
from random import Random
from time import monotonic
from typing import Any

from benchmarks.callers import generator
from benchmarks.callers.rtp import Sound, lines, offer
from benchmarks.callers.signalling import Signalling
from benchmarks.processes.own_server import HOST
from benchmarks.processes.process import core_argument, keep_to, say
from benchmarks.sip.options import Options
from benchmarks.speech.recordings import Packets
from offhook.telephony.sip.messages import sdp
from offhook.telephony.sip.sessions.session import Session
from offhook.telephony.sip.sessions.session_events import Answered, Ended
from offhook.web.config.config import Log
from offhook.web.http.logs_io import set_up
from offhook.web.http.loop_io import run


@dataclass
class Counters(generator.Counters):
    """What callers by SIP have observed; refused calls by status: 408 was never answered."""

    told_when: int = 0
    """Calls refused with 503 and a Retry-After."""
    packets: int = 0
    missing: int = 0

    def as_dict(self) -> dict[str, Any]:
        more = {"told_when": self.told_when, "packets": self.packets, "missing": self.missing}
        return {**super().as_dict(), **more}


class PlacedCall(Sound):
    """One outgoing call."""

    session: Session
    up = leaving = False

    def __init__(self, said: Packets, chance: Random, loss: float) -> None:
        super().__init__(said, chance, loss=loss)
        self.began = monotonic()


class Callers(generator.Callers[PlacedCall, Counters]):
    """All calls of this process."""

    def __init__(
        self, server: tuple[str, int], rate: float, said: list[Packets], loss: float = 0.0
    ) -> None:
        """`rate` is the number of calls placed per second, `loss` the fraction that gets lost of
        their packets on the way to the server, and of SIP messages both ways."""
        super().__init__(rate)
        self._server = server
        self._said = said
        self._loss = loss
        self._chance = Random(1)
        self._signalling = Signalling(self._received, lost=self._is_lost)

    def _new_counters(self) -> Counters:
        return Counters()

    def _is_lost(self) -> bool:
        return self._loss > 0 and self._chance.random() < self._loss

    def _received(self, data: bytes) -> None:
        if data.startswith(b"SIP/2.0 503") and b"\r\nRetry-After:" in data:
            self.counts.told_when += 1

    def _happened(self, call: PlacedCall, event: object) -> None:
        match event:
            case Answered(str(text)):
                media = sdp.parse(text).resolved()[0]
                call.connect((media.connection or HOST, media.port))
                self._pace.add(call)
                self._answered(call)
            case Ended(status, _, by):
                self._ended(call, status, by == "local")
                call.close()

    def _place(self) -> None:
        call = PlacedCall(self._chance.choice(self._said), self._chance, self._loss)
        self._calls.append(call)
        happened = partial(self._happened, call)
        call.session = self._signalling.place(self._server, offer(call.port), happened)

    def _hang_up(self, call: PlacedCall) -> None:
        self._signalling.hang_up(call.session)

    def _count(self, call: PlacedCall) -> None:
        if not call.up:
            return
        call.drain()
        sent, heard = call.read()
        self.counts.sent += sent
        self.counts.packets += heard.packets
        self.counts.missing += heard.missing
        self.counts.late.append(heard.late_ms())

    @property
    def left(self) -> int:
        return self._signalling.sessions

    async def execute(self, command: str, numbers: list[int]) -> None:
        match command, numbers:
            case "options", [count, window]:
                say(await Options(self._server).ask(count, window))
            case _:
                await super().execute(command, numbers)

    async def close(self) -> None:
        await super().close()
        self._signalling.close()


async def work(server: tuple[str, int], rate: float, pause: float, loss: float) -> None:
    await Callers(server, rate, await lines(pause), loss).obey()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int, help="of SIP over UDP, on this machine")
    parser.add_argument("--rate", type=float, default=20.0, help="calls placed a second")
    parser.add_argument("--pause", type=float, default=1.0, help="in s, between lines said")
    parser.add_argument("--loss", type=float, default=0.0, help="percent of their packets")
    core_argument(parser)
    arguments = parser.parse_args()
    keep_to(arguments.cpu)
    set_up(Log(level="WARNING"))
    server = HOST, arguments.port
    run(work(server, arguments.rate, arguments.pause, arguments.loss / 100))


if __name__ == "__main__":
    main()
