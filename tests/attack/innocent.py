"""Those who use a server while it is attacked: callers, streams of speech, and who asks whether it
is well. A process of its own: what is late here was late at the server.

    python -m tests.attack.innocent call|speak|health URL [PROCESSES]

says a line of JSON once it is there, and for each line on its standard input what it has noticed
since the last one. It ends when that is closed.
"""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import aiohttp
import numpy as np
from loguru import logger

from benchmarks.callers.browsers import AgentSound, CallCounters, ReplayLeg
from benchmarks.processes.process import input_lines, run, say
from offhook.media.clock_io import PacketClock
from offhook.media.codecs.opus import OpusEncoder
from offhook.media.pcm import PACKET_MS, RATE_OUT, Pcm
from offhook.media.rtp.rtp import RtpPacket
from offhook.signaling.peer_io import use_addresses

ADDRESS = "127.0.0.2"
"""From which it speaks HTTP: what one address may have is not taken away by the attackers."""
PROBE_S = 0.1
QUESTION_S = 4.0
"""From one question to the agent to the next."""
QUESTION = "What are your opening hours?"
SENTENCE = "The quick brown fox jumps over the lazy dog, and nobody has seen it since."
AGAIN_S = 0.5
"""From a failure to the next attempt."""
PLACE_S = 40.0
"""In which a call is placed on each process."""
LIMITS = aiohttp.ClientTimeout(total=10)


@dataclass
class Noticed:
    """Since the last look."""

    longest_ms: float = 0.0
    """Between two packets, two chunks of a reply, or of an answer to GET /healthz."""
    answer_ms: float = 0.0
    """The longest from a question to the first sound of the agent's answer."""
    events: int = 0
    """Packets, chunks or answers."""
    lost: int = 0
    """Calls and streams that ended, and requests that failed."""
    why: list[str] = field(default_factory=list)

    def failed(self, why: str) -> None:
        self.lost += 1
        self.why = [*self.why[-3:], why[:100]]


class Watch:
    """Of one call, stream or row of requests."""

    def __init__(self) -> None:
        self.noticed = Noticed()
        self._at = 0.0

    def event(self, waited: bool = True) -> None:
        """Something has come; `waited`: it was due after the last."""
        now = time.monotonic()
        if waited and self._at:
            longest = max(self.noticed.longest_ms, (now - self._at) * 1000)
            self.noticed.longest_ms = round(longest, 1)
        self.noticed.events += 1
        self._at = now

    def look(self) -> Noticed:
        """What goes on without an event counts too."""
        if self._at and self.due:
            waiting = (time.monotonic() - self._at) * 1000
            self.noticed.longest_ms = round(max(self.noticed.longest_ms, waiting), 1)
        noticed, self.noticed = self.noticed, Noticed()
        return noticed

    due = True
    """Whether something is due now."""

    def rest(self) -> None:
        """Nothing is due until the next event."""
        self._at = 0.0


@asynccontextmanager
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(local_addr=(ADDRESS, 0), force_close=True)
    async with aiohttp.ClientSession(connector=connector, timeout=LIMITS) as http:
        yield http


# --- a call ---


class Caller(ReplayLeg):
    """A browser's call. It says nothing, but asks in writing, and hears the agent."""

    silence = OpusEncoder().encode(np.zeros(RATE_OUT * PACKET_MS // 1000, np.int16))

    def __init__(self, watch: Watch) -> None:
        super().__init__("innocent")
        self.watch = watch
        self.sound = AgentSound(CallCounters())
        self._asked = 0.0

    def receive_packet(self, packet: RtpPacket, now: float) -> None:
        self.watch.event()
        self.sound.receive(packet, now)
        if self._asked and self.sound.loud_at > self._asked:
            noticed = self.watch.noticed
            took = (self.sound.loud_at - self._asked) * 1000
            noticed.answer_ms, self._asked = round(max(noticed.answer_ms, took), 1), 0.0

    def _receive(self, now: float) -> Pcm:
        return np.zeros(0, np.int16)

    def _send(self, said: Pcm | None, now: float) -> None:
        if self._opened:
            self._replay.payload = self.silence
            super()._send(said, now)

    def ask(self) -> None:
        """Once the agent has said all of the last answer."""
        now = time.monotonic()
        if now - self.sound.loud_at > 1 and not self._asked:
            self._asked = now
            data = {"content": QUESTION, "options": {"audio_response": True}}
            text = {"label": "rtvi-ai", "type": "send-text", "id": "q", "data": data}
            self.send_message(json.dumps(text))
        elif self._asked and now - self._asked > 2 * QUESTION_S:
            self.watch.noticed.failed("the agent did not answer")
            self._asked = 0.0


async def placed(url: str, clock: PacketClock, watch: Watch, process: str = "") -> Caller:
    """A call that goes on, on the process of that number if it is given."""
    until, why = time.monotonic() + PLACE_S, "no attempt"
    while time.monotonic() < until:
        caller = Caller(watch)
        try:
            async with client() as http:
                status = await caller.call(http, url)
            if status == 200 and (not process or caller.answered_as.startswith(process)):
                clock.add(caller)
                return caller
            why = str(status)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            why = type(error).__name__
        await caller.hang_up("another one")
        await asyncio.sleep(AGAIN_S)
    raise RuntimeError(f"no call in {PLACE_S:g} s: {why}")


async def call(url: str, watch: Watch, ready: asyncio.Event, process: str) -> None:
    use_addresses(["127.0.0.1"])
    clock = PacketClock()
    while True:
        caller = await placed(url, clock, watch, process)
        while not watch.noticed.events:
            await asyncio.sleep(0.01)
        ready.set()
        try:
            begun = 0.0
            while caller.closed is None and time.monotonic() - caller.last_packet_at < 3:
                caller.ping()
                if time.monotonic() - begun > QUESTION_S:
                    begun = time.monotonic()
                    caller.ask()
                await asyncio.sleep(0.25)
            watch.noticed.failed(f"the call has ended: {caller.closed or 'no more packets'}")
            watch.rest()
        finally:
            clock.remove(caller)
            await caller.hang_up("goodbye")


# --- a stream of speech ---


async def speak(url: str, watch: Watch, ready: asyncio.Event, process: str) -> None:
    """One sentence after the other; between two of them nothing is due."""
    while True:
        try:
            async with client() as http, http.ws_connect(f"{url}/ws/speak", compress=0) as stream:
                await _sentences(stream, watch, ready)
        except (aiohttp.ClientError, OSError, TimeoutError, ConnectionError) as error:
            watch.noticed.failed(f"{type(error).__name__} {error}")
        watch.rest()
        await asyncio.sleep(AGAIN_S)


async def _sentences(
    stream: aiohttp.ClientWebSocketResponse, watch: Watch, ready: asyncio.Event
) -> None:
    """Raises ConnectionError when the stream ends."""
    while True:
        await stream.send_json({"type": "text", "text": SENTENCE})
        await stream.send_json({"type": "end"})
        watch.event(waited=False)
        watch.due = True
        while True:
            message = await stream.receive(LIMITS.total)
            if message.type not in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
                raise ConnectionError(f"closed with {stream.close_code}")
            said: dict[str, Any] = (
                json.loads(message.data) if message.type is aiohttp.WSMsgType.TEXT else {}
            )
            if said.get("type") == "ready":
                watch.event(waited=False)
                continue
            watch.event()
            if said.get("type") == "error":
                raise ConnectionError(str(said))
            if said.get("type") == "done":
                break
        ready.set()
        watch.due = False
        await asyncio.sleep(0.1)


# --- a probe ---


async def health(url: str, watch: Watch, ready: asyncio.Event, process: str) -> None:
    """On a connection of its own each time, as load balancers do."""
    while True:
        began = time.monotonic()
        try:
            async with client() as http, http.get(f"{url}/healthz") as answer:
                await answer.read()
                if answer.status != 200:
                    watch.noticed.failed(str(answer.status))
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            watch.noticed.failed(type(error).__name__)
        took, noticed = (time.monotonic() - began) * 1000, watch.noticed
        noticed.longest_ms = round(max(noticed.longest_ms, took), 1)
        noticed.events += 1
        ready.set()
        await asyncio.sleep(PROBE_S)


KINDS = {"call": call, "speak": speak, "health": health}


async def _main(kind: str, url: str, processes: int) -> None:
    logger.remove()
    watches = [Watch() for _ in range(processes)]
    ready = [asyncio.Event() for _ in watches]
    tasks = [
        asyncio.create_task(
            KINDS[kind](url, watch, there, str(number) if processes > 1 else ""), name="innocent"
        )
        for number, (watch, there) in enumerate(zip(watches, ready, strict=True), 1)
    ]
    while not all(event.is_set() for event in ready):
        await asyncio.sleep(0.05)
        for task in tasks:
            if task.done():
                task.result()  # raises
    say({"ready": True})
    lines = await input_lines()
    while await lines.readline():
        say({"noticed": [asdict(watch.look()) for watch in watches]})
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    run(_main(sys.argv[1], sys.argv[2], int((sys.argv[3:] or ["1"])[0])))
