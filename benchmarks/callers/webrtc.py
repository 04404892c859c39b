"""A caller from a browser: a light WebRTC peer that sends lines encoded beforehand."""

import asyncio
import json
from collections.abc import Callable
from random import Random
from time import monotonic

import aiohttp

from benchmarks.callers.browsers import CLOCK_RATE, ReplayLeg
from benchmarks.callers.caller import Caller
from offhook.media.codecs.codec import CodecError
from offhook.media.codecs.opus import OpusDecoder
from offhook.media.leg import LegListener
from offhook.media.pcm import Pcm
from offhook.media.rtp.rtp import RtpPacket, uint16_diff, uint32_diff
from offhook.web.app.callers.twilio.webhook_io import Refused
from offhook.web.app.callers.way import Way

SILENT_S = 2.0
"""Time in s without a packet after which the server is gone: in silence it sends two a second."""


class BrowserCall(ReplayLeg, LegListener):
    """One call; `caller` decides what it sends."""

    def __init__(self, caller: Caller, way: Way, chance: Random) -> None:
        super().__init__(caller.record.call)
        self._caller, self._way = caller, way
        self._decoder = OpusDecoder()
        self._first: RtpPacket | None = None
        self._sequence: int | None = None
        self._leaving = False
        """Whether the server has said that it ends."""
        self._dropped = 0
        """Of the packets since the last one received."""
        self.listener = self

    async def connect_to(self, http: aiohttp.ClientSession, url: str, resumed: str) -> None:
        """Raises Refused."""
        try:
            status = await self.call(http, url, resumed)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise Refused(type(error).__name__) from error
        if status != 200:
            raise Refused(str(status))

    # --- sound ---

    def receive_rtp(self, data: bytes, now: float) -> None:
        if self._way.loses():
            self._dropped += 1
            self._caller.ear.dropped += 1
        else:
            super().receive_rtp(data, now)

    def receive_packet(self, packet: RtpPacket, now: float) -> None:
        ear = self._caller.ear
        if self._first is None:
            self._first = packet
        elif self._sequence is not None:
            absent = uint16_diff(packet.sequence_number, self._sequence) - 1
            if absent > 0:
                dropped = min(absent, self._dropped)
                ear.skip(absent, dropped, self._decoder, packet.payload)
        self._sequence, self._dropped = packet.sequence_number, 0
        try:
            pcm = self._decoder.decode(packet.payload)
        except CodecError:
            return
        at = uint32_diff(packet.timestamp, self._first.timestamp) / CLOCK_RATE
        ear.receive(pcm, at, now + self._way.delay_s())

    def _send(self, said: Pcm | None, now: float) -> None:
        if self._opened:
            self._replay.payload = self._caller.step(now)
            if self._caller.key:
                self.send_dtmf(self._caller.key)
                self._caller.key = ""
            super()._send(said, now)

    def _send_rtp(self, packet: bytes) -> None:
        if self._way.loses():
            self._caller.lose()
        elif (delay := self._way.delay_s()) > 0:
            asyncio.get_running_loop().call_later(delay, self._send_late, packet)
        else:
            super()._send_rtp(packet)

    def _send_late(self, packet: bytes) -> None:
        if self.closed is None:
            super()._send_rtp(packet)

    # --- what the server tells ---

    def on_message(self, text: str) -> None:
        message = json.loads(text)
        data = message.get("data") or {}
        match message.get("type"):
            case "user-transcription" if data.get("final"):
                self._caller.receive_transcript(data["text"], monotonic())
            case "server-message" if data.get("type") == "turn-latency":
                self._caller.receive_spans(data.get("spans", []))
            case "server-message" if data.get("type") == "reconnect":
                self._leaving = True

    @property
    def one_way_ms(self) -> float:
        """Half of the round trip measured by RTCP; 0 before the first report."""
        return (self.statistics().round_trip_ms or 0.0) / 2

    async def run(self, start: Callable[["BrowserCall"], None]) -> bool:
        """Runs until the caller or the server hangs up, the sound by the clock that `start` adds it
        to; returns whether it was the server."""
        start(self)
        while not self._caller.over:
            silent_s = monotonic() - self.last_packet_at if self._first is not None else 0.0
            if self.closed is not None or self._leaving or silent_s > SILENT_S:
                return True
            self.ping()
            await asyncio.sleep(0.5)
        return False
