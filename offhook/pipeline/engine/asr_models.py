"""Selects the speech recognition models."""

from dataclasses import dataclass
from typing import Literal

Device = Literal["auto", "cpu", "cuda"]
Precision = Literal["bf16", "fp8-weights", "int8-weights"]


@dataclass(frozen=True)
class AsrModels:
    """The models to load and their device. Each model is a folder or a hub repository, optionally
    with a revision: "Qwen/Qwen3-ASR-0.6B@main"."""

    model: str
    device: Device = "auto"
    final_model: str = ""
    """Model of the final texts while `model` makes the partials; empty: `model` makes both."""
    aligner: str = ""
    """Forced aligner for word times; empty: word times are unavailable."""
    precision: Precision = "bf16"
    """Weight format of the decoders, see `models.qwen3_asr.quantize`. bf16 means fp32 on a CPU."""
    max_batch_latency_ms: float = 0.0
    """Time in ms that a chunk may wait to share a batch; Nemotron only. Chunks that arrive while a
    batch runs share the next one anyway, so this only adds latency."""
    hub: str = ""
    """Download source: the URL of a Hugging Face hub mirror or "modelscope"; empty: the hub
    itself."""
