"""Looks at the machine for `choice`, in milliseconds: without importing torch."""

import os
import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from offhook.pipeline.engines.hub import download_io, hugging_face_io
from offhook.pipeline.engines.hub.cache_io import presence
from offhook.pipeline.engines.shared.model.instructions import Instructions, instructions_of
from offhook.pipeline.speech.engine_spec import PublishedModel
from offhook.pipeline.speech.engines import catalogue, packages
from offhook.pipeline.speech.vad.onnx_io import cpu_flags
from offhook.web.config.config import Config
from offhook.web.workers.engines.choice import Machine

GPU_QUERY_TIMEOUT_S = 5
"""Time limit in s for `nvidia-smi`; then the machine counts as one without a GPU."""
CGROUP = Path("/sys/fs/cgroup")
"""Limits of a container (cgroup v2)."""


def look() -> Machine:
    """Examines this machine; may take a second if it has a GPU."""
    offline = download_io.is_offline()
    return Machine(
        _cores(),
        _memory_bytes(),
        _instructions(),
        _gpu_bytes(),
        frozenset(package for package in packages() if find_spec(package) is not None),
        offline,
        frozenset(m.name for m in catalogue() if is_cached(m)) if offline else frozenset(),
    )


def keep_offline(config: Config) -> None:
    """Forbids downloads in this process and its children if the configuration does."""
    if config.engines.offline:
        download_io.go_offline()


def is_cached(model: PublishedModel) -> bool:
    """Returns whether a model needs no download."""
    return presence(model.repository, model.revision, False, model.files).complete


def free_bytes(model: PublishedModel) -> int:
    """Returns the free space of the disk that a model is downloaded to. Raises ImportError without
    `huggingface_hub`, OSError."""
    store = hugging_face_io.store_of(model.repository, model.revision)
    return download_io.free_bytes(store.folder)


def _cores() -> int:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota, _, period = _limit("cpu.max").partition(" ")
    if quota.isdecimal() and period.isdecimal():
        return max(1, min(usable or 1, int(quota) // int(period)))
    return usable or 1


def _memory_bytes() -> int:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = _limit("memory.max")
    return min(total, int(limit)) if limit.isdecimal() else total


def _limit(name: str) -> str:
    try:
        return (CGROUP / name).read_text().strip()
    except OSError:
        return ""


def _instructions() -> Instructions:
    """Returns what `shared.model.int8.instructions` would, where the system tells."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return Instructions.OTHER
    flags = cpu_flags()
    if flags is None:
        return Instructions.AVX  # every x86 CPU of the last ten years
    return instructions_of(dict.fromkeys(flags, True))


def gpus() -> tuple[str, ...]:
    """Returns the NVIDIA GPUs that this process may use, each as CUDA_VISIBLE_DEVICES names it."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return tuple(name for name in visible.split(",") if name and name != "-1")
    query = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            query, capture_output=True, text=True, timeout=GPU_QUERY_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(done.stdout.split())


def _gpu_bytes() -> int:
    """Returns the memory of the largest NVIDIA GPU, 0 if torch could not use it."""
    try:
        if version("torch").endswith("+cpu"):
            return 0
    except PackageNotFoundError:
        return 0
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1") or not shutil.which("nvidia-smi"):
        return 0
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            query, capture_output=True, text=True, timeout=GPU_QUERY_TIMEOUT_S, check=True
        )
        return max(int(line) for line in done.stdout.split()) << 20
    except (OSError, ValueError, subprocess.SubprocessError):
        return 0
