"""Selects the device of a model and configures torch for it."""

import os

import torch

from offhook.pipeline.engines.shared.affinity_io import pin_to_numa_node
from offhook.pipeline.engines.shared.asr_models import Device, Precision
from offhook.pipeline.engines.shared.capacity import budget
from offhook.pipeline.speech.errors import EngineError

BF16 = (8, 0)
"""Least compute capability of a GPU that computes in bf16; older ones (T4) do in fp16."""
CPU_THREADS = 4
"""Maximum threads of torch on a CPU, and no more than half of its hyperthreads, as a sibling does
not help; further cores are not used."""


def choose_device(device: Device) -> torch.device:
    """Returns the torch device of a setting. Raises EngineError if it does not exist."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        raise EngineError("torch sees no CUDA GPU here: set the device to cpu or auto")
    return torch.device(device)


def dtype_of(device: torch.device, precision: Precision = "auto") -> torch.dtype:
    """Returns the type of a model's state, and of its weights unless they have 8 bits."""
    if precision in ("fp32", "bf16"):
        return torch.float32 if precision == "fp32" else torch.bfloat16
    if device.type != "cuda":
        return torch.float32
    return torch.bfloat16 if torch.cuda.get_device_capability(device) >= BF16 else torch.float16


def memory_budget(device: torch.device, share: float) -> int:
    """Returns the bytes that this process may still take of the GPU, having loaded its weights."""
    torch.cuda.empty_cache()  # what reading needed; the rest is counted as taken
    free, total = torch.cuda.mem_get_info(device)
    return budget(free, total, torch.cuda.memory_reserved(device), share)


def threads(device: torch.device) -> int:
    """Returns the number of threads that torch uses."""
    return 1 if device.type == "cuda" else max(1, min(CPU_THREADS, (os.cpu_count() or 1) // 2))


def claim_thread(device: torch.device) -> None:
    """Prepares the calling thread to run models on this device."""
    pin_to_numa_node(device)
    torch.backends.cuda.matmul.allow_tf32 = False  # what remains in fp32 must be exact
    torch.set_num_threads(threads(device))
