"""`python -m benchmarks phone_lines`: what 20 ms of a phone call cost the server, sockets included.

G.711 legs on real ports, each of which sends back what it hears. Signalling, conversation and the
voice detector are left out.

By default the compiled path and the Python one take turns in one process, tick by tick, and only
the CPU time of their steps is counted, so that other work on the machine does little harm. With
`--server` the legs are a process of their own with the event loop and the packet clock, this
process is the phones, and all that the server uses is counted: for an idle machine.
OFFHOOK_COMPILED=0 makes that the Python path.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any, Protocol

from offhook.bench.phones.rtp import HOST, Pace, Payloads, Sound, lines, offer
from offhook.bench.process import child, say
from offhook.media import native
from offhook.media.clock_io import PacketClock
from offhook.media.codecs.opus import OpusSettings
from offhook.media.codecs.resample import Resampler
from offhook.media.leg import Leg
from offhook.media.pcm import PACKET_MS, RATE_IN, RATE_OUT, Pcm
from offhook.media.rtp.rtp_leg import RtpLeg
from offhook.telephony.sip.media.leg_io import SipLeg
from offhook.telephony.sip.media.media_plan import MediaSettings
from offhook.telephony.sip.media.rtp_ports_io import RtpPorts
from offhook.web.config.config import Log
from offhook.web.process.logs import set_up
from offhook.web.process.loop_io import freeze_loaded_objects, run

RTP_PORTS = (16_384, 32_767)
SETTLE_S = 3.0
STEPS = ("read", "hear", "say")
"""From the socket to the jitter buffer; from there to 320 samples; echo, playout, encoder and the
socket."""


class Caller(Protocol):
    """The other end of a leg."""

    def tick(self) -> None:
        """Sends a packet, and reads those that came."""

    def close(self) -> None: ...


def echo(leg: Leg) -> None:
    """Has a leg send back what it hears."""
    resampler = Resampler(RATE_IN, RATE_OUT)

    def back(heard: Pcm, said: Pcm | None, now: float) -> None:
        leg.playout.write(resampler.process(heard))

    leg.listen(back)


async def _leg(name: str, ports: RtpPorts, remote: int) -> SipLeg:
    leg = SipLeg(name, MediaSettings(), ports, HOST, OpusSettings())
    await leg.bind()
    leg.answer(offer(remote))
    leg.connect()
    echo(leg)
    return leg


def _port(leg: SipLeg) -> int:
    sockets = leg._transport.sockets
    assert sockets is not None
    return sockets.port


# --- both paths in one process ---


@contextmanager
def _path(compiled: bool) -> Iterator[None]:
    before, native.used = native.used, compiled
    try:
        yield
    finally:
        native.used = before


class Lines:
    """Legs on one path, and those at their other ends."""

    def __init__(self, compiled: bool) -> None:
        self.compiled = compiled
        self.spent_ns = [0] * len(STEPS)
        self.ticks = 0
        self.legs: list[RtpLeg] = []
        self.callers: list[Caller] = []
        self._readers: dict[int, Callable[[], None]] = {}

    async def open(self, calls: int) -> None:
        loop: Any = asyncio.get_running_loop()
        loop.add_reader = lambda sock, read: self._readers.update({sock.fileno(): read})
        loop.remove_reader = lambda sock: self._readers.pop(sock.fileno(), None)
        with _path(self.compiled):
            for number in range(calls):
                await self._add(number)

    async def _add(self, number: int) -> None:
        """Opens a leg and what calls it."""
        raise NotImplementedError

    def tick(self, counted: bool) -> None:
        for caller in self.callers:
            caller.tick()
        with _path(self.compiled):
            at = [time.thread_time_ns()]
            for read in self._readers.values():
                read()
            at.append(time.thread_time_ns())
            now = time.monotonic()
            for leg in self.legs:
                leg.receive_tick(now)
            at.append(time.thread_time_ns())
            for leg in self.legs:
                leg.send_tick(now)
            at.append(time.thread_time_ns())
        if counted:
            self.ticks += len(self.legs)
            for step in range(len(STEPS)):
                self.spent_ns[step] += at[step + 1] - at[step]

    def as_dict(self) -> dict[str, object]:
        us = [spent / 1000 / self.ticks for spent in self.spent_ns]
        steps = {name: round(each, 2) for name, each in zip(STEPS, us, strict=True)}
        received = sum(leg.statistics().packets_received for leg in self.legs)
        path = "compiled" if self.compiled else "python"
        return {"path": path, **steps, "us": round(sum(us), 2), "packets": received}

    async def close(self) -> None:
        await asyncio.gather(*(leg.hang_up("done") for leg in self.legs))
        for caller in self.callers:
            caller.close()


class PhoneLines(Lines):
    def __init__(self, compiled: bool, ports: RtpPorts, said: list[Payloads]) -> None:
        super().__init__(compiled)
        self._ports, self._said, self._chance = ports, said, Random(1)

    async def _add(self, number: int) -> None:
        phone = Sound(self._said[number % len(self._said)], self._chance)
        leg = await _leg(str(number), self._ports, phone.port)
        phone.connect((HOST, _port(leg)))
        self.legs.append(leg)
        self.callers.append(phone)


async def compare(make: Callable[[bool], Lines], calls: int, seconds: float) -> None:
    """Prints what the steps cost on both paths."""
    paths = [make(compiled) for compiled in (False, True)[: 1 + native.BUILT]]
    for each in paths:
        await each.open(calls)
    freeze_loaded_objects()
    due = time.monotonic()
    for tick in range(round((SETTLE_S + seconds) * 1000 / PACKET_MS)):
        time.sleep(max(0.0, due - time.monotonic()))  # noqa: ASYNC251 -- nothing else is to run
        due += PACKET_MS / 1000
        for each in paths:
            each.tick(tick * PACKET_MS >= SETTLE_S * 1000)
    for each in paths:
        print(json.dumps(each.as_dict()))
        await each.close()


async def _compare(calls: int, seconds: float) -> None:
    said, ports = await lines(0.5), RtpPorts(HOST, *RTP_PORTS)
    await compare(lambda compiled: PhoneLines(compiled, ports, said), calls, seconds)


# --- a server in a process of its own ---


async def serve(remote_ports: Sequence[int], seconds: float) -> None:
    """Says its ports, and later what the legs cost in µs per 20 ms of one leg."""
    ports, clock = RtpPorts(HOST, *RTP_PORTS), PacketClock()
    legs = [await _leg(str(number), ports, port) for number, port in enumerate(remote_ports)]
    for leg in legs:
        clock.add(leg)
    freeze_loaded_objects()
    say({"ports": [_port(leg) for leg in legs]})
    await asyncio.sleep(SETTLE_S)
    before, ticks = os.times(), sum(leg.ticks for leg in legs)
    received = sum(leg.statistics().packets_received for leg in legs)
    await asyncio.sleep(seconds)
    after, ticks = os.times(), sum(leg.ticks for leg in legs) - ticks
    statistics = [leg.statistics() for leg in legs]
    say(
        {
            "path": native.description(),
            "user_us": round((after.user - before.user) * 1e6 / ticks, 1),
            "kernel_us": round((after.system - before.system) * 1e6 / ticks, 1),
            "received": round((sum(s.packets_received for s in statistics) - received) / ticks, 3),
            "late": sum(s.packets_late for s in statistics),
            "lost": sum(s.packets_lost for s in statistics),
        }
    )
    for leg in legs:
        clock.remove(leg)
    await asyncio.gather(*(leg.hang_up("done") for leg in legs))


async def measure(calls: int, seconds: float) -> dict[str, object]:
    chance, said = Random(1), await lines(0.5)
    sounds = [Sound(said[i % len(said)], chance) for i in range(calls)]
    remote = ",".join(str(sound.port) for sound in sounds)
    arguments = ("--serve", remote, "--seconds", str(seconds))
    pace = Pace()
    async with child("benchmarks.media.phone_lines", *arguments) as server:
        for sound, port in zip(sounds, server.hello["ports"], strict=True):
            sound.connect((HOST, port))
            pace.add(sound)
        found = await server.line(SETTLE_S + seconds + 60)
        pace.stop()
    for sound in sounds:
        sound.close()
    us = found["user_us"] + found["kernel_us"]
    share = round(us / (PACKET_MS * 10), 3)
    return {"calls": calls, **found, "us": round(us, 1), "percent": share}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks phone_lines",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--server", action="store_true", help="in a process of its own")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    a = parser.parse_args(arguments)
    set_up(Log(level="WARNING"))
    if a.serve:
        run(serve([int(port) for port in a.serve.split(",")], a.seconds))
    elif a.server:
        print(json.dumps(run(measure(a.calls, a.seconds))))
    else:
        asyncio.run(_compare(a.calls, a.seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
