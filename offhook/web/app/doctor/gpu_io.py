"""GPU checks of `offhook doctor`."""

import json
import subprocess
import sys
from collections.abc import Iterator

from offhook.pipeline.engines.shared.gpu_io import Machine
from offhook.pipeline.speech.engine_spec import MEASURED_ON, Kind, OnGpu
from offhook.pipeline.speech.errors import EngineError

LOOK_TIMEOUT_S = 60
"""Time limit in s; importing torch and opening the GPU can take long from a cold disk."""


def look(kind: Kind, engine: str, model: str) -> Machine:
    """Examines the GPU for a model of an engine in a separate process. Raises EngineError."""
    command = [sys.executable, "-m", "offhook.pipeline.engines.shared.gpu_io", kind, engine, model]
    try:
        child = subprocess.run(
            command, capture_output=True, text=True, timeout=LOOK_TIMEOUT_S, check=False
        )
        return Machine(**json.loads(child.stdout.splitlines()[-1]))
    except subprocess.TimeoutExpired as error:
        raise EngineError(f"no answer from the GPU in {LOOK_TIMEOUT_S} s") from error
    except (IndexError, ValueError, TypeError) as error:
        last = next(reversed(child.stderr.splitlines()), "it left no word")
        raise EngineError(f"torch cannot be asked: {last}") from error


SUBJECTS: dict[Kind, str] = {"asr": "speech on the GPU", "tts": "voices on the GPU"}


def described(machine: Machine, kind: Kind, on_gpu: OnGpu, model: str) -> Iterator[tuple[str, str]]:
    """Yields subjects and findings for an engine with a model."""
    yield _torch(machine)
    if not machine.gpu:
        return
    yield SUBJECTS[kind], _fits(machine, on_gpu.unit, model)
    if kind == "asr":
        node = "one NUMA node, or the machine does not say which is the GPU's: no effect"
        if machine.near_cpus:
            near = f"the {machine.near_cpus} CPUs of the GPU's NUMA node"
            node = f"the inference thread stays on {near}"
        yield "CPU affinity", node
    for setting in on_gpu.settings:
        yield setting.name, f"{setting.doing}; {setting.effect}"
    if on_gpu.settings:
        yield "effects", f"measured on an {MEASURED_ON} by: {on_gpu.measured_by}"


def _torch(machine: Machine) -> tuple[str, str]:
    triton, flash = machine.triton or "none", machine.flash_attn or "none, nor needed"
    return "torch", f"{machine.torch}, Triton {triton}, flash-attn {flash}"


def _fits(machine: Machine, what: str, model: str) -> str:
    free, total = machine.free_bytes / 2**30, machine.total_bytes / 2**30
    fit = f"{machine.streams} {what} fit beside {model}" if machine.streams else machine.lacks
    if machine.followed:
        most = min(machine.streams, machine.followed)
        fit += f"; {most} should be followed in real time (reckoned; a worker measures it)"
    return f"{machine.gpu}, {free:.1f} of {total:.1f} GiB free: {fit}"
