"""Clients of a benchmark by WebSocket: a microphone that is always on, and what comes back, with
the time at which it came. One class for OpenAI's events, one for Pipecat's frames."""

import asyncio
import base64
import json
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any, ClassVar

import aiohttp
import soxr
from pipecat.frames.protobufs import frames_pb2 as frames

from offhook.media.pcm import RATE_IN, RATE_OUT, Pcm

CHUNK_MS = 40
"""Length of the pieces in which a client sends sound."""
SILENCE_MS = 500
"""Silence after which both servers end a turn."""
WAIT_S = 30.0
"""Time limit in s for anything that is waited for."""
DELTA = '"response.output_audio.delta"'
"""The type of an event with sound, which is not parsed; it stands at the beginning or the end."""
Message = str | bytes


class Session(ABC):
    """One connection."""

    rate: ClassVar[int]

    def __init__(self) -> None:
        self.connect_ms = 0.0
        """From the beginning of the connection to the server's first message."""
        self.onset_at = self.spoken_at = 0.0
        """When the first and the last piece of the last line were sent."""
        self._came: dict[str, float] = {}
        """When each kind of message came last."""
        self._news = asyncio.Condition()
        self._to_say: deque[Message] = deque()
        self._silence = self.message(b"\0" * (2 * self.rate * CHUNK_MS // 1000))
        self._socket: aiohttp.ClientWebSocketResponse
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self, http: aiohttp.ClientSession, url: str) -> None:
        began = time.monotonic()
        self._socket = await http.ws_connect(url, max_msg_size=0)
        await self._socket.receive(WAIT_S)
        self.connect_ms = (time.monotonic() - began) * 1000
        await self.begin()
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._speak())]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._socket.close()

    # --- speaking ---

    @classmethod
    def chunks(cls, pcm: Pcm) -> list[Message]:
        """The messages of a line, 24 kHz samples."""
        sound = pcm if cls.rate == RATE_OUT else soxr.resample(pcm, RATE_OUT, cls.rate)
        data = sound.astype("<i2").tobytes()
        size = 2 * cls.rate * CHUNK_MS // 1000
        return [cls.message(data[at : at + size]) for at in range(0, len(data), size)]

    def begin_to_say(self, line: Sequence[Message]) -> None:
        self._to_say.extend(line)
        self.onset_at = 0.0

    async def say(self, line: Sequence[Message]) -> None:
        """Returns when it is said."""
        self.begin_to_say(line)
        while self._to_say:
            await asyncio.sleep(CHUNK_MS / 1000)

    async def _speak(self) -> None:
        due = time.monotonic()
        while True:
            speaks = bool(self._to_say)
            await self.send(self._to_say.popleft() if speaks else self._silence)
            if speaks:
                self.spoken_at = time.monotonic()
                self.onset_at = self.onset_at or self.spoken_at
            due += CHUNK_MS / 1000
            await asyncio.sleep(due - time.monotonic())

    async def send(self, message: Message) -> None:
        if isinstance(message, str):
            await self._socket.send_str(message)
        else:
            await self._socket.send_bytes(message)

    # --- hearing ---

    async def _listen(self) -> None:
        async for message in self._socket:
            kind = self.kind(message.data)
            async with self._news:
                self._came[kind] = time.monotonic()
                self._news.notify_all()

    async def next(self, kind: str, after: float) -> float:
        """When a message of this kind has come after that time. Raises TimeoutError."""
        async with asyncio.timeout(WAIT_S), self._news:
            await self._news.wait_for(lambda: self._came.get(kind, 0.0) > after)
        return self._came[kind]

    def came(self, kind: str) -> float:
        """When the last message of this kind came; 0 if none has."""
        return self._came.get(kind, 0.0)

    # --- the dialect ---

    @abstractmethod
    async def begin(self) -> None:
        """Sends what the client sends first."""

    @classmethod
    @abstractmethod
    def message(cls, sound: bytes) -> Message:
        """A message with sound."""

    @abstractmethod
    def kind(self, message: Any) -> str:
        """`audio`, `cut` where the client is told to stop playing, or another word."""


class OpenAI(Session):
    rate = RATE_OUT

    def __init__(self) -> None:
        super().__init__()
        self._item = ""

    async def begin(self) -> None:
        detection = {"type": "server_vad", "silence_duration_ms": SILENCE_MS}
        session = {"type": "realtime", "audio": {"input": {"turn_detection": detection}}}
        await self.send(json.dumps({"type": "session.update", "session": session}))

    @classmethod
    def message(cls, sound: bytes) -> Message:
        audio = base64.b64encode(sound).decode()
        return json.dumps({"type": "input_audio_buffer.append", "audio": audio})

    def kind(self, message: Any) -> str:
        if DELTA in message[:100] or DELTA in message[-200:]:
            return "audio"
        event = json.loads(message)
        if event["type"] == "response.output_item.added":
            self._item = event["item"]["id"]
        return "cut" if event["type"] == "input_audio_buffer.speech_started" else event["type"]

    async def truncate(self) -> None:
        """Tells the server what was played, and waits for its answer."""
        began = time.monotonic()
        event = {"item_id": self._item, "content_index": 0, "audio_end_ms": 1000}
        await self.send(json.dumps({"type": "conversation.item.truncate", **event}))
        await self.next("conversation.item.truncated", began)


class Pipecat(Session):
    rate = RATE_IN

    async def begin(self) -> None:
        """Nothing."""

    @classmethod
    def message(cls, sound: bytes) -> Message:
        audio = frames.AudioRawFrame(audio=sound, sample_rate=cls.rate, num_channels=1)  # type: ignore[attr-defined]
        data: bytes = frames.Frame(audio=audio).SerializeToString()  # type: ignore[attr-defined]
        return data

    def kind(self, message: Any) -> str:
        which = frames.Frame.FromString(message).WhichOneof("frame")  # type: ignore[attr-defined]
        return "cut" if which == "interruption" else str(which)


DIALECTS: dict[str, type[Session]] = {"openai": OpenAI, "pipecat": Pipecat}
