"""Several channels to one, without losing what is said in them."""

from typing import TYPE_CHECKING

import numpy as np

from offhook.media.pcm import Pcm

if TYPE_CHECKING:  # libav is loaded by who has files
    import av

CANCELLED = 1 / 16
"""Of the louder channel's power; a mean with less has lost what is said. One channel alone keeps a
fourth of its power in the mean, two unlike ones a half."""
MEMORY_S = 0.1
"""How long it takes for what was heard to count half. What turns round is noticed after four."""


class Downmix:
    """Two channels at `rate` Hz to one: their mean, or the louder of them where that cancels
    (antiphase, as of a microphone or a cable with its poles exchanged)."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._powers = np.zeros(3)
        """Of left, right and their mean, the older the less."""

    def mix(self, stereo: Pcm) -> Pcm:
        """`stereo`: left and right in turn, any number of pairs."""
        pairs = stereo.reshape(-1, 2).astype(np.int32)
        mean = pairs.sum(1) // 2
        self._powers *= 0.5 ** (len(pairs) / (self._rate * MEMORY_S))
        for number, sound in enumerate((pairs[:, 0], pairs[:, 1], mean)):
            x = sound.astype(np.float32)
            self._powers[number] += float(np.dot(x, x))
        left, right, mixed = self._powers
        if mixed < CANCELLED * max(left, right):
            mean = pairs[:, int(right > left)]
        mono: Pcm = mean.astype(np.int16)
        return mono


class ToMono:
    """PyAV's frames, all of one kind, to int16 mono at `rate` Hz, or their own."""

    def __init__(self, frame: "av.AudioFrame", rate: int | None = None) -> None:
        """`frame`: one of them."""
        import av

        several = frame.layout.nb_channels > 1
        self._resampler = av.AudioResampler("s16", "stereo" if several else "mono", rate)
        self._downmix = Downmix(rate or frame.sample_rate) if several else None

    def convert(self, frame: "av.AudioFrame | None") -> list[Pcm]:
        """None: what is still within. Raises ValueError, av.FFmpegError."""
        blocks = [block.to_ndarray()[0] for block in self._resampler.resample(frame)]
        return blocks if self._downmix is None else [self._downmix.mix(block) for block in blocks]
