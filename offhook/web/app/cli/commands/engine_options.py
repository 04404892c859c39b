"""What the options of a command say of a speech engine's models."""

from argparse import Namespace
from dataclasses import replace
from typing import TypeVar

from offhook.pipeline.engines.shared.asr_models import AsrModels, Device
from offhook.pipeline.engines.shared.tts_models import TtsModels

M = TypeVar("M", AsrModels, TtsModels)


def asr_models(arguments: Namespace) -> AsrModels:
    a = arguments
    wait = getattr(a, "max_batch_latency_ms", AsrModels.max_batch_latency_ms)
    models = AsrModels(a.model, _device(a), a.final_model, a.aligner, a.precision, wait, a.hub)
    return _bounded(models, a)


def tts_models(arguments: Namespace) -> TtsModels:
    a = arguments
    cache = getattr(a, "audio_cache", "")
    size_mb = getattr(a, "audio_cache_mb", TtsModels.audio_cache_mb)
    models = TtsModels(a.model, _device(a), a.voices, cache, size_mb, a.hub, a.precision)
    return _bounded(models, a)


def _device(arguments: Namespace) -> Device:
    """Returns the device of one worker."""
    device: Device = "cuda" if arguments.device == "all" else arguments.device
    return device


def _bounded(models: M, arguments: Namespace) -> M:
    """Returns the models of a worker with the memory that it may take."""
    if (share := getattr(arguments, "memory_share", None)) is None:
        return models
    return replace(models, max_streams=arguments.max_streams, memory_share=share)
