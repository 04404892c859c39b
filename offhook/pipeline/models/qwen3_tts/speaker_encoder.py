"""A voice to one vector: the speaker encoder of Qwen3-TTS's Base checkpoints.

ECAPA-TDNN (Desplanques et al., arXiv 2005.07143): dilated convolutions over mel frames, in each
block a chain over groups of channels (Res2Net) and a gate by the mean over time
(squeeze-excitation), then mean and deviation over time, weighed by attention. What comes out is as
wide as the talker and stands in its prompt for a speaker's embedding.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from offhook.media.pcm import RATE_OUT
from offhook.pipeline.models import checkpoint
from offhook.pipeline.models.mel import mel_filters
from offhook.pipeline.speech.recognizer import EngineError

WINDOW = 1024
HOP = 256
"""24 kHz samples between two mel frames."""
FLOOR = 1e-5
"""Least magnitude in a mel band: what silence comes out as."""
POOL_FLOOR = 1e-12
"""Least variance over time."""
PREFIX = "speaker_encoder."


@dataclass(frozen=True)
class SpeakerEncoderConfig:
    """What config.json leaves out is as here."""

    enc_dim: int
    """Channels of the vector: the talker's hidden_size."""
    mel_dim: int = 128
    enc_channels: tuple[int, ...] = (512, 512, 512, 512, 1536)
    """Of the first convolution, of each block, and of what pools them together."""
    enc_kernel_sizes: tuple[int, ...] = (5, 3, 3, 3, 1)
    enc_dilations: tuple[int, ...] = (1, 2, 3, 4, 1)
    enc_attention_channels: int = 128
    enc_res2net_scale: int = 8
    enc_se_channels: int = 128

    @staticmethod
    def from_json(config: Mapping[str, Any]) -> "SpeakerEncoderConfig":
        """From a checkpoint's config.json. Raises EngineError when the checkpoint has no speaker
        encoder, or one of another make."""
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
    """24 kHz sound to the logarithm of its magnitude in mel bands, on Slaney's scale up to
    12 kHz."""

    def __init__(self, bins: int, device: torch.device | str) -> None:
        self._window = torch.hann_window(WINDOW, device=device)
        self._filters = torch.from_numpy(mel_filters(RATE_OUT, WINDOW, bins)).to(device)

    def __call__(self, pcm: Tensor) -> Tensor:
        """pcm: fp32 [samples] in [-1, 1), over 384 of them. Returns fp32 [bins, samples // 256]:
        frame t reaches over samples [256 t - 384, 256 t + 640), reflected at the ends."""
        padding = (WINDOW - HOP) // 2
        padded = F.pad(pcm[None], (padding, padding), mode="reflect")[0]
        spectrum = torch.fft.rfft(padded.unfold(0, WINDOW, HOP) * self._window)
        magnitude = (torch.view_as_real(spectrum).square().sum(-1) + 1e-9).sqrt()
        return (magnitude @ self._filters).clamp(min=FLOOR).log().T


class SpeakerEncoder(nn.Module):
    """In fp32, as it runs once a voice. Modules are called as in the checkpoint."""

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
        """pcm: fp32 [samples] at 24 kHz in [-1, 1), at least 2560 (0.1 s). Returns the vector,
        fp32 [enc_dim]."""
        x = LogMel(self.config.mel_dim, pcm.device)(pcm)[None]
        heard = []
        for block in self.blocks:
            x = block(x)
            heard.append(x)
        vector: Tensor = self.fc(self.asp(self.mfa(torch.cat(heard[1:], dim=1))))
        return vector[0, :, 0]


def _same(inputs: int, outputs: int, kernel: int, dilation: int = 1) -> nn.Conv1d:
    """As many frames out as in, reflected at the ends."""
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
    """The first group of channels passes; each other hears its own and what the one before it
    made."""

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
    """Mean and deviation over time, [1, 2 * channels, 1]. Each channel weighs the frames in its
    own way, by itself beside its plain mean and deviation."""

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
    """The speaker encoder of the checkpoint of Qwen3-TTS in a folder. Raises EngineError, naming
    the tensors, when it has none, or it is not whole or of other sizes than config.json says."""
    config = SpeakerEncoderConfig.from_json(checkpoint.read_json(folder / "config.json"))
    model = checkpoint.build(lambda: SpeakerEncoder(config), device, torch.float32)
    places = {PREFIX + name: place for name, place in model.named_parameters()}
    checkpoint.fill(folder, places, lambda name: name.startswith(PREFIX))
    return model
