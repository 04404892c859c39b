"""Log-mel frames of 16 kHz audio for Whisper, Qwen3-ASR and Smart Turn, one every 10 ms.

Frame t covers samples [160 t - 200, 160 t + 200) of the utterance, whose ends are reflected as in
`torch.stft(center=True)`. An utterance of n samples has n // 160 frames. A frame within the audio
never changes: `cut` and `second` return the samples of any frames, whose mel equals that of the
whole clip.

The spectrum is an FFT rather than a matrix product. Both can be captured in a CUDA graph, but the
FFT is faster, its rounding does not depend on the number of frames, and TF32 does not affect it.
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
"""log10 of the minimum power, the value of silence."""
RANGE = 8.0
"""Values more than this (80 dB) below the maximum are raised to it."""
SECOND_FRAMES = RATE_IN // HOP
SECOND_SAMPLES = (SECOND_FRAMES - 1) * HOP + WINDOW
"""Samples covered by the frames of one second: 16 240."""
MIN_SAMPLES = RATE_IN // 2
"""Minimum input in samples; shorter utterances are zero-padded (`lengthen`)."""


class LogMel:
    """Computes log10 mel power; window and filters are on `device`."""

    def __init__(self, device: torch.device | str = "cpu", bins: int = BINS) -> None:
        self._window = torch.hann_window(WINDOW, device=device)
        self._filters = torch.from_numpy(mel_filters(bins=bins)).to(device)

    def __call__(self, pcm: Tensor) -> Tensor:
        """Returns the frames that lie wholly within `pcm`, fp32 [N, samples] in [-1, 1).

        The result is fp32 [N, bins, (samples - 400) // 160 + 1], at least FLOOR and not yet clamped
        to the maximum; see `scale`.
        """
        spectrum = torch.fft.rfft(pcm.unfold(-1, WINDOW, HOP) * self._window)
        power = torch.view_as_real(spectrum).square().sum(-1)
        return (power @ self._filters).clamp(min=10**FLOOR).log10().transpose(1, 2)


def scale(mel: Tensor, maximum: Tensor) -> Tensor:
    """Normalizes log-mel [N, BINS, frames] for the model: clamped to 8 below `maximum` [N], the
    loudest value of the audio attended together, then (x + 4) / 4."""
    return (torch.maximum(mel, maximum[:, None, None] - RANGE) + 4) / 4


def mel_filters(rate: int = RATE_IN, window: int = WINDOW, bins: int = BINS) -> NDArray[np.float32]:
    """Returns triangular filters of equal area on Slaney's mel scale from 0 to rate / 2 Hz, [window
    // 2 + 1, bins]."""
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
    """Converts a frequency above 1 kHz."""
    return _KNEE_MEL + math.log(hertz / _KNEE_HZ) / _STEP


def _hertz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    over = _KNEE_HZ * np.exp(_STEP * (mel - _KNEE_MEL))
    return np.where(mel < _KNEE_MEL, mel * _KNEE_HZ / _KNEE_MEL, over)


# --- which samples ---


def frame_count(samples: int) -> int:
    """Returns the number of frames of an utterance with `samples` samples (at least
    MIN_SAMPLES)."""
    return samples // HOP


def lengthen(pcm: Pcm) -> Pcm:
    """Returns a whole utterance, zero-padded to MIN_SAMPLES."""
    if len(pcm) >= MIN_SAMPLES:
        return pcm
    return np.pad(pcm, (0, MIN_SAMPLES - len(pcm)))


def cut(pcm: Pcm, first: int, end: int, skipped: int = 0) -> Pcm:
    """Returns the (end - first - 1) * 160 + 400 samples covered by frames [first, end), reflected
    at the utterance's ends.

    `pcm` is the utterance so far, at least MIN_SAMPLES, without its first `skipped` samples, which
    these frames must not cover.
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
    """Returns the SECOND_SAMPLES samples of second `number`, and how many of its 100 frames the
    utterance has. The remaining frames must be masked: they contain zeros."""
    first = number * SECOND_FRAMES
    frames = min(SECOND_FRAMES, frame_count(skipped + len(pcm)) - first)
    samples = cut(pcm, first, first + frames, skipped)
    return np.pad(samples, (0, SECOND_SAMPLES - len(samples))), frames
