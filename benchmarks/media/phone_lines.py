"""`python -m benchmarks phone_lines`: what 20 ms of a phone call cost the server, sockets included.

The server is a process of its own with as many G.711 legs as asked, on real ports and the packet
clock, each of which sends back what it hears; this process is the phones. Signalling, conversation
and the voice detector are left out. The table has the CPU time of user and kernel.
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from random import Random

from offhook.bench.phones.rtp import HOST, Pace, Sound, lines, offer
from offhook.bench.process import child, say
from offhook.media.clock_io import PacketClock
from offhook.media.codecs.opus import OpusSettings
from offhook.media.codecs.resample import Resampler
from offhook.media.pcm import PACKET_MS, RATE_IN, RATE_OUT, Pcm
from offhook.telephony.sip.media.leg_io import SipLeg
from offhook.telephony.sip.media.media_plan import MediaSettings
from offhook.telephony.sip.media.rtp_ports_io import RtpPorts
from offhook.web.config.config import Log
from offhook.web.process.logs import set_up
from offhook.web.process.loop_io import freeze_loaded_objects, run

RTP_PORTS = (16_384, 32_767)
SETTLE_S = 3.0
END_S = 1.0


def _echo(leg: SipLeg) -> None:
    resampler = Resampler(RATE_IN, RATE_OUT)

    def back(heard: Pcm, said: Pcm | None, now: float) -> None:
        leg.playout.write(resampler.process(heard))

    leg.listen(back)


async def serve(remote_ports: Sequence[int], seconds: float) -> None:
    """Says its ports, and later what the legs cost in µs per 20 ms of one leg."""
    ports, clock, legs = RtpPorts(HOST, *RTP_PORTS), PacketClock(), []
    own = []
    for number, remote in enumerate(remote_ports):
        leg = SipLeg(str(number), MediaSettings(), ports, HOST, OpusSettings())
        await leg.bind()
        leg.answer(offer(remote))
        leg.connect()
        _echo(leg)
        own.append(leg._transport.sockets.port)  # type: ignore[union-attr]
        legs.append(leg)
        clock.add(leg)
    freeze_loaded_objects()
    say({"ports": own})
    await asyncio.sleep(SETTLE_S)
    before, ticks = os.times(), sum(leg.ticks for leg in legs)
    received = sum(leg.statistics().packets_received for leg in legs)
    await asyncio.sleep(seconds)
    after, ticks = os.times(), sum(leg.ticks for leg in legs) - ticks
    statistics = [leg.statistics() for leg in legs]
    say(
        {
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
    parser = argparse.ArgumentParser(prog="python -m benchmarks phone_lines", description=__doc__)
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    a = parser.parse_args(arguments)
    set_up(Log(level="WARNING"))
    if a.serve:
        run(serve([int(port) for port in a.serve.split(",")], a.seconds))
    else:
        print(json.dumps(run(measure(a.calls, a.seconds))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
