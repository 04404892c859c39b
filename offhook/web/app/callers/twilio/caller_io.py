"""A caller by Twilio Media Streams: what Twilio does for the one call of a phone."""

import base64
from collections import deque
from time import monotonic
from uuid import uuid4

import aiohttp
import numpy as np

from offhook.media.codecs.g711 import PcmuDecoder, PcmuEncoder
from offhook.media.end_reason import End
from offhook.media.leg import Leg
from offhook.media.pcm import PACKET_MS, SAMPLES_IN, SAMPLES_OUT, Pcm
from offhook.web.app.callers.twilio.stream_io import RATE, TwilioStream
from offhook.web.app.callers.twilio.webhook_io import Application, CallFacts
from offhook.web.app.callers.way import Way

PACKET_BYTES = RATE * PACKET_MS // 1000
_SILENCE_IN = np.zeros(SAMPLES_IN, np.int16)
_SILENCE_OUT = np.zeros(SAMPLES_OUT, np.int16)


class _Stream(TwilioStream):
    """Keeps the sound that has come until it is played."""

    def __init__(self, way: Way) -> None:
        ids = uuid4().hex
        super().__init__(CallFacts(f"MZ{ids}", f"CA{ids}"), way)
        self._coming: deque[tuple[float, bytes]] = deque()
        self._arrives = 0.0
        """When the last sound on its way here arrives: TCP keeps the order."""
        self._unplayed = bytearray()

    def receive(self, pcmu: bytes, now: float) -> None:
        self._arrives = max(self._arrives, now + self._way.delay_s())
        self._coming.append((self._arrives, pcmu))
        self.play_until = max(self.play_until, self._arrives) + len(pcmu) / RATE

    def clear(self, now: float) -> None:
        self._coming.clear()
        self._unplayed.clear()
        self.play_until = now

    def play(self, now: float) -> bytes:
        """Returns the sound of the next 20 ms; empty: none has come."""
        while self._coming and self._coming[0][0] <= now:
            self._unplayed += self._coming.popleft()[1]
        packet = bytes(self._unplayed[:PACKET_BYTES])
        del self._unplayed[:PACKET_BYTES]
        return packet


class TwilioCallerLeg(Leg):
    """The phone's side of the stream."""

    def __init__(self, way: Way | None = None) -> None:
        super().__init__("caller")
        self.stream = _Stream(way or Way())
        self._encoder, self._decoder = PcmuEncoder(), PcmuDecoder()

    def _receive(self, now: float) -> Pcm:
        packet = self.stream.play(monotonic())
        if not packet:
            return _SILENCE_IN
        return self._decoder.decode(packet.ljust(PACKET_BYTES, b"\xff"))

    def _send(self, said: Pcm | None, now: float) -> None:
        if self.stream.closed:
            self.close(End.CALLER_HUNG_UP)
            return
        payload = self._encoder.encode(_SILENCE_OUT if said is None else said)
        self.stream.say(base64.b64encode(payload).decode(), monotonic())

    def send_dtmf(self, digits: str) -> None:
        for digit in digits.replace(",", ""):
            self.stream.press(digit, monotonic())

    async def hang_up(self, reason: str) -> None:
        await self.stream.hang_up()
        self.close(reason)


class TwilioCaller:
    """Twilio with one call for a webhook of ours."""

    def __init__(self, webhook: str, secret: str, way: Way | None = None) -> None:
        """`secret` signs its requests, as the account's token does."""
        self.leg = TwilioCallerLeg(way)
        self._application = Application(webhook, secret)
        self._http: aiohttp.ClientSession | None = None

    async def call(self) -> None:
        """Returns once the stream is open. Raises Refused."""
        self._http = aiohttp.ClientSession()
        await self.leg.stream.connect(self._http, self._application)
        self.leg.connect()

    async def close(self) -> None:
        """Ends what belongs to the call beside its leg."""
        if self._http is not None:
            await self._http.close()
