"""Selects the speech recognition models."""

from dataclasses import dataclass
from typing import Literal

from offhook.pipeline.engines.shared.capacity import SHARED

Device = Literal["auto", "cpu", "cuda"]
Precision = Literal["auto", "fp32", "bf16", "int8", "fp8-weights", "int8-weights"]


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
    precision: Precision = "auto"
    """Number format: "fp32", "bf16", "int8" (Nemotron on a CPU, see `shared.model.int8`), or 8-bit
    weights beside bf16 (Qwen3-ASR, see `qwen3_asr.model.quantize`). "auto" is bf16 on a GPU; on a
    CPU int8 for Nemotron, else fp32."""
    max_batch_latency_ms: float = 0.0
    """Time in ms that a chunk may wait to share a batch; Nemotron only. Chunks that arrive while a
    batch runs share the next one anyway, so this only adds latency."""
    hub: str = ""
    """Download source: the URL of a Hugging Face hub mirror or "modelscope"; empty: the hub
    itself."""
    max_streams: int = 0
    """Live streams that will be open at most, for which memory is taken; 0: as many as are of
    use and fit."""
    processes: int = 0
    """Processes of an engine that has several; 0: by the number of cores."""
    memory_share: float = SHARED
    """Share of the GPU's memory that may be taken, weights included."""
