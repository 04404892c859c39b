"""The speaker encoder of Qwen3-TTS's Base checkpoints: a voice as one vector.

ECAPA-TDNN (Desplanques et al., arXiv 2005.07143): dilated convolutions over mel frames, each block
with a chain over channel groups (Res2Net) and a gate from the mean over time (squeeze-excitation),
then attention-weighted mean and standard deviation over time. The vector is as wide as the talker's
embeddings and replaces a speaker's embedding in the prompt.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from offhook.media.pcm import RATE_OUT
from offhook.pipeline.engines.shared.model import checkpoint
from offhook.pipeline.engines.shared.model.mel import mel_filters
from offhook.pipeline.speech.errors import EngineError

WINDOW = 1024
HOP = 256
"""Samples between mel frames at 24 kHz."""
FLOOR = 1e-5
"""Minimum mel magnitude, the value of silence."""
POOL_FLOOR = 1e-12
"""Minimum variance over time."""
PREFIX = "speaker_encoder."


@dataclass(frozen=True)
class SpeakerEncoderConfig:
    """The encoder's configuration; the defaults apply where config.json omits a value."""

    enc_dim: int
    """Channels of the vector, equal to the talker's hidden_size."""
    mel_dim: int = 128
    enc_channels: tuple[int, ...] = (512, 512, 512, 512, 1536)
    """Channels of the first convolution, of each block, and of their pooled output."""
    enc_kernel_sizes: tuple[int, ...] = (5, 3, 3, 3, 1)
    enc_dilations: tuple[int, ...] = (1, 2, 3, 4, 1)
    enc_attention_channels: int = 128
    enc_res2net_scale: int = 8
    enc_se_channels: int = 128

    @staticmethod
    def from_json(config: Mapping[str, Any]) -> "SpeakerEncoderConfig":
        """Parses config.json. Raises EngineError if the checkpoint has no speaker encoder or an
        unsupported one."""
        kind = config.get("tts_model_type")
        if kind != "base":
            raise EngineError(
                f"a {kind} model of Qwen3-TTS cannot clone voices: use a Base model, such as "
                "Qwen/Qwen3-TTS-12Hz-1.7B-Base"
            )
        try:
            given = dict(config["speaker_encoder_config"])
            width, hidden = given["enc_dim"], config["talker_config"]["hidden_size"]
        except KeyError as error:
            raise EngineError(f"config.json lacks {error.args[0]!r}") from error
        if width != hidden:
            raise EngineError(
                f"config.json: the speaker encoder gives {width} channels, "
                f"the talker takes {hidden}"
            )
        if given.pop("sample_rate", RATE_OUT) != RATE_OUT:
            raise EngineError(f"config.json: only a speaker encoder of {RATE_OUT} Hz is supported")
        known = given.keys() & SpeakerEncoderConfig.__dataclass_fields__.keys()
        lists = {name: tuple(given[name]) for name in known if isinstance(given[name], list)}
        return SpeakerEncoderConfig(**{name: given[name] for name in known} | lists)


class LogMel:
    """Computes log-mel magnitudes of 24 kHz audio on Slaney's scale up to 12 kHz."""

    def __init__(self, bins: int, device: torch.device | str) -> None:
        self._window = torch.hann_window(WINDOW, device=device)
        self._filters = torch.from_numpy(mel_filters(RATE_OUT, WINDOW, bins)).to(device)

    def __call__(self, pcm: Tensor) -> Tensor:
        """Returns fp32 [bins, samples // 256] for pcm, fp32 [samples] in [-1, 1) with more than 384
        samples. Frame t covers samples [256 t - 384, 256 t + 640), reflected at the ends."""
        padding = (WINDOW - HOP) // 2
        padded = F.pad(pcm[None], (padding, padding), mode="reflect")[0]
        spectrum = torch.fft.rfft(padded.unfold(0, WINDOW, HOP) * self._window)
        magnitude = (torch.view_as_real(spectrum).square().sum(-1) + 1e-9).sqrt()
        return (magnitude @ self._filters).clamp(min=FLOOR).log().T


class SpeakerEncoder(nn.Module):
    """The speaker encoder, in fp32 since it runs once per voice. Modules are named as in the
    checkpoint."""

    def __init__(self, config: SpeakerEncoderConfig) -> None:
        super().__init__()
        c = self.config = config
        channels, kernels, dilations = c.enc_channels, c.enc_kernel_sizes, c.enc_dilations
        first = Tdnn(c.mel_dim, channels[0], kernels[0], dilations[0])
        rest = [Block(c, i) for i in range(1, len(channels) - 1)]
        self.blocks = nn.ModuleList([first, *rest])
        self.mfa = Tdnn(sum(channels[1:-1]), channels[-1], kernels[-1], dilations[-1])
        self.asp = Pooling(channels[-1], c.enc_attention_channels)
        self.fc = nn.Conv1d(2 * channels[-1], c.enc_dim, 1)

    @torch.inference_mode()
    def embed(self, pcm: Tensor) -> Tensor:
        """Returns the speaker vector, fp32 [enc_dim], of pcm, fp32 [samples] at 24 kHz in [-1, 1)
        with at least 2560 samples (0.1 s)."""
        x = LogMel(self.config.mel_dim, pcm.device)(pcm)[None]
        heard = []
        for block in self.blocks:
            x = block(x)
            heard.append(x)
        vector: Tensor = self.fc(self.asp(self.mfa(torch.cat(heard[1:], dim=1))))
        return vector[0, :, 0]


def _same(inputs: int, outputs: int, kernel: int, dilation: int = 1) -> nn.Conv1d:
    """Returns a convolution with as many frames out as in, reflected at the ends."""
    return nn.Conv1d(
        inputs, outputs, kernel, dilation=dilation, padding="same", padding_mode="reflect"
    )


class Tdnn(nn.Module):
    def __init__(self, inputs: int, outputs: int, kernel: int = 1, dilation: int = 1) -> None:
        super().__init__()
        self.conv = _same(inputs, outputs, kernel, dilation)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.conv(x))


class Res2Net(nn.Module):
    """The first channel group passes through; each other group is convolved with the previous
    group's output added."""

    def __init__(self, channels: int, scale: int, kernel: int, dilation: int) -> None:
        super().__init__()
        width = channels // scale
        self.scale = scale
        self.blocks = nn.ModuleList(Tdnn(width, width, kernel, dilation) for _ in range(scale - 1))

    def forward(self, x: Tensor) -> Tensor:
        first, *groups = x.chunk(self.scale, dim=1)
        made = [first]
        for group, block in zip(groups, self.blocks, strict=True):
            made.append(block(group if len(made) == 1 else group + made[-1]))
        return torch.cat(made, dim=1)


class Gate(nn.Module):
    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(channels, squeezed, 1)
        self.conv2 = nn.Conv1d(squeezed, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(dim=2, keepdim=True)
        gate: Tensor = self.conv2(F.relu(self.conv1(mean)))
        return x * gate.sigmoid()


class Block(nn.Module):
    def __init__(self, c: SpeakerEncoderConfig, number: int) -> None:
        super().__init__()
        inputs, channels = c.enc_channels[number - 1 : number + 1]
        kernel, dilation = c.enc_kernel_sizes[number], c.enc_dilations[number]
        self.tdnn1 = Tdnn(inputs, channels)
        self.res2net_block = Res2Net(channels, c.enc_res2net_scale, kernel, dilation)
        self.tdnn2 = Tdnn(channels, channels)
        self.se_block = Gate(channels, c.enc_se_channels)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.se_block(self.tdnn2(self.res2net_block(self.tdnn1(x))))
        return x + y


class Pooling(nn.Module):
    """Mean and standard deviation over time, [1, 2 * channels, 1]. Each channel weighs the frames
    by attention on itself and its plain mean and deviation."""

    def __init__(self, channels: int, attention_channels: int) -> None:
        super().__init__()
        self.tdnn = Tdnn(3 * channels, attention_channels)
        self.conv = nn.Conv1d(attention_channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        plain = _statistics(x, torch.full_like(x, 1 / x.shape[2]))
        context = torch.cat((x, plain.expand(-1, -1, x.shape[2])), dim=1)
        weights = self.conv(self.tdnn(context).tanh()).softmax(dim=2)
        return _statistics(x, weights)


def _statistics(x: Tensor, weights: Tensor) -> Tensor:
    mean = (weights * x).sum(2, keepdim=True)
    variance = (weights * (x - mean).square()).sum(2, keepdim=True)
    return torch.cat((mean, variance.clamp(min=POOL_FLOOR).sqrt()), dim=1)


def load(folder: Path, device: torch.device | str) -> SpeakerEncoder:
    """Loads the speaker encoder of a Qwen3-TTS checkpoint. Raises EngineError naming the tensors if
    it has none, is incomplete, or does not match config.json."""
    config = SpeakerEncoderConfig.from_json(checkpoint.read_json(folder / "config.json"))
    model = checkpoint.build(lambda: SpeakerEncoder(config), device, torch.float32)
    places = {PREFIX + name: place for name, place in model.named_parameters()}
    checkpoint.fill(folder, places, lambda name: name.startswith(PREFIX))
    return model
