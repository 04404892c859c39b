"""Reads tensors of a checkpoint folder (see `hub_io.find`) into a model.

Weights are read from safetensors only, one file or shards with an index; pickles are never opened.
Fused parameters (q, k, v; gate, up) are filled part by part in place, so a model is never in memory
twice.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from offhook.pipeline.speech.errors import EngineError

Module = TypeVar("Module", bound=nn.Module)

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
NAMED_IN_ERRORS = 4
"""Maximum tensor names in an error message; a wrong checkpoint lacks hundreds."""


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object. Raises EngineError if the file is missing or holds anything else."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise EngineError(f"{path.parent} is no checkpoint: it has no {path.name}") from error
    except ValueError as error:
        raise EngineError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise EngineError(f"{path} is not a JSON object")
    return value


# --- weights ---


def find_tensors(folder: Path) -> dict[str, Path]:
    """Maps every tensor name of the checkpoint to its file. Raises EngineError."""
    if (folder / INDEX).is_file():
        names = set(read_json(folder / INDEX).get("weight_map", {}).values())
        if not names or not all(isinstance(n, str) and Path(n).name == n for n in names):
            raise EngineError(f"{folder / INDEX} names no files of its own folder")
        paths = [folder / name for name in sorted(names)]
    else:
        paths = [folder / SINGLE]
    sources = {}
    for path in paths:
        if not path.is_file():
            raise EngineError(
                f"{folder} lacks {path.name} (weights are read from safetensors only)"
            )
        with opened(path) as file:
            sources.update(dict.fromkeys(file.keys(), path))
    return sources


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Opens a safetensors file. Raises EngineError if it is damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except SafetensorError as error:
        raise EngineError(f"{path} is broken: {error}") from error


def fill(
    folder: Path, places: Mapping[str, Tensor], ours: Callable[[str], bool] = lambda name: True
) -> None:
    """Copies tensors of a checkpoint into `places`.

    `ours` returns whether a tensor without a place is an error; others are ignored. Raises
    EngineError naming the tensors that are missing, unexpected or of the wrong shape.
    """
    sources = find_tensors(folder)
    _check_names(folder, places.keys(), {n for n in sources if n in places or ours(n)})
    for path in sorted({sources[name] for name in places}):
        with opened(path) as file:
            for name in file.keys() & places.keys():
                _copy(file, name, places[name], path)


def _copy(file: Any, name: str, place: Tensor, path: Path) -> None:
    tensor: Tensor = file.get_tensor(name)
    check_tensor(path, name, tensor.shape, tensor.dtype, place.shape)
    place.copy_(tensor)


def check_tensor(
    path: Path, name: str, found: Sequence[int], dtype: torch.dtype, wanted: Sequence[int]
) -> None:
    """Raises EngineError if a tensor does not have the wanted shape or is not floating-point."""
    if list(found) != list(wanted):
        raise EngineError(f"{path}: {name} is {list(found)}, config.json makes it {list(wanted)}")
    if not dtype.is_floating_point:
        raise EngineError(f"{path}: {name} is {dtype}; quantised models are not read")


def check_names(
    folder: Path, wanted: Set[str], ours: Callable[[str], bool] = lambda name: True
) -> None:
    """Raises EngineError naming the tensors that the checkpoint lacks or has beyond `wanted`;
    `ours` as of `fill`."""
    _check_names(folder, wanted, {n for n in find_tensors(folder) if n in wanted or ours(n)})


def _check_names(folder: Path, wanted: Set[str], found: Set[str]) -> None:
    for what, names in (("lacks", wanted - found), ("has unknown", found - wanted)):
        if names:
            some = ", ".join(sorted(names)[:NAMED_IN_ERRORS])
            more = f" and {len(names) - NAMED_IN_ERRORS} more" * (len(names) > NAMED_IN_ERRORS)
            raise EngineError(f"the checkpoint {folder} {what} tensors: {some}{more}")


def build(module: Callable[[], Module], device: torch.device | str, dtype: torch.dtype) -> Module:
    """Builds a module on a device with parameters in `dtype`, for inference."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            return module().requires_grad_(False).eval()
    finally:
        torch.set_default_dtype(before)


def randomise(module: nn.Module, device: torch.device | str, seed: int) -> None:
    """Fills in random weights that cost as much as real ones, for benchmarks; the output is
    meaningless."""
    generator = torch.Generator(device).manual_seed(seed)
    for name, parameter in module.named_parameters():
        if name.rpartition(".")[2].startswith("bias"):
            parameter.zero_()
        elif parameter.ndim > 1:
            parameter.normal_(0, 0.02, generator=generator)


def layer_places(name: str, layer: Any) -> Iterator[tuple[str, Tensor]]:
    """Yields where the tensors of a `qwen3.DecoderLayer` go, by the names that all checkpoints
    share."""
    yield f"{name}.input_layernorm.weight", layer.attention_norm
    for part, weight in zip("qkv", layer.qkv.weight.split(layer.widths), strict=True):
        yield f"{name}.self_attn.{part}_proj.weight", weight
    yield f"{name}.self_attn.q_norm.weight", layer.q_norm
    yield f"{name}.self_attn.k_norm.weight", layer.k_norm
    yield f"{name}.self_attn.o_proj.weight", layer.out.weight
    yield f"{name}.post_attention_layernorm.weight", layer.ffn_norm
    gate, up = layer.gate_up.weight.chunk(2)
    yield f"{name}.mlp.gate_proj.weight", gate
    yield f"{name}.mlp.up_proj.weight", up
    yield f"{name}.mlp.down_proj.weight", layer.down.weight
