"""`offhook bench phone_lines`: what 20 ms of a phone call cost the server, sockets included.

G.711 legs on real ports, each of which sends back what it hears; with `--listening` it only hears,
as while a caller speaks, with `--srtp` packets are under SRTP, and with `--wideband` in G.722.
Signalling, conversation and the voice detector are left out.

By default the compiled path and the Python one take turns in one process, tick by tick, and only
the CPU time of their steps is counted, so that other work on the machine does little harm. With
`--server` the legs are a process of their own with the event loop and the packet clock, this
process is the phones, and all that a server uses is counted: once woken by packets, once with the
ports read before each tick. OFFHOOK_COMPILED=0 makes that the Python path, which packets wake.
"""

import argparse
import asyncio
import base64
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from benchmarks.callers.rtp import G722, PCMU, Sound, lines, offer
from benchmarks.command import command
from benchmarks.processes.own_server import HOST
from benchmarks.processes.process import child, say
from benchmarks.speech.recordings import Packets
from offhook.media import native
from offhook.media.clock_io import PacketClock
from offhook.media.codecs.g711 import PcmuEncoder
from offhook.media.codecs.g722 import G722Encoder
from offhook.media.codecs.opus import OpusSettings
from offhook.media.codecs.resample import Resampler
from offhook.media.leg import Leg
from offhook.media.pcm import PACKET_MS, RATE_IN, RATE_OUT, Pcm
from offhook.media.rtp.rtp_leg import RtpLeg
from offhook.telephony.sip.media.leg_io import SipLeg
from offhook.telephony.sip.media.media_plan import MediaSettings
from offhook.telephony.sip.media.rtp_ports_io import RtpPorts
from offhook.telephony.sip.media.sdes import SUITES
from offhook.telephony.sip.media.srtp import SdesSrtp
from offhook.web.config.config import Log
from offhook.web.http.logs_io import set_up
from offhook.web.http.loop_io import freeze_loaded_objects, run

RTP_PORTS = (16_384, 32_767)
SUITE = "AES_CM_128_HMAC_SHA1_80"
"""What most phones have."""
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


@dataclass(frozen=True)
class Kind:
    """Of call."""

    listening: bool = False
    srtp: bool = False
    wideband: bool = False


def _keys(port: int) -> SdesSrtp:
    """Of the phone at this port, the same in both processes."""
    key = hashlib.shake_256(b"phone %d" % port).digest(SUITES[SUITE])
    return SdesSrtp(SUITE, key, key)


def _offer(port: int, kind: Kind) -> str:
    sdp = offer(port, payload_type=G722 if kind.wideband else PCMU)
    if not kind.srtp:
        return sdp
    inline = base64.b64encode(_keys(port)._local_key).decode()
    return sdp.replace("RTP/AVP", "RTP/SAVP") + f"a=crypto:1 {SUITE} inline:{inline}\r\n"


async def _leg(name: str, ports: RtpPorts, remote: int, kind: Kind) -> SipLeg:
    leg = SipLeg(name, MediaSettings(srtp="optional"), ports, HOST, OpusSettings())
    await leg.bind()
    leg.answer(_offer(remote, kind))
    leg.connect()
    if not kind.listening:
        echo(leg)
    return leg


class Phone(Sound):
    """Sends packets of speech, and throws away what comes."""

    def __init__(self, said: Packets, chance: Random, kind: Kind) -> None:
        super().__init__(said, chance, G722 if kind.wideband else PCMU)
        self._keys = _keys(self.port) if kind.srtp else None

    def send(self, packet: bytes) -> bool:
        return super().send(packet if self._keys is None else self._keys.protect(packet))


def _port(leg: SipLeg) -> int:
    sockets = leg._transport.sockets
    assert sockets is not None
    return sockets.port


# --- both paths in one process ---


@contextmanager
def on_path(compiled: bool) -> Iterator[None]:
    """What is made within takes this path."""
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
        self._readers: dict[object, Callable[[], None]] = {}

    async def open(self, calls: int) -> None:
        loop: Any = asyncio.get_running_loop()
        loop.add_reader = lambda sock, read: self._readers.update({sock: read})
        loop.remove_reader = lambda sock: self._readers.pop(sock, None)
        with on_path(self.compiled):
            for number in range(calls):
                await self._add(number)

    async def _add(self, number: int) -> None:
        """Opens a leg and what calls it."""
        raise NotImplementedError

    def tick(self, counted: bool) -> None:
        for caller in self.callers:
            caller.tick()
        with on_path(self.compiled):
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
    def __init__(self, compiled: bool, said: list[Packets], kind: Kind) -> None:
        super().__init__(compiled)
        self._ports = RtpPorts(HOST, *RTP_PORTS)
        self._said, self._kind, self._chance = said, kind, Random(1)

    async def open(self, calls: int) -> None:
        self._ports.reader.follow(True)
        await super().open(calls)
        self._readers[self._ports.reader] = self._ports.reader.read

    async def _add(self, number: int) -> None:
        phone = Phone(self._said[number % len(self._said)], self._chance, self._kind)
        leg = await _leg(str(number), self._ports, phone.port, self._kind)
        phone.connect((HOST, _port(leg)))
        sockets = leg._transport.sockets
        assert sockets is not None
        del self._readers[sockets._rtcp]  # where nothing comes, and nobody would look
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


async def _said(kind: Kind) -> list[Packets]:
    return await lines(0.5, G722Encoder if kind.wideband else PcmuEncoder)


async def _compare(calls: int, seconds: float, kind: Kind) -> None:
    said = await _said(kind)
    await compare(lambda compiled: PhoneLines(compiled, said, kind), calls, seconds)


# --- a server in a process of its own ---


async def serve(remote_ports: Sequence[int], seconds: float, woken: bool, kind: Kind) -> None:
    """Says its ports, and later what the legs cost in µs per 20 ms of one leg."""
    ports, clock = RtpPorts(HOST, *RTP_PORTS), PacketClock()
    if not woken:
        clock.add_source(ports.reader)
    legs = [await _leg(str(number), ports, port, kind) for number, port in enumerate(remote_ports)]
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
            "read": "as packets come" if woken or not native.used else "before ticks",
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


async def in_turn(callers: Sequence[Caller]) -> None:
    """Has callers send one after another, each every 20 ms."""
    started, sent = time.monotonic(), 0
    while True:
        due = int((time.monotonic() - started) * 1000 / PACKET_MS * len(callers))
        for number in range(sent, due):
            callers[number % len(callers)].tick()
        sent = due
        await asyncio.sleep(PACKET_MS / 1000 / len(callers))


async def measure(calls: int, seconds: float, woken: bool, kind: Kind) -> dict[str, object]:
    chance, said = Random(1), await _said(kind)
    sounds = [Phone(said[i % len(said)], chance, kind) for i in range(calls)]
    remote = ",".join(str(sound.port) for sound in sounds)
    arguments = ["--serve", remote, "--seconds", str(seconds)]
    arguments += ["--woken"] * woken + ["--listening"] * kind.listening + ["--srtp"] * kind.srtp
    arguments += ["--wideband"] * kind.wideband
    async with child("benchmarks.media.phone_lines", *arguments) as server:
        for sound, port in zip(sounds, server.hello["ports"], strict=True):
            sound.connect((HOST, port))
        pace = asyncio.create_task(in_turn(sounds))
        found = await server.line(SETTLE_S + seconds + 60)
        pace.cancel()
        await asyncio.gather(pace, return_exceptions=True)
    for sound in sounds:
        sound.close()
    us = found["user_us"] + found["kernel_us"]
    share = round(us / (PACKET_MS * 10), 3)
    return {"calls": calls, **found, "us": round(us, 1), "percent": share}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command("phone_lines", __doc__)
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--listening", action="store_true", help="say nothing")
    parser.add_argument("--srtp", action="store_true", help="with keys from SDP")
    parser.add_argument("--wideband", action="store_true", help="in G.722")
    parser.add_argument("--server", action="store_true", help="in processes of their own")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--woken", action="store_true", help=argparse.SUPPRESS)
    a = parser.parse_args(arguments)
    set_up(Log(level="WARNING"))
    kind = Kind(a.listening, a.srtp, a.wideband)
    if a.serve:
        run(serve([int(port) for port in a.serve.split(",")], a.seconds, a.woken, kind))
    elif a.server:
        for woken in (True, False)[not native.used :]:
            print(json.dumps(run(measure(a.calls, a.seconds, woken, kind))), flush=True)
    else:
        asyncio.run(_compare(a.calls, a.seconds, kind))
    return 0


if __name__ == "__main__":
    sys.exit(main())
