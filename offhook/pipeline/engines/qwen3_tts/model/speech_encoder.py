"""The encoder of Qwen3-TTS-Tokenizer-12Hz: speech to codes, used for voice cloning.

It is Mimi's (Défossez et al., "Moshi", arXiv 2410.00037; tensors as in transformers' MimiModel).
Causal convolutions reduce 24 kHz to 25 Hz, a causal transformer attends to everything before,
another convolution makes frames of 80 ms, and a split residual quantizer turns each frame into
codes: one semantic, the others acoustic. Of Mimi's 32 codes this tokenizer uses 16.

The transformer's attention is unlimited: config.json names a window of 250 steps, but the published
package does not apply it. Results differ from 10 s of audio on.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from offhook.pipeline.engines.shared.model import checkpoint
from offhook.pipeline.speech.errors import EngineError

FOLDER = "speech_tokenizer"
"""Folder of the codec in a Qwen3-TTS checkpoint."""
PREFIX = "encoder."
OURS = re.compile(r"encoder\.(?!quantizer\.)")
"""Tensors that must all be known. The quantizer has unused ones: other codebooks and its
decoder."""
MIN_USAGE = 1e-5
"""A codebook is stored as sums over the vectors assigned to each entry and their count; this is the
minimum count."""
CHUNK_FRAMES = 50
"""Frames (4 s) that pass through the convolutions at once."""
FIRST_TAPS, RESIDUAL_TAPS, LAST_TAPS = 7, 3, 3
FIXED = {
    "audio_channels": 1,
    "attention_bias": False,
    "compress": 2,
    "hidden_act": "gelu",
    "kernel_size": FIRST_TAPS,
    "last_kernel_size": LAST_TAPS,
    "num_residual_layers": 1,
    "num_semantic_quantizers": 1,
    "pad_mode": "constant",
    "residual_kernel_size": RESIDUAL_TAPS,
    "sampling_rate": 24000,
    "use_causal_conv": True,
    "use_conv_shortcut": False,
}
"""Values of encoder_config that this encoder requires."""


@dataclass(frozen=True)
class SpeechEncoderConfig:
    hidden: int = 512
    filters: int = 64
    """Channels of the first convolution; each stride doubles them."""
    strides: tuple[int, ...] = (4, 5, 6, 8)
    layers: int = 8
    heads: int = 8
    head_dim: int = 64
    ffn: int = 2048
    codebook_size: int = 2048
    codebook_dim: int = 256
    codebooks: int = 16
    """Codebooks used of those in the checkpoint."""
    norm_eps: float = 1e-5
    rope_theta: float = 1e4

    @property
    def frame_samples(self) -> int:
        return 2 * prod(self.strides)

    @property
    def reach_samples(self) -> int:
        """Samples of history of the convolutions before the transformer, in whole frames."""
        reach, step = FIRST_TAPS - 1, 1
        for stride in self.strides:
            reach += (RESIDUAL_TAPS - 1 + stride) * step
            step *= stride
        reach += (LAST_TAPS - 1) * step
        return -(-reach // self.frame_samples) * self.frame_samples

    @staticmethod
    def from_json(config: Mapping[str, Any]) -> "SpeechEncoderConfig":
        """Parses speech_tokenizer/config.json. Raises EngineError for another codec."""
        kind = config.get("model_type")
        if kind != "qwen3_tts_tokenizer_12hz":
            raise EngineError(
                f"{FOLDER}/config.json is of a {kind!r} codec, not of qwen3_tts_tokenizer_12hz"
            )
        try:
            return _from_encoder_config(
                config["encoder_config"], config["encoder_valid_num_quantizers"]
            )
        except KeyError as error:
            raise EngineError(f"{FOLDER}/config.json lacks {error.args[0]!r}") from error


def _from_encoder_config(c: Mapping[str, Any], codebooks: int) -> SpeechEncoderConfig:
    wanted = {**FIXED, "num_key_value_heads": c["num_attention_heads"]}
    wanted["vector_quantization_hidden_dimension"] = c["codebook_dim"]
    for name, value in wanted.items():
        if c.get(name, value) != value:
            raise EngineError(
                f"{FOLDER}/config.json: {name} is {c[name]!r}; only {value!r} is supported"
            )
    if c["num_quantizers"] < codebooks:
        raise EngineError(
            f"{FOLDER}/config.json: {codebooks} quantizers of {c['num_quantizers']} are valid"
        )
    return SpeechEncoderConfig(
        hidden=c["hidden_size"],
        filters=c["num_filters"],
        strides=tuple(reversed(c["upsampling_ratios"])),
        layers=c["num_hidden_layers"],
        heads=c["num_attention_heads"],
        head_dim=c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"],
        ffn=c["intermediate_size"],
        codebook_size=c["codebook_size"],
        codebook_dim=c["codebook_dim"],
        codebooks=codebooks,
        norm_eps=c["norm_eps"],
        rope_theta=c["rope_theta"],
    )


# --- the model ---


class SpeechEncoder(nn.Module):
    """The encoder, in fp32 without TF32: it runs once per voice, and lower precision yields other
    codes."""

    def __init__(self, config: SpeechEncoderConfig) -> None:
        super().__init__()
        c = self.config = config
        channels = c.filters
        convolutions: list[nn.Module] = [CausalConv(1, channels, FIRST_TAPS)]
        for stride in c.strides:
            convolutions += [Residual(channels), nn.ELU()]
            convolutions.append(CausalConv(channels, 2 * channels, 2 * stride, stride))
            channels *= 2
        convolutions += [nn.ELU(), CausalConv(channels, c.hidden, LAST_TAPS)]
        self.convolutions = nn.Sequential(*convolutions)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.layers))
        self.halving = Halving(c.hidden, c.hidden, 4, 2, bias=False)
        self.semantic = Quantizer(c, 1)
        self.acoustic = Quantizer(c, c.codebooks - 1)

    @torch.inference_mode()
    def encode(self, pcm: Tensor) -> Tensor:
        """Returns the codes, int64 [frames, codebooks], of pcm, fp32 [samples] at 24 kHz in [-1, 1)
        with at least one sample: one 80 ms frame per 1920 samples, rounded up."""
        x = self._convolve(pcm)
        cos, sin = self._rotation(x)
        for layer in self.layers:
            x = layer(x, cos, sin)
        frames = self.halving(x.T[None])
        return torch.cat((self.semantic(frames), self.acoustic(frames)), dim=1)

    def _convolve(self, pcm: Tensor) -> Tensor:
        """Convolves [samples] to [T, hidden] in overlapping chunks, since 30 s at once would take 1
        GB; the result equals that of the whole."""
        frame, reach = self.config.frame_samples, self.config.reach_samples
        pieces = []
        for start in range(0, len(pcm), CHUNK_FRAMES * frame):
            begin = max(0, start - reach)
            x = self.convolutions(pcm[None, None, begin : start + CHUNK_FRAMES * frame])
            pieces.append(x[0, :, 2 * (start - begin) // frame :])
        return torch.cat(pieces, dim=1).T

    def _rotation(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Returns cosine and sine of each step's position, [T, head_dim]."""
        even = torch.arange(0, self.config.head_dim, 2, device=x.device)
        rates = 1.0 / self.config.rope_theta ** (even.float() / self.config.head_dim)
        angles = torch.outer(torch.arange(len(x), device=x.device).float(), rates)
        angles = torch.cat((angles, angles), dim=1)
        return angles.cos(), angles.sin()


class CausalConv(nn.Conv1d):
    """A causal convolution: n samples in, ceil(n / stride) out, each depending on nothing after its
    own stride."""

    def forward(self, x: Tensor) -> Tensor:
        (kernel,), (stride,) = self.kernel_size, self.stride
        return super().forward(F.pad(x, (kernel - stride, -x.shape[-1] % stride)))


class Halving(nn.Conv1d):
    """Downsamples 25 Hz to 12.5 Hz; the ends are padded with the edge values."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.pad(x, (2, x.shape[-1] % 2), mode="replicate"))


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = CausalConv(channels, channels // 2, RESIDUAL_TAPS)
        self.conv2 = CausalConv(channels // 2, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv2(F.elu(self.conv1(F.elu(x))))
        return x + y


class Layer(nn.Module):
    def __init__(self, c: SpeechEncoderConfig) -> None:
        super().__init__()
        self.head_dim = c.head_dim
        width = c.heads * c.head_dim
        self.attention_norm = nn.LayerNorm(c.hidden, c.norm_eps)
        self.q = nn.Linear(c.hidden, width, bias=False)
        self.k = nn.Linear(c.hidden, width, bias=False)
        self.v = nn.Linear(c.hidden, width, bias=False)
        self.out = nn.Linear(width, c.hidden, bias=False)
        self.attention_scale = nn.Parameter(torch.ones(c.hidden))
        self.ffn_norm = nn.LayerNorm(c.hidden, c.norm_eps)
        self.fc1 = nn.Linear(c.hidden, c.ffn, bias=False)
        self.fc2 = nn.Linear(c.ffn, c.hidden, bias=False)
        self.ffn_scale = nn.Parameter(torch.ones(c.hidden))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Runs the layer on x [T, hidden] with cos and sin [T, head_dim]."""
        h = self.attention_norm(x)
        q, k, v = (self._heads(project(h)) for project in (self.q, self.k, self.v))
        heard = F.scaled_dot_product_attention(
            _rotate(q, cos, sin), _rotate(k, cos, sin), v, is_causal=True
        )
        x = x + self.attention_scale * self.out(heard.transpose(0, 1).flatten(1))
        y: Tensor = self.fc2(F.gelu(self.fc1(self.ffn_norm(x))))
        return x + self.ffn_scale * y

    def _heads(self, x: Tensor) -> Tensor:
        """Splits [T, heads * head_dim] into [heads, T, head_dim]."""
        heads: Tensor = x.unflatten(1, (-1, self.head_dim))
        return heads.transpose(0, 1)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    one, other = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-other, one), dim=-1) * sin


class Quantizer(nn.Module):
    """A residual quantizer: each codebook encodes the remainder of the previous ones."""

    sums: Tensor
    usage: Tensor

    def __init__(self, c: SpeechEncoderConfig, codebooks: int) -> None:
        super().__init__()
        self.projection = nn.Conv1d(c.hidden, c.codebook_dim, 1, bias=False)
        self.register_buffer("sums", torch.zeros(codebooks, c.codebook_size, c.codebook_dim))
        self.register_buffer("usage", torch.ones(codebooks, c.codebook_size))

    def forward(self, x: Tensor) -> Tensor:
        """Returns the codes, int64 [frames, codebooks], of x [1, hidden, frames]."""
        left = self.projection(x)[0].T
        codes = []
        for entries in self.sums / self.usage.clamp(min=MIN_USAGE)[..., None]:
            codes.append(torch.cdist(left, entries).argmin(dim=1))
            left = left - entries[codes[-1]]
        return torch.stack(codes, dim=1)


# --- reading it ---


def load(folder: Path, device: torch.device | str) -> SpeechEncoder:
    """Loads the encoder of a Qwen3-TTS checkpoint. Raises EngineError naming the tensors if it is
    incomplete or does not match its config.json."""
    folder = folder / FOLDER
    config = SpeechEncoderConfig.from_json(checkpoint.read_json(folder / "config.json"))
    model = checkpoint.build(lambda: SpeechEncoder(config), device, torch.float32)
    places = {PREFIX + name: place for name, place in _places(model)}
    checkpoint.fill(folder, places, lambda name: OURS.match(name) is not None)
    return model


def _places(model: SpeechEncoder) -> Iterator[tuple[str, Tensor]]:
    """Yields each tensor's destination, by its name without PREFIX."""
    for i, module in enumerate(model.convolutions):
        if isinstance(module, Residual):
            yield from _both(f"encoder.layers.{i}.block.1.conv", module.conv1)
            yield from _both(f"encoder.layers.{i}.block.3.conv", module.conv2)
        elif isinstance(module, CausalConv):
            yield from _both(f"encoder.layers.{i}.conv", module)
    for i, layer in enumerate(model.layers):
        yield from _layer(f"encoder_transformer.layers.{i}", layer)
    yield "downsample.conv.weight", model.halving.weight
    for kind in ("semantic", "acoustic"):
        name, quantizer = f"quantizer.{kind}_residual_vector_quantizer", getattr(model, kind)
        yield f"{name}.input_proj.weight", quantizer.projection.weight
        for i, (sums, usage) in enumerate(zip(quantizer.sums, quantizer.usage, strict=True)):
            yield f"{name}.layers.{i}.codebook.embed_sum", sums
            yield f"{name}.layers.{i}.codebook.cluster_usage", usage


def _layer(name: str, layer: Any) -> Iterator[tuple[str, Tensor]]:
    yield from _both(f"{name}.input_layernorm", layer.attention_norm)
    for part, linear in zip("qkvo", (layer.q, layer.k, layer.v, layer.out), strict=True):
        yield f"{name}.self_attn.{part}_proj.weight", linear.weight
    yield f"{name}.self_attn_layer_scale.scale", layer.attention_scale
    yield from _both(f"{name}.post_attention_layernorm", layer.ffn_norm)
    yield f"{name}.mlp.fc1.weight", layer.fc1.weight
    yield f"{name}.mlp.fc2.weight", layer.fc2.weight
    yield f"{name}.mlp_layer_scale.scale", layer.ffn_scale


def _both(name: str, module: Any) -> Iterator[tuple[str, Tensor]]:
    yield f"{name}.weight", module.weight
    yield f"{name}.bias", module.bias
