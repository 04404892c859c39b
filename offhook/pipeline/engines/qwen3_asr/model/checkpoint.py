"""Loads Qwen3-ASR from a checkpoint (see `hub_io.find`).

Two layouts are supported: the original (Qwen/Qwen3-ASR-*) and that of transformers (`-hf`).
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from offhook.pipeline.engines.qwen3_asr.model.model import AsrConfig, Qwen3Asr
from offhook.pipeline.engines.shared.model.checkpoint import (
    build,
    fill,
    find_tensors,
    layer_places,
    randomise,
    read_json,
)

# Prefixes of tensor names here (see `_places`) and in checkpoints; the first match counts.
ORIGINAL = {
    "encoder.": "thinker.audio_tower.",
    "decoder.": "thinker.model.",
    "head.": "thinker.lm_head.",
}
TRANSFORMERS = {
    "encoder.proj1.": "model.multi_modal_projector.linear_1.",
    "encoder.proj2.": "model.multi_modal_projector.linear_2.",
    "encoder.": "model.audio_tower.",
    "decoder.": "model.language_model.",
    "head.": "lm_head.",
}
TRANSFORMERS_ALIGNER = {**TRANSFORMERS, "head.": "score."}


def read_config(folder: Path) -> AsrConfig:
    """Reads config.json. Raises EngineError if it is missing, damaged, or of another model."""
    generation = folder / "generation_config.json"
    return AsrConfig.from_json(
        read_json(folder / "config.json"), read_json(generation) if generation.is_file() else None
    )


def load_model(folder: Path, device: torch.device | str, dtype: torch.dtype) -> Qwen3Asr:
    """Loads a model for inference. Raises EngineError naming the tensors if the checkpoint is
    incomplete or does not match config.json."""
    config = read_config(folder)
    sources = find_tensors(folder)
    layout = ORIGINAL
    if not any(name.startswith("thinker.") for name in sources):
        layout = TRANSFORMERS_ALIGNER if config.classes else TRANSFORMERS
    head = _original_name("head.weight", layout)
    if head not in sources and not config.classes:
        config = replace(config, decoder=replace(config.decoder, tied=True))
    model = build(lambda: Qwen3Asr(config), device, dtype)
    places = {_original_name(name, layout): place for name, place in _places(model)}
    # A tied head is the embedding, whether or not it is stored twice.
    fill(folder, places, lambda name: name != head)
    return model


def random_model(
    config: AsrConfig, device: torch.device | str, dtype: torch.dtype, seed: int = 0
) -> Qwen3Asr:
    """Returns a model with random weights at the real cost, for benchmarks; its output is
    meaningless."""
    model = build(lambda: Qwen3Asr(config), device, dtype)
    randomise(model, device, seed)
    return model


def _original_name(name: str, layout: dict[str, str]) -> str:
    ours = next(prefix for prefix in layout if name.startswith(prefix))
    return layout[ours] + name.removeprefix(ours)


def _places(model: Qwen3Asr) -> Iterator[tuple[str, Tensor]]:
    """Yields each tensor's destination. Names are those of both layouts except for their prefix:
    encoder, decoder, head."""
    encoder, decoder = model.encoder, model.decoder
    convolutions = {"conv2d1": encoder.conv1, "conv2d2": encoder.conv2, "conv2d3": encoder.conv3}
    ends = {"ln_post": encoder.post_norm, "proj1": encoder.proj1, "proj2": encoder.proj2}
    for name, module in {**convolutions, **ends}.items():
        yield from _both(f"encoder.{name}", module)
    yield "encoder.conv_out.weight", encoder.conv_out.weight
    for i, layer in enumerate(encoder.layers):
        yield from _encoder_layer(f"encoder.layers.{i}", layer)
    yield "decoder.embed_tokens.weight", decoder.embedding
    yield "decoder.norm.weight", decoder.norm
    for i, layer in enumerate(decoder.layers):
        yield from layer_places(f"decoder.layers.{i}", layer)
    if decoder.head is not decoder.embedding:
        yield "head.weight", decoder.head


def _both(name: str, module: Any) -> Iterator[tuple[str, Tensor]]:
    yield f"{name}.weight", module.weight
    yield f"{name}.bias", module.bias


def _encoder_layer(name: str, layer: Any) -> Iterator[tuple[str, Tensor]]:
    yield from _both(f"{name}.self_attn_layer_norm", layer.attention_norm)
    for part, weight, bias in zip(
        "qkv", layer.qkv.weight.chunk(3), layer.qkv.bias.chunk(3), strict=True
    ):
        yield f"{name}.self_attn.{part}_proj.weight", weight
        yield f"{name}.self_attn.{part}_proj.bias", bias
    yield from _both(f"{name}.self_attn.out_proj", layer.out)
    yield from _both(f"{name}.final_layer_norm", layer.ffn_norm)
    yield from _both(f"{name}.fc1", layer.fc1)
    yield from _both(f"{name}.fc2", layer.fc2)
