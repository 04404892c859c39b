"""What a worker that speaks does with a WebSocket: the protocol of `tts_protocol`."""

import asyncio
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from aiohttp import web
from prometheus_client import Counter, Histogram

from offhook.media.pcm import RATE_OUT
from offhook.pipeline.synthesizer import (
    Speech,
    Synthesizer,
    SynthesizerStream,
    TextTooLong,
    VoiceOptions,
)
from offhook.pipeline.tts_protocol import (
    MAX_AUDIO_BYTES,
    MAX_UNTAKEN_S,
    MAX_WAITING_CHARS,
    MAX_WAITING_REPLIES,
    PATH,
    Cancel,
    Close,
    Done,
    End,
    Mark,
    Ready,
    Reason,
    Sound,
    Text,
    parse_command,
    parse_query,
    server_text,
)
from offhook.pipeline.worker_protocol import ErrorCode, ProtocolError
from offhook.web.worker_io import Worker
from offhook.web.worker_stream_io import Refused, WorkerMetrics, WorkerStream

FIRST_SOUND_BUCKETS = (0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2, 5)


class TtsMetrics(WorkerMetrics):
    def __init__(self) -> None:
        super().__init__("tts")
        self.audio = Counter(
            "offhook_tts_audio_seconds_total", "Sound made", registry=self.registry
        )
        self.replies = Counter(
            "offhook_tts_replies_total",
            "Replies, by what ended them",
            ["reason"],
            registry=self.registry,
        )
        self.first_sound = Histogram(
            "offhook_tts_first_sound_seconds",
            "From a reply's first text to its first sound",
            buckets=FIRST_SOUND_BUCKETS,
            registry=self.registry,
        )


class TtsService:
    """The `Service` of a synthesizer."""

    kind = "tts"
    path = PATH

    def __init__(self) -> None:
        self.metrics = TtsMetrics()

    def stream(
        self, worker: Worker[Synthesizer], socket: web.WebSocketResponse, query: Mapping[str, str]
    ) -> "TtsStream":
        return TtsStream(worker, socket, parse_query(query), self.metrics)


@dataclass(eq=False)
class Reply:
    """One that has no done yet."""

    number: int
    texts: list[str] = field(default_factory=list)
    """Written while the engine was not there for it."""
    waiting: int = 0
    """Characters written that no mark has covered."""
    ended: bool = False
    cancelled: bool = False
    stream: SynthesizerStream | None = None
    """When it is its turn."""
    samples: int = 0
    """Sent."""

    def write(self, text: str) -> None:
        """Raises TextTooLong."""
        self.waiting += len(text)
        if self.stream is None:
            self.texts.append(text)
        else:
            self.stream.write(text)

    def end(self) -> None:
        self.ended = True
        if self.stream is not None:
            self.stream.end()

    def cancel(self) -> None:
        self.cancelled, self.waiting = True, 0
        if self.stream is not None:
            self.stream.cancel()

    def begin(self, stream: SynthesizerStream) -> None:
        """Its turn has come. Raises TextTooLong."""
        self.stream = stream
        for text in self.texts:
            stream.write(text)
        self.texts.clear()
        if self.ended:
            stream.end()


class TtsStream(WorkerStream):
    """One stream from `ready` to its close. It is in use while it speaks."""

    wants = "text"

    def __init__(
        self,
        worker: Worker[Synthesizer],
        socket: web.WebSocketResponse,
        options: VoiceOptions,
        metrics: TtsMetrics,
    ) -> None:
        super().__init__(socket)
        self._worker = worker
        self._options = options
        self._metrics = metrics
        self._replies: deque[Reply] = deque()
        """Oldest first; only the last can be written to, only the first is spoken."""
        self._count = 0
        self._news = asyncio.Event()
        self._spoke = False
        """Since the client was last found idle."""
        self._synthesizer: Synthesizer

    async def run(self) -> None:
        self._synthesizer = await self.loaded(self._worker.loading)
        self._open().cancel()  # so that what cannot be is said at once
        await self.both(self.listen(), self._speak_all())

    def _open(self) -> SynthesizerStream:
        try:
            return self._synthesizer.open(self._options)
        except ValueError as error:
            raise Refused(ErrorCode.BAD_REQUEST, str(error)) from error

    # --- what the client says ---

    async def hear(self, data: bytes) -> None:
        raise ProtocolError(f"{len(data)} bytes that are not text: this worker speaks")

    def obey(self, text: str) -> bool:
        match parse_command(text):
            case Text(written):
                self._write(written)
            case End():
                self._being_written().end()
            case Cancel():
                for reply in self._replies:
                    reply.cancel()
            case Close():
                return False
        return True

    def _write(self, text: str) -> None:
        reply = self._being_written()
        if sum(each.waiting for each in self._replies) + len(text) > MAX_WAITING_CHARS:
            words = f"more than {MAX_WAITING_CHARS} characters wait to be spoken: write slower"
            raise Refused(ErrorCode.BEHIND, words)
        try:
            reply.write(text)
        except TextTooLong as error:
            raise Refused(ErrorCode.BEHIND, str(error)) from error

    def _being_written(self) -> Reply:
        """A new one when the last is complete."""
        if not self._replies or self._replies[-1].ended or self._replies[-1].cancelled:
            if len(self._replies) == MAX_WAITING_REPLIES:
                words = f"{MAX_WAITING_REPLIES} replies wait to be spoken: write slower"
                raise Refused(ErrorCode.BEHIND, words)
            self._replies.append(Reply(self._count))
            self._count += 1
            self._news.set()
        return self._replies[-1]

    def may_be_idle(self) -> bool:
        """While it is spoken to, or waits for the end of what it has written."""
        spoke, self._spoke = self._spoke, False
        return spoke or (bool(self._replies) and self._replies[0].ended)

    # --- what the engine says ---

    async def _speak_all(self) -> None:
        settings = self._worker.settings
        ready = Ready(settings.engine, settings.model, tuple(self._synthesizer.voices()))
        await self.send(server_text(ready))
        while True:
            while not self._replies:
                self._news.clear()
                await self._news.wait()
            reply = self._replies[0]
            if not reply.cancelled:
                with self._worker.in_use(self):
                    await self._speak(reply)
            reason = Reason.CANCEL if reply.cancelled else Reason.END
            self._replies.popleft()
            self._metrics.replies.labels(reason.value).inc()
            await self.send(server_text(Done(reply.number, reply.samples, reason)))

    async def _speak(self, reply: Reply) -> None:
        """Until all is said, or it is cancelled."""
        began = time.monotonic()
        stream = self._open()
        try:
            reply.begin(stream)
            async for speech in stream:
                if reply.cancelled:
                    return
                if len(speech.pcm) and not reply.samples:
                    self._metrics.first_sound.observe(time.monotonic() - began)
                self._metrics.audio.inc(len(speech.pcm) / RATE_OUT)
                await self._send_speech(reply, speech)
        except TextTooLong as error:
            raise Refused(ErrorCode.BEHIND, str(error)) from error
        finally:
            stream.cancel()

    async def _send_speech(self, reply: Reply, speech: Speech) -> None:
        data = Sound(speech.pcm).to_bytes()
        for at in range(0, len(data), MAX_AUDIO_BYTES):
            block = data[at : at + MAX_AUDIO_BYTES]
            await self.send(block)
            reply.samples += len(block) // 2
            self._spoke = True
            if reply.cancelled:
                return
        if speech.text:
            reply.waiting = max(0, reply.waiting - len(speech.text))
            await self.send(server_text(Mark(reply.number, speech.text, reply.samples)))

    async def send(self, message: str | bytes) -> None:
        """Waits for a client that takes nothing, and with it the engine. Raises Refused."""
        try:
            async with asyncio.timeout(MAX_UNTAKEN_S):
                await super().send(message)
        except TimeoutError as error:
            words = f"nothing was taken for {MAX_UNTAKEN_S} s"
            raise Refused(ErrorCode.BEHIND, words) from error
