"""What a worker that speaks does with a WebSocket: see `tts_stream_io`."""

from collections.abc import Awaitable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

from aiohttp import web
from prometheus_client import Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from offhook.pipeline.engine.tts.voices import CloneCache, VoiceStore
from offhook.pipeline.speech.recognizer import EngineError
from offhook.pipeline.speech.remote.tts_protocol import PATH, parse_query
from offhook.pipeline.speech.synthesizer import Synthesizer
from offhook.web.speech_api.sockets.speech_socket import Commands
from offhook.web.speech_api.sockets.tts_stream_io import TtsStream
from offhook.web.speech_api.sockets.worker_stream_io import WorkerMetrics, WorkerStream
from offhook.web.worker.worker_io import Worker

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
        self.registry.register(VoiceCacheCollector(self))

    @property
    def clones(self) -> CloneCache:
        """Of the engine; an empty one where it clones nobody, or is not loaded."""
        engine = self.of_engine.engine
        store = engine.store if isinstance(engine, KeepsVoices) else None
        return store.clones if store is not None else CloneCache()

    def health(self) -> dict[str, Any]:
        if not isinstance(self.of_engine.engine, KeepsVoices):
            return {}
        clones = self.clones
        counts = {"voices": len(clones), "bytes": clones.nbytes}
        return {"voice_cache": {**counts, "hits": clones.hits, "misses": clones.misses}}


@runtime_checkable
class KeepsVoices(Protocol):
    """An engine that clones."""

    store: VoiceStore | None


class VoiceCacheCollector(Collector):
    """What was computed of recordings and is in memory, read when Prometheus asks."""

    def __init__(self, metrics: TtsMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        clones, name = self._metrics.clones, "offhook_tts_voice_cache"
        yield CounterMetricFamily(f"{name}_hits", "Cloned voices found in memory", clones.hits)
        yield CounterMetricFamily(f"{name}_misses", "Cloned voices not there", clones.misses)
        yield CounterMetricFamily(f"{name}_evictions", "Those that gave way", clones.evictions)
        yield GaugeMetricFamily(f"{name}_voices", "Cloned voices in memory", len(clones))
        yield GaugeMetricFamily(f"{name}_bytes", "Their size", clones.nbytes)


class TtsService:
    """The `Service` of a synthesizer."""

    kind = "tts"
    path = PATH

    def __init__(self) -> None:
        self.metrics = TtsMetrics()

    def stream(
        self, worker: Worker[Synthesizer], socket: web.WebSocketResponse, query: Mapping[str, str]
    ) -> TtsStream:
        host = WorkerHost(worker, self.metrics)
        return TtsStream(host, socket, parse_query(query), Commands())


class WorkerHost:
    """The `Host` of a worker's streams."""

    def __init__(self, worker: Worker[Synthesizer], metrics: TtsMetrics) -> None:
        self._worker = worker
        self._metrics = metrics
        self.engine = worker.settings.engine
        self.model = worker.settings.model

    def synthesizer(self) -> Awaitable[Synthesizer]:
        return self._worker.loading

    def in_use(self, stream: WorkerStream) -> AbstractContextManager[None]:
        return self._worker.in_use(stream)

    def began(self, seconds: float) -> None:
        self._metrics.first_sound.observe(seconds)

    def spoke(self, seconds: float) -> None:
        self._metrics.audio.inc(seconds)

    def replied(self, reason: str) -> None:
        self._metrics.replies.labels(reason).inc()

    def told(self, error: EngineError) -> str:
        return str(error)
