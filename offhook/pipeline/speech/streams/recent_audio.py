"""The last seconds of a stream, as the end-of-turn model needs them."""

import numpy as np

from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.speech.vad.smart_turn_io import SECONDS


class RecentAudio:
    """Ring buffer of the last seconds of 16 kHz audio, addressed by absolute sample position."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._ring = np.zeros(round(seconds * RATE_IN), np.int16)
        self.end = 0

    def add(self, pcm: Pcm) -> None:
        size = len(self._ring)
        kept = pcm[-size:]
        at = (self.end + len(pcm) - len(kept)) % size
        before = min(len(kept), size - at)
        self._ring[at : at + before] = kept[:before]
        self._ring[: len(kept) - before] = kept[before:]
        self.end += len(pcm)

    def slice(self, start: int, end: int) -> Pcm:
        """Return samples [start, end), or as many of them as are still buffered."""
        size = len(self._ring)
        start, end = max(start, self.end - size, 0), min(end, self.end)
        if start >= end:
            return self._ring[:0]
        a, b = start % size, end % size
        return self._ring[a:b].copy() if a < b else np.concatenate((self._ring[a:], self._ring[:b]))

    def close(self) -> None:
        """Free the audio, of which nothing can be returned any more; `end` stays."""
        self._ring = self._ring[:0].copy()
