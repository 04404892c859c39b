"""Random Qwen3-ASR checkpoints of a few kilobytes, in both layouts, with a tokenizer that works."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tokenizers
import torch
from safetensors.torch import save_file
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers
from torch import Tensor

from offhook.pipeline.engines.qwen3_asr.model.model import (
    AsrConfig,
    AsrDecoderConfig,
    EncoderConfig,
)
from offhook.pipeline.engines.shared.qwen3.tokenizer import SPLIT

CONTROL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|audio_start|>",
    "<|audio_end|>",
    "<|audio_pad|>",
    "<asr_text>",
    "<timestamp>",
)
SPECIAL = CONTROL[:6]
TEXT = ["system user assistant language English German None the cat sat on the mat, isn't it? " * 4]
VOCABULARY = 256 + 40
CONFIG = AsrConfig(
    EncoderConfig(d_model=32, layers=2, heads=2, ffn=48, output_dim=24, conv_channels=8),
    AsrDecoderConfig(
        24, 40, layers=3, heads=4, kv_heads=2, head_dim=16, vocab_size=VOCABULARY + 16
    ),
    audio_token=VOCABULARY + CONTROL.index("<|audio_pad|>"),
    eos_ids=(VOCABULARY, VOCABULARY + CONTROL.index("<|im_end|>")),
    timestamp_token=VOCABULARY + CONTROL.index("<timestamp>"),
)


def write_original(folder: Path, config: AsrConfig = CONFIG, seed: int = 0) -> Path:
    """As Qwen/Qwen3-ASR-*: `thinker` names, config and tokenizer in the original files."""
    prefixes = {
        "model.multi_modal_projector.linear_1.": "thinker.audio_tower.proj1.",
        "model.multi_modal_projector.linear_2.": "thinker.audio_tower.proj2.",
        "model.audio_tower.": "thinker.audio_tower.",
        "model.language_model.": "thinker.model.",
        "lm_head.": "thinker.lm_head.",
        "score.": "thinker.lm_head.",
    }
    renamed = {}
    for name, tensor in tensors(config, seed).items():
        prefix = next(p for p in prefixes if name.startswith(p))
        renamed[prefixes[prefix] + name.removeprefix(prefix)] = tensor
    save_file(renamed, folder / "model.safetensors")
    _write(folder / "config.json", _original_config(config))
    _write(folder / "generation_config.json", {"eos_token_id": list(config.eos_ids)})
    bpe = tokenizer()
    bpe.model.save(str(folder))
    added = {
        str(VOCABULARY + i): {"content": word, "special": word in SPECIAL}
        for i, word in enumerate(CONTROL)
    }
    _write(folder / "tokenizer_config.json", {"added_tokens_decoder": added})
    return folder


def write_transformers(
    folder: Path, config: AsrConfig = CONFIG, seed: int = 0, shards: int = 1
) -> Path:
    """As Qwen/Qwen3-ASR-*-hf, loadable by transformers; in `shards` files when more than one."""
    weights = tensors(config, seed)
    if shards == 1:
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
    else:
        names = sorted(weights)
        index = {}
        for i in range(shards):
            part, file = names[i::shards], f"model-{i + 1:05}-of-{shards:05}.safetensors"
            save_file({name: weights[name] for name in part}, folder / file, {"format": "pt"})
            index.update(dict.fromkeys(part, file))
        _write(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": index})
    _write(folder / "config.json", _transformers_config(config))
    tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def tokenizer() -> tokenizers.Tokenizer:
    """Bytes, 40 merges learnt from TEXT, and the control tokens after them."""
    bpe = tokenizers.Tokenizer(models.BPE())
    bpe.normalizer = normalizers.NFC()
    cut = pre_tokenizers.Split(tokenizers.Regex(SPLIT), behavior="isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([cut, to_bytes])
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(TEXT, trainer)
    assert bpe.get_vocab_size() == VOCABULARY
    for word in CONTROL:
        token = tokenizers.AddedToken(word, special=word in SPECIAL, normalized=False)
        bpe.add_tokens([token])
    return bpe


def tensors(config: AsrConfig, seed: int) -> dict[str, Tensor]:
    """By the names of transformers. Large enough for logits that differ and audio that counts."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in _shapes(config):
        wide = shape[-1] if len(shape) == 2 else 9 * shape[1] if len(shape) == 4 else 16
        size = 0.1 if "embed" in name else 1.5  # or each token would only predict itself
        tensor = torch.randn(shape, generator=generator) * (size / wide**0.5)
        weights[name] = tensor + 1 if "norm" in name and name.endswith("weight") else tensor
    return weights


def _shapes(config: AsrConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    e, d = config.encoder, config.decoder
    tower, width = "model.audio_tower", e.d_model
    for i, channels in enumerate((1, e.conv_channels, e.conv_channels)):
        yield f"{tower}.conv2d{i + 1}.weight", (e.conv_channels, channels, 3, 3)
        yield f"{tower}.conv2d{i + 1}.bias", (e.conv_channels,)
    yield f"{tower}.conv_out.weight", (width, e.conv_channels * e.mel_bins // 8)
    for i in range(e.layers):
        at = f"{tower}.layers.{i}"
        for part in ("self_attn_layer_norm", "final_layer_norm"):
            yield f"{at}.{part}.weight", (width,)
            yield f"{at}.{part}.bias", (width,)
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            yield from _linear(f"{at}.self_attn.{part}", width, width)
        yield from _linear(f"{at}.fc1", e.ffn, width)
        yield from _linear(f"{at}.fc2", width, e.ffn)
    yield f"{tower}.ln_post.weight", (width,)
    yield f"{tower}.ln_post.bias", (width,)
    yield from _linear("model.multi_modal_projector.linear_1", width, width)
    yield from _linear("model.multi_modal_projector.linear_2", e.output_dim, width)
    hidden, text = d.hidden_size, "model.language_model"
    yield f"{text}.embed_tokens.weight", (d.vocab_size, hidden)
    yield f"{text}.norm.weight", (hidden,)
    for i in range(d.layers):
        at, attention = f"{text}.layers.{i}", f"{text}.layers.{i}.self_attn"
        yield f"{at}.input_layernorm.weight", (hidden,)
        yield f"{at}.post_attention_layernorm.weight", (hidden,)
        yield f"{attention}.q_proj.weight", (d.heads * d.head_dim, hidden)
        yield f"{attention}.k_proj.weight", (d.kv_heads * d.head_dim, hidden)
        yield f"{attention}.v_proj.weight", (d.kv_heads * d.head_dim, hidden)
        yield f"{attention}.o_proj.weight", (hidden, d.heads * d.head_dim)
        yield f"{attention}.q_norm.weight", (d.head_dim,)
        yield f"{attention}.k_norm.weight", (d.head_dim,)
        yield f"{at}.mlp.gate_proj.weight", (d.ffn, hidden)
        yield f"{at}.mlp.up_proj.weight", (d.ffn, hidden)
        yield f"{at}.mlp.down_proj.weight", (hidden, d.ffn)
    if config.classes:
        yield "score.weight", (config.classes, hidden)
    elif not d.tied:
        yield "lm_head.weight", (d.vocab_size, hidden)


def _linear(name: str, out: int, width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{name}.weight", (out, width)
    yield f"{name}.bias", (out,)


def _audio_config(e: EncoderConfig) -> dict[str, Any]:
    return {
        "activation_function": "gelu",
        "d_model": e.d_model,
        "downsample_hidden_size": e.conv_channels,
        "encoder_attention_heads": e.heads,
        "encoder_ffn_dim": e.ffn,
        "encoder_layers": e.layers,
        "n_window": e.second_frames // 2,
        "n_window_infer": e.window_frames,
        "num_mel_bins": e.mel_bins,
        "output_dim": e.output_dim,
    }


def _text_config(d: AsrDecoderConfig) -> dict[str, Any]:
    return {
        "attention_bias": False,
        "head_dim": d.head_dim,
        "hidden_act": "silu",
        "hidden_size": d.hidden_size,
        "intermediate_size": d.ffn,
        "max_position_embeddings": 65536,
        "num_attention_heads": d.heads,
        "num_hidden_layers": d.layers,
        "num_key_value_heads": d.kv_heads,
        "rms_norm_eps": d.rms_eps,
        "tie_word_embeddings": d.tied,
        "vocab_size": d.vocab_size,
    }


def _original_config(config: AsrConfig) -> dict[str, Any]:
    scaling = {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [24, 20, 20]}
    rope = {"rope_theta": config.decoder.rope_theta, "rope_scaling": scaling}
    thinker: dict[str, Any] = {
        "audio_config": {**_audio_config(config.encoder), "conv_chunksize": 500},
        "text_config": {**_text_config(config.decoder), **rope},
        "audio_token_id": config.audio_token,
    }
    if config.classes:
        thinker |= {"classify_num": config.classes, "model_type": "qwen3_forced_aligner"}
    return {
        "architectures": ["Qwen3ASRForConditionalGeneration"],
        "model_type": "qwen3_asr",
        "thinker_config": thinker,
        "timestamp_token_id": config.timestamp_token,
    }


def _transformers_config(config: AsrConfig) -> dict[str, Any]:
    rope = {"rope_type": "default", "rope_theta": config.decoder.rope_theta}
    text = _text_config(config.decoder) | {"model_type": "qwen3", "rope_parameters": rope}
    value: dict[str, Any] = {
        "architectures": ["Qwen3ASRForConditionalGeneration"],
        "audio_config": {**_audio_config(config.encoder), "model_type": "qwen3_asr_encoder"},
        "audio_token_id": config.audio_token,
        "eos_token_id": list(config.eos_ids),
        "model_type": "qwen3_asr",
        "pad_token_id": config.eos_ids[-1],
        "text_config": text,
        "tie_word_embeddings": config.decoder.tied,
        "timestamp_token_id": config.timestamp_token,
    }
    if config.classes:
        value["architectures"] = ["Qwen3ASRForTokenClassification"]
        value["id2label"] = {str(i): str(i) for i in range(config.classes)}
    return value


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value), "utf-8")
