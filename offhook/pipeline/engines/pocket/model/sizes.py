"""Sizes of a Pocket TTS model, read from the shapes of its tensors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from offhook.pipeline.engines.pocket.model.config import PocketConfig
from offhook.pipeline.engines.pocket.model.transformer import LayerSizes
from offhook.pipeline.speech.errors import EngineError

HEAD_SIZE = 64
"""Channels of the language model's attention heads, the same in all published sizes."""
Shapes = Mapping[str, Sequence[int]]
"""Of tensors, by name."""


class FlowSizes(NamedTuple):
    width: int
    depth: int
    times: int
    """Time conditions: 2 of a model trained by self distillation, else 0."""
    frequencies: int
    adds_noise: bool
    """Whether the latent is the noise plus the head's output, or the output alone."""


class LmSizes(NamedTuple):
    latent: int
    vocabulary: int
    """Rows of the embedding: the tokenizer's pieces and one more."""
    rank: int
    """Channels of a factorized embedding, or 0."""
    layers: int
    layer: LayerSizes
    bottleneck: int
    """Channels of the output, or 0: as many as inside."""
    flow: FlowSizes


class ConvolutionSizes(NamedTuple):
    inputs: int
    outputs: int
    kernel: int


class StageSizes(NamedTuple):
    """Raises the rate: a transposed convolution, whose stride is half its kernel, and a residual
    block."""

    up: ConvolutionSizes
    hidden: int
    kernel: int


class DecoderSizes(NamedTuple):
    latent: int
    steps: int
    """Steps of the transformer per latent."""
    layers: int
    layer: LayerSizes
    context: int
    first: ConvolutionSizes
    stages: tuple[StageSizes, ...]
    last: ConvolutionSizes

    @property
    def samples(self) -> int:
        """Samples per latent."""
        samples = self.steps
        for stage in self.stages:
            samples *= stage.up.kernel // 2
        return samples


@dataclass(frozen=True)
class PocketSizes:
    lm: LmSizes
    decoder: DecoderSizes

    @classmethod
    def read(cls, shapes: Shapes, config: PocketConfig) -> "PocketSizes":
        """Raises EngineError if a tensor that decides a size is missing or has no such shape."""
        try:
            return cls(_lm(shapes, config), _decoder(shapes, config))
        except KeyError as error:
            raise EngineError(f"the checkpoint lacks the tensor {error.args[0]}") from error
        except (ValueError, IndexError) as error:
            raise EngineError(f"the checkpoint is of another kind of model: {error}") from error


def _layers(shapes: Shapes, prefix: str, head_size: int) -> tuple[int, LayerSizes]:
    layers = next(i for i in count() if f"{prefix}.{i}.linear1.weight" not in shapes)
    projected, width = shapes[f"{prefix}.0.self_attn.in_proj.weight"]
    _, queries = shapes[f"{prefix}.0.self_attn.out_proj.weight"]
    ffn, _ = shapes[f"{prefix}.0.linear1.weight"]
    kv = (projected - queries) // 2
    if kv <= 0 or queries % head_size or kv % head_size or queries % kv:
        raise ValueError(f"{prefix} has {queries} channels of queries, {projected} in all")
    heads = LayerSizes(width, queries // head_size, kv // head_size, head_size, ffn)
    return layers, heads


def _lm(shapes: Shapes, config: PocketConfig) -> LmSizes:
    _, latent = shapes["flow_lm.input_linear.weight"]
    vocabulary, rank = shapes["flow_lm.conditioner.embed.weight"]
    factorized = "flow_lm.conditioner.proj.weight" in shapes
    layers, layer = _layers(shapes, "flow_lm.transformer.layers", HEAD_SIZE)
    bottleneck = shapes.get("flow_lm.z_proj.weight", (0,))[0]
    head = "flow_lm.flow_net"
    times = sum(f"{head}.time_embed.{i}.mlp.0.weight" in shapes for i in range(2))
    if times == 1:
        raise ValueError("its flow head takes many steps")
    frequencies = shapes[f"{head}.time_embed.0.mlp.0.weight"][1] if times else 0
    flow = FlowSizes(
        width=shapes[f"{head}.cond_embed.weight"][0],
        depth=next(i for i in count() if f"{head}.res_blocks.{i}.in_ln.weight" not in shapes),
        times=times,
        frequencies=frequencies,
        adds_noise=bool(times) or not config.drifting,
    )
    return LmSizes(latent, vocabulary, rank if factorized else 0, layers, layer, bottleneck, flow)


def _convolution(shapes: Shapes, name: str) -> ConvolutionSizes:
    outputs, inputs, kernel = shapes[f"mimi.decoder.model.{name}.conv.weight"]
    return ConvolutionSizes(inputs, outputs, kernel)


def _decoder(shapes: Shapes, config: PocketConfig) -> DecoderSizes:
    layers, layer = _layers(
        shapes, "mimi.decoder_transformer.transformer.layers", config.decoder_head_size
    )
    stages = []
    for i in count(2, 3):
        if f"mimi.decoder.model.{i}.convtr.weight" not in shapes:
            break
        inputs, outputs, kernel = shapes[f"mimi.decoder.model.{i}.convtr.weight"]
        block = _convolution(shapes, f"{i + 1}.block.1")
        up = ConvolutionSizes(inputs, outputs, kernel)
        stages.append(StageSizes(up, block.outputs, block.kernel))
    return DecoderSizes(
        latent=shapes["mimi.quantizer.output_proj.weight"][1],
        steps=shapes["mimi.upsample.convtr.convtr.weight"][2] // 2,
        layers=layers,
        layer=layer,
        context=config.decoder_context,
        first=_convolution(shapes, "0"),
        stages=tuple(stages),
        last=_convolution(shapes, str(3 * len(stages) + 2)),
    )
