"""What Prometheus sees of a worker's engine beside its streams: memory of the GPU, kept replies."""

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from offhook.pipeline.engine.gpu_io import memory_bytes
from offhook.pipeline.speech.voice.audio_cache import AudioCache, CacheCounts
from offhook.pipeline.speech.voice.audio_cache_io import SharedAudioCache


@runtime_checkable
class KeepsReplies(Protocol):
    """An engine that plays again what it said before."""

    cache: AudioCache
    shared: SharedAudioCache | None


class EngineCollector(Collector):
    """Read when Prometheus asks. Without a GPU, or a cache, the series are there and empty, or
    zero. `kind`: asr or tts."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.engine: object = None
        """Once it is loaded."""

    def collect(self) -> Iterable[Metric]:
        yield self._gpu()
        if self._kind == "tts":
            yield from self._replies()

    def _gpu(self) -> Metric:
        text = "Memory of the GPU: what this process uses and keeps, what all leave free, all"
        family = GaugeMetricFamily("offhook_gpu_memory_bytes", text, labels=["kind"])
        if self.engine is not None:
            for kind, count in memory_bytes().items():
                family.add_metric([kind], count)
        return family

    def _replies(self) -> Iterable[Metric]:
        counts, used, shared, failed = CacheCounts(), 0, 0, 0
        if isinstance(self.engine, KeepsReplies):
            counts, used = self.engine.cache.counts, self.engine.cache.bytes
            if self.engine.shared is not None:
                shared, failed = self.engine.shared.shared_hits, self.engine.shared.failures
        # What Redis had was first missed in memory.
        for name, text, count in (
            ("hits", "Replies found said before", counts.hits + shared),
            ("misses", "Replies spoken anew", counts.misses - shared),
            ("failures", "Times that Redis failed, or was late", failed),
        ):
            yield CounterMetricFamily(f"offhook_tts_cache_{name}", text, count)
        yield GaugeMetricFamily("offhook_tts_cache_bytes", "Kept replies in memory", used)
