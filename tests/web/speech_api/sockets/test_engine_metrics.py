"""What Prometheus sees of a worker's engine: memory of the GPU, kept replies."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from offhook.pipeline.engines.shared import gpu_io
from offhook.pipeline.speech.synthesizer import Speech
from offhook.pipeline.speech.voice.audio_cache_io import ReplyCache
from offhook.web.speech_api.sockets import engine_metrics
from offhook.web.speech_api.sockets.engine_metrics import WorkerMetrics


def samples(metrics: WorkerMetrics) -> dict[str, float]:
    text = generate_latest(metrics.registry).decode()
    return {
        sample.name + "".join(sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


class Engine:
    def __init__(self) -> None:
        self.cache = ReplyCache(1 << 20)


def test_before_an_engine_is_there_nothing_was_found() -> None:
    said = samples(WorkerMetrics("tts"))
    assert said["offhook_tts_cache_hits_total"] == said["offhook_tts_cache_misses_total"] == 0
    assert not any(name.startswith("offhook_gpu_memory_bytes") for name in said)


def test_replies_are_counted_by_whether_they_were_kept() -> None:
    metrics, engine = WorkerMetrics("tts"), Engine()
    metrics.of_engine.engine = engine
    engine.cache.get("a")
    engine.cache.put("a", [Speech(np.zeros(1000, np.int16), "a")])
    engine.cache.get("a")
    engine.cache.get("a")
    said = samples(metrics)
    assert said["offhook_tts_cache_hits_total"] == 2
    assert said["offhook_tts_cache_misses_total"] == 1
    assert said["offhook_tts_cache_bytes"] >= 2000


def test_what_redis_had_is_no_miss() -> None:
    """Memory is asked first, and has counted it as one."""
    metrics, engine = WorkerMetrics("tts"), Engine()
    metrics.of_engine.engine = engine
    engine.cache.shared_hits, engine.cache.failures = 2, 1
    for key in "abc":
        engine.cache.get(key)
    said = samples(metrics)
    assert said["offhook_tts_cache_hits_total"] == 2
    assert said["offhook_tts_cache_misses_total"] == 1
    assert said["offhook_tts_cache_failures_total"] == 1


def test_a_recogniser_keeps_no_replies() -> None:
    metrics = WorkerMetrics("asr")
    metrics.of_engine.engine = Engine()
    assert not any("cache" in name for name in samples(metrics))


def test_memory_of_the_gpu_is_told_once_the_engine_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = {"allocated": 3, "reserved": 4, "free": 5, "total": 10}
    monkeypatch.setattr(engine_metrics, "memory_bytes", lambda: known)
    metrics = WorkerMetrics("asr")
    assert "offhook_gpu_memory_bytestotal" not in samples(metrics)
    metrics.of_engine.engine = object()
    said = samples(metrics)
    assert {kind: said[f"offhook_gpu_memory_bytes{kind}"] for kind in known} == known


def test_a_process_without_torch_has_no_gpu_and_imports_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert gpu_io.memory_bytes() == {}
    assert "torch" not in sys.modules


def test_torch_is_asked_of_a_gpu_that_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = False
    cuda = SimpleNamespace(
        is_initialized=lambda: opened,
        mem_get_info=lambda: (5, 10),
        memory_allocated=lambda: 3,
        memory_reserved=lambda: 4,
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert gpu_io.memory_bytes() == {}
    opened = True
    assert gpu_io.memory_bytes() == {"allocated": 3, "reserved": 4, "free": 5, "total": 10}
