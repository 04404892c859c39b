"""Reports what the speech engines find on this machine, for `offhook doctor`.

`python -m offhook.pipeline.engines.shared.gpu_io KIND ENGINE MODEL` prints a `Machine` as
JSON, so that the caller does not have to import torch.
"""

import json
import sys
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from offhook.pipeline.engines.shared import affinity_io
from offhook.pipeline.engines.shared.capacity import ALONE, budget
from offhook.pipeline.engines.shared.reckoned import ModelSize, card_of
from offhook.pipeline.speech.engine_spec import Kind, imported
from offhook.pipeline.speech.engines import spec_of
from offhook.pipeline.speech.errors import EngineError


@dataclass(frozen=True)
class Machine:
    torch: str
    triton: str = ""
    """Package versions; empty if not installed."""
    flash_attn: str = ""
    gpu: str = ""
    """GPU name; empty if torch sees none, in which case the fields below are meaningless."""
    free_bytes: int = 0
    total_bytes: int = 0
    streams: int = 0
    """Streams that fit beside the model; 0 with the reason in `lacks`."""
    lacks: str = ""
    followed: int = 0
    """Streams that it should follow in real time, reckoned from its data sheet; 0: unknown."""
    near_cpus: int = 0
    """CPUs on the GPU's NUMA node; 0 on a single-node machine or if unknown."""


def look(kind: Kind, engine: str, model: str) -> Machine:
    """Examines the GPU for a model of an engine, a folder or a hub repository, which is not
    downloaded. Takes seconds, since it imports torch and opens the GPU."""
    import torch

    versions = (torch.__version__, _version("triton"), _version("flash-attn"))
    if not torch.cuda.is_available():
        return Machine(*versions)
    device = torch.device("cuda")
    free, total = torch.cuda.mem_get_info(device)
    name = torch.cuda.get_device_name(device)
    card = card_of(name)
    streams, lacks, followed = 0, "", 0
    try:
        size = size_of(kind, engine, model)
        streams = fitting(size, free, total)
        followed = size.followed(card) if card is not None else 0
    except EngineError as error:
        lacks = str(error)
    numa_cpus = affinity_io.numa_cpus(affinity_io.pci_address(device))
    return Machine(*versions, name, free, total, streams, lacks, followed, len(numa_cpus))


def size_of(kind: Kind, engine: str, model: str) -> ModelSize:
    """Returns what a model of an engine takes of a GPU. Raises EngineError."""
    on_gpu = spec_of(kind, engine).on_gpu
    assert on_gpu is not None
    size: ModelSize = imported(on_gpu.size)(model)
    return size


def fitting(size: ModelSize, free: int, total: int) -> int:
    """Returns how many streams fit beside a model if it has the GPU for itself. Raises EngineError
    if none do."""
    return size.streams(budget(free - size.weights, total, size.weights, ALONE))


def memory_bytes() -> dict[str, int]:
    """Returns GPU memory in bytes: "allocated" and "reserved" by torch in this process, "free" on
    the device, and "total". Returns nothing, opening no GPU and importing nothing, if this process
    has none open."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {}
    free, total = torch.cuda.mem_get_info()
    allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    return {"allocated": allocated, "reserved": reserved, "free": free, "total": total}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


if __name__ == "__main__":
    of: Kind = "asr" if sys.argv[1] == "asr" else "tts"
    sys.stdout.write(json.dumps(asdict(look(of, *sys.argv[2:4]))) + "\n")
