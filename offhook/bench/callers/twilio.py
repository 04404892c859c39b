"""A caller by Twilio Media Streams: the provider's end of a stream, as light as it can be.

[tw] twilio.com/docs/voice/media-streams/websocket-messages
"""

import asyncio
import base64
import json
from collections import deque
from contextlib import suppress
from random import Random
from time import monotonic
from typing import Any

import aiohttp

from offhook.bench.callers.caller import Caller
from offhook.bench.callers.ear import BUFFER_S, Way
from offhook.bench.callers.webhook import (
    CONNECT_S,
    Application,
    CallFacts,
    Refused,
    find_stream,
)
from offhook.media.codecs.g711 import PcmuDecoder
from offhook.media.pcm import PACKET_MS

RATE = 8_000
MAX_QUEUED = 500
"""Messages waiting to be sent; the stream is given up when the server takes no more for 10 s."""


class TwilioStream:
    """The messages of one stream in both directions."""

    def __init__(self, facts: CallFacts) -> None:
        self.facts = facts
        self._chunk = 0
        self._sequence = 1
        self.socket: aiohttp.ClientWebSocketResponse | None = None

    async def connect(self, http: aiohttp.ClientSession, application: Application) -> None:
        """Raises Refused."""
        url, self.facts, headers = await find_stream(http, application, self.facts)
        try:
            async with asyncio.timeout(CONNECT_S):
                self.socket = await http.ws_connect(url, headers=headers)
                await self._start()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Refused(f"{url}: {error or 'no answer'}") from error

    async def _start(self) -> None:
        facts = self.facts
        form = {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1}
        ids = {"accountSid": facts.account, "streamSid": facts.stream_id, "callSid": facts.call_id}
        given = {"customParameters": dict(facts.parameters)}
        start = {**ids, "tracks": ["inbound"], "mediaFormat": form, **given}
        await self.send('{"event":"connected","protocol":"Call","version":"1.0.0"}')
        await self.send(self.message("start", start=start))

    async def send(self, text: str) -> None:
        assert self.socket is not None
        with suppress(ConnectionError):  # it is closing: the receiver sees it
            await self.socket.send_str(text)

    def message(self, event: str, **more: Any) -> str:
        number, self._sequence = str(self._sequence), self._sequence + 1
        message = {"event": event, "sequenceNumber": number, **more}
        return json.dumps({**message, "streamSid": self.facts.stream_id})

    def media(self, payload: str) -> str:
        """Returns the message of 20 ms of PCMU in base64."""
        self._sequence += 1
        self._chunk += 1
        return (
            f'{{"event":"media","sequenceNumber":"{self._sequence}","media":{{"track":"inbound",'
            f'"chunk":"{self._chunk}","timestamp":"{self._chunk * PACKET_MS}",'
            f'"payload":"{payload}"}},"streamSid":"{self.facts.stream_id}"}}'
        )

    async def hang_up(self) -> None:
        if self.socket is not None:
            facts = self.facts
            ids = {"accountSid": facts.account, "callSid": facts.call_id}
            await self.send(self.message("stop", stop=ids))
            await self.socket.close()


class TwilioCall:
    """One call; `Pace` ticks it."""

    def __init__(self, caller: Caller, way: Way, chance: Random) -> None:
        self._caller, self._way = caller, way
        ids = f"{chance.getrandbits(128):032x}"
        facts = CallFacts(f"MZ{ids}", f"CA{ids}", caller=caller.record.number)
        self._stream = TwilioStream(facts)
        self._decoder = PcmuDecoder()
        self._out: asyncio.Queue[tuple[float, str]] = asyncio.Queue(MAX_QUEUED)
        self._there = self._back = 0.0
        """When the last message on its way arrives: TCP keeps their order."""
        self._place = 0.0
        """Seconds of sound received: the provider plays it as it comes."""
        self._play_until = 0.0
        self._marks: deque[tuple[float, str]] = deque()
        self.closed = False
        """Whether the server has closed the stream."""
        self._tasks: list[asyncio.Task[None]] = []

    async def connect_to(self, http: aiohttp.ClientSession, application: Application) -> None:
        """Raises Refused."""
        await self._stream.connect(http, application)
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._write())]

    def tick(self) -> None:
        now = monotonic()
        payload = base64.b64encode(self._caller.step(now)).decode()
        self._send(self._stream.media(payload), now)
        if self._caller.key:
            dtmf = {"track": "inbound_track", "digit": self._caller.key}
            self._send(self._stream.message("dtmf", dtmf=dtmf), now)
            self._caller.key = ""
        while self._marks and self._marks[0][0] <= now:
            self._mark(self._marks.popleft()[1], now)

    def _mark(self, name: str, now: float) -> None:
        self._send(self._stream.message("mark", mark={"name": name}), now)

    def _send(self, text: str, now: float) -> None:
        self._there = max(self._there, now + self._way.delay_s())
        if self._out.full():
            self.closed = True
        else:
            self._out.put_nowait((self._there, text))

    async def _write(self) -> None:
        while True:
            due, text = await self._out.get()
            if (wait := due - monotonic()) > 0:
                await asyncio.sleep(wait)
            await self._stream.send(text)

    async def _read(self) -> None:
        socket = self._stream.socket
        assert socket is not None
        async for message in socket:
            now = monotonic()
            read = json.loads(message.data)
            match read["event"]:
                case "media":
                    self._receive(base64.b64decode(read["media"]["payload"]), now)
                case "mark":
                    self._marks.append((max(now, self._play_until), read["mark"]["name"]))
                case "clear":
                    for _, name in self._marks:
                        self._mark(name, now)
                    self._marks.clear()
                    self._play_until = now
                    self._caller.ear.clear(now)
        self.closed = True

    def _receive(self, pcmu: bytes, now: float) -> None:
        """Sound is played after what was received before it; it has no timestamps."""
        arrived = self._back = max(self._back, now + self._way.delay_s())
        if arrived > self._play_until:
            # Nothing was left to play: as in a stream with timestamps, the time goes on.
            self._place += arrived - self._play_until if self._play_until else 0.0
            self._play_until = arrived + BUFFER_S
        seconds = len(pcmu) / RATE
        self._caller.ear.receive(self._decoder.decode(pcmu), self._place, arrived)
        self._place += seconds
        self._play_until += seconds

    async def run(self) -> bool:
        """Runs until the caller or the server hangs up; returns whether it was the server."""
        while not self._caller.over:
            if self.closed:
                return True
            await asyncio.sleep(0.1)
        return False

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with suppress(aiohttp.ClientError, OSError):
            await self._stream.hang_up()
