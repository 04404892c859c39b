"""What a worker that recognises speech does with a WebSocket: see `asr_stream_io`."""

from collections.abc import Awaitable, Mapping
from contextlib import AbstractContextManager
from itertools import count

from aiohttp import web
from prometheus_client import Counter, Histogram

from offhook.pipeline.speech.recognizer import Recognizer, StreamOptions
from offhook.pipeline.speech.remote.asr_protocol import PATH, Request
from offhook.pipeline.speech.timing import STAGES, Stages
from offhook.web.speech_api.sockets.asr_stream_io import AsrStream
from offhook.web.speech_api.sockets.worker_stream_io import WorkerMetrics, WorkerStream
from offhook.web.worker.worker_io import Worker

FINAL_BUCKETS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 2, 5, 10, 30)
STAGE_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
SAMPLED = 16
"""One live stream of so many tells its stages to Prometheus without having asked for them."""


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
        stages = Histogram(
            "offhook_asr_stage_seconds",
            "From the sound of an update to its text, of live streams: those that ask for timing, "
            f"and one in {SAMPLED} of the others",
            ["stage"],
            buckets=STAGE_BUCKETS,
            registry=self.registry,
        )
        self._stages = {f"{stage}_ms": stages.labels(stage) for stage in STAGES}

    def observe(self, stages: Stages) -> None:
        for name, ms in vars(stages).items():
            self._stages[name].observe(ms / 1000)


class AsrService:
    """The `Service` of a recogniser."""

    kind = "asr"
    path = PATH

    def __init__(self) -> None:
        self.metrics = AsrMetrics()
        self._numbers = count()

    def stream(
        self, worker: Worker[Recognizer], socket: web.WebSocketResponse, query: Mapping[str, str]
    ) -> AsrStream:
        request = Request.parse(query)
        observe = self.metrics.observe if self._is_observed(request.options) else None
        return AsrStream(WorkerHost(worker, self.metrics), socket, request, observe)

    def _is_observed(self, options: StreamOptions) -> bool:
        """A file comes as fast as it goes: how long its sound waits says nothing."""
        return options.live and (options.timing or next(self._numbers) % SAMPLED == 0)


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
