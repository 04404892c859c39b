"""Log-mel frames of 16 kHz audio for NVIDIA's FastConformer models, one every 10 ms.

Frame t is centred at sample 160 t and covers samples [160 t - 200, 160 t + 200) of the utterance
after a first-order pre-emphasis, with silence before and after it. Unlike Whisper's
(`shared.model.mel`), nothing is normalized by loudness, so a frame never changes.
"""

import torch
from torch import Tensor

from offhook.media.pcm import RATE_IN
from offhook.pipeline.engines.shared.model.mel import mel_filters

HOP = 160
WINDOW = 400
FFT = 512
PREEMPHASIS = 0.97
LEAST_POWER = 2.0**-24
"""Added to every mel power before the logarithm."""


def samples(frames: int) -> int:
    """Returns the samples needed for `frames` frames, including one before the first for the
    pre-emphasis."""
    return (frames - 1) * HOP + WINDOW + 1


def first_sample(frame: int) -> int:
    """Returns the first of those samples for frames from `frame` on; it may lie before the
    utterance."""
    return frame * HOP - WINDOW // 2 - 1


class NemotronMel:
    """Computes log-mel power; window and filters are on `device`."""

    def __init__(
        self, bins: int, device: torch.device | str = "cpu", in_bf16: bool = False
    ) -> None:
        window = torch.hann_window(WINDOW, periodic=False, device=device)
        filters = torch.from_numpy(mel_filters(RATE_IN, FFT, bins)).to(device)
        if in_bf16:
            window, filters = window.bfloat16().float(), filters.bfloat16().float()
        self._window, self._filters = window, filters

    def __call__(self, pcm: Tensor, lengths: Tensor) -> Tensor:
        """Returns fp32 [N, frames, bins] for `pcm`, fp32 [N, samples(frames)] in [-1, 1), of which
        `lengths`, int64 [N], samples are before the utterance's end."""
        sound = pcm[:, 1:] - PREEMPHASIS * pcm[:, :-1]
        beyond = torch.arange(1, pcm.shape[1], device=pcm.device) >= lengths[:, None]
        sound = sound.masked_fill(beyond, 0.0)
        spectrum = torch.fft.rfft(sound.unfold(-1, WINDOW, HOP) * self._window, FFT)
        power = spectrum.real.square() + spectrum.imag.square()
        mel: Tensor = (power @ self._filters + LEAST_POWER).log()
        return mel
