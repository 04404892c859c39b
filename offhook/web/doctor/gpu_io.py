"""GPU checks of `offhook doctor`."""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

from offhook.pipeline.engine.gpu_io import Machine
from offhook.pipeline.speech.recognizer import EngineError

LOOK_TIMEOUT_S = 60
"""Time limit in s; importing torch and opening the GPU can take long from a cold disk."""
MEASURED_ON = "H200"
MEASURED_BY = "python -m benchmarks asr --parts settings"


class Setting(NamedTuple):
    name: str
    doing: str
    """What the engine does."""
    effect: str
    """The measured effect."""


SETTINGS = (
    Setting(
        "CUDA graphs",
        "on: every stage at every size, captured before the first call",
        "a decode step of one stream 1.0 instead of 6.0 ms, of 32 1.5 instead of 6.7",
    ),
    Setting(
        "warm-up",
        "over every size, and with noise as loud as speech, before the first call",
        "the first update of 32 streams takes 11 instead of 834 ms",
    ),
    Setting(
        "attention",
        "kernels of its own (Triton), over pages and packed windows",
        "1.1 times as fast as torch's SDPA over full windows, 1.3 times over mixed ones",
    ),
    Setting(
        "torch.compile",
        "off: the kernels are fused by hand",
        "it makes an encoder layer 7 % faster, a decoder layer 17 % slower",
    ),
    Setting(
        "TF32",
        "off: the filters of the mel are the only fp32 product, all else is bf16",
        "no effect",
    ),
    Setting("cudnn.benchmark", "off", "no effect"),
    Setting(
        "copies",
        "from page-locked buffers that take turns, not waited for",
        "32 s of sound 0.03 instead of 0.08 ms",
    ),
    Setting("inference thread", "one of its own", "a hand-over and back 21 instead of 38 µs"),
    Setting(
        "garbage collection",
        "frozen after warm-up; no collection or empty_cache per update",
        "an update 3.5 instead of 44 ms",
    ),
    Setting("CPU threads", "1 beside the inference thread's own", "no effect"),
    Setting(
        "ONNX Runtime, TensorRT",
        "not used",
        "not measured; an encoder four times as fast would save 6 or 7 % of an update",
    ),
)


def look(model: str) -> Machine:
    """Examines the GPU in a separate process. Raises EngineError."""
    command = [sys.executable, "-m", "offhook.pipeline.engine.gpu_io", model]
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


def described(machine: Machine, model: str) -> Iterator[tuple[str, str]]:
    """Yields subjects and findings for Qwen3-ASR."""
    yield from streams_described(machine, model)
    if not machine.gpu:
        return
    for setting in SETTINGS:
        yield setting.name, f"{setting.doing}; {setting.effect}"
    yield "effects", f"measured on an {MEASURED_ON} by: {MEASURED_BY}"


def streams_described(machine: Machine, model: str) -> Iterator[tuple[str, str]]:
    """Yields subjects and findings for any recognition model."""
    yield _torch(machine)
    if not machine.gpu:
        return
    yield "speech on the GPU", _fits(machine, "streams", model)
    node = "one NUMA node, or the machine does not say which is the GPU's: no effect"
    if machine.near_cpus:
        node = f"the inference thread stays on the {machine.near_cpus} CPUs of the GPU's NUMA node"
    yield "CPU affinity", node


def voices_described(machine: Machine, model: str) -> Iterator[tuple[str, str]]:
    """Yields subjects and findings for a synthesis model."""
    yield _torch(machine)
    if machine.gpu:
        yield "voices on the GPU", _fits(machine, "voices at once", model)


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
