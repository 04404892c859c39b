"""Qwen3-ASR in plain torch: an audio encoder and a Qwen3 decoder over a paged KV cache.

Sizes and layout follow the checkpoints Qwen/Qwen3-ASR-0.6B and -1.7B. Everything is packed, as in
`qwen3`, and each forward can be captured in a CUDA graph.

The encoder works on seconds and windows. A second, 100 mel frames, goes through the convolutions
alone and comes out as 13 tokens whose positions begin at 0 in every second. A window, 8 seconds or
104 tokens counted from the utterance's start, attends to itself in both directions and to nothing
else. In the decoder audio and text count on in one row of positions, so Qwen's three rows of rotary
positions are equal and are plain RoPE.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from offhook.pipeline.engines.qwen3_asr.model import convolution
from offhook.pipeline.engines.shared.qwen3 import attention, linear
from offhook.pipeline.engines.shared.qwen3.body import Body
from offhook.pipeline.engines.shared.qwen3.config import DecoderConfig, require
from offhook.pipeline.engines.shared.qwen3.linear import Linear
from offhook.pipeline.speech.errors import EngineError


@dataclass(frozen=True)
class EncoderConfig:
    d_model: int
    layers: int
    heads: int
    ffn: int
    output_dim: int
    """Output channels, the decoder's hidden_size."""
    mel_bins: int = 128
    conv_channels: int = 480
    second_frames: int = 100
    """Mel frames that pass through the convolutions together."""
    window_frames: int = 800
    """Mel frames that attend to each other."""

    @property
    def second_tokens(self) -> int:
        return conv_length(self.second_frames)

    @property
    def window_tokens(self) -> int:
        return self.window_frames // self.second_frames * self.second_tokens

    def tokens(self, frames: int) -> int:
        """Returns the audio tokens of an utterance of `frames` mel frames."""
        seconds, rest = divmod(frames, self.second_frames)
        return seconds * self.second_tokens + conv_length(rest)


@dataclass(frozen=True)
class AsrDecoderConfig(DecoderConfig):
    vocab_size: int = 151936
    tied: bool = True
    """Whether the embedding is also the output projection."""


@dataclass(frozen=True)
class AsrConfig:
    encoder: EncoderConfig
    decoder: AsrDecoderConfig
    audio_token: int = 151676
    eos_ids: tuple[int, ...] = (151643, 151645)
    """<|endoftext|> and <|im_end|>."""
    timestamp_token: int = 151705
    classes: int | None = None
    """Output classes of the forced aligner, in place of the vocabulary; None for speech
    recognition."""

    @staticmethod
    def from_json(
        config: Mapping[str, Any], generation: Mapping[str, Any] | None = None
    ) -> "AsrConfig":
        """Parses config.json in the original layout (`thinker_config`) or that of transformers
        (`-hf`), and generation_config.json. Raises EngineError for another model or variant."""
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
    require(c, "activation_function", "gelu")
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


def _decoder_config(c: Mapping[str, Any], top: Mapping[str, Any]) -> AsrDecoderConfig:
    # transformers uses the outer value, the original the one in text_config.
    tied = c if "thinker_config" in top else top
    return AsrDecoderConfig(
        **vars(DecoderConfig.from_json(c)),
        vocab_size=c["vocab_size"],
        tied=tied.get("tie_word_embeddings", True),
    )


QWEN3_ASR_0_6B = AsrConfig(
    EncoderConfig(d_model=896, layers=18, heads=14, ffn=3584, output_dim=1024),
    AsrDecoderConfig(hidden_size=1024, ffn=3072, layers=28, heads=16, kv_heads=8, head_dim=128),
)
QWEN3_ASR_1_7B = AsrConfig(
    EncoderConfig(d_model=1024, layers=24, heads=16, ffn=4096, output_dim=2048),
    AsrDecoderConfig(hidden_size=2048, ffn=6144, layers=28, heads=16, kv_heads=8, head_dim=128),
)


def conv_length(n: int) -> int:
    """Returns what three convolutions of stride 2 leave of n mel frames or bins."""
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
        """Adds the layer's output to x in place."""
        q, k, v = self.qkv(self.attention_norm(x)).view(len(x), 3, self.heads, -1).unbind(1)
        heard = attention.window_attention(q, k, v, starts, max_window, self.scale)
        x += self.out(heard.flatten(1))
        x += self.fc2(F.gelu(self.fc1(self.ffn_norm(x))))


class AudioEncoder(nn.Module):
    """Encodes mel frames to embeddings that replace token embeddings in the decoder."""

    def __init__(self, c: EncoderConfig) -> None:
        super().__init__()
        self.config = c
        self.conv1 = nn.Conv2d(1, c.conv_channels, 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(c.conv_channels, c.conv_channels, 3, stride=2, padding=1)
        self.conv3 = nn.Conv2d(c.conv_channels, c.conv_channels, 3, stride=2, padding=1)
        # channels-last, so that each step hands the next its preferred format; see `convolve`
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
        # cuDNN is slow with one channel, and adds the bias in a separate pass.
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
    """Returns Whisper's positional embedding, sines before cosines, fp32 [length, channels]."""
    half = channels // 2
    step = math.log(10000) / (half - 1)
    frequencies = torch.exp(-step * torch.arange(half, dtype=torch.float32))
    turns = torch.arange(length)[:, None] * frequencies
    return torch.cat((turns.sin(), turns.cos()), 1)


# --- reading out ---


class Decoder(Body):
    """Predicts the next token from token and audio embeddings."""

    def __init__(self, c: AsrDecoderConfig, classes: int | None = None) -> None:
        super().__init__(c)
        self.embedding = nn.Parameter(torch.empty(c.vocab_size, c.hidden_size))
        self.head = self.embedding
        if classes or not c.tied:
            self.head = nn.Parameter(torch.empty(classes or c.vocab_size, c.hidden_size))

    def embed(self, ids: Tensor) -> Tensor:
        """Embeds token ids, int64 [T], to [T, hidden_size]."""
        return F.embedding(ids, self.embedding)

    def logits(self, x: Tensor) -> Tensor:
        """Returns the logits of rows [R, hidden_size]: [R, vocab_size], or [R, classes] for an
        aligner."""
        return F.linear(x, self.head)

    def argmax(self, x: Tensor) -> Tensor:
        """Returns the argmax of each row's logits, int64 [R], the lowest among equals."""
        return linear.argmax_linear(x, self.head)


class Qwen3Asr(nn.Module):
    """Encoder and decoder. Build it under `torch.device(...)` with the wanted default dtype (see
    `checkpoint`) rather than `.to(dtype)`, because the rotations stay fp32."""

    def __init__(self, config: AsrConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = AudioEncoder(config.encoder)
        self.decoder = Decoder(config.decoder, config.classes)
