"""Loads the weights of `codec` from a checkpoint's tensors, or fills in random ones."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from offhook.pipeline.engines.qwen3_tts.model.codec import (
    DILATIONS,
    EMBEDDING_TAPS,
    TAPS,
    WIDENING,
    Codec,
    CodecConfig,
)
from offhook.pipeline.speech.errors import EngineError

PREFIX = "decoder."
"""Prefix of the decoder's tensors in speech_tokenizer/model.safetensors; the rest is the
encoder."""
LEAST_USAGE = 1e-5
"""Lower bound of a code's usage count, by which its accumulated embedding is divided."""
NAMED_IN_ERRORS = 4

Shapes = Iterator[tuple[str, tuple[int, ...]]]


def load_codec(
    tensors: Mapping[str, Tensor],
    config: CodecConfig,
    device: torch.device | str,
    dtype: torch.dtype,
) -> Codec:
    """Returns the codec for inference from the tensors of speech_tokenizer/model.safetensors, of
    any floating-point type and device; those without the prefix "decoder." are ignored. Raises
    EngineError naming the tensors that do not match the config."""
    _check(tensors, config)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            codec = Codec(config).requires_grad_(False).eval()
    finally:
        torch.set_default_dtype(before)
    _Loader(tensors, torch.device(device)).fill(codec)
    return codec


def random_codec(
    config: CodecConfig, device: torch.device | str, dtype: torch.dtype, seed: int = 0
) -> Codec:
    """Returns a codec with random weights at the real cost, for benchmarks; its output is noise
    about as loud as speech."""
    generator = torch.Generator(device).manual_seed(seed)
    tensors = {}
    for name, shape in tensor_shapes(config):
        tensor = torch.randn(shape, device=device, generator=generator)
        if name.endswith(("norm.weight", "cluster_usage", "layernorm.weight")):
            tensor.fill_(1)
        elif name.endswith("beta"):
            tensor.fill_(2)
        elif len(shape) == 1:
            tensor *= 0.1
        elif not name.endswith("embedding_sum"):
            transposed = ".block.1." in name or (".upsample" in name and ".0.conv." in name)
            tensor *= (shape[0] if transposed else tensor[0].numel()) ** -0.5 * 0.7
        tensors[PREFIX + name] = tensor
    last = f"{PREFIX}decoder.{len(config.upsample_rates) + 2}.conv.weight"
    tensors[last] *= 0.2
    return load_codec(tensors, config, device, dtype)


def _check(tensors: Mapping[str, Tensor], config: CodecConfig) -> None:
    wanted = {PREFIX + name: shape for name, shape in tensor_shapes(config)}
    found = {name for name in tensors if name.startswith(PREFIX)}
    for what, names in (("lacks", wanted.keys() - found), ("has unknown", found - wanted.keys())):
        if names:
            some = ", ".join(sorted(names)[:NAMED_IN_ERRORS])
            more = f" and {len(names) - NAMED_IN_ERRORS} more" * (len(names) > NAMED_IN_ERRORS)
            raise EngineError(f"the codec's checkpoint {what} tensors: {some}{more}")
    for name, shape in wanted.items():
        if tensors[name].shape != shape:
            raise EngineError(
                f"the codec's checkpoint: {name} is {list(tensors[name].shape)}, "
                f"config.json makes it {list(shape)}"
            )
        if not tensors[name].is_floating_point():
            raise EngineError(
                f"the codec's checkpoint: {name} is {tensors[name].dtype}; "
                "quantised models are not read"
            )


def tensor_shapes(c: CodecConfig) -> Shapes:
    """Returns the shapes of all tensors of a checkpoint, without the prefix."""
    half = c.codebook_dim // 2
    for part, books in (("rvq_first", 1), ("rvq_rest", c.codebooks - 1)):
        # used by the encoder
        yield f"quantizer.{part}.input_proj.weight", (half, c.codebook_dim, 1)
        yield f"quantizer.{part}.output_proj.weight", (c.codebook_dim, half, 1)
        for i in range(books):
            book = f"quantizer.{part}.vq.layers.{i}._codebook"
            yield f"{book}.cluster_usage", (c.codebook_size,)
            yield f"{book}.embedding_sum", (c.codebook_size, half)
    yield from _convolution("pre_conv", c.codebook_dim, c.latent_dim, EMBEDDING_TAPS)
    yield from _linear("pre_transformer.input_proj", c.latent_dim, c.hidden_size)
    yield from _linear("pre_transformer.output_proj", c.hidden_size, c.latent_dim)
    yield "pre_transformer.norm.weight", (c.hidden_size,)
    for i in range(c.layers):
        yield from _layer(f"pre_transformer.layers.{i}", c)
    for i, ratio in enumerate(c.upsampling_ratios):
        yield from _upsampling(f"upsample.{i}", c.latent_dim, ratio)
    yield from _convolution("decoder.0", c.latent_dim, c.decoder_dim, TAPS)
    for i, ratio in enumerate(c.upsample_rates, 1):
        yield from _block(f"decoder.{i}.block", c.decoder_dim >> (i - 1), ratio)
    last = len(c.upsample_rates) + 1
    channels = c.decoder_dim >> (last - 1)
    yield from _snake(f"decoder.{last}", channels)
    yield from _convolution(f"decoder.{last + 1}", channels, 1, TAPS)


def _linear(name: str, inputs: int, outputs: int) -> Shapes:
    yield f"{name}.weight", (outputs, inputs)
    yield f"{name}.bias", (outputs,)


def _convolution(name: str, inputs: int, outputs: int, taps: int) -> Shapes:
    yield f"{name}.conv.weight", (outputs, inputs, taps)
    yield f"{name}.conv.bias", (outputs,)


def _transposed(name: str, inputs: int, outputs: int, taps: int) -> Shapes:
    yield f"{name}.conv.weight", (inputs, outputs, taps)
    yield f"{name}.conv.bias", (outputs,)


def _snake(name: str, channels: int) -> Shapes:
    yield f"{name}.alpha", (channels,)
    yield f"{name}.beta", (channels,)


def _layer(name: str, c: CodecConfig) -> Shapes:
    width = c.heads * c.head_dim
    for part in "qkv":
        yield f"{name}.self_attn.{part}_proj.weight", (width, c.hidden_size)
    yield f"{name}.self_attn.o_proj.weight", (c.hidden_size, width)
    for part in ("gate", "up"):
        yield f"{name}.mlp.{part}_proj.weight", (c.ffn, c.hidden_size)
    yield f"{name}.mlp.down_proj.weight", (c.hidden_size, c.ffn)
    for part in ("input_layernorm", "post_attention_layernorm"):
        yield f"{name}.{part}.weight", (c.hidden_size,)
    for part in ("self_attn", "mlp"):
        yield f"{name}.{part}_layer_scale.scale", (c.hidden_size,)


def _upsampling(name: str, channels: int, ratio: int) -> Shapes:
    yield from _transposed(f"{name}.0", channels, channels, ratio)
    yield from _convolution(f"{name}.1.dwconv", 1, channels, TAPS)
    yield f"{name}.1.norm.weight", (channels,)
    yield f"{name}.1.norm.bias", (channels,)
    yield from _linear(f"{name}.1.pwconv1", channels, WIDENING * channels)
    yield from _linear(f"{name}.1.pwconv2", WIDENING * channels, channels)
    yield f"{name}.1.gamma", (channels,)


def _block(name: str, inputs: int, ratio: int) -> Shapes:
    channels = inputs // 2
    yield from _snake(f"{name}.0", inputs)
    yield from _transposed(f"{name}.1", inputs, channels, 2 * ratio)
    for i in range(2, 2 + len(DILATIONS)):
        yield from _snake(f"{name}.{i}.act1", channels)
        yield from _convolution(f"{name}.{i}.conv1", channels, channels, TAPS)
        yield from _snake(f"{name}.{i}.act2", channels)
        yield from _convolution(f"{name}.{i}.conv2", channels, channels, 1)


class _Loader:
    """Merges weights in fp32, on the codec's device."""

    def __init__(self, tensors: Mapping[str, Tensor], device: torch.device) -> None:
        self._tensors = tensors
        self._device = device

    def _get(self, name: str) -> Tensor:
        return self._tensors[PREFIX + name].to(self._device, torch.float32)

    def fill(self, codec: Codec) -> None:
        self._embedding(codec)
        for i, layer in enumerate(codec.layers):
            self._layer(f"pre_transformer.layers.{i}", layer)
        codec.norm.copy_(self._get("pre_transformer.norm.weight"))
        for i, upsampling in enumerate(codec.upsamplings):
            if i:
                self._transposed(f"upsample.{i}.0", upsampling.expand)
            else:
                self._leave_transformer(upsampling)
            self._convnext(f"upsample.{i}.1", upsampling)
        self._convolution("decoder.0", codec.inner)
        for i, block in enumerate(codec.blocks, 1):
            self._block(f"decoder.{i}.block", block)
        last = len(codec.blocks) + 1
        self._snake(f"decoder.{last}", codec.snake)
        self._convolution(f"decoder.{last + 1}", codec.outer)

    def _embedding(self, codec: Codec) -> None:
        enter = self._get("pre_transformer.input_proj.weight")
        convolve = self._get("pre_conv.conv.weight")
        bias = enter @ self._get("pre_conv.conv.bias")
        codec.embedding_bias.copy_(bias + self._get("pre_transformer.input_proj.bias"))
        for book in range(codec.config.codebooks):
            part, i = ("rvq_rest", book - 1) if book else ("rvq_first", 0)
            at = f"quantizer.{part}.vq.layers.{i}._codebook"
            usage = self._get(f"{at}.cluster_usage").clamp(min=LEAST_USAGE)
            codes = self._get(f"{at}.embedding_sum") / usage[:, None]
            project = self._get(f"quantizer.{part}.output_proj.weight")[..., 0]
            for tap, weight in enumerate(convolve.unbind(2)):
                codec.embedding[tap, book] = codes @ (enter @ weight @ project).t()

    def _layer(self, name: str, layer: Any) -> None:
        layer.attention_norm.copy_(self._get(f"{name}.input_layernorm.weight"))
        layer.ffn_norm.copy_(self._get(f"{name}.post_attention_layernorm.weight"))
        parts = [self._get(f"{name}.self_attn.{part}_proj.weight") for part in "qkv"]
        layer.qkv.weight.copy_(torch.cat(parts))
        parts = [self._get(f"{name}.mlp.{part}_proj.weight") for part in ("gate", "up")]
        layer.gate_up.weight.copy_(torch.cat(parts))
        scale = self._get(f"{name}.self_attn_layer_scale.scale")[:, None]
        layer.out.weight.copy_(scale * self._get(f"{name}.self_attn.o_proj.weight"))
        scale = self._get(f"{name}.mlp_layer_scale.scale")[:, None]
        layer.down.weight.copy_(scale * self._get(f"{name}.mlp.down_proj.weight"))

    def _convnext(self, name: str, to: Any) -> None:
        to.depthwise.copy_(self._get(f"{name}.dwconv.conv.weight")[:, 0].t())
        to.depthwise_bias.copy_(self._get(f"{name}.dwconv.conv.bias"))
        norm = self._get(f"{name}.norm.weight")
        shift = self._get(f"{name}.norm.bias")
        weight = self._get(f"{name}.pwconv1.weight")
        to.widen.weight.copy_((weight * norm)[:, None])
        to.widen.bias.copy_(weight @ shift + self._get(f"{name}.pwconv1.bias"))
        gamma = self._get(f"{name}.gamma")
        weight = self._get(f"{name}.pwconv2.weight")
        to.narrow.weight.copy_((gamma[:, None] * weight)[:, None])
        to.narrow.bias.copy_(gamma * self._get(f"{name}.pwconv2.bias"))

    def _leave_transformer(self, to: Any) -> None:
        """Merges the transformer's output projection and the first upsampling."""
        expand = to.expand
        weight, bias = self._transposed_parts("upsample.0.0", expand)
        leave = self._get("pre_transformer.output_proj.weight")
        expand.weight.copy_(weight @ leave)
        expand.bias.copy_(weight[:, 0] @ self._get("pre_transformer.output_proj.bias") + bias)

    def _block(self, name: str, to: Any) -> None:
        self._snake(f"{name}.0", to.snake)
        self._transposed(f"{name}.1", to.expand)
        for i, residual in enumerate(to.residuals, 2):
            self._snake(f"{name}.{i}.act1", residual.snake1)
            self._convolution(f"{name}.{i}.conv1", residual.conv1)
            self._snake(f"{name}.{i}.act2", residual.snake2)
            self._convolution(f"{name}.{i}.conv2", residual.conv2)

    def _convolution(self, name: str, to: Any) -> None:
        to.weight.copy_(self._get(f"{name}.conv.weight").transpose(1, 2))
        to.bias.copy_(self._get(f"{name}.conv.bias"))

    def _transposed(self, name: str, to: Any) -> None:
        weight, bias = self._transposed_parts(name, to)
        to.weight.copy_(weight)
        to.bias.copy_(bias)

    def _transposed_parts(self, name: str, to: Any) -> tuple[Tensor, Tensor]:
        """Expresses a transposed convolution over rows: output row j of r for input row t is tap j
        times row t plus tap r + j times row t - 1. Returns [r * outputs, taps / r, inputs]."""
        taps = self._get(f"{name}.conv.weight").permute(2, 1, 0).unflatten(0, (-1, to.rows))
        weight = taps.flip(0).permute(1, 2, 0, 3).flatten(0, 1)
        return weight, self._get(f"{name}.conv.bias").repeat(to.rows)

    def _snake(self, name: str, to: Any) -> None:
        to.rate.copy_(self._get(f"{name}.alpha").exp())
        to.depth.copy_(1 / (self._get(f"{name}.beta").exp() + 1e-9))
