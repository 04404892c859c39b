"""Downmixing to mono without cancelling speech recorded in antiphase."""

from typing import TYPE_CHECKING

import numpy as np

from offhook.media.pcm import Pcm

if TYPE_CHECKING:  # loaded only by callers that read files
    import av

CANCELLATION_RATIO = 1 / 16
"""Power of the mean relative to the louder channel, below which speech has been cancelled. One
silent channel leaves a fourth of the power in the mean, two uncorrelated ones a half."""
HALF_LIFE_S = 0.1
"""Half-life of the power estimate. A phase reversal is noticed after about four of them."""


class Downmix:
    """Mixes two channels at `rate` Hz to one: their mean, or the louder one where the mean would
    cancel it (antiphase, as from a microphone or cable with reversed polarity)."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._powers = np.zeros(3)
        """Recency-weighted power of left, right and their mean."""

    def mix(self, stereo: Pcm) -> Pcm:
        """Mix interleaved int16 stereo, any number of pairs, to mono."""
        pairs = stereo.reshape(-1, 2).astype(np.int32)
        mean = pairs.sum(1) // 2
        self._powers *= 0.5 ** (len(pairs) / (self._rate * HALF_LIFE_S))
        for number, sound in enumerate((pairs[:, 0], pairs[:, 1], mean)):
            x = sound.astype(np.float32)
            self._powers[number] += float(np.dot(x, x))
        left, right, mixed = self._powers
        if mixed < CANCELLATION_RATIO * max(left, right):
            mean = pairs[:, int(right > left)]
        mono: Pcm = mean.astype(np.int16)
        return mono


class MonoConverter:
    """Converts PyAV frames of one format to int16 mono at `rate` Hz, or at their own rate."""

    def __init__(self, frame: "av.AudioFrame", rate: int | None = None) -> None:
        """`frame` is any frame of the stream; it sets the channels and the rate."""
        import av

        several = frame.layout.nb_channels > 1
        self._resampler = av.AudioResampler("s16", "stereo" if several else "mono", rate)
        self._downmix = Downmix(rate or frame.sample_rate) if several else None

    def convert(self, frame: "av.AudioFrame | None") -> list[Pcm]:
        """Convert a frame; None flushes the resampler. Raises ValueError or av.FFmpegError."""
        blocks = [block.to_ndarray()[0] for block in self._resampler.resample(frame)]
        return blocks if self._downmix is None else [self._downmix.mix(block) for block in blocks]
