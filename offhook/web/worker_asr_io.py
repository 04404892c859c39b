"""What a worker that recognises speech does with a WebSocket: see `asr_stream_io`."""

from collections.abc import Awaitable, Mapping
from contextlib import AbstractContextManager

from aiohttp import web
from prometheus_client import Counter, Histogram

from offhook.pipeline.asr_protocol import PATH, Request
from offhook.pipeline.recognizer import Recognizer
from offhook.web.asr_stream_io import AsrStream
from offhook.web.worker_io import Worker
from offhook.web.worker_stream_io import WorkerMetrics, WorkerStream

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
    ) -> AsrStream:
        return AsrStream(WorkerHost(worker, self.metrics), socket, Request.parse(query))


class WorkerHost:
    """The `Host` of a worker's streams."""

    def __init__(self, worker: Worker[Recognizer], metrics: AsrMetrics) -> None:
        self._worker = worker
        self._metrics = metrics
        self.engine = worker.settings.engine
        self.model = worker.settings.model

    def recognizer(self) -> Awaitable[Recognizer]:
        return self._worker.loading

    def in_use(self, stream: WorkerStream) -> AbstractContextManager[None]:
        return self._worker.in_use(stream)

    def took(self, seconds: float) -> None:
        self._metrics.audio.inc(seconds)

    def answered(self, seconds: float) -> None:
        self._metrics.final.observe(seconds)
