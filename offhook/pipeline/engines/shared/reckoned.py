"""Reckons how many streams a GPU follows in real time that was not measured.

From data sheets: launches on an H200 were timed, and another GPU takes as many times longer as it
reads memory or multiplies slower, whichever is worse. What the host's launches and the grids'
beginnings take stays as it is. An engine measures for itself when it has loaded.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from offhook.pipeline.engines.shared.capacity import MAX_STREAMS, MAX_VOICES
from offhook.pipeline.speech.errors import EngineError

if TYPE_CHECKING:
    from torch import nn

C = TypeVar("C")
N = TypeVar("N", bound=str)

FRAME_MS, UPDATE_MS = 80.0, 400.0
VOICES_LOAD, HEARING_LOAD = 0.78, 0.9
"""Shares of the time that launches may take. On an H200 1,836 voices (0.6B) and 1,710 (1.7B) follow
from the first: 1,800 of either were held, of 2,000 (0.6B) one frame in 170 was late."""
STEP_STREAMS = 512
"""Streams of the largest step."""

Size = Literal["0.6B", "1.7B"]


@dataclass(frozen=True)
class Card:
    """A GPU by its data sheet."""

    name: str
    """Word by which its driver's name is known."""
    bandwidth: float
    """Bytes a second."""
    operations: float
    """Dense 16-bit operations a second, summed in fp32."""
    gigabytes: int

    @property
    def slowness(self) -> float:
        """Returns how many times longer than an H200 it takes."""
        return max(H200.bandwidth / self.bandwidth, H200.operations / self.operations)


H200 = Card("H200", 4.8e12, 989e12, 141)
CARDS = (
    H200,
    Card("H100", 3.35e12, 989e12, 80),
    Card("RTX 4090", 1.008e12, 165e12, 24),
    Card("A10", 0.6e12, 125e12, 24),
    Card("L4", 0.3e12, 121e12, 24),
    Card("T4", 0.32e12, 65e12, 16),
)


@dataclass(frozen=True)
class Voices:
    """Durations on an H200 in ms: a step and its codec launch."""

    fixed: float
    """Whatever the GPU: a thousand small grids one after another."""
    weights: float
    """To read the weights once, the lower bound."""
    each: float
    """For every voice: keys, values, the codec's state, and its convolutions."""


# Steps of 64 and 512 voices take 4.6 and 9.9 ms (0.6B), 5.1 and 11.1 ms (1.7B); codec launches of
# 1 and 512 frames 0.4 and 7.5 ms with convolutions in Triton, as on GPUs that are no Hopper.
VOICES: dict[Size, Voices] = {"0.6B": Voices(3.4, 0.83, 0.0257), "1.7B": Voices(3.4, 1.29, 0.0273)}
HEARING: dict[Size, float] = {"0.6B": 16.6, "1.7B": 25.3}
"""A batch of HEARING_BATCH average updates on an H200 in ms, see `asr.loading_io`."""
HEARING_BATCH = 32


def card_of(name: str) -> Card | None:
    """Returns the card with a driver's name, e.g. "NVIDIA L4"; None: its data sheet is unknown."""
    return next((c for c in CARDS if re.search(rf"\b{c.name}\b", name)), None)


def voices(card: Card, size: Size) -> int:
    """Returns the voices that can have a frame every 80 ms, memory apart."""
    v, slow = VOICES[size], card.slowness
    fixed, each = v.fixed + slow * v.weights, slow * v.each
    time_ms = VOICES_LOAD * FRAME_MS
    in_one_step = (time_ms - fixed) / each
    if in_one_step > STEP_STREAMS:
        in_one_step = STEP_STREAMS * time_ms / (fixed + STEP_STREAMS * each)
    return max(0, min(MAX_VOICES, int(in_one_step)))


def listeners(card: Card, size: Size) -> int:
    """Returns the streams that can have an update every 400 ms, memory apart."""
    ms = HEARING[size] * card.slowness
    return min(MAX_STREAMS, int(HEARING_LOAD * UPDATE_MS * HEARING_BATCH / ms))


# --- of a model, which is neither loaded nor downloaded ---


@dataclass(frozen=True)
class ModelSize:
    weights: int
    """Bytes of the weights, in 16 bits."""
    streams: Callable[[int], int]
    """Returns the streams that fit in so many bytes beside the weights. Raises EngineError if not
    even one does."""
    followed: Callable[[Card], int] = lambda card: 0
    """Returns the streams that a GPU should follow in real time; 0 if that is not known."""


def read_config(model: str) -> dict[str, Any]:
    """Returns the config.json of a model in a folder; empty if it is none. Raises EngineError."""
    file = Path(model).expanduser() / "config.json"
    if not file.is_file():
        return {}
    try:
        return dict(json.loads(file.read_text("utf-8")))
    except (OSError, ValueError) as error:
        raise EngineError(f"{file}: {error}") from error


def config_by_name(model: str, configs: Mapping[N, C]) -> C:
    """Returns the configuration whose name is a part of the model's. Raises EngineError."""
    for name, config in configs.items():
        if name in model:
            return config
    raise EngineError(f"how large {model} is shows when it is downloaded")


def weights_bytes(make: "Callable[[], nn.Module]") -> int:
    """Returns the size of a model's weights in 16 bits. Imports torch."""
    import torch

    with torch.device("meta"):
        return 2 * sum(p.numel() for p in make().parameters())
