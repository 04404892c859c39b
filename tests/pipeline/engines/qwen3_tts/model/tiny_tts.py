"""Random Qwen3-TTS checkpoints of a few kilobytes: talker, predictor and projections of text.

The weights follow from their names, so they are the same here and where the goldens were made.
"""

import json
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from offhook.pipeline.engines.qwen3_tts.model.config import Generation, TtsConfig
from offhook.pipeline.engines.shared.qwen3.config import DecoderConfig

CODES = 64
TALKER = DecoderConfig(32, 48, layers=2, heads=4, kv_heads=2, head_dim=16)
CONFIG = TtsConfig(
    talker=TALKER,
    predictor=replace(TALKER, ffn=40),
    kind="custom_voice",
    size="0b6",
    codec_vocab=CODES + 1024,
    codebook_size=CODES,
    text_vocab=312,
    text_hidden=40,
    codec_pad=CODES,
    codec_bos=CODES + 1,
    codec_eos=CODES + 2,
    think=CODES + 3,
    nothink=CODES + 4,
    think_bos=CODES + 5,
    think_eos=CODES + 6,
    tts_pad=304,
    tts_bos=305,
    tts_eos=306,
    languages={"english": 72, "chinese": 73, "sichuan_dialect": 74},
    speakers={"ann": 80, "eric": 81},
    dialects={"ann": False, "eric": "sichuan_dialect"},
    generation=Generation(temperature=1.1, top_k=40, penalty=1.2, predictor_top_k=30),
)
"""As the 0.6B: talker and predictor of one width."""
WIDE = replace(CONFIG, talker=replace(TALKER, hidden_size=48, ffn=64), kind="base", size="1b7")
"""As the 1.7B, with a projection between the two."""


def write(folder: Path, config: TtsConfig = CONFIG, shards: int = 1) -> Path:
    """Without tokenizer and codec."""
    weights = tensors(config)
    names = sorted(weights)
    files = [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
    if shards == 1:
        files = ["model.safetensors"]
    else:
        index = {name: files[i % shards] for i, name in enumerate(names)}
        _write(folder / "model.safetensors.index.json", {"weight_map": index})
    for i, file in enumerate(files):
        save_file({name: weights[name] for name in names[i::shards]}, folder / file)
    _write(folder / "config.json", config_json(config))
    _write(folder / "generation_config.json", generation_json(config.generation))
    return folder


def tensors(config: TtsConfig) -> dict[str, Tensor]:
    """By the names of a checkpoint; of the speaker encoder, one of many."""
    weights = {name: _noise(name, shape) for name, shape in shapes(config)}
    if config.kind == "base":
        weights["speaker_encoder.fc.bias"] = torch.zeros(config.talker.hidden_size)
    return weights


def _noise(name: str, shape: tuple[int, ...]) -> Tensor:
    """Large enough for logits that differ, and embeddings of which each counts."""
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    noise = torch.from_numpy(generator.standard_normal(shape, np.float32))
    if "norm" in name:
        return 1 + 0.3 * noise
    return noise * (0.7 if "embedding" in name else 1.5 / shape[-1] ** 0.5)


def shapes(config: TtsConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    talker, predictor, text = config.talker, config.predictor, config.text_hidden
    wide, narrow = talker.hidden_size, predictor.hidden_size
    yield "talker.model.text_embedding.weight", (config.text_vocab, text)
    yield "talker.text_projection.linear_fc1.weight", (text, text)
    yield "talker.text_projection.linear_fc1.bias", (text,)
    yield "talker.text_projection.linear_fc2.weight", (wide, text)
    yield "talker.text_projection.linear_fc2.bias", (wide,)
    yield "talker.model.codec_embedding.weight", (config.codec_vocab, wide)
    yield "talker.codec_head.weight", (config.codec_vocab, wide)
    yield from _body("talker.model", talker)
    yield from _body("talker.code_predictor.model", predictor)
    for i in range(config.codebooks - 1):
        yield f"talker.code_predictor.model.codec_embedding.{i}.weight", (CODES, wide)
        yield f"talker.code_predictor.lm_head.{i}.weight", (CODES, narrow)
    if wide != narrow:
        yield "talker.code_predictor.small_to_mtp_projection.weight", (narrow, wide)
        yield "talker.code_predictor.small_to_mtp_projection.bias", (narrow,)


def _body(name: str, c: DecoderConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden = c.hidden_size
    yield f"{name}.norm.weight", (hidden,)
    for i in range(c.layers):
        at, attention = f"{name}.layers.{i}", f"{name}.layers.{i}.self_attn"
        yield f"{at}.input_layernorm.weight", (hidden,)
        yield f"{at}.post_attention_layernorm.weight", (hidden,)
        yield f"{attention}.q_proj.weight", (c.heads * c.head_dim, hidden)
        yield f"{attention}.k_proj.weight", (c.kv_heads * c.head_dim, hidden)
        yield f"{attention}.v_proj.weight", (c.kv_heads * c.head_dim, hidden)
        yield f"{attention}.o_proj.weight", (hidden, c.heads * c.head_dim)
        yield f"{attention}.q_norm.weight", (c.head_dim,)
        yield f"{attention}.k_norm.weight", (c.head_dim,)
        yield f"{at}.mlp.gate_proj.weight", (c.ffn, hidden)
        yield f"{at}.mlp.up_proj.weight", (c.ffn, hidden)
        yield f"{at}.mlp.down_proj.weight", (hidden, c.ffn)


def config_json(config: TtsConfig) -> dict[str, Any]:
    scaling = {"rope_type": "default", "type": "default", "interleaved": True}
    talker = {
        **_decoder_json(config.talker),
        "rope_scaling": {**scaling, "mrope_section": [4, 2, 2]},
        "vocab_size": config.codec_vocab,
        "text_vocab_size": config.text_vocab,
        "text_hidden_size": config.text_hidden,
        "codec_bos_id": config.codec_bos,
        "codec_eos_token_id": config.codec_eos,
        "codec_pad_id": config.codec_pad,
        "codec_think_id": config.think,
        "codec_nothink_id": config.nothink,
        "codec_think_bos_id": config.think_bos,
        "codec_think_eos_id": config.think_eos,
        "codec_language_id": dict(config.languages),
        "spk_id": dict(config.speakers),
        "spk_is_dialect": dict(config.dialects),
        "code_predictor_config": {
            **_decoder_json(config.predictor),
            "rope_scaling": None,
            "vocab_size": config.codebook_size,
        },
    }
    return {
        "model_type": "qwen3_tts",
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "tts_model_type": config.kind,
        "tts_model_size": config.size,
        "tts_bos_token_id": config.tts_bos,
        "tts_eos_token_id": config.tts_eos,
        "tts_pad_token_id": config.tts_pad,
        "talker_config": talker,
        "speaker_encoder_config": {"enc_dim": config.talker.hidden_size},
    }


def _decoder_json(c: DecoderConfig) -> dict[str, Any]:
    return {
        "attention_bias": False,
        "head_dim": c.head_dim,
        "hidden_act": "silu",
        "hidden_size": c.hidden_size,
        "intermediate_size": c.ffn,
        "max_position_embeddings": 32768,
        "num_attention_heads": c.heads,
        "num_code_groups": 16,
        "num_hidden_layers": c.layers,
        "num_key_value_heads": c.kv_heads,
        "rms_norm_eps": c.rms_eps,
        "rope_theta": c.rope_theta,
        "use_sliding_window": False,
    }


def generation_json(generation: Generation) -> dict[str, Any]:
    return {
        "do_sample": True,
        "temperature": generation.temperature,
        "top_k": generation.top_k,
        "top_p": 1.0,
        "repetition_penalty": generation.penalty,
        "subtalker_dosample": True,
        "subtalker_temperature": generation.predictor_temperature,
        "subtalker_top_k": generation.predictor_top_k,
        "subtalker_top_p": 1.0,
        "max_new_tokens": 8192,
    }


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value), "utf-8")
