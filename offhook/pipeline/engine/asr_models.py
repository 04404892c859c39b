"""Which models recognise speech here."""

from dataclasses import dataclass
from typing import Literal

Device = Literal["auto", "cpu", "cuda"]
Precision = Literal["bf16", "fp8-weights", "int8-weights"]


@dataclass(frozen=True)
class AsrModels:
    """What is loaded, and where. Each model is a folder or the name of a hub repository,
    which may end with a revision: "Qwen/Qwen3-ASR-0.6B@main"."""

    model: str
    device: Device = "auto"
    final_model: str = ""
    """What has the last word, while `model` tells what is heard so far; empty: `model` too."""
    aligner: str = ""
    """For the times of words; empty: none are to be had."""
    precision: Precision = "bf16"
    """Of the decoders' weights, see models.quantize. bf16 is fp32 on a CPU."""
    max_batch_latency_ms: float = 0.0
    """How long a chunk may wait for others, so that they share a batch; of Nemotron alone. What
    comes while a batch runs shares the next in any case: waiting only costs time."""
    hub: str = ""
    """Where models come from: a mirror of the Hugging Face hub, or "modelscope"; empty: the hub."""
