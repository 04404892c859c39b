"""Log-mel frames of 16 kHz sound as Whisper and Qwen3-ASR take them, a frame every 10 ms.

Frame t reaches over samples [160 t - 200, 160 t + 200) of the utterance; at its true ends the sound
is reflected, as `torch.stft(center=True)` does it with a whole clip. An utterance of n samples has
n // 160 frames. So a frame that ends inside the sound never changes: `cut` and `second` give the
samples of any frames, and their mel is that of the whole clip.

The spectrum is an FFT, not a matrix product. Both can be captured in a CUDA graph; the FFT is the
faster, its rounding does not hang on the number of frames, and TF32 cannot blur it.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offhook.media.pcm import RATE_IN, Pcm

HOP = 160
WINDOW = 400
BINS = 128
FLOOR = -10.0
"""log10 of the least power: what silence comes out as."""
RANGE = 8.0
"""What lies more than this under the loudest value (80 dB) is lifted to it."""
SECOND_FRAMES = RATE_IN // HOP
SECOND_SAMPLES = (SECOND_FRAMES - 1) * HOP + WINDOW
"""All that the frames of one second reach over: 16 240."""
MIN_SAMPLES = RATE_IN // 2
"""The model is never given less; a shorter utterance is followed by zeros (`lengthen`)."""


class LogMel:
    """Sound to log10 mel power. Holds its window and filters on `device`."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self._window = torch.hann_window(WINDOW, device=device)
        self._filters = torch.from_numpy(mel_filters()).to(device)

    def __call__(self, pcm: Tensor) -> Tensor:
        """The frames that lie wholly in pcm.

        pcm: fp32 [N, samples] in [-1, 1). Returns fp32 [N, BINS, (samples - 400) // 160 + 1], at
        least FLOOR, not yet clamped at the loudest: see `scale`.
        """
        spectrum = torch.fft.rfft(pcm.unfold(-1, WINDOW, HOP) * self._window)
        power = torch.view_as_real(spectrum).square().sum(-1)
        return (power @ self._filters).clamp(min=10**FLOOR).log10().transpose(1, 2)


def scale(mel: Tensor, maximum: Tensor) -> Tensor:
    """What the model takes of a log mel [N, BINS, frames]: clamped 8 under `maximum` [N], the
    loudest value of what is heard together, then mapped by (x + 4) / 4."""
    return (torch.maximum(mel, maximum[:, None, None] - RANGE) + 4) / 4


def mel_filters(rate: int = RATE_IN, window: int = WINDOW, bins: int = BINS) -> NDArray[np.float32]:
    """Triangles of equal area, evenly spaced on Slaney's mel scale from 0 to rate / 2 Hz, for the
    spectrum of `window` samples: [window // 2 + 1, bins]."""
    edges = _hertz(np.linspace(0.0, _mel(rate / 2), bins + 2))
    slopes = edges - np.linspace(0, rate / 2, window // 2 + 1)[:, None]
    widths = np.diff(edges)
    rising, falling = -slopes[:, :-2] / widths[:-1], slopes[:, 2:] / widths[1:]
    triangles = np.maximum(0, np.minimum(rising, falling)) * (2 / (edges[2:] - edges[:-2]))
    return np.asarray(triangles, np.float32)


# Slaney's scale: 200/3 Hz a mel up to 1 kHz (15 mel), from there 27 mel for a factor of 6.4.
_KNEE_HZ, _KNEE_MEL = 1000.0, 15.0
_STEP = math.log(6.4) / 27


def _mel(hertz: float) -> float:
    """Of a frequency over the knee."""
    return _KNEE_MEL + math.log(hertz / _KNEE_HZ) / _STEP


def _hertz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    over = _KNEE_HZ * np.exp(_STEP * (mel - _KNEE_MEL))
    return np.where(mel < _KNEE_MEL, mel * _KNEE_HZ / _KNEE_MEL, over)


# --- which samples ---


def frame_count(samples: int) -> int:
    """Frames of an utterance of so many samples (at least MIN_SAMPLES)."""
    return samples // HOP


def lengthen(pcm: Pcm) -> Pcm:
    """A whole utterance, with zeros up to MIN_SAMPLES when it is shorter."""
    if len(pcm) >= MIN_SAMPLES:
        return pcm
    return np.pad(pcm, (0, MIN_SAMPLES - len(pcm)))


def cut(pcm: Pcm, first: int, end: int, skipped: int = 0) -> Pcm:
    """The (end - first - 1) * 160 + 400 samples that frames [first, end) of an utterance reach
    over, reflected where they reach over an end of it.

    `pcm` is the utterance so far, at least MIN_SAMPLES, less its first `skipped` samples, which
    must end before what these frames reach over.
    """
    start, stop = first * HOP - WINDOW // 2, (end - 1) * HOP + WINDOW // 2
    length = skipped + len(pcm)
    if start >= 0 and stop <= length:
        return pcm[start - skipped : stop - skipped]
    index = np.abs(np.arange(start, stop))
    index = np.where(index < length, index, 2 * (length - 1) - index)
    samples: Pcm = pcm[index - skipped]
    return samples


def second(pcm: Pcm, number: int, skipped: int = 0) -> tuple[Pcm, int]:
    """Second `number` of an utterance as the engine takes it: SECOND_SAMPLES samples, and how many
    of its 100 frames the utterance has. The frames after those are to be masked: they see zeros."""
    first = number * SECOND_FRAMES
    frames = min(SECOND_FRAMES, frame_count(skipped + len(pcm)) - first)
    samples = cut(pcm, first, first + frames, skipped)
    return np.pad(samples, (0, SECOND_SAMPLES - len(samples))), frames
