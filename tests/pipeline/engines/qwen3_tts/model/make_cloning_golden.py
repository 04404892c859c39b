"""Makes data/cloning.npz: what the published package makes of small random encoders.

    python -m tests.pipeline.engines.qwen3_tts.model.make_cloning_golden

in an environment with qwen-tts 0.1.1 (transformers 4.57.3). Weights and sound are not stored: they
follow from their names by `noise`, the same everywhere, here and in the tests.
"""

import sys
import zlib
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
from numpy.typing import NDArray

GOLDEN = Path(__file__).parent / "data" / "cloning.npz"
ENCODER: dict[str, Any] = {
    "_frame_rate": 12.5,
    "attention_bias": False,
    "audio_channels": 1,
    "codebook_dim": 12,
    "codebook_size": 64,
    "compress": 2,
    "dilation_growth_rate": 2,
    "head_dim": 16,
    "hidden_act": "gelu",
    "hidden_size": 24,
    "intermediate_size": 40,
    "kernel_size": 7,
    "last_kernel_size": 3,
    "max_position_embeddings": 8000,
    "norm_eps": 1e-5,
    "num_attention_heads": 2,
    "num_filters": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "num_quantizers": 20,
    "num_residual_layers": 1,
    "num_semantic_quantizers": 1,
    "pad_mode": "constant",
    "residual_kernel_size": 3,
    "rope_theta": 10000.0,
    "sampling_rate": 24000,
    "sliding_window": 8,
    "upsample_groups": 24,
    "upsampling_ratios": [8, 6, 5, 4],
    "use_causal_conv": True,
    "use_conv_shortcut": False,
    "vector_quantization_hidden_dimension": 12,
}
CODEC: dict[str, Any] = {
    "model_type": "qwen3_tts_tokenizer_12hz",
    "encoder_valid_num_quantizers": 16,
    "encoder_config": ENCODER,
}
"""speech_tokenizer/config.json, what of it the encoder reads."""
SPEAKER: dict[str, Any] = {
    "enc_dim": 24,
    "enc_channels": [32, 32, 32, 32, 96],
    "enc_attention_channels": 12,
    "enc_se_channels": 8,
    "sample_rate": 24000,
}
"""speaker_encoder_config of config.json; what is not there is as published."""
CODED_SAMPLES = (40_000, 1920 * 20, 1920 * 6 + 1, 5)
"""Lengths of sound that are encoded."""
EMBEDDED_SAMPLES = (30_000, 5_000)


def noise(name: str, *shape: int) -> NDArray[np.float32]:
    """Numbers in [-1, 1), 24 bits each, by a hash (splitmix64) of the name and their place."""
    x = np.arange(int(np.prod(shape)), dtype=np.uint64) + np.uint64(zlib.crc32(name.encode()) << 32)
    x *= np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    x ^= x >> np.uint64(31)
    return ((x >> np.uint64(40)).astype(np.float32) / 2**23 - 1).reshape(shape)


def weight(name: str, *shape: int) -> NDArray[np.float32]:
    """What a tensor of a checkpoint holds here: about as large as layers of that width want it, so
    that differences show and nothing drowns."""
    values = noise(name, *shape)
    if name.endswith("cluster_usage"):
        return 1 + values / 2
    if name.endswith(("scale", "layernorm.weight")):
        return 1 + values / 3
    if name.endswith("embed_sum"):
        return values
    if name.endswith("bias"):
        return values / 10
    variance = 1 if name.startswith("speaker_encoder.") else 2
    return values * np.sqrt(3 * variance / np.prod(shape[1:], dtype=np.float32))


def sound(samples: int) -> NDArray[np.float32]:
    """24 kHz in [-1, 1): noise, dull and sharp by turns, loud and soft by turns."""
    values = noise("sound", samples + 31)
    sums = np.cumsum((values * 2**23).astype(np.int64))  # exact, on every machine
    dull = ((sums[31:] - np.concatenate(([0], sums[: samples - 1]))) / 2**26).astype(np.float32)
    blocks = np.arange(samples) // 1920
    loudness = np.asarray([0.9, 0.1, 0.4, 0.02], np.float32)[blocks % 4]
    return np.clip(np.where(blocks % 3 == 0, values[:samples], dull), -1, 0.99) * loudness


def main() -> None:
    import torch
    import transformers  # noqa: F401

    for module in ("sox", "torchaudio", "torchaudio.compliance", "torchaudio.compliance.kaldi"):
        sys.modules.setdefault(module, MagicMock())  # for the other tokenizer, of 25 Hz
    from qwen_tts.core.models import modeling_qwen3_tts as published
    from qwen_tts.core.models.configuration_qwen3_tts import Qwen3TTSSpeakerEncoderConfig
    from qwen_tts.core.tokenizer_12hz import modeling_qwen3_tts_tokenizer_v2 as codec

    def fill(model: Any, prefix: str) -> None:
        for name, tensor in model.state_dict().items():
            if not name.endswith("initialized"):
                tensor.copy_(torch.from_numpy(weight(prefix + name, *tensor.shape)))

    torch.set_num_threads(1)
    small = {"hidden_size": 16, "latent_dim": 16, "decoder_dim": 32, "num_attention_heads": 2}
    small |= {"num_key_value_heads": 2, "num_hidden_layers": 1, "codebook_size": 64}
    config = codec.Qwen3TTSTokenizerV2Config(**CODEC, decoder_config=small | {"codebook_dim": 16})
    tokenizer = codec.Qwen3TTSTokenizerV2Model(config).eval()
    fill(tokenizer.encoder, "encoder.")
    golden = {}
    for samples in CODED_SAMPLES:
        pcm = torch.from_numpy(sound(samples))[None]
        codes = tokenizer.encode(pcm, torch.ones_like(pcm, dtype=torch.bool)).audio_codes[0]
        golden[f"codes_{samples}"] = codes.numpy().astype(np.int16)
    encoder = published.Qwen3TTSSpeakerEncoder(Qwen3TTSSpeakerEncoderConfig(**SPEAKER)).eval()
    fill(encoder, "speaker_encoder.")
    for samples in EMBEDDED_SAMPLES:
        mel = published.mel_spectrogram(
            torch.from_numpy(sound(samples))[None], 1024, 128, 24000, 256, 1024, 0, 12000
        )
        with torch.no_grad():
            golden[f"embedding_{samples}"] = encoder(mel.transpose(1, 2))[0].numpy()
        golden[f"mel_{samples}"] = mel[0].numpy()[:, ::4]
    np.savez_compressed(GOLDEN, **golden)


if __name__ == "__main__":
    main()
