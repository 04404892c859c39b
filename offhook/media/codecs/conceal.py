"""Packet loss concealment for codecs that have none: repeat, fade out, cross-fade back.

The method follows ITU-T G.711 Appendix I, adapted to 16 kHz and without its 3.75 ms of extra delay.
Speech is mostly voiced, so the best guess of what comes next is what followed the last similar
waveform. That segment repeats at full level for 10 ms and fades to silence by 60 ms. The
discontinuity at the front is smoothed by spreading its step over the first milliseconds; at the
back, the synthesized signal continues under the first packet that arrives and is cross-faded into
it.
"""

from collections import deque

import numpy as np
import numpy.typing as npt

from offhook.media import native
from offhook.media.pcm import RATE_IN, Pcm

MATCH = RATE_IN * 10 // 1000
"""Samples of the template searched for in the history: the last 10 ms."""
LAG_MIN = RATE_IN * 5 // 1000
"""Shortest repetition in samples, 5 ms; a higher voice repeats several periods at a time."""
LAG_MAX = RATE_IN * 20 // 1000
"""Longest repetition in samples, 20 ms: one period of any voice from 50 Hz up."""
CROSS_FADE = RATE_IN * 5 // 1000
"""Samples over which a joint is smoothed or cross-faded, 5 ms."""
HISTORY = LAG_MAX + MATCH
FADE_START = RATE_IN * 10 // 1000
"""Samples of a loss before the fade begins, 10 ms."""
FADE_END = RATE_IN * 60 // 1000
"""Samples of a loss after which the output is silent, 60 ms."""

Float = npt.NDArray[np.float32]

_RISE = np.linspace(0, 1, CROSS_FADE, endpoint=False, dtype=np.float32)


def best_lag(sound: Float) -> int:
    """Return the lag in samples, LAG_MIN..LAG_MAX, at which the last MATCH of the HISTORY samples
    of `sound` best match what precedes them (normalized cross-correlation)."""
    past = sound[-HISTORY:-LAG_MIN]
    energy = np.cumsum(np.concatenate(([0.0], past.astype(np.float64) ** 2)))
    energy = energy[MATCH:] - energy[:-MATCH]
    correlation = np.correlate(past, sound[-MATCH:], "valid") / np.sqrt(energy + 1)
    return LAG_MAX - int(np.argmax(correlation))


class Concealer:
    """Conceals the losses of one decoded 16 kHz stream: pass every decoded block through `process`
    and call `conceal` for every lost one. Without loss a block costs one append."""

    def __init__(self) -> None:
        self._blocks = deque([np.zeros(HISTORY, np.int16)])
        self._samples = HISTORY
        self._cycle = np.zeros(0, np.float32)
        self._step = 0.0
        self._concealed = 0
        """Samples synthesized since the last decoded block."""

    def process(self, pcm: Pcm) -> Pcm:
        """Return a decoded block ready to play: unchanged, or after a loss with its first 5 ms
        cross-faded from the synthesized signal."""
        if self._concealed:
            n = min(CROSS_FADE, len(pcm))
            synthesized = self._synthesize(n)
            rise = np.linspace(0, 1, n, endpoint=False)
            pcm = pcm.copy()
            pcm[:n] = np.rint(synthesized + rise * (pcm[:n] - synthesized))
            self._concealed = 0
        self._append_history(pcm)
        return pcm

    def conceal(self, samples: int) -> Pcm:
        """Return `samples` samples that continue the audio, fading with the length of the loss."""
        if not self._concealed:
            self._begin()
        pcm = np.clip(np.rint(self._synthesize(samples)), -32768, 32767).astype(np.int16)
        self._concealed += samples
        self._append_history(pcm)
        return pcm

    def _append_history(self, pcm: Pcm) -> None:
        self._blocks.append(pcm)
        self._samples += len(pcm)
        while self._samples - len(self._blocks[0]) >= HISTORY:
            self._samples -= len(self._blocks.popleft())

    def _history(self) -> Pcm:
        """The last HISTORY samples played."""
        return np.concatenate(self._blocks)[-HISTORY:]

    def _begin(self) -> None:
        """Choose the segment to repeat, and compute the step at its joint."""
        sound = self._history().astype(np.float32)
        lag = best_lag(sound)
        before = sound[-lag - CROSS_FADE : -lag]
        self._step = float(sound[-1] - before[-1])
        # Blend the end of the cycle into the samples before its start, so that it loops seamlessly.
        self._cycle = sound[-lag:].copy()
        self._cycle[-CROSS_FADE:] += _RISE * (before - self._cycle[-CROSS_FADE:])

    def _synthesize(self, samples: int) -> Float:
        start = self._concealed
        if start >= FADE_END:
            return np.zeros(samples, np.float32)
        n = np.arange(start, start + samples)
        sound = self._cycle[n % len(self._cycle)]
        if start < CROSS_FADE:
            sound += self._step * np.clip(1 - n / CROSS_FADE, 0, 1).astype(np.float32)
        gain = np.clip((FADE_END - n) / (FADE_END - FADE_START), 0, 1).astype(np.float32)
        return np.asarray(sound * gain, np.float32)


if native.BUILT:

    class CompiledConcealer(native.History, Concealer):
        """Keeps the history in one piece."""


def new_concealer() -> Concealer:
    """Return the concealer of a new stream."""
    return CompiledConcealer() if native.used else Concealer()
