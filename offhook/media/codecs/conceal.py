"""Packet loss concealment for codecs that bring none: repeat, fade, cross-fade back.

The idea is that of ITU-T G.711 Appendix I, reworked for 16 kHz and without its 3.75 ms of extra
delay. Speech is voiced more often than not, so the best guess of what comes next is what followed
the last time it sounded like this. That stretch repeats at full level for 10 ms and fades to
silence by 60 ms. The joint at the front is mended by spreading the step it would make over the
first milliseconds; at the back the invention runs on under the first packet that arrives and is
cross-faded into it.
"""

from collections import deque

import numpy as np
import numpy.typing as npt

from offhook.media.pcm import RATE_IN, Pcm

MATCH = RATE_IN * 10 // 1000
"""Samples whose likeness is sought in the past: the last 10 ms."""
LAG_MIN = RATE_IN * 5 // 1000
"""Samples of the shortest repetition, 5 ms; a higher voice repeats several periods at a time."""
LAG_MAX = RATE_IN * 20 // 1000
"""Samples of the longest, 20 ms: a whole period of any voice from 50 Hz up."""
JOINT = RATE_IN * 5 // 1000
"""Samples over which a joint is mended or cross-faded, 5 ms."""
HISTORY = LAG_MAX + MATCH
FULL = RATE_IN * 10 // 1000
"""Samples of a loss before the fade begins, 10 ms."""
SILENT = RATE_IN * 60 // 1000
"""Samples of a loss after which there is silence, 60 ms."""

Float = npt.NDArray[np.float32]

_RISE = np.linspace(0, 1, JOINT, endpoint=False, dtype=np.float32)


def best_lag(sound: Float) -> int:
    """The lag in samples, LAG_MIN..LAG_MAX, at which the last MATCH of the HISTORY samples of
    `sound` resemble most what came before (normalised cross-correlation)."""
    past = sound[-HISTORY:-LAG_MIN]
    energy = np.cumsum(np.concatenate(([0.0], past.astype(np.float64) ** 2)))
    energy = energy[MATCH:] - energy[:-MATCH]
    likeness = np.correlate(past, sound[-MATCH:], "valid") / np.sqrt(energy + 1)
    return LAG_MAX - int(np.argmax(likeness))


class Concealer:
    """Follows one decoded stream at 16 kHz: every good block passes through `heard`, every lost
    one is invented by `conceal`. In the common case a block costs one append."""

    def __init__(self) -> None:
        self._blocks = deque([np.zeros(HISTORY, np.int16)])
        self._samples = HISTORY
        self._cycle = np.zeros(0, np.float32)
        self._step = 0.0
        self._invented = 0
        """Samples invented since the last good block."""

    def heard(self, pcm: Pcm) -> Pcm:
        """A decoded block, to be played: itself, or after a loss with its first 5 ms cross-faded
        from the invention."""
        if self._invented:
            n = min(JOINT, len(pcm))
            invention = self._invent(n)
            rise = np.linspace(0, 1, n, endpoint=False)
            pcm = pcm.copy()
            pcm[:n] = np.rint(invention + rise * (pcm[:n] - invention))
            self._invented = 0
        self._remember(pcm)
        return pcm

    def conceal(self, samples: int) -> Pcm:
        """`samples` samples that go on from what was played last, fading with the loss."""
        if not self._invented:
            self._begin()
        pcm = np.clip(np.rint(self._invent(samples)), -32768, 32767).astype(np.int16)
        self._invented += samples
        self._remember(pcm)
        return pcm

    def _remember(self, pcm: Pcm) -> None:
        self._blocks.append(pcm)
        self._samples += len(pcm)
        while self._samples - len(self._blocks[0]) >= HISTORY:
            self._samples -= len(self._blocks.popleft())

    def _begin(self) -> None:
        """Choose what to repeat, and the step between the sound's end and the repetition."""
        sound = np.concatenate(self._blocks)[-HISTORY:].astype(np.float32)
        lag = best_lag(sound)
        before = sound[-lag - JOINT : -lag]
        self._step = float(sound[-1] - before[-1])
        # The end of the cycle is led into what came before its beginning, where it goes on.
        self._cycle = sound[-lag:].copy()
        self._cycle[-JOINT:] += _RISE * (before - self._cycle[-JOINT:])

    def _invent(self, samples: int) -> Float:
        start = self._invented
        if start >= SILENT:
            return np.zeros(samples, np.float32)
        n = np.arange(start, start + samples)
        sound = self._cycle[n % len(self._cycle)]
        if start < JOINT:
            sound += self._step * np.clip(1 - n / JOINT, 0, 1).astype(np.float32)
        gain = np.clip((SILENT - n) / (SILENT - FULL), 0, 1).astype(np.float32)
        return np.asarray(sound * gain, np.float32)
