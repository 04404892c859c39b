"""`python -m benchmarks browser_lines`: what 20 ms of a browser's call cost the server.

Opus in SRTP through the one port that all calls share, sockets included. Every leg sends back what
it hears; with `--listening` it only hears, as while a caller speaks. ICE and DTLS, which take part
in no packet of sound, are left out: the keys and the path are given. Signalling, conversation and
the voice detector are left out as well.

The compiled path and the Python one take turns in one process, tick by tick, and only the CPU time
of their steps is counted, so that other work on the machine does little harm.
"""

import argparse
import asyncio
import secrets
import socket
from collections.abc import Sequence
from time import monotonic
from types import SimpleNamespace

import pylibsrtp

from benchmarks.media.phone_lines import Lines, compare, echo
from offhook.bench.speech.recordings import TICKS, encode, load_speech
from offhook.media.codecs.opus import OpusDecoder, OpusEncoder
from offhook.media.rtp.rtp import RtpPacket
from offhook.media.rtp.rtp_leg import RtpFormat
from offhook.media.rtp.srtp import Protector
from offhook.signaling.ice.agent_io import IceAgent
from offhook.signaling.ice.port_io import IcePort
from offhook.signaling.peer_io import PeerLeg, use_addresses
from offhook.web.config.config import Log
from offhook.web.process.logs import set_up

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


class Browser:
    """Sends packets of speech, and throws away what comes."""

    def __init__(self, said: Sequence[bytes], number: int, port: int) -> None:
        self._said, self._at = said, 97 * number
        self._ssrc = number + 1
        self.srtp, self.far_srtp = _sessions(secrets.token_bytes(KEY_BYTES))
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind((HOST, 0))
        self._socket.connect((HOST, port))

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._socket.getsockname()
        return host, port

    def tick(self) -> None:
        payload = self._said[self._at % len(self._said)]
        self._at += 1
        packet = RtpPacket(
            PT, self._at & 0xFFFF, self._at * TICKS & 0xFFFFFFFF, self._ssrc, payload
        )
        self._socket.send(self.srtp.protect(packet.serialize()))
        try:
            while True:
                self._socket.recv(2048)
        except BlockingIOError:
            pass

    def close(self) -> None:
        self._socket.close()


class BrowserLines(Lines):
    def __init__(self, compiled: bool, said: Sequence[bytes], listening: bool) -> None:
        super().__init__(compiled)
        self._said, self._listening = said, listening
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
            free.bind((HOST, 0))
            self._port = IcePort(free.getsockname()[1])

    async def _add(self, number: int) -> None:
        if not self._port.sockets:
            await self._port.open()
        browser = Browser(self._said, number, self._port.port)
        leg, agent = PeerLeg(str(number), ice_port=self._port), IceAgent(self._port, [])
        await agent.gather_candidates()
        [udp] = self._port.sockets.values()
        # What ICE and DTLS would come to.
        session = agent._current.session  # type: ignore[attr-defined]
        self._port.demultiplexer._learn(session, udp.local, browser.address)
        pair = SimpleNamespace(protocol=SimpleNamespace(transport=udp), remote_addr=browser.address)
        agent._nominated[1] = pair  # type: ignore[assignment]
        out, _ = _sessions(secrets.token_bytes(KEY_BYTES))
        leg._srtp_out = Protector(out)
        leg._open(FORMAT, secrets.randbits(32), monotonic())
        leg._intercept_datagrams(
            SimpleNamespace(_rx_srtp=browser.far_srtp, transport=SimpleNamespace(_connection=agent))
        )
        if not self._listening:
            echo(leg)
        self.legs.append(leg)
        self.callers.append(browser)

    async def close(self) -> None:
        await super().close()
        await self._port.close()


async def _compare(calls: int, seconds: float, listening: bool) -> None:
    use_addresses([HOST])
    said = encode(load_speech(30))
    await compare(lambda compiled: BrowserLines(compiled, said, listening), calls, seconds)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks browser_lines",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--listening", action="store_true", help="say nothing")
    a = parser.parse_args(arguments)
    set_up(Log(level="WARNING"))
    asyncio.run(_compare(a.calls, a.seconds, a.listening))
    return 0
