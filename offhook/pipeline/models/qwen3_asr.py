"""Qwen3-ASR in plain torch: an audio encoder and a Qwen3 decoder over a paged KV cache.

Sizes and layout follow the checkpoints Qwen/Qwen3-ASR-0.6B and -1.7B. Everything is packed: tokens
of many streams lie one after another in one tensor [T, ...], and integer tensors say which belongs
where. No forward waits for the device or has a shape that depends on values, so each can be
captured in a CUDA graph.

The encoder works on seconds and windows. A second, 100 mel frames, goes through the convolutions
alone and comes out as 13 tokens whose positions begin at 0 in every second. A window, 8 seconds or
104 tokens counted from the utterance's start, attends to itself in both directions and to nothing
else. In the decoder audio and text count on in one row of positions, so Qwen's three rows of rotary
positions are equal and are plain RoPE.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from offhook.pipeline.models import attention, convolution, linear
from offhook.pipeline.models.linear import Linear
from offhook.pipeline.recognizer import EngineError

MAX_POSITIONS = 8192
"""Length of the table of rotations: five minutes of sound are 3900 tokens."""


@dataclass(frozen=True)
class EncoderConfig:
    d_model: int
    layers: int
    heads: int
    ffn: int
    output_dim: int
    """The decoder's hidden_size."""
    mel_bins: int = 128
    conv_channels: int = 480
    second_frames: int = 100
    """Mel frames that go through the convolutions together."""
    window_frames: int = 800
    """Mel frames that attend to each other."""

    @property
    def second_tokens(self) -> int:
        return conv_length(self.second_frames)

    @property
    def window_tokens(self) -> int:
        return self.window_frames // self.second_frames * self.second_tokens

    def tokens(self, frames: int) -> int:
        """Audio tokens of an utterance of so many mel frames."""
        seconds, rest = divmod(frames, self.second_frames)
        return seconds * self.second_tokens + conv_length(rest)


@dataclass(frozen=True)
class DecoderConfig:
    hidden_size: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int = 151936
    rms_eps: float = 1e-6
    rope_theta: float = 1e6
    tied: bool = True
    """The embedding is the output projection too."""


@dataclass(frozen=True)
class AsrConfig:
    encoder: EncoderConfig
    decoder: DecoderConfig
    audio_token: int = 151676
    eos_ids: tuple[int, ...] = (151643, 151645)
    """<|endoftext|> and <|im_end|>."""
    timestamp_token: int = 151705
    classes: int | None = None
    """Of the forced aligner, in place of the vocabulary; None for speech recognition."""

    @staticmethod
    def from_json(
        config: Mapping[str, Any], generation: Mapping[str, Any] | None = None
    ) -> "AsrConfig":
        """From a checkpoint's config.json: the original layout, with `thinker_config`, or that of
        transformers (`-hf`); and its generation_config.json. Raises EngineError when it is of
        another model or variant."""
        if not str(config.get("model_type")).startswith(("qwen3_asr", "qwen3_forced_aligner")):
            raise EngineError(
                f"config.json is of a {config.get('model_type')!r} model, not of Qwen3-ASR"
            )
        body = config.get("thinker_config", config)
        try:
            encoder = _encoder_config(body["audio_config"])
            decoder = _decoder_config(body["text_config"], config)
        except KeyError as error:
            raise EngineError(f"config.json of Qwen3-ASR lacks {error.args[0]!r}") from error
        if encoder.output_dim != decoder.hidden_size:
            raise EngineError(
                f"config.json: the encoder gives {encoder.output_dim} channels, "
                f"the decoder takes {decoder.hidden_size}"
            )
        eos = (generation or config).get("eos_token_id", AsrConfig.eos_ids)
        timestamp = body.get("timestamp_token_id", AsrConfig.timestamp_token)
        return AsrConfig(
            encoder=encoder,
            decoder=decoder,
            audio_token=body.get("audio_token_id", AsrConfig.audio_token),
            eos_ids=(eos,) if isinstance(eos, int) else tuple(eos),
            timestamp_token=config.get("timestamp_token_id", timestamp),
            classes=_classes(config, body),
        )


def _classes(config: Mapping[str, Any], body: Mapping[str, Any]) -> int | None:
    if "classify_num" in body:
        return int(body["classify_num"])
    if config.get("architectures") == ["Qwen3ASRForTokenClassification"]:
        return len(config["id2label"])
    return None


def _encoder_config(c: Mapping[str, Any]) -> EncoderConfig:
    _require(c, "activation_function", "gelu")
    return EncoderConfig(
        d_model=c["d_model"],
        layers=c["encoder_layers"],
        heads=c["encoder_attention_heads"],
        ffn=c["encoder_ffn_dim"],
        output_dim=c["output_dim"],
        mel_bins=c.get("num_mel_bins", 128),
        conv_channels=c.get("downsample_hidden_size", 480),
        second_frames=2 * c["n_window"],
        window_frames=c["n_window_infer"],
    )


def _decoder_config(c: Mapping[str, Any], top: Mapping[str, Any]) -> DecoderConfig:
    _require(c, "hidden_act", "silu")
    _require(c, "attention_bias", False)
    _require(c, "use_sliding_window", False)
    rope = c.get("rope_parameters") or c.get("rope_scaling") or {}
    # The original layout names its three equal rows of positions here.
    if rope.get("rope_type", "default") not in ("default", "mrope"):
        raise EngineError(f"config.json: rope_type {rope['rope_type']!r} is not supported")
    # transformers goes by the outer word, the original by the one in text_config.
    tied = c if "thinker_config" in top else top
    return DecoderConfig(
        hidden_size=c["hidden_size"],
        ffn=c["intermediate_size"],
        layers=c["num_hidden_layers"],
        heads=c["num_attention_heads"],
        kv_heads=c["num_key_value_heads"],
        head_dim=c["head_dim"],
        vocab_size=c["vocab_size"],
        rms_eps=c["rms_norm_eps"],
        rope_theta=float(rope["rope_theta"] if "rope_theta" in rope else c["rope_theta"]),
        tied=tied.get("tie_word_embeddings", True),
    )


def _require(config: Mapping[str, Any], name: str, value: object) -> None:
    if config.get(name, value) != value:
        raise EngineError(f"config.json: {name} is {config[name]!r}; only {value!r} is supported")


QWEN3_ASR_0_6B = AsrConfig(
    EncoderConfig(d_model=896, layers=18, heads=14, ffn=3584, output_dim=1024),
    DecoderConfig(hidden_size=1024, ffn=3072, layers=28, heads=16, kv_heads=8, head_dim=128),
)
QWEN3_ASR_1_7B = AsrConfig(
    EncoderConfig(d_model=1024, layers=24, heads=16, ffn=4096, output_dim=2048),
    DecoderConfig(hidden_size=2048, ffn=6144, layers=28, heads=16, kv_heads=8, head_dim=128),
)
QWEN3_FORCED_ALIGNER_0_6B = AsrConfig(
    replace(QWEN3_ASR_1_7B.encoder, output_dim=1024),
    replace(QWEN3_ASR_0_6B.decoder, vocab_size=152064, tied=False),
    classes=5000,
)


def conv_length(n: int) -> int:
    """What three convolutions of stride 2 leave of n mel frames or bins."""
    for _ in range(3):
        n = (n + 1) // 2
    return n


# --- hearing ---


class EncoderLayer(nn.Module):
    def __init__(self, c: EncoderConfig) -> None:
        super().__init__()
        self.heads = c.heads
        self.scale = (c.d_model // c.heads) ** -0.5
        self.attention_norm = nn.LayerNorm(c.d_model)
        self.qkv = Linear(c.d_model, 3 * c.d_model)
        self.out = Linear(c.d_model, c.d_model)
        self.ffn_norm = nn.LayerNorm(c.d_model)
        self.fc1 = Linear(c.d_model, c.ffn)
        self.fc2 = Linear(c.ffn, c.d_model)

    def forward(self, x: Tensor, starts: Tensor, max_window: int) -> None:
        """Adds what the layer finds to x."""
        q, k, v = self.qkv(self.attention_norm(x)).view(len(x), 3, self.heads, -1).unbind(1)
        heard = attention.window_attention(q, k, v, starts, max_window, self.scale)
        x += self.out(heard.flatten(1))
        x += self.fc2(F.gelu(self.fc1(self.ffn_norm(x))))


class AudioEncoder(nn.Module):
    """Mel frames to what the decoder takes in place of token embeddings."""

    def __init__(self, c: EncoderConfig) -> None:
        super().__init__()
        self.config = c
        self.conv1 = nn.Conv2d(1, c.conv_channels, 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(c.conv_channels, c.conv_channels, 3, stride=2, padding=1)
        self.conv3 = nn.Conv2d(c.conv_channels, c.conv_channels, 3, stride=2, padding=1)
        # With channels last each step hands the next what it wants; see `convolve`.
        for conv in (self.conv2, self.conv3):
            conv.weight = nn.Parameter(conv.weight.contiguous(memory_format=torch.channels_last))
        self.conv_out = Linear(c.conv_channels * conv_length(c.mel_bins), c.d_model, bias=False)
        self.layers = nn.ModuleList(EncoderLayer(c) for _ in range(c.layers))
        self.post_norm = nn.LayerNorm(c.d_model)
        self.proj1 = Linear(c.d_model, c.d_model)
        self.proj2 = Linear(c.d_model, c.output_dim)
        positions = sinusoids(c.second_tokens, c.d_model)
        self.positions = nn.Buffer(positions.to(torch.get_default_dtype()), persistent=False)

    def convolve(self, mel: Tensor) -> Tensor:
        """Seconds, each by itself, to tokens with their positions added.

        mel: [N, mel_bins, 100] clamped and scaled, zeros where the utterance has no frames. Returns
        [N, 13, d_model]; of a second with n frames the first `conv_length(n)` tokens are valid.
        """
        # cuDNN is slow with one channel, and adds the bias in a pass over memory of its own.
        x = convolution.convolve_mel(mel, self.conv1.weight, self.conv1.get_parameter("bias"))
        for conv in (self.conv2, self.conv3):
            x = F.conv2d(x, conv.weight, stride=2, padding=1)
            x = convolution.bias_gelu_(x, conv.get_parameter("bias"))
        tokens: Tensor = self.conv_out(x.permute(0, 3, 1, 2).flatten(2))
        return tokens + self.positions

    def forward(self, x: Tensor, starts: Tensor, max_window: int) -> Tensor:
        """Windows of tokens from `convolve`, packed.

        x: [T, d_model]. starts: int32 [W + 1], window w is rows starts[w] to starts[w + 1]; rows
        past the last are padding. max_window: no window is longer. Returns [T, output_dim].
        """
        x = x.clone()
        for layer in self.layers:
            layer(x, starts, max_window)
        y: Tensor = self.proj2(F.gelu(self.proj1(self.post_norm(x))))
        return y


def sinusoids(length: int, channels: int) -> Tensor:
    """Positions as in Whisper, sines before cosines: fp32 [length, channels]."""
    half = channels // 2
    step = math.log(10000) / (half - 1)
    frequencies = torch.exp(-step * torch.arange(half, dtype=torch.float32))
    turns = torch.arange(length)[:, None] * frequencies
    return torch.cat((turns.sin(), turns.cos()), 1)


# --- reading out ---


class KVCache:
    """Keys and values of all streams in pages: [layers, pages, page_size, kv_heads, head_dim]."""

    def __init__(
        self,
        config: DecoderConfig,
        pages: int,
        page_size: int,
        device: torch.device | str,
        dtype: torch.dtype,
    ) -> None:
        shape = (config.layers, pages, page_size, config.kv_heads, config.head_dim)
        self.k = torch.zeros(shape, device=device, dtype=dtype)
        self.v = torch.zeros(shape, device=device, dtype=dtype)

    @property
    def bytes_per_token(self) -> int:
        layers, _, _, heads, channels = self.k.shape
        return 2 * layers * heads * channels * self.k.element_size()


@dataclass
class Batch:
    """What one packed forward of the decoder needs beside the embeddings, T tokens of S sequences;
    see `attention.paged_attention`."""

    positions: Tensor
    """int64 [T], in the own sequence."""
    slots: Tensor
    """int64 [T], where its keys and values go: page * page_size + offset. Padding: page 0."""
    page_table: Tensor
    """int32 [S, P]."""
    q_starts: Tensor
    """int32 [S + 1]."""
    kv_lengths: Tensor
    """int32 [S], with the tokens of this forward."""
    max_q: int
    """No sequence has more tokens in this forward; 1 in a decode step."""


Rotation = tuple[Tensor, Tensor]
"""Cosine and sine of each token's position, fp32 [T, head_dim]."""
Pages = tuple[Tensor, Tensor]
"""Keys and values of one layer, [pages, page_size, kv_heads, head_dim]."""


class DecoderLayer(nn.Module):
    def __init__(self, c: DecoderConfig) -> None:
        super().__init__()
        self.widths = [c.heads * c.head_dim, c.kv_heads * c.head_dim, c.kv_heads * c.head_dim]
        self.head_dim = c.head_dim
        self.scale = c.head_dim**-0.5
        self.eps = c.rms_eps
        self.attention_norm = nn.Parameter(torch.ones(c.hidden_size))
        self.qkv = Linear(c.hidden_size, sum(self.widths), bias=False)
        self.q_norm = nn.Parameter(torch.ones(c.head_dim))
        self.k_norm = nn.Parameter(torch.ones(c.head_dim))
        self.out = Linear(self.widths[0], c.hidden_size, bias=False)
        self.ffn_norm = nn.Parameter(torch.ones(c.hidden_size))
        self.gate_up = Linear(c.hidden_size, 2 * c.ffn, bias=False)
        self.down = Linear(c.ffn, c.hidden_size, bias=False)

    def forward(self, x: Tensor, turn: Rotation, batch: Batch, pages: Pages) -> None:
        """Adds what the layer finds to x."""
        heard = self.attend(x, turn, batch, pages)
        linear.add_linear_(x, heard, self.out)
        wide = linear.norm_silu_linear(x, self.ffn_norm, self.eps, self.gate_up)
        linear.add_linear_(x, wide, self.down)

    def attend(self, x: Tensor, turn: Rotation, batch: Batch, pages: Pages) -> Tensor:
        qkv = linear.norm_linear(x, self.attention_norm, self.eps, self.qkv)
        q, k, v = (y.view(len(x), -1, self.head_dim) for y in qkv.split(self.widths, -1))
        q = attention.qk_norm_rope_write(
            q, k, v, self.q_norm, self.k_norm, *turn, self.eps, *pages, batch.slots
        )
        of = (batch.page_table, batch.q_starts, batch.kv_lengths)
        return attention.paged_attention(q, *pages, *of, batch.max_q, self.scale).flatten(1)


class Decoder(nn.Module):
    """Qwen3: token and audio embeddings to the next token."""

    def __init__(self, c: DecoderConfig, classes: int | None = None) -> None:
        super().__init__()
        self.config = c
        self.embedding = nn.Parameter(torch.empty(c.vocab_size, c.hidden_size))
        self.layers = nn.ModuleList(DecoderLayer(c) for _ in range(c.layers))
        self.norm = nn.Parameter(torch.ones(c.hidden_size))
        self.head = self.embedding
        if classes or not c.tied:
            self.head = nn.Parameter(torch.empty(classes or c.vocab_size, c.hidden_size))
        angles = rotations(c.head_dim, c.rope_theta)
        self.cos = nn.Buffer(angles.cos(), persistent=False)
        self.sin = nn.Buffer(angles.sin(), persistent=False)

    def embed(self, ids: Tensor) -> Tensor:
        """Token ids, int64 [T], to [T, hidden_size]."""
        return F.embedding(ids, self.embedding)

    def forward(self, x: Tensor, batch: Batch, cache: KVCache) -> Tensor:
        """x: [T, hidden_size], embeddings of text and sound. Writes the cache; returns the hidden
        state [T, hidden_size] after the last norm."""
        turn = self.cos[batch.positions], self.sin[batch.positions]
        x = x.clone()
        for layer, *pages in zip(self.layers, cache.k, cache.v, strict=True):
            layer(x, turn, batch, pages)
        return attention.rms_norm(x, self.norm, self.config.rms_eps)

    def logits(self, x: Tensor) -> Tensor:
        """Of the rows wanted, [R, hidden_size]: [R, vocab_size], or [R, classes] of an aligner."""
        return F.linear(x, self.head)

    def argmax(self, x: Tensor) -> Tensor:
        """The largest of the logits of each row, int64 [R], the lowest of equal ones."""
        return linear.argmax_linear(x, self.head)


def rotations(head_dim: int, theta: float) -> Tensor:
    """Angles of every position, fp32 [MAX_POSITIONS, head_dim]; channel i and channel
    i + head_dim / 2 turn together."""
    frequencies = 1 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    return (torch.arange(MAX_POSITIONS)[:, None] * frequencies).repeat(1, 2)


class Qwen3Asr(nn.Module):
    """The two of them. Build it under `torch.device(...)` and with the default dtype wanted
    (`checkpoint` does), not with `.to(dtype)`: the rotations stay fp32."""

    def __init__(self, config: AsrConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = AudioEncoder(config.encoder)
        self.decoder = Decoder(config.decoder, config.classes)
