"""A whole random Qwen3-TTS of a few thousand weights: talker, predictor, codec and tokenizer."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from offhook.pipeline.engines.qwen3_tts.model import checkpoint as tts_checkpoint
from offhook.pipeline.engines.qwen3_tts.model.codec import Codec, CodecConfig
from offhook.pipeline.engines.qwen3_tts.model.codec_weights import PREFIX, load_codec, tensor_shapes
from offhook.pipeline.engines.qwen3_tts.model.config import Generation, TtsConfig
from offhook.pipeline.engines.qwen3_tts.model.model import Qwen3Tts
from tests.pipeline.engines.qwen3_tts.model import tiny_tts
from tests.pipeline.engines.shared.model import tiny

CONFIG = replace(
    tiny_tts.WIDE,
    kind="custom_voice",
    predictor=replace(tiny_tts.WIDE.predictor, layers=1),
    generation=Generation(top_k=8, predictor_top_k=8),
)
CODEC = CodecConfig(
    codebook_size=CONFIG.codebook_size,
    codebook_dim=16,
    hidden_size=16,
    ffn=24,
    layers=2,
    heads=2,
    head_dim=8,
    window=12,
    latent_dim=16,
    decoder_dim=32,
)
"""Its frames are 1920 samples, as those of the real one are."""


def write(folder: Path, config: TtsConfig = CONFIG) -> Path:
    """A checkpoint."""
    tiny_tts.write(folder, config)
    weights = load_file(folder / "model.safetensors")
    weights["talker.codec_head.weight"][config.codec_eos] *= 2  # so that replies come to their end
    save_file(weights, folder / "model.safetensors")
    tiny.tokenizer().save(str(folder / "tokenizer.json"))
    codec = folder / "speech_tokenizer"
    codec.mkdir()
    (codec / "config.json").write_text(json.dumps(codec_json()))
    save_file(codec_tensors(4), codec / "model.safetensors")
    return folder


def model(folder: Path) -> Qwen3Tts:
    return tts_checkpoint.load_model(folder, "cpu", torch.float32)


def codec(seed: int) -> Codec:
    return load_codec(codec_tensors(seed), CODEC, "cpu", torch.float32)


def codec_tensors(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in tensor_shapes(CODEC):
        tensor = torch.randn(shape, generator=generator)
        if name.endswith(("norm.weight", "cluster_usage", "layernorm.weight")):
            tensor.fill_(1)
        elif len(shape) == 1:
            tensor *= 0.1
        elif not name.endswith("embedding_sum"):
            transposed = ".block.1." in name or (".upsample" in name and ".0.conv." in name)
            tensor *= (shape[0] if transposed else tensor[0].numel()) ** -0.5 * 0.7
        tensors[PREFIX + name] = tensor
    return tensors


def codec_json() -> dict[str, Any]:
    c = asdict(CODEC)
    theirs = {
        "intermediate_size": c["ffn"],
        "num_hidden_layers": c["layers"],
        "num_attention_heads": c["heads"],
        "num_key_value_heads": c["heads"],
        "num_quantizers": c["codebooks"],
        "sliding_window": c["window"],
        "rms_norm_eps": c["rms_eps"],
    }
    same = ("codebook_size", "codebook_dim", "hidden_size", "head_dim", "rope_theta", "latent_dim")
    names = (*same, "upsampling_ratios", "decoder_dim", "upsample_rates")
    decoder = {**theirs, **{name: c[name] for name in names}}
    return {"model_type": "qwen3_tts_tokenizer_12hz", "decoder_config": decoder}
