"""The decoder of Qwen3-TTS-Tokenizer-12Hz: frames of 16 codes to 24 kHz audio.

Sizes and layout follow the folder speech_tokenizer of the checkpoints Qwen/Qwen3-TTS-12Hz-*. A
frame is 80 ms. Everything is causal: a sample depends only on its own and earlier frames. A stream
that keeps each part's history therefore yields the same samples however it is split: `stream` does
so for many streams at once, `decode` processes whole ones.

Adjacent linear layers are merged in fp32 at load time: codebooks, their projections, the first
convolution and the input projection of the transformer; its output projection and the first
upsampling; layer scales and affine norms with the adjacent weights.

x is [B, T, channels] throughout. Tensors are fp32 or bf16, products are summed in fp32. On a GPU
`codec_stream` runs it with the Triton kernels of `triton_codec`, which compute the same as the
plain torch here.
"""

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from offhook.pipeline.engines.shared.qwen3 import attention
from offhook.pipeline.engines.shared.qwen3.linear import Linear
from offhook.pipeline.speech.errors import EngineError

MAX_FRAMES = 1024
"""Maximum frames of one stream (82 s), the length of the rotation table."""
CALL_FRAMES = 8
"""Maximum frames of one call of `stream`."""
EMBEDDING_TAPS = 3
TAPS = 7
DILATIONS = (1, 3, 9)
WIDENING = 4
"""Channel expansion inside a ConvNeXt block."""
LAYER_NORM_EPS = 1e-6


class LeftContext(NamedTuple):
    """The rows before its first new one that a convolution sees."""

    length: int
    """Rows."""
    rate: int
    """Rows per frame."""
    channels: int

    @property
    def elements(self) -> int:
        return self.length * self.channels


@dataclass(frozen=True)
class CodecConfig:
    codebooks: int = 16
    codebook_size: int = 2048
    codebook_dim: int = 512
    """Channels of a frame; codes are looked up in half as many."""
    hidden_size: int = 512
    """Width of the transformer; the fields up to `rope_theta` belong to it."""
    ffn: int = 1024
    layers: int = 8
    heads: int = 16
    head_dim: int = 64
    window: int = 72
    """Frames that a frame attends to, including itself."""
    rms_eps: float = 1e-5
    rope_theta: float = 1e4
    latent_dim: int = 1024
    upsampling_ratios: tuple[int, ...] = (2, 2)
    decoder_dim: int = 1536
    """Channels before the blocks, each of which halves them."""
    upsample_rates: tuple[int, ...] = (8, 5, 4, 3)

    @property
    def frame_samples(self) -> int:
        return math.prod(self.upsampling_ratios) * math.prod(self.upsample_rates)

    @property
    def left_contexts(self) -> list[LeftContext]:
        """Returns the left contexts of all convolutions after the transformer, in processing
        order."""
        rate, channels = 1, self.decoder_dim
        found = []
        for ratio in self.upsampling_ratios:
            rate *= ratio
            found.append(LeftContext(TAPS - 1, rate, self.latent_dim))
        found.append(LeftContext(TAPS - 1, rate, self.latent_dim))
        for ratio in self.upsample_rates:
            found.append(LeftContext(1, rate, channels))
            rate, channels = rate * ratio, channels // 2
            found += [LeftContext((TAPS - 1) * dilation, rate, channels) for dilation in DILATIONS]
        return [*found, LeftContext(TAPS - 1, rate, channels)]

    @staticmethod
    def from_json(config: Mapping[str, Any]) -> "CodecConfig":
        """Parses speech_tokenizer/config.json. Raises EngineError for another model or variant."""
        if config.get("model_type") != "qwen3_tts_tokenizer_12hz":
            raise EngineError(
                f"speech_tokenizer/config.json is of a {config.get('model_type')!r} model, "
                "not of Qwen3-TTS-Tokenizer-12Hz"
            )
        try:
            c = config["decoder_config"]
            for name, value in (
                ("attention_bias", False),
                ("hidden_act", "silu"),
                ("num_key_value_heads", c["num_attention_heads"]),
                ("num_semantic_quantizers", 1),
            ):
                if c.get(name, value) != value:
                    raise EngineError(
                        f"speech_tokenizer/config.json: {name} is {c[name]!r}; "
                        f"only {value!r} is supported"
                    )
            return CodecConfig(
                codebooks=c["num_quantizers"],
                codebook_size=c["codebook_size"],
                codebook_dim=c["codebook_dim"],
                hidden_size=c["hidden_size"],
                ffn=c["intermediate_size"],
                layers=c["num_hidden_layers"],
                heads=c["num_attention_heads"],
                head_dim=c.get("head_dim", c["hidden_size"] // c["num_attention_heads"]),
                window=c["sliding_window"],
                rms_eps=c["rms_norm_eps"],
                rope_theta=float(c["rope_theta"]),
                latent_dim=c["latent_dim"],
                upsampling_ratios=tuple(c["upsampling_ratios"]),
                decoder_dim=c["decoder_dim"],
                upsample_rates=tuple(c["upsample_rates"]),
            )
        except KeyError as error:
            raise EngineError(f"speech_tokenizer/config.json lacks {error.args[0]!r}") from error


QWEN3_CODEC = CodecConfig()


class CodecState:
    """What is kept of all streams between calls, by slot. Slot 0 is for padding.

    Of the codes, and of the keys and values of each layer, a ring is kept: [slots + 1, rows,
    channels], with frame p of a stream at p modulo rows. It has room for the frames of a call
    besides the history, so nothing is overwritten while it is read. Of the rows that convolutions
    see, of which a frame has up to thousands, only their left contexts are kept.
    """

    def __init__(
        self,
        config: CodecConfig,
        slots: int,
        frames: int,
        device: torch.device | str,
        dtype: torch.dtype,
    ) -> None:
        self.frames = frames
        """Maximum frames of one call."""
        c, shape = config, (slots + 1, EMBEDDING_TAPS - 1 + frames, config.codebooks)
        self.rings = [torch.zeros(shape, device=device, dtype=torch.int64)]
        """Codes, then keys and values of each layer."""
        shape = slots + 1, c.window - 1 + frames, c.heads * c.head_dim
        self.rings += [torch.zeros(shape, device=device, dtype=dtype) for _ in range(2 * c.layers)]
        self._shapes = c.left_contexts
        size = sum(x.elements for x in self._shapes)
        self.contexts = torch.zeros(slots + 1, size, device=device, dtype=dtype)
        """[slots + 1, elements]: the left contexts of all convolutions, one after the other."""

    @property
    def tensors(self) -> list[Tensor]:
        """All that is kept, each tensor by slot."""
        return [*self.rings, self.contexts]

    def split_contexts(self) -> list[Tensor]:
        """Returns views of `contexts`: of each convolution, [slots + 1, length, channels]."""
        parts = self.contexts.split([x.elements for x in self._shapes], 1)
        return [
            part.unflatten(1, (x.length, x.channels))
            for x, part in zip(self._shapes, parts, strict=True)
        ]

    @property
    def bytes_per_slot(self) -> int:
        return sum(kept[0].numel() * kept.element_size() for kept in self.tensors)


class CausalPast:
    """What was before the rows of one call, in plain torch: what a state keeps, or nothing."""

    def __init__(
        self,
        frames: int,
        first: Tensor,
        slots: Tensor | None = None,
        rings: Iterable[Tensor] = (),
        contexts: Iterable[Tensor] = (),
    ) -> None:
        """`contexts`: of each convolution, [slots, length, channels]. Without `slots` streams begin
        here."""
        self.frames = frames
        """Frames of each stream in this call."""
        self.first = first
        """int64 [B], the number of each stream's first frame."""
        self._slots = slots
        self._rings = iter(rings)
        self._contexts = iter(contexts)

    def extend(self, x: Tensor, length: int) -> Tensor:
        """Prepends the `length` rows before x [B, T, channels], zeros before the stream's start.
        Call once per convolution, in order."""
        if self._slots is None:
            return _after_zeros(x, length)
        context = next(self._contexts)
        before = context[self._slots].masked_fill(self.first[:, None, None] == 0, 0)
        x = torch.cat((before, x), 1)
        context[self._slots] = x[:, x.shape[1] - length :]
        return x

    def extend_frames(self, x: Tensor, length: int) -> Tensor:
        """Prepends the `length` frames before x [B, T, ...], zeros before the stream's start. Call
        once per ring, in order."""
        if self._slots is None:
            return _after_zeros(x, length)
        ring, slots = next(self._rings), self._slots[:, None]
        before = self.first[:, None] + torch.arange(-length, 0, device=x.device)
        old = ring[slots, before % ring.shape[1]].masked_fill(before[..., None] < 0, 0)
        new = self.first[:, None] + torch.arange(x.shape[1], device=x.device)
        ring[slots, new % ring.shape[1]] = x.flatten(2)
        return torch.cat((old.unflatten(2, x.shape[2:]), x), 1)


def _after_zeros(x: Tensor, length: int) -> Tensor:
    return torch.cat((x.new_zeros(len(x), length, *x.shape[2:]), x), 1)


# --- the parts ---


class Convolution(nn.Module):
    """A causal convolution: output row t depends on input row t and the `length` rows before it.

    A transposed convolution of stride r is expressed as one with r times as many outputs, the
    channels of r rows (`rows`).
    """

    def __init__(
        self, inputs: int, outputs: int, taps: int = 1, dilation: int = 1, rows: int = 1
    ) -> None:
        super().__init__()
        self.dilation = dilation
        self.length = (taps - 1) * dilation
        self.rows = rows
        self.weight = nn.Parameter(torch.empty(rows * outputs, taps, inputs))
        self.bias = nn.Buffer(torch.empty(rows * outputs, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, length + T, inputs] to [B, T * rows, outputs]."""
        rows = x.shape[1] - self.length
        y = x.new_zeros((), dtype=torch.float32)
        for tap, weight in enumerate(self.weight.unbind(1)):
            seen = x[:, tap * self.dilation : tap * self.dilation + rows]
            y = y + F.linear(seen.float(), weight.float())
        return (y + self.bias).to(x.dtype).reshape(len(x), rows * self.rows, -1)


class Snake(nn.Module):
    """The SnakeBeta activation x + sin(x * rate)^2 * depth (BigVGAN, arXiv 2206.04658)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.rate = nn.Buffer(torch.empty(channels, dtype=torch.float32))
        self.depth = nn.Buffer(torch.empty(channels, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        return (y + torch.sin(y * self.rate).square() * self.depth).to(x.dtype)


class Layer(nn.Module):
    """A transformer layer."""

    def __init__(self, c: CodecConfig) -> None:
        super().__init__()
        self.config = c
        self.attention_norm = nn.Parameter(torch.ones(c.hidden_size))
        self.qkv = Linear(c.hidden_size, 3 * c.heads * c.head_dim, bias=False)
        self.out = Linear(c.heads * c.head_dim, c.hidden_size, bias=False)
        self.ffn_norm = nn.Parameter(torch.ones(c.hidden_size))
        self.gate_up = Linear(c.hidden_size, 2 * c.ffn, bias=False)
        self.down = Linear(c.ffn, c.hidden_size, bias=False)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], past: CausalPast) -> Tensor:
        c = self.config
        y = attention.rms_norm_reference(x, self.attention_norm, c.rms_eps)
        q, k, v = self.qkv(y).unflatten(-1, (3, c.heads, c.head_dim)).unbind(2)
        k = past.extend_frames(_rotate(k, turn), c.window - 1)
        v = past.extend_frames(v, c.window - 1)
        query = torch.arange(x.shape[1], device=x.device)[:, None]
        key = torch.arange(k.shape[1], device=x.device)
        near = (key >= query) & (key < query + c.window)
        begun = past.first[:, None] + key >= c.window - 1
        q, k, v = (y.transpose(1, 2) for y in (_rotate(q, turn), k, v))
        mask = (near & begun[:, None])[:, None]
        heard = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(heard.transpose(1, 2).flatten(2))
        y = attention.rms_norm_reference(x, self.ffn_norm, c.rms_eps)
        x = x + self.down(attention.silu_mul_reference(self.gate_up(y)))
        return x


def _rotate(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = (y[:, :, None] for y in turn)
    low, high = x.float().chunk(2, -1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), -1).to(x.dtype)


class Upsampling(nn.Module):
    """A non-overlapping transposed convolution followed by a ConvNeXt block (arXiv 2201.03545)."""

    def __init__(self, inputs: int, channels: int, ratio: int) -> None:
        super().__init__()
        self.expand = Convolution(inputs, channels, rows=ratio)
        self.depthwise = nn.Parameter(torch.empty(TAPS, channels))
        self.depthwise_bias = nn.Buffer(torch.empty(channels, dtype=torch.float32))
        self.widen = Convolution(channels, WIDENING * channels)
        self.narrow = Convolution(WIDENING * channels, channels)

    def forward(self, x: Tensor, past: CausalPast) -> Tensor:
        x = self.expand(x)
        seen = past.extend(x, TAPS - 1).unfold(1, TAPS, 1).float()
        y = (seen * self.depthwise.t().float()).sum(-1) + self.depthwise_bias
        y = F.layer_norm(y, y.shape[-1:], eps=LAYER_NORM_EPS).to(x.dtype)
        x = x + self.narrow(F.gelu(self.widen(y)))
        return x


class Residual(nn.Module):
    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.snake1 = Snake(channels)
        self.conv1 = Convolution(channels, channels, TAPS, dilation)
        self.snake2 = Snake(channels)
        self.conv2 = Convolution(channels, channels)

    def forward(self, x: Tensor, past: CausalPast) -> Tensor:
        y = self.conv1(past.extend(self.snake1(x), self.conv1.length))
        x = x + self.conv2(self.snake2(y))
        return x


class Block(nn.Module):
    """Upsamples rows by `ratio` and halves the channels."""

    def __init__(self, inputs: int, ratio: int) -> None:
        super().__init__()
        self.snake = Snake(inputs)
        self.expand = Convolution(inputs, inputs // 2, 2, rows=ratio)
        self.residuals = nn.ModuleList(Residual(inputs // 2, d) for d in DILATIONS)

    def forward(self, x: Tensor, past: CausalPast) -> Tensor:
        x = self.expand(past.extend(self.snake(x), self.expand.length))
        for residual in self.residuals:
            x = residual(x, past)
        return x


class Codec(nn.Module):
    """The codec decoder. Build it with `load_codec` rather than `.to(dtype)`, because parts of it
    stay fp32."""

    def __init__(self, c: CodecConfig) -> None:
        super().__init__()
        self.config = c
        shape = (EMBEDDING_TAPS, c.codebooks, c.codebook_size, c.hidden_size)
        self.embedding = nn.Parameter(torch.empty(shape))
        self.embedding_bias = nn.Buffer(torch.empty(c.hidden_size, dtype=torch.float32))
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.layers))
        self.norm = nn.Parameter(torch.ones(c.hidden_size))
        widths = itertools.chain((c.hidden_size,), itertools.repeat(c.latent_dim))
        self.upsamplings = nn.ModuleList(
            Upsampling(inputs, c.latent_dim, ratio)
            for inputs, ratio in zip(widths, c.upsampling_ratios, strict=False)
        )
        self.inner = Convolution(c.latent_dim, c.decoder_dim, TAPS)
        self.blocks = nn.ModuleList(
            Block(c.decoder_dim >> i, ratio) for i, ratio in enumerate(c.upsample_rates)
        )
        channels = c.decoder_dim >> len(c.upsample_rates)
        self.snake = Snake(channels)
        self.outer = Convolution(channels, 1, TAPS)
        angles = _angles(c.head_dim, c.rope_theta)
        self.cos = nn.Buffer(angles.cos().float(), persistent=False)
        self.sin = nn.Buffer(angles.sin().float(), persistent=False)

    def decode(self, codes: Tensor) -> Tensor:
        """Decodes whole streams of up to MAX_FRAMES frames.

        `codes` is int64 [B, codebooks, frames], each less than codebook_size. Returns fp32 [B,
        frames * frame_samples] in [-1, 1].
        """
        first = torch.zeros(len(codes), dtype=torch.int64, device=codes.device)
        return self._decode(codes, CausalPast(codes.shape[2], first))

    def new_state(self, slots: int, frames: int = CALL_FRAMES) -> CodecState:
        """Returns the state of `slots` streams, in slots 1 to `slots`, for calls of up to `frames`
        frames."""
        return CodecState(self.config, slots, frames, self.cos.device, self.embedding.dtype)

    def stream(self, codes: Tensor, slots: Tensor, first: Tensor, state: CodecState) -> Tensor:
        """The next frames of some streams, in plain torch: see `codec_stream`.

        Args:
            codes: int64 [B, codebooks, frames], each less than codebook_size, frames at most
                `state.frames`.
            slots: int64 [B], each once; 0, any number of times, for rows that are padding.
            first: int64 [B], the number of the first of the frames in its stream: 0 begins a
                stream in the slot, else all before it have gone through there.

        Returns: fp32 [B, frames * frame_samples] in [-1, 1].
        """
        past = CausalPast(codes.shape[2], first, slots, state.rings, state.split_contexts())
        return self._decode(codes, past)

    def _decode(self, codes: Tensor, past: CausalPast) -> Tensor:
        x = self._embed(codes.transpose(1, 2), past)
        positions = past.first[:, None] + torch.arange(past.frames, device=codes.device)
        turn = self.cos[positions], self.sin[positions]
        for layer in self.layers:
            x = layer(x, turn, past)
        x = attention.rms_norm_reference(x, self.norm, self.config.rms_eps)
        for upsampling in self.upsamplings:
            x = upsampling(x, past)
        x = self.inner(past.extend(x, self.inner.length))
        for block in self.blocks:
            x = block(x, past)
        sound: Tensor = self.outer(past.extend(self.snake(x), self.outer.length))
        return sound.flatten(1).float().clamp(-1, 1)

    def _embed(self, codes: Tensor, past: CausalPast) -> Tensor:
        """Embeds int64 [B, frames, codebooks] to [B, frames, hidden_size]."""
        codes = past.extend_frames(codes, EMBEDDING_TAPS - 1)
        book = torch.arange(codes.shape[2], device=codes.device)
        number = past.first[:, None] + torch.arange(past.frames, device=codes.device)
        x = self.embedding_bias
        for tap, table in enumerate(self.embedding):
            rows = table[book, codes[:, tap : tap + past.frames]].float().sum(2)
            x = x + rows.masked_fill((number + tap < EMBEDDING_TAPS - 1)[..., None], 0)
        return x.to(self.embedding.dtype)


def _angles(head_dim: int, theta: float) -> Tensor:
    """Returns the angles of every frame, fp64 [MAX_FRAMES, head_dim / 2]; channels i and i +
    head_dim / 2 rotate together."""
    turns = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    return torch.arange(MAX_FRAMES, dtype=torch.float64)[:, None] * turns
