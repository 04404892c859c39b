"""One stream of a worker: the protocol of `asr_protocol` between a WebSocket and a recogniser."""

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from math import gcd
from typing import Any

from aiohttp import WSMsgType, web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from offhook.media.pcm import RATE_IN, Pcm
from offhook.media.resample import Resampler
from offhook.pipeline.asr_protocol import (
    IDLE_S,
    MAX_AUDIO_BYTES,
    MAX_TEXT_CHARS,
    MAX_UNHEARD_S,
    Audio,
    Cancel,
    Close,
    Error,
    ErrorCode,
    Flush,
    Heard,
    ProtocolError,
    Ready,
    Request,
    ServerMessage,
    parse_audio,
    parse_command,
    server_text,
)
from offhook.pipeline.recognizer import Final, Recognizer, RecognizerStream

FINAL_BUCKETS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 2, 5, 10, 30)


class Refused(Exception):
    """A stream ends with this error."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = Error(code, message)


class WorkerMetrics:
    """What Prometheus sees of one worker."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.loaded = Gauge("offhook_asr_loaded", "1 when the model is loaded", registry=registry)
        self.streams = Gauge("offhook_asr_streams", "Streams now", registry=registry)
        self.ended = Counter(
            "offhook_asr_streams_ended_total",
            "Streams ended, by the error's code",
            ["code"],
            registry=registry,
        )
        self.audio = Counter("offhook_asr_audio_seconds_total", "Sound taken", registry=registry)
        self.final = Histogram(
            "offhook_asr_final_seconds",
            "From flush to final",
            buckets=FINAL_BUCKETS,
            registry=registry,
        )


class Ears:
    """Sound at the client's rate to 16 kHz, in whatever pieces it comes."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._step = max(1, rate // gcd(rate, RATE_IN))
        self._rest = bytearray()
        self.forget()

    def forget(self) -> None:
        """The next sound does not follow the last."""
        self._rest.clear()
        self._resampler = Resampler(self._rate, RATE_IN) if self._rate != RATE_IN else None

    def hear(self, audio: Audio) -> Pcm:
        if self._resampler is None:
            return audio.pcm
        self._rest += audio.to_bytes()
        whole = len(self._rest) // (2 * self._step) * 2 * self._step
        pcm = parse_audio(bytes(self._rest[:whole])).pcm
        del self._rest[:whole]
        return self._resampler.process(pcm)


@dataclass
class Utterance:
    """One that has no final yet."""

    number: int
    fed: int = 0
    """Samples at 16 kHz."""
    heard: int = 0
    """Samples that the events so far cover."""
    before: int = 0
    """Of those, samples in Finals that do not end it."""
    flushed_at: float | None = None


class Stream:
    """One WebSocket from `ready` to its close."""

    def __init__(
        self,
        socket: web.WebSocketResponse,
        request: Request,
        ready: Ready,
        metrics: WorkerMetrics,
    ) -> None:
        self.stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Given an exception, it ends the stream."""
        self._socket = socket
        self._request = request
        self._ready = ready
        self._metrics = metrics
        self._ears = Ears(request.rate)
        self._hears: RecognizerStream
        self._waiting: deque[Utterance] = deque()
        """Oldest first; only the last can be in progress."""
        self._count = 0
        self._told = asyncio.Event()

    async def run(self, loading: asyncio.Task[Recognizer]) -> None:
        """Until the client closes. Raises Refused, EngineError; ConnectionError when the client
        is gone."""
        await self._first_of(loading)
        self._hears = await loading.result().open(self._request.options)
        listening = asyncio.create_task(self._listen(), name="asr listen")
        telling = asyncio.create_task(self._tell_events(), name="asr tell")
        both = (listening, telling)
        try:
            await self._first_of(*both)
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)
            await self._hears.close()

    async def _first_of(self, *tasks: asyncio.Task[Any]) -> None:
        """Until one is done or the stream is stopped; raises what it raised."""
        waits = {*tasks, self.stopped}
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for ended in done:
            ended.result()

    # --- what the client says ---

    async def _listen(self) -> None:
        while True:
            try:
                message = await self._socket.receive(IDLE_S)
            except TimeoutError as error:
                words = f"nothing came for {IDLE_S} s: send sound, or a ping"
                raise Refused(ErrorCode.IDLE, words) from error
            try:
                match message.type:
                    case WSMsgType.BINARY:
                        await self._hear(message.data)
                    case WSMsgType.TEXT:
                        if not self._obey(message.data):
                            return
                    case _:
                        return
            except ProtocolError as error:
                raise Refused(ErrorCode.BAD_REQUEST, str(error)) from error

    async def _hear(self, data: bytes) -> None:
        if len(data) > MAX_AUDIO_BYTES:
            words = f"{len(data)} bytes of audio in one message, not at most {MAX_AUDIO_BYTES}"
            raise Refused(ErrorCode.TOO_LONG, words)
        pcm = self._ears.hear(parse_audio(data))
        if not len(pcm):
            return
        self._in_progress().fed += len(pcm)
        self._metrics.audio.inc(len(pcm) / RATE_IN)
        self._hears.feed(pcm)
        while sum(u.fed - u.heard for u in self._waiting) > MAX_UNHEARD_S * RATE_IN:
            if self._waiting[0].flushed_at is None:
                words = f"{MAX_UNHEARD_S} s of sound without a result: flush sooner"
                raise Refused(ErrorCode.BEHIND, words)
            self._told.clear()
            await self._told.wait()

    def _obey(self, text: str) -> bool:
        """False when the stream ends."""
        if len(text) > MAX_TEXT_CHARS:
            words = f"a message of {len(text)} characters, not at most {MAX_TEXT_CHARS}"
            raise Refused(ErrorCode.TOO_LONG, words)
        match parse_command(text):
            case Flush():
                self._in_progress().flushed_at = time.monotonic()
                self._ears.forget()
                self._hears.finish()
            case Cancel():
                if self._waiting and self._waiting[-1].flushed_at is None:
                    self._waiting.pop()
                    self._ears.forget()
                    self._hears.cancel()
            case Close():
                return False
        return True

    def _in_progress(self) -> Utterance:
        """The utterance that is being spoken; a new one when there is none."""
        if not self._waiting or self._waiting[-1].flushed_at is not None:
            self._waiting.append(Utterance(self._count))
            self._count += 1
        return self._waiting[-1]

    # --- what the engine says ---

    async def _tell_events(self) -> None:
        await self._send(self._ready)
        async for event in self._hears.events():
            if not self._waiting:
                continue  # of an utterance that was cancelled
            utterance = self._waiting[0]
            utterance.heard = utterance.before + event.audio_ms * RATE_IN // 1000
            if isinstance(event, Final):
                utterance.before = utterance.heard
                if not event.continues:
                    self._waiting.popleft()
                    if utterance.flushed_at is not None:
                        waited = time.monotonic() - utterance.flushed_at
                        self._metrics.final.observe(waited)
            self._told.set()
            await self._send(Heard(utterance.number, event))

    async def _send(self, message: ServerMessage) -> None:
        await self._socket.send_str(server_text(message))
