"""A caller by SIP: its own RTP socket, and signalling shared by all phones of the process."""

import asyncio
from random import Random
from time import monotonic, time

from benchmarks.callers.caller import Caller
from benchmarks.callers.rtp import CLOCK_RATE, TICKS, RtpSocket, offer
from benchmarks.callers.signalling import Signalling
from offhook.media.codecs.g711 import PcmuDecoder
from offhook.media.rtp.rtp import uint16_diff, uint32_diff
from offhook.media.rtp.telephone_event import EventSender
from offhook.media.telephone_tones.dtmf import DtmfQueue
from offhook.telephony.sip.messages import sdp
from offhook.telephony.sip.sessions.session import Session
from offhook.telephony.sip.sessions.session_events import Answered, Ended, OfferReceived
from offhook.web.app.callers.way import Way

ANSWER_S = 10.0
EVENTS = 101
"""Payload type of telephone events in `rtp.offer`."""


class PhoneCall:
    """One call; `Pace` ticks it."""

    def __init__(self, caller: Caller, way: Way, chance: Random, signalling: Signalling) -> None:
        self._caller, self._way = caller, way
        self._signalling = signalling
        self._socket = RtpSocket(chance, signalling.host)
        self._decoder = PcmuDecoder()
        self._first: int | None = None
        """Timestamp of the first packet."""
        self._sequence = 0
        self._dropped = 0
        """Of the packets since the last one received."""
        self._keys, self._events = DtmfQueue(), EventSender(CLOCK_RATE)
        self._session: Session | None = None
        self._remote = "", 0
        """Where the server's sound comes from."""
        self._heard_at = 0.0
        """Arrival of the last packet."""
        self._changed = asyncio.Event()
        self._up = False
        self.closed = False
        """Whether the server has hung up."""
        self.status = 408

    async def connect_to(self, server: tuple[str, int]) -> bool:
        """Returns False if the server refuses; `status` says why."""
        sdp_offer = offer(self._socket.port, self._signalling.host)
        number = self._caller.record.number
        self._session = self._signalling.place(server, sdp_offer, self._receive_event, number)
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._changed.wait()
        except TimeoutError:
            self._signalling.hang_up(self._session)
        return self._up

    def _receive_event(self, event: object) -> None:
        match event:
            case Answered(str(text)):
                self._connect(text)
                self._up = True
            case OfferReceived(str(text)) if self._session is not None:
                self._connect(text)
                answer = offer(self._socket.port, self._signalling.host)
                self._signalling.answer(self._session, answer)
                return
            case Ended(status, _, _):
                self.status, self.closed = status, True
            case _:
                return
        self._changed.set()

    def _connect(self, description: str) -> None:
        media = sdp.parse(description).resolved()[0]
        assert media.connection is not None
        remote = media.connection, media.port
        if self._up and remote != self._remote:  # another server has the call
            self._caller.record.moved_ms = round((monotonic() - self._heard_at) * 1000, 1)
            self._caller.ear.expect_reply()
            self._first = None
        self._socket.connect(remote)
        self._remote = remote

    def tick(self) -> None:
        """Sends 20 ms and receives what has arrived."""
        now = monotonic()
        wall = time() - now
        for sequence, timestamp, payload, arrived in self._socket.receive():
            self._receive(sequence, timestamp, payload, arrived - wall)
        payload = self._caller.step(now)
        if self._caller.key:
            self._keys.press(self._caller.key)
            self._caller.key = ""
        key = self._keys.tick() if self._keys.busy else None
        event = self._events.tick(key, self._socket.timestamp + TICKS) if key is not None else None
        if event is None:
            packet = self._socket.packet(payload)
        else:
            packet = self._socket.packet(event.payload, EVENTS, event.timestamp, event.marker)
        if self._way.loses():
            self._caller.lose()
        elif (delay := self._way.delay_s()) > 0:
            asyncio.get_running_loop().call_later(delay, self._socket.send, packet)
        else:
            self._socket.send(packet)

    def _receive(self, sequence: int, timestamp: int, payload: bytes, arrived: float) -> None:
        ear, self._heard_at = self._caller.ear, arrived
        if self._way.loses():
            self._dropped += 1
            ear.dropped += 1
            return
        if self._first is None:
            self._first = timestamp
        elif (absent := uint16_diff(sequence, self._sequence) - 1) > 0:
            ear.skip(absent, min(absent, self._dropped), self._decoder, payload)
        self._sequence, self._dropped = sequence, 0
        at = uint32_diff(timestamp, self._first) / CLOCK_RATE
        ear.receive(self._decoder.decode(payload), at, arrived + self._way.delay_s())

    async def run(self) -> bool:
        """Runs until the caller or the server hangs up; returns whether it was the server."""
        while not self._caller.over:
            if self.closed:
                return True
            await asyncio.sleep(0.1)
        return False

    def close(self) -> None:
        if self._session is not None and not self.closed:
            self._signalling.hang_up(self._session)
        self._socket.close()
