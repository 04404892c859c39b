"""Where a model runs, and how torch is set for it."""

import os

import torch

from offhook.pipeline.engine.affinity_io import stay_near
from offhook.pipeline.engine.asr_models import Device
from offhook.pipeline.speech.recognizer import EngineError

CPU_THREADS = 4
"""At most; a thread on the other half of a core only waits for the first."""


def choose_device(device: Device) -> torch.device:
    """Raises EngineError when there is none."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        raise EngineError("torch sees no CUDA GPU here: set the device to cpu or auto")
    return torch.device(device)


def dtype_of(device: torch.device) -> torch.dtype:
    """What the models of this device compute in."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def threads(device: torch.device) -> int:
    """That torch computes with."""
    return 1 if device.type == "cuda" else max(1, min(CPU_THREADS, (os.cpu_count() or 1) // 2))


def claim_thread(device: torch.device) -> None:
    """Make the calling thread the one that runs models on this device."""
    stay_near(device)
    torch.backends.cuda.matmul.allow_tf32 = False  # what is left in fp32 is to be exact
    torch.set_num_threads(threads(device))
