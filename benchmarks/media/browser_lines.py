"""`offhook bench browser_lines`: what 20 ms of a browser's call cost the server.

Opus in SRTP through the one port that all calls share, sockets included. Every leg sends back what
it hears; with `--listening` it only hears, as while a caller speaks. ICE and DTLS, which take part
in no packet of sound, are left out: the keys and the path are given. Signalling, conversation and
the voice detector are left out as well.

The compiled path and the Python one take turns in one process, tick by tick, and only the CPU time
of their steps is counted, so that other work on the machine does little harm.

With `--server` the legs are processes of their own with the event loop and the packet clock, this
process is the browsers, and all that a server uses is counted: once woken by each packet, once with
the port read before each tick.
"""

import argparse
import asyncio
import hashlib
import json
import os
import secrets
import socket
from collections.abc import Sequence
from time import monotonic
from types import SimpleNamespace

import pylibsrtp

from benchmarks.command import command
from benchmarks.media.phone_lines import SETTLE_S, Lines, compare, echo, in_turn
from benchmarks.processes.process import child, say
from benchmarks.speech.lines import encode, opus
from benchmarks.speech.recordings import TICKS, load_speech
from offhook.media import native
from offhook.media.clock_io import PacketClock
from offhook.media.codecs.opus import OpusDecoder, OpusEncoder
from offhook.media.rtp.rtp import RtpPacket
from offhook.media.rtp.rtp_leg import RtpFormat
from offhook.media.rtp.srtp import Protector
from offhook.signaling.ice.agent_io import IceAgent
from offhook.signaling.ice.port_io import IcePort
from offhook.signaling.peer_io import PeerLeg, use_addresses
from offhook.web.config.config import Log
from offhook.web.http.logs_io import set_up
from offhook.web.http.loop_io import freeze_loaded_objects, run

HOST = "127.0.0.1"
PT = 111
FORMAT = RtpFormat("opus", {PT: OpusDecoder}, OpusEncoder, PT, dtx=True)
KEY_BYTES = 44


def _sessions(key: bytes) -> tuple[pylibsrtp.Session, pylibsrtp.Session]:
    """Both ends of a stream, under the profile that our DTLS prefers."""
    policy, profile = pylibsrtp.Policy, pylibsrtp.Policy.SRTP_PROFILE_AEAD_AES_256_GCM
    out = policy(key, policy.SSRC_ANY_OUTBOUND, srtp_profile=profile)
    into = policy(key, policy.SSRC_ANY_INBOUND, srtp_profile=profile)
    return pylibsrtp.Session(out), pylibsrtp.Session(into)


def _key(number: int) -> bytes:
    """Of a browser's stream, the same in both processes."""
    return hashlib.shake_256(b"browser %d" % number).digest(KEY_BYTES)


class Browser:
    """Sends packets of speech, and throws away what comes."""

    def __init__(self, said: Sequence[bytes], number: int) -> None:
        self._said, self._at = said, 97 * number
        self._ssrc = number + 1
        self._srtp, _ = _sessions(_key(number))
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind((HOST, 0))
        self.port: int = self._socket.getsockname()[1]

    def connect(self, port: int) -> None:
        self._socket.connect((HOST, port))

    def tick(self) -> None:
        payload = self._said[self._at % len(self._said)]
        self._at += 1
        packet = RtpPacket(
            PT, self._at & 0xFFFF, self._at * TICKS & 0xFFFFFFFF, self._ssrc, payload
        )
        self._socket.send(self._srtp.protect(packet.serialize()))
        try:
            while True:
                self._socket.recv(2048)
        except BlockingIOError:
            pass

    def close(self) -> None:
        self._socket.close()


async def _open_port() -> IcePort:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
        free.bind((HOST, 0))
        port = IcePort(free.getsockname()[1])
    await port.open()
    return port


async def _leg(number: int, port: IcePort, browser: int, listening: bool) -> PeerLeg:
    """A leg of the browser at this port, as ICE and DTLS would leave it."""
    leg, agent = PeerLeg(str(number), ice_port=port), IceAgent(port, [])
    await agent.gather_candidates()
    [udp] = port.sockets.values()
    session = agent.connections.current.session  # type: ignore[attr-defined]
    port.demultiplexer._learn(session, udp.local, (HOST, browser))
    pair = SimpleNamespace(protocol=SimpleNamespace(transport=udp), remote_addr=(HOST, browser))
    agent._nominated[1] = pair  # type: ignore[assignment]
    out, _ = _sessions(secrets.token_bytes(KEY_BYTES))
    leg._srtp_out = Protector(out)
    _, into = _sessions(_key(number))
    leg._open(FORMAT, secrets.randbits(32), monotonic())
    leg._intercept_datagrams(
        SimpleNamespace(_rx_srtp=into, transport=SimpleNamespace(_connection=agent))
    )
    if not listening:
        echo(leg)
    return leg


class BrowserLines(Lines):
    def __init__(self, compiled: bool, said: Sequence[bytes], listening: bool) -> None:
        super().__init__(compiled)
        self._said, self._listening = said, listening
        self._port: IcePort | None = None

    async def _add(self, number: int) -> None:
        if self._port is None:
            self._port = await _open_port()
        browser = Browser(self._said, number)
        browser.connect(self._port.port)
        self.legs.append(await _leg(number, self._port, browser.port, self._listening))
        self.callers.append(browser)

    async def close(self) -> None:
        await super().close()
        if self._port is not None:
            await self._port.close()


# --- a server in a process of its own ---


async def serve(browsers: Sequence[int], seconds: float, woken: bool, listening: bool) -> None:
    """Says its port, and later what the legs cost in µs per 20 ms of one leg."""
    use_addresses([HOST])
    port, clock = await _open_port(), PacketClock()
    if not woken:
        clock.add_source(port)
    legs = [await _leg(number, port, at, listening) for number, at in enumerate(browsers)]
    for leg in legs:
        clock.add(leg)
    freeze_loaded_objects()
    say({"port": port.port})
    await asyncio.sleep(SETTLE_S)
    before, ticks = os.times(), sum(leg.ticks for leg in legs)
    await asyncio.sleep(seconds)
    after, ticks = os.times(), sum(leg.ticks for leg in legs) - ticks
    statistics = [leg.statistics() for leg in legs]
    say(
        {
            "path": native.description(),
            "read": "as packets come" if woken else "before ticks",
            "user_us": round((after.user - before.user) * 1e6 / ticks, 1),
            "kernel_us": round((after.system - before.system) * 1e6 / ticks, 1),
            "us": round((after.user + after.system - before.user - before.system) * 1e6 / ticks, 1),
            "jitter_ms": round(sum(s.jitter_ms for s in statistics) / len(legs), 2),
            "late": sum(s.packets_late for s in statistics),
            "lost": sum(s.packets_lost for s in statistics),
        }
    )
    for leg in legs:
        clock.remove(leg)
    await asyncio.gather(*(leg.hang_up("done") for leg in legs))
    await port.close()


async def measure(calls: int, seconds: float, woken: bool, listening: bool) -> None:
    said = encode(load_speech(30), opus(0.05))
    browsers = [Browser(said, number) for number in range(calls)]
    arguments = ["--serve", ",".join(str(b.port) for b in browsers), "--seconds", str(seconds)]
    arguments += ["--woken"] * woken + ["--listening"] * listening
    async with child("benchmarks.media.browser_lines", *arguments) as server:
        for browser in browsers:
            browser.connect(server.hello["port"])
        pace = asyncio.create_task(in_turn(browsers))
        print(json.dumps(await server.line(SETTLE_S + seconds + 60)), flush=True)
        pace.cancel()
        await asyncio.gather(pace, return_exceptions=True)
    for browser in browsers:
        browser.close()


async def _compare(calls: int, seconds: float, listening: bool) -> None:
    use_addresses([HOST])
    said = encode(load_speech(30), opus(0.05))
    await compare(lambda compiled: BrowserLines(compiled, said, listening), calls, seconds)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command("browser_lines", __doc__)
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--listening", action="store_true", help="say nothing")
    parser.add_argument("--server", action="store_true", help="in processes of their own")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--woken", action="store_true", help=argparse.SUPPRESS)
    a = parser.parse_args(arguments)
    set_up(Log(level="WARNING"))
    if a.serve:
        ports = [int(port) for port in a.serve.split(",")]
        run(serve(ports, a.seconds, a.woken, a.listening))
    elif a.server:
        for woken in (True, False):
            run(measure(a.calls, a.seconds, woken, a.listening))
    else:
        asyncio.run(_compare(a.calls, a.seconds, a.listening))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
