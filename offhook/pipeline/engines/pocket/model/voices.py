"""Voices of Pocket TTS: what the language model has read of a speaker, as keys and values. Others
than those of LICENCES are not known."""

from collections.abc import Set
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from offhook.pipeline.engines.pocket.model.licences import LICENCES, listed
from offhook.pipeline.engines.pocket.model.sizes import LmSizes
from offhook.pipeline.engines.shared.model.checkpoint import opened
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.synthesizer import UnknownVoice

FOLDER = "embeddings"
KEPT = 8
"""Voices kept in memory, those used last; one takes 6 MB, or 25 MB of a model with 24 layers."""


class VoiceState:
    """A voice as the language model has read it."""

    def __init__(self, name: str, keys_values: Tensor) -> None:
        """`keys_values` is fp32 [layers, 2, kv heads, positions, head size]."""
        self.name, self.keys_values = name, keys_values

    @property
    def positions(self) -> int:
        return self.keys_values.shape[3]


class Voices:
    """Voices of one model folder, read when they are first wanted."""

    def __init__(
        self, folder: Path, sizes: LmSizes, language: str, device: torch.device | str
    ) -> None:
        """Raises EngineError if the folder has none, or one is damaged."""
        found = {path.stem: path for path in (folder / FOLDER).glob("*.safetensors")}
        self._paths = {name: found[name] for name in listed(language) if name in found}
        if not self._paths:
            raise EngineError(f"{folder / FOLDER} has none of the voices {', '.join(LICENCES)}")
        self._sizes, self._device = sizes, device
        self._read: dict[str, VoiceState] = {}
        """The one used last comes last."""
        self.longest = max(_positions(path) for path in self._paths.values())
        """Positions of the longest voice."""

    @property
    def names(self) -> list[str]:
        """The default one first."""
        return list(self._paths)

    def voice(self, name: str) -> VoiceState:
        """Returns a voice. Raises UnknownVoice, and EngineError if its file is damaged or of
        another model."""
        voice = self._read.pop(name, None)
        if voice is None:
            if name not in self._paths:
                raise UnknownVoice(f"no voice {name!r}; there are {', '.join(self._paths)}")
            state = _read(self._paths[name], self._sizes).to(self._device)
            voice = VoiceState(name, state)
            if len(self._read) == KEPT:
                del self._read[next(iter(self._read))]
        self._read[name] = voice
        return voice


def _cache(layer: int) -> str:
    return f"transformer.layers.{layer}.self_attn/cache"


def _positions(path: Path) -> int:
    with opened(path) as file:
        if _cache(0) not in set(file.keys()):
            raise EngineError(f"{path} is no voice: it lacks the tensor {_cache(0)}")
        shape = file.get_slice(_cache(0)).get_shape()
    if len(shape) != 5:
        raise EngineError(f"{path} is no voice: {_cache(0)} is {shape}")
    return int(shape[2])


def _read(path: Path, sizes: LmSizes) -> Tensor:
    with opened(path) as file:
        names = set(file.keys())
        layers = [_layer(file, path, names, i, sizes) for i in range(sizes.layers)]
        if _cache(sizes.layers) in names:
            raise EngineError(f"{path} is of a model with more than {sizes.layers} layers")
    if len({layer.shape for layer in layers}) > 1:
        raise EngineError(f"{path}: its layers are not equally long")
    return torch.stack(layers)


def _layer(file: Any, path: Path, names: Set[str], number: int, sizes: LmSizes) -> Tensor:
    """Returns [2, kv heads, positions, head size]."""
    if _cache(number) not in names:
        raise EngineError(f"{path} lacks the tensor {_cache(number)}")
    cache: Tensor = file.get_tensor(_cache(number))
    layer = sizes.layer
    wanted = (2, 1, layer.kv_heads, layer.head_size)
    if cache.ndim != 5 or cache.shape[:2] + cache.shape[3:] != wanted:
        raise EngineError(
            f"{path}: {_cache(number)} is {list(cache.shape)}, the model makes it "
            f"[2, 1, positions, {layer.kv_heads}, {layer.head_size}]"
        )
    used = _used(file, path, names, number, cache.shape[2])
    kept = cache[:, 0, :used].float().transpose(1, 2).contiguous()
    if not kept.isfinite().all():
        raise EngineError(f"{path}: {_cache(number)} has values that are not finite")
    return kept


def _used(file: Any, path: Path, names: Set[str], number: int, positions: int) -> int:
    """Returns the positions in use: a number, or in older files the length of a tensor."""
    name = f"transformer.layers.{number}.self_attn"
    if f"{name}/offset" in names:
        used = int(file.get_tensor(f"{name}/offset").flatten()[0])
    elif f"{name}/current_end" in names:
        used = int(file.get_slice(f"{name}/current_end").get_shape()[0])
    else:
        raise EngineError(f"{path} lacks the tensor {name}/offset")
    if not 0 < used <= positions:
        raise EngineError(f"{path}: {name}/offset is {used}, of {positions} positions")
    return used
