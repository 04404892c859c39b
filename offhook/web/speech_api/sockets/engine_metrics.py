"""Prometheus metrics of a worker: its streams, GPU memory, reply cache and cloned voices."""

from collections.abc import Callable, Iterable
from itertools import count as counter
from typing import Any, Protocol, runtime_checkable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from offhook.pipeline.engines.shared.gpu_io import memory_bytes
from offhook.pipeline.speech.recognizer import StreamOptions
from offhook.pipeline.speech.timing import STAGES, Stages
from offhook.pipeline.speech.voice.audio_cache import CacheCounters
from offhook.pipeline.speech.voice.audio_cache_io import ReplyCache

FINAL_BUCKETS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 2, 5, 10, 30)
STAGE_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
FIRST_SOUND_BUCKETS = (0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2, 5)
SAMPLED = 16
"""One of this many live streams is sampled for stage metrics without having requested them."""


@runtime_checkable
class KeepsReplies(Protocol):
    """An engine with a reply cache."""

    cache: ReplyCache


class EngineCollector(Collector):
    """Collected on each scrape. Without a GPU or cache the series are empty or zero. `kind` is asr
    or tts."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.engine: object = None
        """The engine, once it has loaded."""

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
        counts, used, shared, failed = CacheCounters(), 0, 0, 0
        if isinstance(self.engine, KeepsReplies):
            cache = self.engine.cache
            counts, used = cache.counts, cache.bytes
            shared, failed = cache.shared_hits, cache.failures
        # What Redis had was first missed in memory.
        for name, text, count in (
            ("hits", "Replies found said before", counts.hits + shared),
            ("misses", "Replies spoken anew", counts.misses - shared),
            ("failures", "Times that Redis failed, or was late", failed),
        ):
            yield CounterMetricFamily(f"offhook_tts_cache_{name}", text, count)
        yield GaugeMetricFamily("offhook_tts_cache_bytes", "Kept replies in memory", used)


class WorkerMetrics:
    """Metrics of one worker in their own registry. `kind` is asr or tts."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        name = f"offhook_{kind}"
        self.loaded = Gauge(f"{name}_loaded", "1 when the model is loaded", registry=registry)
        self.streams = Gauge(f"{name}_streams", "Streams in use now", registry=registry)
        self.max_streams = Gauge(
            f"{name}_max_streams", "Streams in use at most; more are refused", registry=registry
        )
        self.ended = Counter(
            f"{name}_streams_ended_total",
            "Streams ended, by the error's code",
            ["code"],
            registry=registry,
        )
        self.of_engine = EngineCollector(kind)
        registry.register(self.of_engine)

    def health(self) -> dict[str, Any]:
        """Returns the members of /healthz that describe the engine."""
        return {}


class AsrMetrics(WorkerMetrics):
    """Metrics of a recognition worker."""

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
        self.turn = Histogram(
            "offhook_asr_turn_seconds",
            "From the question whether a turn is over to its answer",
            buckets=STAGE_BUCKETS,
            registry=self.registry,
        )
        self.turns_unanswered = Counter(
            "offhook_asr_turns_unanswered_total",
            "Questions whether a turn is over that were not answered, for want of audio or of time",
            registry=self.registry,
        )
        self._stages = {f"{stage}_ms": stages.labels(stage) for stage in STAGES}
        self._numbers = counter()

    def observe(self, stages: Stages) -> None:
        for name, ms in vars(stages).items():
            self._stages[name].observe(ms / 1000)

    def observer(self, options: StreamOptions) -> Callable[[Stages], None] | None:
        """Returns `observe` for a stream sampled for stage metrics, else None. Files are excluded:
        they are sent as fast as possible, so their waiting times mean nothing."""
        observed = options.live and (options.timing or next(self._numbers) % SAMPLED == 0)
        return self.observe if observed else None


@runtime_checkable
class KeepsVoices(Protocol):
    """An engine that clones voices; `store` is a `VoiceStore`, or None."""

    store: Any


class TtsMetrics(WorkerMetrics):
    """Metrics of a synthesis worker."""

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

    def voice_cache(self) -> dict[str, int]:
        """Returns counters of the engine's cloned voices; zeros if it clones none or is not
        loaded."""
        store = getattr(self.of_engine.engine, "store", None)
        if store is None:
            return dict.fromkeys(("voices", "bytes", "hits", "misses", "evictions"), 0)
        clones = store.clones
        counts = {"voices": len(clones), "bytes": clones.nbytes, "hits": clones.hits}
        return {**counts, "misses": clones.misses, "evictions": clones.evictions}

    def health(self) -> dict[str, Any]:
        if not isinstance(self.of_engine.engine, KeepsVoices):
            return {}
        counts = self.voice_cache()
        del counts["evictions"]
        return {"voice_cache": counts}


class VoiceCacheCollector(Collector):
    """Cloned voices in memory, collected on each scrape."""

    def __init__(self, metrics: TtsMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        counts, name = self._metrics.voice_cache(), "offhook_tts_voice_cache"
        yield CounterMetricFamily(f"{name}_hits", "Cloned voices found in memory", counts["hits"])
        yield CounterMetricFamily(f"{name}_misses", "Cloned voices not there", counts["misses"])
        yield CounterMetricFamily(f"{name}_evictions", "Those that gave way", counts["evictions"])
        yield GaugeMetricFamily(f"{name}_voices", "Cloned voices in memory", counts["voices"])
        yield GaugeMetricFamily(f"{name}_bytes", "Their size", counts["bytes"])
