"""Callers as a child of a benchmark: they speak lines encoded beforehand, and judge what comes back
packet by packet, at about a tenth of what a whole client costs.

    listening      lines and pauses of a second, whatever the agent does
    talking        a line, its reply heard to the end, the next line
    interrupting   as talking, but every other reply is cut by the next line

On standard input, a line "measure" starts the counts anew and a line "report" asks for them; the
calls hang up when it closes.
"""

import argparse
import asyncio
import json
import time
from dataclasses import asdict, dataclass, field
from enum import Enum, auto
from random import Random
from typing import Any, Literal
from urllib.parse import urljoin

import aiohttp
import numpy as np

from benchmarks.processes.process import OwnCost, input_lines, say
from benchmarks.speech.lines import caller_lines, encode, opus, quiet_room
from benchmarks.speech.recordings import TICKS, Packets
from offhook.media.clock_io import PacketClock
from offhook.media.codecs.codec import CodecError
from offhook.media.codecs.opus import OpusDecoder, OpusEncoder
from offhook.media.end_reason import EndReason
from offhook.media.leg import LegListener
from offhook.media.pcm import RATE_IN, SAMPLES_IN, Pcm
from offhook.media.rtp.rtp import RtpError, RtpPacket, uint16_diff, uint32_add, uint32_diff
from offhook.media.rtp.sender import AudioSender
from offhook.signaling.peer_io import PeerLeg, use_addresses
from offhook.web.config.config import Log
from offhook.web.http.logs_io import set_up
from offhook.web.http.loop_io import run

Manner = Literal["listening", "talking", "interrupting"]

CONNECT_S = 15
CONNECT_EVERY_S = 0.1
RETRY_S = 1.0
REFUSED_S = 20.0
"""Time in s for which refused callers retry, since servers may refuse bursts."""
PING_S = 1
STAGGER_S = 6
"""Callers start within this time in s, each at its own moment."""
LISTENING_PAUSE_S = 1.0
PATIENCE_S = 5
"""Time in s within which a reply must start."""
REPLY_PAUSE_S = 0.5
"""Silence in s after which the agent has finished; shorter silence is a gap."""
HOLE_S = 0.010
PUNCTUAL = 0.1
"""Share of a reply's packets that are as punctual as it is: what comes earlier was sent ahead, as
before the server collects garbage, and makes the others no later."""
EARLY_MS = 5
LOUD = 1000
"""Peak threshold: the agent's buzz exceeds it in every 5 ms, silence and coding noise never do."""
BLOCK = RATE_IN * 5 // 1000
CLOCK_RATE = 48_000


@dataclass
class CallCounters:
    """What one process's callers have observed since the last "measure"."""

    packets: int = 0
    missing: int = 0
    """Sequence numbers never received."""
    speech_packets: int = 0
    holes: int = 0
    """Silences within the agent's speech, sent or caused by missing packets."""
    late_ms: list[float] = field(default_factory=list)
    """Lateness of every speech packet, by its timestamp, relative to the punctual ones of its
    reply."""
    early: int = 0
    """Speech packets that came more than EARLY_MS before these."""
    lines: int = 0
    """Lines known to be answered or not."""
    answered: int = 0
    response_ms: list[float] = field(default_factory=list)
    """Time in ms from the last packet of a line to the first with audio of the reply."""
    interruptions: int = 0
    hung_up: int = 0
    """Calls ended by the server."""


class AgentSound:
    """The agent's audio as heard by one call."""

    def __init__(self, counts: CallCounters) -> None:
        self.counts = counts
        self.began_at = 0.0
        """Arrival of the first packet of the last reply."""
        self.loud_at = 0.0
        """Arrival of the last packet with sound."""
        self._decoder = OpusDecoder()
        self._first: RtpPacket | None = None
        self._sequence: int | None = None
        self._loud_until = -1.0
        self._transits: list[float] = []

    def receive(self, packet: RtpPacket, now: float) -> None:
        counts = self.counts
        counts.packets += 1
        if self._first is None:
            self._first = packet
        if self._sequence is not None:
            counts.missing += max(0, uint16_diff(packet.sequence_number, self._sequence) - 1)
        self._sequence = packet.sequence_number
        try:
            pcm = self._decoder.decode(packet.payload)
        except CodecError:
            return
        peaks = np.abs(pcm[: len(pcm) // BLOCK * BLOCK]).reshape(-1, BLOCK).max(axis=1)
        loud = np.flatnonzero(peaks > LOUD)
        if len(loud):
            start = uint32_diff(packet.timestamp, self._first.timestamp) / CLOCK_RATE
            self._speech(start, loud, now)

    def _speech(self, start: float, loud: Any, now: float) -> None:
        """Handles a packet with sound in the blocks `loud`; `start` is its timestamp in s."""
        counts, block = self.counts, BLOCK / RATE_IN
        if start + loud[0] * block - self._loud_until > REPLY_PAUSE_S:
            self.end_reply()
            self.began_at = now
        else:
            starts = start + loud * block
            silences = starts - np.concatenate(([self._loud_until], starts[:-1] + block))
            counts.holes += int(np.count_nonzero(silences >= HOLE_S - 1e-6))
        counts.speech_packets += 1
        self._loud_until = start + (loud[-1] + 1) * block
        self.loud_at = now
        self._transits.append(now - start)

    def end_reply(self) -> None:
        if self._transits:
            transits = np.array(self._transits)
            late = (transits - np.quantile(transits, PUNCTUAL)) * 1000
            self.counts.late_ms += np.maximum(late, 0).round(1).tolist()
            self.counts.early += int(np.count_nonzero(late < -EARLY_MS))
            self._transits.clear()


class Replay(AudioSender):
    """Sends pre-encoded payloads, one per tick."""

    payload = b""

    def tick(self, pcm: Pcm | None, now: float) -> None:
        self.timestamp = uint32_add(self.timestamp, TICKS)
        self.timestamp_at = now
        self._send_audio(self.payload)


class ReplayLeg(PeerLeg):
    """A peer that sends pre-encoded payloads."""

    _replay: Replay
    pc_id = ""
    """Names the call, once connected, in a later offer that goes on with it at another server."""
    answered_as = ""
    """The server's name of the call; it begins with the number of the process that has it."""

    def _open(self, *arguments: Any, **named: Any) -> None:
        super()._open(*arguments, **named)
        assert self._codec == "opus"
        old = self._sender
        self._sender = self._replay = Replay(
            OpusEncoder(), old._payload_type, old.ssrc, self._send_rtp
        )
        if self._format.events_out is not None:
            self._replay.use_events(*self._format.events_out)

    async def call(self, http: aiohttp.ClientSession, url: str, resumed: str = "") -> int:
        """Connects and returns 200, or the status with which the server refuses; `resumed` is the
        `pc_id` of a call to go on with. Raises TimeoutError without a connection."""
        offer: dict[str, object] = {"sdp": await self.offer(), "type": "offer"}
        if resumed:
            offer |= {"pc_id": resumed, "restart_pc": True}
        async with http.post(urljoin(url, "/api/offer"), json=offer) as response:
            if response.status != 200:
                return response.status
            answer = await response.json()
        await self.accept(answer["sdp"])
        self.answered_as = answer["pc_id"]
        self.pc_id = answer["pc_id"] if answer.get("resumable") else ""
        async with asyncio.timeout(CONNECT_S):
            if not await self.until_connected():
                raise TimeoutError
        about = {"version": "2.1.0", "about": {"library": "offhook bench"}}
        ready = {"label": "rtvi-ai", "type": "client-ready", "id": "1", "data": about}
        self.send_message(json.dumps(ready))
        return 200

    def receive_rtp(self, data: bytes, now: float) -> None:
        try:
            packet = RtpPacket.parse(data)
        except RtpError:
            self.malformed_packets += 1
            return
        self.last_packet_at = now
        self._rtcp.receive_rtp(packet.ssrc, packet.sequence_number, packet.timestamp, now)
        self.receive_packet(packet, now)

    def receive_packet(self, packet: RtpPacket, now: float) -> None:
        """Takes a packet of the server, as it came."""

    def ping(self) -> None:
        """Sends the ping that web clients send every second; without it a stock server mutes the
        agent."""
        if self.messages.channel is not None and self.messages.channel.readyState == "open":
            self.messages.channel.send(f"ping: {time.time_ns() // 1_000_000}")


class _State(Enum):
    PAUSING = auto()
    SAYING = auto()
    WAITING = auto()
    HEARING = auto()


class LoadLeg(ReplayLeg):
    """A call of the load; `lines` and `silence` are payloads."""

    def __init__(
        self,
        number: int,
        manner: Manner,
        lines: list[Packets],
        silence: Packets,
        counts: CallCounters,
    ) -> None:
        super().__init__(f"load {number}")
        self.sound = AgentSound(counts)
        self._random = Random(number)
        self._manner = manner
        self._lines, self._silence = lines, silence
        self._state = _State.PAUSING
        self._until = 0.0
        """End of the state by time alone; 0 before the first tick."""
        self._left: list[bytes] = []
        self._line_ended = 0.0

    def receive_packet(self, packet: RtpPacket, now: float) -> None:
        self.sound.receive(packet, now)

    def _receive(self, now: float) -> Pcm:
        return _NOTHING

    def _send(self, said: Pcm | None, now: float) -> None:
        if self._opened:
            self._replay.payload = self._step(now)
            super()._send(said, now)

    def _step(self, now: float) -> bytes:
        """Advances the caller by 20 ms and returns its payload."""
        sound, counts = self.sound, self.sound.counts
        if not self._until:
            self._until = now + self._random.uniform(0, STAGGER_S)
        match self._state:
            case _State.PAUSING if now >= self._until:
                self._begin_line()
            case _State.WAITING if sound.loud_at > self._line_ended:
                counts.lines += 1
                counts.answered += 1
                counts.response_ms.append(max(0.0, sound.began_at - self._line_ended) * 1000)
                self._state = _State.HEARING
                cut = self._manner == "interrupting" and self._random.random() < 0.5
                self._until = now + self._random.uniform(0.5, 2.5) if cut else float("inf")
            case _State.WAITING if now >= self._until:
                counts.lines += 1
                self._pause(now)
            case _State.HEARING if now - sound.loud_at > REPLY_PAUSE_S:
                sound.end_reply()
                self._pause(now)
            case _State.HEARING if now >= self._until:
                counts.interruptions += 1
                self._begin_line()
        if self._state is not _State.SAYING:
            return self._silence[self.ticks % len(self._silence)]
        payload = self._left.pop()
        if not self._left:
            self._end_line(now)
        return payload

    def _begin_line(self) -> None:
        self._left = list(reversed(self._random.choice(self._lines)))
        self._state = _State.SAYING

    def _end_line(self, now: float) -> None:
        if self._manner == "listening":
            self._pause(now, LISTENING_PAUSE_S)
        else:
            self._line_ended = now
            self._state, self._until = _State.WAITING, now + PATIENCE_S

    def _pause(self, now: float, seconds: float = 0.0) -> None:
        self._state, self._until = _State.PAUSING, now + seconds


_NOTHING = np.zeros(SAMPLES_IN, np.int16)


class Load(LegListener):
    """The calls of this process."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._clock = PacketClock()
        self._legs: list[LoadLeg] = []
        self._own = OwnCost()
        self.counts = CallCounters()
        self.refusals = 0
        """Attempts that were refused or did not connect; each is retried."""

    async def place(self, first: int, calls: int, manner: Manner) -> int:
        """Returns how many calls connected."""
        said = [encode(pcm, opus()) for pcm in await caller_lines()]
        quiet = encode(quiet_room(), opus())
        give_up = time.monotonic() + calls * CONNECT_EVERY_S + REFUSED_S
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(CONNECT_S)) as http:
            for number in range(first, first + calls):
                leg = LoadLeg(number, manner, said, quiet, self.counts)
                while not await self._connected(leg, http):
                    if time.monotonic() > give_up:
                        return len(self._legs)
                    self.refusals += 1
                    await asyncio.sleep(RETRY_S)
                    leg = LoadLeg(number, manner, said, quiet, self.counts)
                await asyncio.sleep(CONNECT_EVERY_S)
        return len(self._legs)

    async def _connected(self, leg: LoadLeg, http: aiohttp.ClientSession) -> bool:
        try:
            taken = await leg.call(http, self._url) == 200
        except (TimeoutError, aiohttp.ClientError):
            taken = False
        if not taken:
            await leg.hang_up("refused")
            return False
        self._legs.append(leg)
        leg.listener = self
        self._clock.add(leg)
        return True

    def on_closed(self, reason: EndReason) -> None:
        self.counts.hung_up += 1

    def measure(self) -> None:
        self.counts = CallCounters()
        for leg in self._legs:
            leg.sound.end_reply()
            leg.sound.counts = self.counts
        self._own.begin()

    def report(self) -> dict[str, Any]:
        for leg in self._legs:
            leg.sound.end_reply()
        return {"counts": asdict(self.counts), "own": self._own.read()}

    async def keep(self) -> None:
        """Sends pings and measures lag until cancelled."""
        watching = asyncio.create_task(self._own.watch())
        try:
            while True:
                await asyncio.sleep(PING_S)
                for leg in self._legs:
                    leg.ping()
        finally:
            watching.cancel()

    async def hang_up(self) -> None:
        for leg in self._legs:
            leg.listener = LegListener()
            self._clock.remove(leg)
        await asyncio.gather(*(leg.hang_up("goodbye") for leg in self._legs))


async def work(url: str, first: int, calls: int, manner: Manner) -> None:
    use_addresses(["127.0.0.1"])
    load = Load(url)
    keeping = asyncio.create_task(load.keep())
    try:
        connected = await load.place(first, calls, manner)
        say({"connected": connected, "refusals": load.refusals})
        reader = await input_lines()
        while line := await reader.readline():
            if line.strip() == b"measure":
                load.measure()
            elif line.strip() == b"report":
                say(load.report())
    finally:
        keeping.cancel()
        await load.hang_up()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--calls", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first call")
    parser.add_argument(
        "--manner", choices=("listening", "talking", "interrupting"), default="talking"
    )
    arguments = parser.parse_args()
    set_up(Log(level="WARNING"))
    run(work(arguments.url, arguments.first, arguments.calls, arguments.manner))


if __name__ == "__main__":
    main()
