"""The provider's end of a Twilio media stream.

[tw] twilio.com/docs/voice/media-streams/websocket-messages
"""

import asyncio
import base64
import json
from abc import ABC, abstractmethod
from collections import deque
from contextlib import suppress
from time import monotonic
from typing import Any

import aiohttp

from offhook.media.pcm import PACKET_MS
from offhook.media.untrusted_json import read_json
from offhook.web.app.callers.twilio.webhook_io import (
    CONNECT_S,
    Application,
    CallFacts,
    Refused,
    find_stream,
)
from offhook.web.app.callers.way import Way

RATE = 8_000
MAX_QUEUED = 500
"""Messages waiting to be sent; the stream is given up when the server takes no more for 10 s."""


class Marks:
    """Marks of the server, given back when the sound before them has been played."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[float, str]] = deque()

    def add(self, name: str, at: float) -> None:
        """`at` is when the sound before it will have been played."""
        self._waiting.append((at, name))

    def reached(self, now: float) -> list[str]:
        names = []
        while self._waiting and self._waiting[0][0] <= now:
            names.append(self._waiting.popleft()[1])
        return names

    def clear(self) -> list[str]:
        """Those that were waited for."""
        names = [name for _, name in self._waiting]
        self._waiting.clear()
        return names


class TwilioStream(ABC):
    """One stream: sends what it is given, and gives marks back."""

    def __init__(self, facts: CallFacts, way: Way | None = None) -> None:
        self.facts = facts
        self.closed = False
        """Whether the server has closed the stream."""
        self.play_until = float("-inf")
        """When what has come will have been played."""
        self._way = way or Way()
        self._there = 0.0
        """When the last message on its way arrives: TCP keeps their order."""
        self._marks = Marks()
        self._out: asyncio.Queue[tuple[float, str]] = asyncio.Queue(MAX_QUEUED)
        self._chunk = 0
        self._sequence = 1
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @abstractmethod
    def receive(self, pcmu: bytes, now: float) -> None:
        """Takes sound that has come, and moves `play_until`."""

    @abstractmethod
    def clear(self, now: float) -> None:
        """Drops sound that has not been played, and moves `play_until`."""

    async def connect(self, http: aiohttp.ClientSession, application: Application) -> None:
        """Raises Refused."""
        url, self.facts, headers = await find_stream(http, application, self.facts)
        try:
            async with asyncio.timeout(CONNECT_S):
                self._socket = await http.ws_connect(url, headers=headers)
                await self._start()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Refused(f"{url}: {error or 'no answer'}") from error
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._write())]

    async def _start(self) -> None:
        facts = self.facts
        form = {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1}
        ids = {"accountSid": facts.account, "streamSid": facts.stream_id, "callSid": facts.call_id}
        given = {"customParameters": dict(facts.parameters)}
        start = {**ids, "tracks": ["inbound"], "mediaFormat": form, **given}
        await self._send('{"event":"connected","protocol":"Call","version":"1.0.0"}')
        await self._send(self._message("start", start=start))

    def say(self, payload: str, now: float) -> int:
        """Sends 20 ms of PCMU in base64, and the marks that are due; returns how many of those."""
        self._sequence += 1
        self._chunk += 1
        self._post(
            f'{{"event":"media","sequenceNumber":"{self._sequence}","media":{{"track":"inbound",'
            f'"chunk":"{self._chunk}","timestamp":"{self._chunk * PACKET_MS}",'
            f'"payload":"{payload}"}},"streamSid":"{self.facts.stream_id}"}}',
            now,
        )
        marks = self._marks.reached(now)
        for name in marks:
            self._mark(name, now)
        return len(marks)

    def press(self, key: str, now: float) -> None:
        dtmf = {"track": "inbound_track", "digit": key}
        self._post(self._message("dtmf", dtmf=dtmf), now)

    def _mark(self, name: str, now: float) -> None:
        self._post(self._message("mark", mark={"name": name}), now)

    def _post(self, text: str, now: float) -> None:
        self._there = max(self._there, now + self._way.delay_s())
        if self._out.full():
            self.closed = True
            self._tasks[0].cancel()
        else:
            self._out.put_nowait((self._there, text))

    async def _write(self) -> None:
        while True:
            due, text = await self._out.get()
            if (wait := due - monotonic()) > 0:
                await asyncio.sleep(wait)
            await self._send(text)

    async def _read(self) -> None:
        assert self._socket is not None
        async for message in self._socket:
            now = monotonic()
            read = read_json(message.data)
            match read["event"]:
                case "media":
                    self.receive(base64.b64decode(read["media"]["payload"]), now)
                case "mark":
                    self._marks.add(read["mark"]["name"], max(now, self.play_until))
                case "clear":
                    for name in self._marks.clear():
                        self._mark(name, now)
                    self.clear(now)
        self.closed = True

    async def _send(self, text: str) -> None:
        assert self._socket is not None
        with suppress(ConnectionError):  # it is closing: the receiver sees it
            await self._socket.send_str(text)

    def _message(self, event: str, **more: Any) -> str:
        number, self._sequence = str(self._sequence), self._sequence + 1
        message = {"event": event, "sequenceNumber": number, **more}
        return json.dumps({**message, "streamSid": self.facts.stream_id})

    async def until_closed(self) -> None:
        """Returns when the server has closed the stream, or takes no more."""
        await asyncio.wait(self._tasks[:1])

    async def hang_up(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._socket is not None:
            ids = {"accountSid": self.facts.account, "callSid": self.facts.call_id}
            with suppress(aiohttp.ClientError, OSError):
                await self._send(self._message("stop", stop=ids))
                await self._socket.close()
