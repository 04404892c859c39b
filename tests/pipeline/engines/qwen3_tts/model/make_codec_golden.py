"""Writes data/codec.safetensors: a small random codec, and the sound that the official one makes.

Run it where qwen-tts 0.1.1 is installed, from the root of the repository:
    python -m tests.pipeline.engines.qwen3_tts.model.make_codec_golden
Weights are kept in half precision, in which the official decoder ran them too (widened to fp32), so
that the file stays small.
"""

import json
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import torch
import transformers  # noqa: F401

# The other codec of the package wants this; transformers, imported before, must not find it.
for module in ("sox", "torchaudio", "torchaudio.compliance", "torchaudio.compliance.kaldi"):
    sys.modules.setdefault(module, MagicMock())

from qwen_tts.core.tokenizer_12hz import configuration_qwen3_tts_tokenizer_v2 as configuration  # noqa: E402
from qwen_tts.core.tokenizer_12hz import modeling_qwen3_tts_tokenizer_v2 as modeling  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

GOLDEN = Path(__file__).parent / "data" / "codec.safetensors"
DECODER: dict[str, Any] = {
    "attention_bias": False,
    "codebook_dim": 32,
    "codebook_size": 24,
    "decoder_dim": 64,
    "head_dim": 16,
    "hidden_act": "silu",
    "hidden_size": 32,
    "intermediate_size": 32,
    "latent_dim": 16,
    "max_position_embeddings": 8000,
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "num_key_value_heads": 3,
    "num_quantizers": 4,
    "num_semantic_quantizers": 1,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000,
    "semantic_codebook_size": 4096,
    "sliding_window": 6,
    "upsample_rates": [3, 2],
    "upsampling_ratios": [2, 2],
    "vector_quantization_hidden_dimension": 32,
}
BATCH, FRAMES = 2, 20  # more than three windows


def draw(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Large enough for every part to be heard, small enough for the sound not to be clipped."""
    if name.endswith("cluster_usage"):
        drawn = torch.rand(tensor.shape) * 3
        drawn[0] = 0  # A code that was never used counts as used a little.
    elif name.endswith("embedding_sum"):
        drawn = torch.randn(tensor.shape)
        drawn[0] *= 1e-5
    elif name.endswith(("norm.weight", "layernorm.weight", "scale", "gamma")):
        drawn = torch.rand(tensor.shape) + 0.5
    elif tensor.ndim == 1:
        drawn = torch.randn(tensor.shape) * 0.3
    else:
        inputs = tensor.shape[0] if ".1.conv." in name and "block" in name else tensor.shape[1]
        drawn = torch.randn(tensor.shape) * (0.7 / (inputs * tensor.shape[2:].numel()) ** 0.5)
    if name.startswith("decoder.4."):
        drawn *= 0.4  # the way out, or the sound would be clipped
    return drawn


def main() -> None:
    torch.manual_seed(1)
    config = configuration.Qwen3TTSTokenizerV2DecoderConfig(**DECODER)
    decoder = modeling.Qwen3TTSTokenizerV2Decoder._from_config(config).float().eval()
    weights = {name: draw(name, tensor).half() for name, tensor in decoder.state_dict().items()}
    decoder.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
    codes = torch.randint(0, DECODER["codebook_size"], (BATCH, DECODER["num_quantizers"], FRAMES))
    codes[0, :, 3] = 0
    with torch.inference_mode():
        sound = decoder(codes)[:, 0]
    loud, clipped = sound.std().item(), (sound.abs() == 1).float().mean().item()
    print(f"{tuple(sound.shape)}, deviation {loud:.3f}, clipped {clipped:.3f}")  # noqa: T201
    tensors = {f"decoder.{name}": tensor for name, tensor in weights.items()}
    top = {"model_type": "qwen3_tts_tokenizer_12hz", "decoder_config": DECODER}
    GOLDEN.parent.mkdir(exist_ok=True)
    save_file(
        {**tensors, "codes": codes.short(), "sound": sound},
        GOLDEN,
        {"config": json.dumps(top)},
    )


if __name__ == "__main__":
    main()
