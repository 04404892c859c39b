"""The sound of a far end by hand: RTP as the test wants it, and what came, packet by packet."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from time import monotonic

import numpy as np

from offhook.media.codecs.codec import Decoder, Encoder
from offhook.media.codecs.g711 import PcmaDecoder, PcmaEncoder, PcmuDecoder, PcmuEncoder
from offhook.media.codecs.g722 import G722Decoder, G722Encoder
from offhook.media.codecs.opus import OpusDecoder, OpusEncoder
from offhook.media.leg import LegStatistics
from offhook.media.pcm import RATE_IN, RATE_OUT
from offhook.media.rtp.rtp import RtpPacket
from offhook.telephony.sip.endpoint_io import SipEndpoint
from tests.support.waiting import HANGS_S
from tests.telephony.sip.ends import frequency
from tests.telephony.sip.phones import OUR_TONE, THEIR_TONE, Talk, ToneHost, level
from tests.telephony.sip.scripted_peer import Peer, udp_peer

HOST = "127.0.0.1"
CODECS: dict[str, tuple[type[Encoder], type[Decoder]]] = {
    "pcmu": (PcmuEncoder, PcmuDecoder),
    "pcma": (PcmaEncoder, PcmaDecoder),
    "g722": (G722Encoder, G722Decoder),
    "opus": (OpusEncoder, OpusDecoder),
}
HEARD_S = 0.2
"""Of a tone, to be told from others."""


def ends_with(pcm: np.ndarray, hz: float) -> bool:
    """Its last 0.2 s, at 16 kHz, are this tone."""
    last = pcm[-round(HEARD_S * RATE_IN) :]
    if len(last) < round(HEARD_S * RATE_IN) or level(last) < 1000:
        return False
    return abs(frequency(last) - hz) < 8


def hears(talk: Talk, hz: float = THEIR_TONE) -> bool:
    """Our side, at this moment."""
    return ends_with(talk.sound, hz)


class Sound:
    """One UDP socket that says a tone when told to, and keeps what it receives."""

    def __init__(self, codec: str = "pcmu", payload_type: int = 0, ptime_ms: int = 20) -> None:
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.setblocking(False)
        self.sock.bind((HOST, 0))
        self.port = self.sock.getsockname()[1]
        self.remote = (HOST, 9)
        self.codec, self.payload_type, self.ptime_ms = codec, payload_type, ptime_ms
        self.ssrc, self.number, self.timestamp = 0xFA40000 + self.port, 1000, 160_000
        self.received: list[tuple[float, RtpPacket]] = []
        """With when it came."""
        self.rtcp: list[tuple[bytes, int]] = []
        """With the port it came from."""
        self._encoder: Encoder = CODECS[codec][0]()
        self._phase = 0
        asyncio.get_running_loop().add_reader(self.sock, self._read)

    def _read(self) -> None:
        data, source = self.sock.recvfrom(2048)
        if 192 <= data[1] <= 223:
            self.rtcp.append((data, source[1]))
        else:
            self.received.append((monotonic(), RtpPacket.parse(data)))

    def read_all(self) -> None:
        """Read what has come and was not read yet: a busy machine reads a packet a round."""
        with suppress(BlockingIOError):
            while True:
                self._read()

    def use(self, codec: str, payload_type: int) -> None:
        """From the next packet on."""
        self.codec, self.payload_type = codec, payload_type
        self._encoder = CODECS[codec][0]()

    def sdp(
        self,
        formats: str = "0",
        *lines: str,
        host: str = HOST,
        port: int | None = None,
        version: int = 1,
        protocol: str = "RTP/AVP",
        direction: str = "sendrecv",
    ) -> str:
        """An offer or an answer. `lines`: more of the stream, as "a=ptime:30"."""
        text = [
            "v=0",
            f"o=- 7 {version} IN IP4 {HOST}",
            "s=-",
            f"c=IN IP4 {host}",
            "t=0 0",
            f"m=audio {self.port if port is None else port} {protocol} {formats}",
            *lines,
            f"a={direction}",
        ]
        return "\r\n".join(text) + "\r\n"

    def aim(self, sdp: str) -> None:
        """At the sound of this description."""
        self.remote = HOST, int(re.search(r"m=audio (\d+)", sdp)[1])  # type: ignore[index]

    # --- out ---

    def packet(self, hz: float = THEIR_TONE) -> RtpPacket:
        """The next of a tone."""
        count = RATE_OUT * self.ptime_ms // 1000
        angles = 2 * np.pi * hz / RATE_OUT * (np.arange(count) + self._phase)
        self._phase += count
        self.number += 1
        ticks = self._encoder.clock_rate * self.ptime_ms // 1000
        self.timestamp += ticks
        payload = self._encoder.encode((8000 * np.sin(angles)).astype(np.int16))
        return RtpPacket(
            self.payload_type,
            self.number & 0xFFFF,
            self.timestamp & 0xFFFF_FFFF,
            self.ssrc,
            payload,
        )

    def send(self, packet: RtpPacket) -> None:
        self.sock.sendto(packet.serialize(), self.remote)

    async def says(self, seconds: float = 0.4, hz: float = THEIR_TONE) -> None:
        """A tone, at the pace of sound."""
        await self.sends(self.packet(hz) for _ in range(round(seconds * 1000 / self.ptime_ms)))

    async def is_heard(self, talk: Talk, hz: float = THEIR_TONE) -> None:
        """Says a tone until our side hears it."""
        async with asyncio.timeout(HANGS_S):
            await self.says(hz=hz)
            while not hears(talk, hz):
                await self.says(hz=hz)

    async def sends(self, packets: Iterable[RtpPacket | None]) -> None:
        """One each packet time; None: that one is not sent."""
        start = monotonic()
        for count, packet in enumerate(packets, 1):
            if packet is not None:
                self.send(packet)
            await asyncio.sleep(max(0.0, start + count * self.ptime_ms / 1000 - monotonic()))

    def key(self, code: int, payload_type: int, ends: int = 3, marker: bool = True) -> None:
        """Press one as RFC 4733 says, all packets at once."""
        start = self.timestamp + 160
        for step in range(1, 4 + ends):
            self.number += 1
            end = 0x80 if step > 3 else 0
            duration = 160 * min(step, 3)
            payload = bytes([code, end | 10, duration >> 8, duration & 0xFF])
            self.send(
                RtpPacket(
                    payload_type,
                    self.number & 0xFFFF,
                    start,
                    self.ssrc,
                    payload,
                    marker and step == 1,
                )
            )
        self.timestamp = start + 480

    # --- in ---

    def packets(self, since: float = 0.0) -> list[RtpPacket]:
        return [packet for at, packet in self.received if at >= since]

    def heard(self, since: float = 0.0, codec: str = "") -> np.ndarray:
        """The sound of what came."""
        decoder = CODECS[codec or self.codec][1]()
        pieces = [decoder.decode(packet.payload) for packet in self.packets(since)]
        return np.concatenate(pieces) if pieces else np.zeros(0, np.int16)

    def hears(self, hz: float = OUR_TONE, since: float = 0.0, codec: str = "") -> bool:
        return ends_with(self.heard(since, codec), hz)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self.sock)
        self.sock.close()


async def talk_with(sip: SipEndpoint, host: ToneHost, far: Peer) -> Talk:
    """What our side has of the call with this far end, where there are several."""
    legs = [call.leg for call in sip.calls.values() if call.session.call_id == far.call_id]
    async with asyncio.timeout(HANGS_S):
        while not (found := [talk for talk in host.talks if talk.leg in legs]):
            await asyncio.sleep(0.005)
    return found[0]


async def at_once(cases: Iterable[tuple[object, ...]], run: Callable[..., Awaitable[None]]) -> None:
    """Calls side by side, as sound takes its time; what goes wrong says in which of them."""
    cases = list(cases)
    done = await asyncio.gather(*(run(*case) for case in cases), return_exceptions=True)
    for case, error in zip(cases, done, strict=True):
        if isinstance(error, Exception):
            raise AssertionError(f"with {case}: {error}") from error


@contextmanager
def sound(codec: str = "pcmu", payload_type: int = 0, ptime_ms: int = 20) -> Iterator[Sound]:
    line = Sound(codec, payload_type, ptime_ms)
    try:
        yield line
    finally:
        line.close()


class Call:
    """One with our endpoint."""

    def __init__(self, far: Peer, line: Sound, talk: Talk, answer: str) -> None:
        self.far, self.line, self.talk = far, line, talk
        self.answer = answer
        """Our SDP."""

    @property
    def statistics(self) -> LegStatistics:
        return self.talk.leg.statistics()


@asynccontextmanager
async def in_a_call(
    edge: tuple[SipEndpoint, ToneHost],
    formats: str = "0",
    *lines: str,
    codec: str = "pcmu",
    ptime_ms: int = 20,
    host: str = HOST,
) -> AsyncIterator[Call]:
    """`formats` and `lines` are of the far end's offer."""
    async with udp_peer(edge[0]) as far:
        with sound(codec, int(formats.split()[0]), ptime_ms) as line:
            answer = await far.call(line.sdp(formats, *lines, host=host))
            line.aim(answer)
            yield Call(far, line, await talk_with(*edge, far), answer)
            await far.hang_up()
