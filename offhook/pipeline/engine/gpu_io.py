"""Reports what the speech engines find on this machine, for `offhook doctor`.

`python -m offhook.pipeline.engine.gpu_io MODEL` prints a `Machine` as JSON, so that the caller does
not have to import torch.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offhook.pipeline.engine import affinity_io
from offhook.pipeline.engine.capacity import (
    ALONE,
    budget,
    label_streams,
    recognition_plan,
    synthesis_plan,
)
from offhook.pipeline.engine.reckoned import Size, card_of, listeners, voices
from offhook.pipeline.speech.recognizer import EngineError

if TYPE_CHECKING:
    from torch import nn

    from offhook.pipeline.models.nemotron.model import NemotronConfig
    from offhook.pipeline.models.qwen3_asr.model import AsrConfig
    from offhook.pipeline.models.qwen3_tts.config import TtsConfig


SIZE_BY_WIDTH: dict[int, Size] = {1024: "0.6B", 2048: "1.7B"}
"""Models by the width of their decoder or talker."""


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


def look(model: str) -> Machine:
    """Examines the GPU for `model`, a folder or a hub repository, which is not downloaded. Takes
    seconds, since it imports torch and opens the GPU."""
    import torch

    versions = (torch.__version__, _version("triton"), _version("flash-attn"))
    if not torch.cuda.is_available():
        return Machine(*versions)
    device = torch.device("cuda")
    free, total = torch.cuda.mem_get_info(device)
    streams, lacks = fitting(model, free, total)
    name = torch.cuda.get_device_name(device)
    numa_cpus = affinity_io.numa_cpus(affinity_io.pci_address(device))
    return Machine(
        *versions,
        name,
        free,
        total,
        streams,
        lacks,
        _followed(model, name) if streams else 0,
        len(numa_cpus),
    )


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


def fitting(model: str, free: int, total: int) -> tuple[int, str]:
    """Returns how many streams fit beside the model if it has the GPU for itself, and the reason if
    none do."""
    try:
        config = _config(model)
        weights, state = _bytes(config)
        return _beside(config, budget(free - weights, total, weights, ALONE), state), ""
    except EngineError as error:
        return 0, str(error)


def _followed(model: str, gpu: str) -> int:
    """Returns the streams that a GPU with this name should follow; 0 if that is not known."""
    from offhook.pipeline.models.nemotron.model import NemotronConfig
    from offhook.pipeline.models.qwen3_asr.model import AsrConfig

    config, card = _config(model), card_of(gpu)
    if card is None or isinstance(config, NemotronConfig):
        return 0
    hears = isinstance(config, AsrConfig)
    width = (config.decoder if isinstance(config, AsrConfig) else config.talker).hidden_size
    size = SIZE_BY_WIDTH.get(width)
    if size is None:
        return 0
    return listeners(card, size) if hears else voices(card, size)


def _beside(config: "AsrConfig | NemotronConfig | TtsConfig", room: int, state: int) -> int:
    from offhook.pipeline.models.nemotron.model import NemotronConfig
    from offhook.pipeline.models.qwen3_asr.model import AsrConfig

    if isinstance(config, AsrConfig):
        return recognition_plan(room, config).streams
    if isinstance(config, NemotronConfig):
        return label_streams(room, config)
    from offhook.pipeline.engine.tts.runner import STREAM_LADDER
    from offhook.pipeline.engine.tts.segment_prefill import PREFIX_SLOTS
    from offhook.pipeline.models.qwen3_tts.codec import QWEN3_CODEC

    return synthesis_plan(room, config, QWEN3_CODEC, state, STREAM_LADDER, PREFIX_SLOTS).streams


def _bytes(config: "AsrConfig | NemotronConfig | TtsConfig") -> tuple[int, int]:
    """Returns the bytes of the weights and of the codec's state of a voice, in 16 bits."""
    from offhook.pipeline.models.nemotron.model import Nemotron, NemotronConfig
    from offhook.pipeline.models.qwen3_asr.model import AsrConfig, Qwen3Asr

    if isinstance(config, AsrConfig):
        return _weights_bytes(lambda: Qwen3Asr(config)), 0
    if isinstance(config, NemotronConfig):
        return _weights_bytes(lambda: Nemotron(config)), 0
    return _voice_bytes(config)


def _config(model: str) -> "AsrConfig | NemotronConfig | TtsConfig":
    """Reads the model's configuration. Raises EngineError."""
    from offhook.pipeline.models.nemotron import checkpoint as nemotron
    from offhook.pipeline.models.qwen3_asr.model import QWEN3_ASR_0_6B, QWEN3_ASR_1_7B, AsrConfig
    from offhook.pipeline.models.qwen3_tts.config import QWEN3_TTS_0_6B, QWEN3_TTS_1_7B, TtsConfig

    file = Path(model).expanduser() / "config.json"
    if file.is_file():
        try:
            told = json.loads(file.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise EngineError(f"{file}: {error}") from error
        if str(told.get("model_type")).startswith("nemotron"):
            return nemotron.read_config(file.parent)
        kind = TtsConfig if told.get("model_type") == "qwen3_tts" else AsrConfig
        return kind.from_json(told)
    if "nemotron" in model:
        return nemotron.NEMOTRON_3_5_0_6B if "3.5" in model else nemotron.NEMOTRON_0_6B
    speaks = "TTS" in model
    for name, config in (
        ("0.6B", QWEN3_TTS_0_6B if speaks else QWEN3_ASR_0_6B),
        ("1.7B", QWEN3_TTS_1_7B if speaks else QWEN3_ASR_1_7B),
    ):
        if name in model:
            return config
    raise EngineError(f"how large {model} is shows when it is downloaded")


def _weights_bytes(make: "Callable[[], nn.Module]") -> int:
    """Returns the size of the weights in bf16."""
    import torch

    with torch.device("meta"):
        weights: int = sum(p.numel() for p in make().parameters())
    return 2 * weights


def _voice_bytes(config: "TtsConfig") -> tuple[int, int]:
    """Returns the bytes of the weights and of one stream's state, in bf16."""
    import torch

    from offhook.pipeline.models.qwen3_tts.codec import QWEN3_CODEC, Codec
    from offhook.pipeline.models.qwen3_tts.model import Qwen3Tts

    with torch.device("meta"):
        model, codec = Qwen3Tts(config), Codec(QWEN3_CODEC).to(torch.bfloat16)
        weights = sum(p.numel() for part in (model, codec) for p in part.parameters())
        state: int = codec.new_state(1).bytes_per_slot
    return 2 * weights, state


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asdict(look(sys.argv[1]))) + "\n")
