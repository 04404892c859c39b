"""Nemotron streaming ASR: a cache-aware FastConformer encoder and an RNN-T decoder.

One encoder frame is 80 ms. The encoder processes chunks of T = R + 1 frames, where R is the
stream's right context (0, 1, 6 or 13): the frames of a chunk see each other and `left_context`
frames before it but none after it, so results never change. A stream keeps the keys and values of
its last frames and eight frames before each convolution (`EncoderState`). (Rekesh et al. 2023, Fast
Conformer; Noroozi et al. 2024, cache-based inference.)

Parameters are named as in transformers' NemotronAsrStreamingForRNNT. Once loaded, each of
`Nemotron.parts` is prepared: what inference uses is derived.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from offhook.pipeline.engines.nemotron.model import fast_conformer
from offhook.pipeline.engines.nemotron.model.fast_conformer import EncoderState
from offhook.pipeline.engines.shared.qwen3.linear import Linear

MELS_PER_FRAME = 8
HISTORY = (14, 6, 2)
"""Earlier frames that an encoder frame depends on: of the mel, and of the outputs of the first two
convolutions."""
MEL_HISTORY = HISTORY[0]
NORM_EPS = 1e-5
POSITION_BASE = 10_000.0
BINS_PADDING = (0, 2)
"""Padding of a stride-two convolution: (frames, bins) on either side."""
EIGHT = 8
"""Matrix products are fastest if their sides are multiples of 8 (16 bytes of bf16)."""


@dataclass(frozen=True)
class EncoderConfig:
    hidden_size: int = 1024
    layers: int = 24
    heads: int = 8
    ffn: int = 4096
    conv_kernel: int = 9
    mel_bins: int = 128
    subsampling_channels: int = 256
    left_context: int = 70
    """Frames before a chunk that its frames attend to, rounded down to whole chunks."""
    attention_bias: bool = False
    """Whether attention projections and both feed-forward layers have biases."""
    convolution_bias: bool = False
    scale_input: bool = False

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.heads

    @property
    def subsampled_bins(self) -> int:
        """Mel bins left after three convolutions of stride two."""
        bins = self.mel_bins
        for _ in range(3):
            bins = bins // 2 + 1
        return bins


@dataclass(frozen=True)
class NemotronConfig:
    encoder: EncoderConfig = EncoderConfig()
    vocab_size: int = 1025
    """Number of labels including the blank."""
    blank: int = 1024
    predictor_size: int = 640
    predictor_layers: int = 2
    max_symbols: int = 10
    """Maximum labels of one frame."""
    lookaheads: tuple[int, ...] = (0, 1, 6, 13)
    """Right contexts that the model was trained with, in frames."""
    prompts: int = 0
    """Number of language prompts of a multilingual model; 0 for others."""
    prompt_size: int = 0
    default_prompt: int = 0
    languages: Mapping[str, int] = field(default_factory=dict)
    """BCP 47 tags ("pt", "pt-BR") to prompts."""
    mel_in_bf16: bool = False
    """Whether window and mel filters were rounded to bf16 in training."""

    @property
    def ring(self) -> int:
        """Frames of keys and values kept per stream: the left context and the longest chunk."""
        return self.encoder.left_context + max(self.lookaheads) + 1


class _FeedForward(nn.Module):
    def __init__(self, c: EncoderConfig) -> None:
        super().__init__()
        self.linear1 = Linear(c.hidden_size, c.ffn, bias=c.attention_bias)
        self.linear2 = Linear(c.ffn, c.hidden_size, bias=c.attention_bias)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear2(F.silu(self.linear1(x), inplace=True))
        return out


class _Attention(nn.Module):
    positions: Tensor
    """[H, distances, D]: projected embeddings of relative distances, farthest future first, padded
    with zeros to a multiple of EIGHT."""

    def __init__(self, c: EncoderConfig) -> None:
        super().__init__()
        size, bias = c.hidden_size, c.attention_bias
        self.q_proj = Linear(size, size, bias=bias)
        self.k_proj = Linear(size, size, bias=bias)
        self.v_proj = Linear(size, size, bias=bias)
        self.o_proj = Linear(size, size, bias=bias)
        self.relative_k_proj = Linear(size, size, bias=False)
        self.bias_u = nn.Parameter(torch.empty(c.heads, c.head_dim))
        self.bias_v = nn.Parameter(torch.empty(c.heads, c.head_dim))
        self._heads, self._left = c.heads, c.left_context

    def prepare(self, distances: Tensor) -> None:
        """Prepares for `distances` [N, hidden_size] from `distance_embedding`."""
        parts = (self.q_proj, self.k_proj, self.v_proj)
        bias = torch.cat([p.bias for p in parts]) if self.q_proj.bias is not None else None
        self.qkv = _linear(torch.cat([p.weight for p in parts]), bias)
        of_heads = self.relative_k_proj(distances).unflatten(-1, (self._heads, -1))
        self._longest = (len(distances) - self._left + 1) // 2
        self.positions = F.pad(of_heads.transpose(0, 1), (0, 0, 0, EIGHT - 1)).contiguous()
        del self.q_proj, self.k_proj, self.v_proj, self.relative_k_proj

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, of: "Rows") -> Tensor:
        streams, frames, _ = x.shape
        qkv = self.qkv(x).view(streams, frames, 3, self._heads, -1)
        left = self._left // frames * frames  # whole chunks are seen
        # Starts at the nearest future of the longest chunk; this chunk has less of it.
        first = self._longest - frames
        count = -(-(left + 2 * frames - 1) // EIGHT) * EIGHT
        near = self.positions[:, first : first + count].transpose(1, 2)
        queries = (qkv[:, :, 0] + self.bias_v).flatten(0, 1).transpose(0, 1)
        by_distance = torch.bmm(queries, near).unflatten(1, (streams, frames))
        out = fast_conformer.ring_attention(
            qkv, self.bias_u, by_distance, keys, values, of.slots, of.position, left
        )
        mixed: Tensor = self.o_proj(out)
        return mixed


class _Convolution(nn.Module):
    taps: Tensor
    """[C, K]"""

    def __init__(self, c: EncoderConfig) -> None:
        super().__init__()
        size, bias = c.hidden_size, c.convolution_bias
        self.pointwise_conv1 = _Conv1d(size, 2 * size, 1, bias=bias)
        self.depthwise_conv = _Conv1d(size, size, c.conv_kernel, groups=size, bias=bias)
        self.norm = nn.LayerNorm(size)
        self.pointwise_conv2 = _Conv1d(size, size, 1, bias=bias)

    def prepare(self) -> None:
        # Tap-major in memory: neighbouring channels are read together.
        self.taps = self.depthwise_conv.weight[:, 0].t().contiguous().t()
        one, two = self.pointwise_conv1, self.pointwise_conv2
        self.expand = _linear(one.weight[..., 0], one.bias)
        self.contract = _linear(two.weight[..., 0], two.bias)
        del self.pointwise_conv1, self.pointwise_conv2

    def forward(self, x: Tensor, cache: Tensor, of: "Rows") -> Tensor:
        x = fast_conformer.glu_conv(
            self.expand(x),
            cache,
            of.slots,
            of.position,
            self.taps,
            self.depthwise_conv.bias,
            self.norm.weight,
            self.norm.bias,
            NORM_EPS,
        )
        out: Tensor = self.contract(x)
        return out


def _linear(weight: Tensor, bias: Tensor | None) -> Linear:
    """Returns a layer with this weight [outputs, inputs], which is shared."""
    with torch.device("meta"):
        layer = Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    layer.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias, requires_grad=False)
    return layer


class _Conv1d(nn.Conv1d):
    """A Conv1d without random initialization, since its weights are loaded."""

    def reset_parameters(self) -> None:
        pass


class _Conv2d(nn.Conv2d):
    """A Conv2d without random initialization, since its weights are loaded."""

    def reset_parameters(self) -> None:
        pass


class _Block(nn.Module):
    """A Conformer block: half feed-forward, attention, convolution, half feed-forward, all
    residual."""

    def __init__(self, c: EncoderConfig) -> None:
        super().__init__()
        self.feed_forward1 = _FeedForward(c)
        self.self_attn = _Attention(c)
        self.conv = _Convolution(c)
        self.feed_forward2 = _FeedForward(c)
        self.norm_feed_forward1 = nn.LayerNorm(c.hidden_size)
        self.norm_self_att = nn.LayerNorm(c.hidden_size)
        self.norm_conv = nn.LayerNorm(c.hidden_size)
        self.norm_feed_forward2 = nn.LayerNorm(c.hidden_size)
        self.norm_out = nn.LayerNorm(c.hidden_size)

    def prepare(self, distances: Tensor) -> None:
        """Prepares for `distances`, see `_Attention.prepare`."""
        self.self_attn.prepare(distances)
        self.conv.prepare()

    def forward(
        self, x: Tensor, normed: Tensor, next_norm: nn.LayerNorm, layer: "Layer", of: "Rows"
    ) -> tuple[Tensor, Tensor]:
        """`x` is the output of the previous block and `normed` the same after this block's first
        norm. Returns both for the next block, whose first norm is `next_norm`."""
        y = self.feed_forward1(normed)
        x, normed = _add(x, y, 0.5, self.norm_self_att)
        y = self.self_attn(normed, layer.keys, layer.values, of)
        x, normed = _add(x, y, 1.0, self.norm_conv)
        y = self.conv(normed, layer.conv, of)
        x, normed = _add(x, y, 1.0, self.norm_feed_forward2)
        y = self.feed_forward2(normed)
        one, two = self.norm_out, next_norm
        return fast_conformer.add_norm_norm(
            x, y, 0.5, one.weight, one.bias, two.weight, two.bias, NORM_EPS
        )


def _add(x: Tensor, y: Tensor, scale: float, norm: nn.LayerNorm) -> tuple[Tensor, Tensor]:
    return fast_conformer.add_norm(x, y, scale, norm.weight, norm.bias, NORM_EPS)


@dataclass(frozen=True)
class Rows:
    """Identifies the streams of a batch's rows."""

    slots: Tensor
    """int64 [B] slots; 0 is scratch."""
    position: Tensor
    """int64 [B], encoder frames of the utterance before the chunk."""


@dataclass(frozen=True)
class Layer:
    """One block's state of all streams; see `EncoderState`."""

    keys: Tensor
    values: Tensor
    conv: Tensor


class _Separable(nn.Module):
    """A depthwise convolution of stride two followed by a pointwise one."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise_conv = _Conv2d(
            channels, channels, 3, 2, padding=BINS_PADDING, groups=channels
        )
        self.pointwise_conv = _Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.pointwise_conv(_halved(self.depthwise_conv(x), x))
        return out


class _Subsampling(nn.Module):
    """Reduces mel frames to encoder frames, eight to one, causally; the input before the utterance
    is 0 at every stage."""

    def __init__(self, c: EncoderConfig) -> None:
        super().__init__()
        channels = c.subsampling_channels
        self.conv_in = _Conv2d(1, channels, 3, 2, padding=BINS_PADDING)
        self.layers = nn.ModuleList(_Separable(channels) for _ in range(2))
        self.linear = Linear(channels * c.subsampled_bins, c.hidden_size)

    def forward(self, mel: Tensor, position: Tensor) -> Tensor:
        """[B, MEL_HISTORY + 8 T - 7, bins] -> [B, T, C]; overwrites mel."""
        out: Tensor = self.linear(self.convolve(mel, position))
        return out

    def convolve(self, mel: Tensor, position: Tensor) -> Tensor:
        """[B, MEL_HISTORY + 8 T - 7, bins] -> [B, T, channels * bins]; overwrites mel."""
        if mel.is_cuda:
            from offhook.pipeline.engines.nemotron.model import triton_subsampling

            separable = [layer for layer in self.layers if isinstance(layer, _Separable)]
            layers = [(_weights(x.depthwise_conv), _weights(x.pointwise_conv)) for x in separable]
            return triton_subsampling.subsample(mel, _weights(self.conv_in), layers, position)
        x = mel[:, None]
        _clear_before(x, position * 8 - HISTORY[0])
        x = F.relu(_halved(self.conv_in(x), x), inplace=True)
        _clear_before(x, position * 4 - HISTORY[1])
        x = F.relu(self.layers[0](x), inplace=True)
        _clear_before(x, position * 2 - HISTORY[2])
        x = F.relu(self.layers[1](x), inplace=True)
        return x.transpose(1, 2).flatten(2)


def _weights(conv: nn.Module) -> tuple[Tensor, Tensor]:
    return conv.get_parameter("weight"), conv.get_parameter("bias")


def _halved(y: Tensor, x: Tensor) -> Tensor:
    """Trims the output y of a convolution of x to bins padded by two below and one above; an odd
    number of bins yields one more."""
    return y[..., : x.shape[-1] // 2 + 1]


def _clear_before(x: Tensor, first: Tensor) -> None:
    """Zeros frames before the utterance in x [B, channels, frames, bins]; `first`, int64 [B], is
    the number of its first frame and may be negative."""
    before = torch.arange(x.shape[2], device=x.device) + first[:, None] < 0
    x.masked_fill_(before[:, None, :, None], 0.0)


class _Encoder(nn.Module):
    def __init__(self, c: EncoderConfig) -> None:
        super().__init__()
        self.config = c
        self.subsampling = _Subsampling(c)
        self.layers = nn.ModuleList(_Block(c) for _ in range(c.layers))
        self.scale = math.sqrt(c.hidden_size) if c.scale_input else 1.0

    def forward(self, mel: Tensor, state: EncoderState, of: Rows) -> Tensor:
        x: Tensor = self.subsampling(mel, of.position)
        if self.scale != 1.0:
            x = x * self.scale
        blocks = [block for block in self.layers if isinstance(block, _Block)]
        norm = blocks[0].norm_feed_forward1
        normed = F.layer_norm(x, x.shape[-1:], norm.weight, norm.bias, NORM_EPS)
        for number, block in enumerate(blocks):
            after = blocks[(number + 1) % len(blocks)].norm_feed_forward1
            layer = Layer(state.keys[number], state.values[number], state.conv[number])
            x, normed = block(x, normed, after, layer, of)
        return x


def distance_embedding(distances: Tensor, size: int) -> Tensor:
    """Returns interleaved sines and cosines, fp32 [N, size] (Dai et al. 2019, Transformer-XL)."""
    even = torch.arange(0, size, 2, dtype=torch.float32, device=distances.device)
    angles = distances[:, None].float() * (1.0 / POSITION_BASE ** (even / size))
    sines: Tensor = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
    return sines


class _Predictor(nn.Module):
    """Weights of the prediction network, which models the label history without audio; `rnnt`
    computes with them."""

    of_labels: Tensor
    """[vocabulary, 4 N], each label's contribution to the gates of the first layer."""

    def __init__(self, c: NemotronConfig) -> None:
        super().__init__()
        size = c.predictor_size
        self.embedding = nn.Embedding(c.vocab_size, size, _weight=torch.empty(c.vocab_size, size))
        self.lstm = nn.LSTM(size, size, c.predictor_layers)
        self.decoder_projector = Linear(size, size)
        self.recurrent = nn.ModuleList()
        """Per layer: its linear layer of its concatenated input and last output; for the first
        layer of the last output only."""

    def prepare(self) -> None:
        lstm = self.lstm
        for number in range(lstm.num_layers):
            of_input = getattr(lstm, f"weight_ih_l{number}")
            of_last = getattr(lstm, f"weight_hh_l{number}")
            bias = getattr(lstm, f"bias_ih_l{number}") + getattr(lstm, f"bias_hh_l{number}")
            if number == 0:
                self.of_labels = F.linear(self.embedding.weight, of_input, bias)
                self.recurrent.append(_linear(of_last.contiguous(), None))
            else:
                self.recurrent.append(_linear(torch.cat([of_input, of_last], 1), bias))
        del self.lstm, self.embedding


class _Joint(nn.Module):
    """Computes label scores. `prepare` pads the labels, with scores that never win, to a multiple
    of EIGHT."""

    def __init__(self, c: NemotronConfig) -> None:
        super().__init__()
        self.head = Linear(c.predictor_size, c.vocab_size)

    def prepare(self) -> None:
        more = -len(self.head.weight) % EIGHT
        weight = F.pad(self.head.weight, (0, 0, 0, more))
        self.scores = _linear(weight, F.pad(self.head.bias, (0, more), value=float("-inf")))
        del self.head

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.scores(x)
        return out


class _PromptProjector(nn.Module):
    """Adds the requested language to the encoder's output."""

    of_prompts: Tensor
    """[prompts, size], each prompt's contribution to the first linear layer's output."""

    def __init__(self, c: NemotronConfig) -> None:
        super().__init__()
        size = c.encoder.hidden_size
        self.linear_1 = Linear(size + c.prompts, c.prompt_size)
        self.linear_2 = Linear(c.prompt_size, size)
        self._size = size

    def prepare(self) -> None:
        weight = self.linear_1.weight
        self.of_sound = _linear(weight[:, : self._size].contiguous(), None)
        self.of_prompts = weight[:, self._size :].T + self.linear_1.bias
        del self.linear_1

    def forward(self, x: Tensor, prompts: Tensor) -> Tensor:
        hidden = self.of_sound(x) + self.of_prompts[prompts][:, None]
        out: Tensor = self.linear_2(F.relu(hidden, inplace=True))
        return out


class Nemotron(nn.Module):
    """The whole model; its `parts` must be loaded and prepared."""

    def __init__(self, config: NemotronConfig) -> None:
        super().__init__()
        self.config = config
        c = config.encoder
        self.encoder = _Encoder(c)
        self.encoder_projector = Linear(c.hidden_size, config.predictor_size)
        self.decoder = _Predictor(config)
        self.joint = _Joint(config)
        self.prompt_projector = _PromptProjector(config) if config.prompts else None

    def parts(self) -> Iterator[tuple[str, nn.Module]]:
        """Yields all parts with the prefix of their parameters' names. Load and `prepare` one
        after the other: so a part is in memory in its final form before the next is read."""
        blocks = self.encoder.layers.named_children()
        yield from ((f"encoder.layers.{number}", block) for number, block in blocks)
        yield "encoder.subsampling", self.encoder.subsampling
        for name, part in self.named_children():
            if part is not self.encoder:
                yield name, part

    @torch.no_grad()
    def prepare(self, part: nn.Module) -> None:
        """Derives the inference tensors of a part; call once after loading, on the model's
        device."""
        match part:
            case _Block():
                c, longest = self.config.encoder, max(self.config.lookaheads) + 1
                weight = part.norm_out.weight
                far = torch.arange(1 - longest, c.left_context + longest, device=weight.device)
                part.prepare(distance_embedding(far, c.hidden_size).to(weight.dtype))
            case _Predictor() | _Joint() | _PromptProjector():
                part.prepare()

    def encode(self, mel: Tensor, state: EncoderState, of: Rows, prompts: Tensor) -> Tensor:
        """Encodes one chunk of each stream and updates `state`.

        `mel` is [B, MEL_HISTORY + 8 T - 7, bins] in the model's dtype, all inputs of the T frames;
        values before the utterance are ignored. Returns [B, T, predictor_size] for the decoder.
        """
        x = self.encoder(mel, state, of)
        if self.prompt_projector is not None:
            x = self.prompt_projector(x, prompts)
        out: Tensor = self.encoder_projector(x)
        return out
