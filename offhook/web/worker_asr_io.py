"""What a worker that recognises speech does with a WebSocket: the protocol of `asr_protocol`."""

import asyncio
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd

from aiohttp import web
from prometheus_client import Counter, Histogram

from offhook.media.pcm import RATE_IN, Pcm
from offhook.media.resample import Resampler
from offhook.pipeline.asr_protocol import (
    MAX_AUDIO_BYTES,
    MAX_UNHEARD_S,
    PATH,
    Audio,
    Cancel,
    Close,
    Flush,
    Heard,
    Ready,
    Request,
    parse_audio,
    parse_command,
    server_text,
)
from offhook.pipeline.recognizer import Final, Recognizer, RecognizerStream
from offhook.pipeline.worker_protocol import ErrorCode
from offhook.web.worker_io import Worker
from offhook.web.worker_stream_io import Refused, WorkerMetrics, WorkerStream

FINAL_BUCKETS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 2, 5, 10, 30)


class AsrMetrics(WorkerMetrics):
    def __init__(self) -> None:
        super().__init__("asr")
        self.audio = Counter(
            "offhook_asr_audio_seconds_total", "Sound taken", registry=self.registry
        )
        self.final = Histogram(
            "offhook_asr_final_seconds",
            "From flush to final",
            buckets=FINAL_BUCKETS,
            registry=self.registry,
        )


class AsrService:
    """The `Service` of a recogniser."""

    kind = "asr"
    path = PATH

    def __init__(self) -> None:
        self.metrics = AsrMetrics()

    def stream(
        self, worker: Worker[Recognizer], socket: web.WebSocketResponse, query: Mapping[str, str]
    ) -> "AsrStream":
        return AsrStream(worker, socket, Request.parse(query), self.metrics)


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


class AsrStream(WorkerStream):
    """One stream from `ready` to its close. It is in use all the time."""

    wants = "sound"

    def __init__(
        self,
        worker: Worker[Recognizer],
        socket: web.WebSocketResponse,
        request: Request,
        metrics: AsrMetrics,
    ) -> None:
        super().__init__(socket)
        self._worker = worker
        self._request = request
        self._metrics = metrics
        self._ears = Ears(request.rate)
        self._hears: RecognizerStream
        self._waiting: deque[Utterance] = deque()
        """Oldest first; only the last can be in progress."""
        self._count = 0
        self._told = asyncio.Event()

    async def run(self) -> None:
        with self._worker.in_use(self):
            recognizer = await self.loaded(self._worker.loading)
            self._hears = await recognizer.open(self._request.options)
            try:
                await self.both(self.listen(), self._tell_events())
            finally:
                await self._hears.close()

    # --- what the client says ---

    async def hear(self, data: bytes) -> None:
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

    def obey(self, text: str) -> bool:
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
        settings = self._worker.settings
        ready = Ready(settings.engine, settings.model, self._request.rate)
        await self.send(server_text(ready))
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
            await self.send(server_text(Heard(utterance.number, event)))
