"""How long a server takes to send sound back, measured by the same two clients for every server.

At the packets: from when the packet that holds the onset of a chirp is sent to when the first
packet arrives whose decoded sound holds it. Counted are both ways over loopback, the server's
jitter buffer, decoder, echo, playout, pacing and encoder; not the client's own buffer or codec.

At the ears, as an application on aiortc would have it: from when the client's track gives the
chirp's frame to when its receiving track gives it back, with aiortc's encoder, its jitter buffer
of 80 ms and its decoder on top of the former.
"""

import asyncio
import fractions
import time
from collections.abc import Callable
from urllib.parse import urljoin

import aiohttp
import numpy as np
from aiortc import MediaStreamTrack, RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError
from av import AudioFrame

from benchmarks.callers.browsers import CONNECT_S, PING_S, ReplayLeg
from benchmarks.speech.lines import encode, opus
from benchmarks.speech.recordings import Packets
from offhook.media.clock_io import PacketClock
from offhook.media.codecs.codec import CodecError
from offhook.media.codecs.opus import OpusDecoder
from offhook.media.pcm import RATE_OUT, SAMPLES_IN, SAMPLES_OUT, Pcm
from offhook.media.rtp.rtp import RtpError, RtpPacket
from offhook.signaling.peer_io import use_addresses

PERIOD_TICKS = 73
"""From chirp to chirp: 1.46 s, so that none is taken for the echo of another."""
CHIRP_TICK = 40
LOUD = 3000
"""The chirp peaks at 20000, everything else is silent."""
WARM_UP_S = 4.0
_NOTHING = np.zeros(SAMPLES_IN, np.int16)


def chirp(rate: int) -> Pcm:
    """10 ms of 1 kHz at full strength from its first sample on, then 10 ms of silence."""
    t = np.arange(rate // 100) / rate
    pcm = np.zeros(rate // 50, np.int16)
    pcm[: len(t)] = 20_000 * np.cos(2 * np.pi * 1000 * t)
    return pcm


def _period() -> Packets:
    sound = np.zeros(PERIOD_TICKS * SAMPLES_OUT, np.int16)
    sound[CHIRP_TICK * SAMPLES_OUT :][:SAMPLES_OUT] = chirp(RATE_OUT)
    return encode(sound, opus())


class Onsets:
    """Pairs each chirp sent with the first sound after it."""

    def __init__(self) -> None:
        self.round_trips_ms: list[float] = []
        self._sent: float | None = None

    def sent(self, now: float) -> None:
        self._sent = now

    def heard(self, now: float) -> None:
        if self._sent is not None:
            self.round_trips_ms.append((now - self._sent) * 1000)
            self._sent = None


class PacketClient(ReplayLeg):
    """Measures at the packets."""

    def __init__(self) -> None:
        super().__init__("echo")
        self.onsets = Onsets()
        self._payloads = _period()
        self._decoder = OpusDecoder()

    def receive_rtp(self, data: bytes, now: float) -> None:
        try:
            packet = RtpPacket.parse(data)
            pcm = self._decoder.decode(packet.payload)
        except (RtpError, CodecError):
            return
        self.last_packet_at = now
        self._rtcp.receive_rtp(packet.ssrc, packet.sequence_number, packet.timestamp, now)
        if np.abs(pcm).max() > LOUD:
            self.onsets.heard(time.perf_counter())

    def _receive(self, now: float) -> Pcm:
        return _NOTHING

    def _send(self, said: Pcm | None, now: float) -> None:
        if not self._opened:
            return
        tick = self.ticks % PERIOD_TICKS
        self._replay.payload = self._payloads[tick]
        if tick == CHIRP_TICK:
            self.onsets.sent(time.perf_counter())
        super()._send(said, now)

    def ping(self) -> None:
        if self.messages.channel is not None and self.messages.channel.readyState == "open":
            self.messages.channel.send("ping")


class ChirpTrack(MediaStreamTrack):
    kind = "audio"

    def __init__(self, onsets: Onsets) -> None:
        super().__init__()
        self._onsets = onsets
        self._tick = 0
        self._start = time.time()
        self._chirp, self._silence = chirp(48_000), np.zeros(960, np.int16)

    async def recv(self) -> AudioFrame:
        wait = self._start + self._tick * 0.02 - time.time()
        if wait > 0:
            await asyncio.sleep(wait)
        sounds = self._tick % PERIOD_TICKS == CHIRP_TICK
        if sounds:
            self._onsets.sent(time.perf_counter())
        sound = self._chirp if sounds else self._silence
        frame = AudioFrame.from_ndarray(sound[None, :], layout="mono")
        frame.sample_rate, frame.pts = 48_000, self._tick * 960
        frame.time_base = fractions.Fraction(1, 48_000)
        self._tick += 1
        return frame


async def at_the_packets(url: str, seconds: float) -> list[float]:
    """Round trips in ms. Raises TimeoutError when there is no connection."""
    use_addresses(["127.0.0.1"])
    leg, clock = PacketClient(), PacketClock()
    try:
        await leg.accept(await _answer(url, await leg.offer()))
        async with asyncio.timeout(CONNECT_S):
            if not await leg.until_connected():
                raise TimeoutError
        clock.add(leg)
        return await _collect(leg.onsets, leg.ping, seconds)
    finally:
        clock.remove(leg)
        await leg.hang_up("done")


async def at_the_ears(url: str, seconds: float) -> list[float]:
    """Round trips in ms."""
    use_addresses(["127.0.0.1"])
    peer, onsets = RTCPeerConnection(), Onsets()
    drains = []

    async def drain(track: MediaStreamTrack) -> None:
        try:
            while True:
                frame = await track.recv()
                if np.abs(frame.to_ndarray()).max() > LOUD:  # type: ignore[union-attr]
                    onsets.heard(time.perf_counter())
        except MediaStreamError:
            pass

    def ping() -> None:
        if channel.readyState == "open":
            channel.send("ping")

    peer.on("track", lambda track: drains.append(asyncio.ensure_future(drain(track))))
    peer.addTrack(ChirpTrack(onsets))
    channel = peer.createDataChannel("chat")
    try:
        await peer.setLocalDescription(await peer.createOffer())
        answer = await _answer(url, peer.localDescription.sdp)
        await peer.setRemoteDescription(RTCSessionDescription(answer, "answer"))
        return await _collect(onsets, ping, seconds)
    finally:
        await peer.close()


async def _answer(url: str, sdp: str) -> str:
    async with (
        aiohttp.ClientSession() as http,
        http.post(urljoin(url, "/api/offer"), json={"sdp": sdp, "type": "offer"}) as response,
    ):
        return str((await response.json())["sdp"])


async def _collect(onsets: Onsets, ping: Callable[[], None], seconds: float) -> list[float]:
    """The round trips of so many seconds, without those of the start."""
    for second in range(round(WARM_UP_S + seconds)):
        if second == round(WARM_UP_S):
            onsets.round_trips_ms.clear()
        await asyncio.sleep(PING_S)
        ping()
    return onsets.round_trips_ms
