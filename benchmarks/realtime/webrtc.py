"""One caller by WebRTC: how soon the agent's sound is cleared where the caller cuts in."""

import asyncio
import fractions
import json
import time
from collections import deque

import aiohttp
import numpy as np
from aiortc import RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import AudioStreamTrack
from av import AudioFrame

from offhook.media.pcm import PACKET_MS, RATE_OUT, SAMPLES_OUT, Pcm
from offhook.signaling.peer_io import use_addresses

WAIT_S = 30.0


class Microphone(AudioStreamTrack):
    """Sends what is to be said, else silence."""

    def __init__(self) -> None:
        super().__init__()
        self.to_say: deque[Pcm] = deque()
        self.onset_at = self.spoken_at = 0.0
        self._began = 0.0
        self._packets = 0

    async def recv(self) -> AudioFrame:
        now = time.monotonic()
        self._began = self._began or now
        await asyncio.sleep(max(0.0, self._began + self._packets * PACKET_MS / 1000 - now))
        pcm = np.zeros(SAMPLES_OUT, np.int16)
        if self.to_say:
            pcm = self.to_say.popleft()
            self.spoken_at = time.monotonic()
            self.onset_at = self.onset_at or self.spoken_at
        frame = AudioFrame.from_ndarray(pcm.reshape(1, -1), "s16", "mono")
        frame.sample_rate, frame.pts = RATE_OUT, self._packets * SAMPLES_OUT
        frame.time_base = fractions.Fraction(1, RATE_OUT)
        self._packets += 1
        return frame

    def say(self, pcm: Pcm) -> None:
        self.onset_at = 0.0
        whole = len(pcm) // SAMPLES_OUT * SAMPLES_OUT
        self.to_say.extend(pcm[:whole].reshape(-1, SAMPLES_OUT))


class WebRtcCaller:
    def __init__(self) -> None:
        use_addresses(["127.0.0.1"])
        self.microphone = Microphone()
        self._pc = RTCPeerConnection()
        self._pc.addTrack(self.microphone)
        self._channel = self._pc.createDataChannel("oai-events")
        self._events: asyncio.Queue[tuple[str, float]] = asyncio.Queue()
        self._channel.on("message", self._arrived)

    def _arrived(self, text: str) -> None:
        self._events.put_nowait((json.loads(text)["type"], time.monotonic()))

    async def call(self, url: str) -> float:
        """Returns the ms from the beginning to session.created."""
        began = time.monotonic()
        await self._pc.setLocalDescription(await self._pc.createOffer())
        headers = {"Content-Type": "application/sdp"}
        async with aiohttp.ClientSession(headers=headers) as http:
            data = self._pc.localDescription.sdp
            async with http.post(f"{url}/v1/realtime/calls", data=data) as response:
                answer = await response.text()
        await self._pc.setRemoteDescription(RTCSessionDescription(answer, "answer"))
        return (await self.until("session.created") - began) * 1000

    async def until(self, kind: str) -> float:
        async with asyncio.timeout(WAIT_S):
            while True:
                name, at = await self._events.get()
                if name == kind:
                    return at

    def send(self, **event: object) -> None:
        self._channel.send(json.dumps(event))

    async def close(self) -> None:
        await self._pc.close()
