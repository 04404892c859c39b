"""How many words of a reply were played, told from the sound itself: no recogniser has to guess.

The voice is spoken again, here, and the last moments of what was played are looked for in it. The
embedded voices say the same text the same way each time.
"""

from dataclasses import dataclass

import numpy as np
import soxr

from benchmarks.speech.transcript import words
from offhook.media.pcm import RATE_IN, RATE_OUT, Pcm
from offhook.pipeline.speech.synthesizer import Synthesizer

TAIL_MS = 500
"""So much of the end of what was played is looked for."""
LIKE = 0.6
"""A correlation below says that it is not in there."""
AUDIBLE = 150
"""Samples below are silence."""


@dataclass(frozen=True)
class Spoken:
    """A reply as the voice says it."""

    pcm: Pcm
    """16 kHz."""
    ends_ms: tuple[float, ...]
    """Of its words."""


@dataclass(frozen=True)
class Exact:
    """Of one reply that was cut."""

    context_words: int
    """That the server takes for heard."""
    played_words: int
    """That were played to their ends..."""
    begun_words: int
    """...and those that were begun."""
    played_ms: float
    """Of the reply."""
    context_ms: float
    """Where the last word of the context ends..."""
    next_ms: float
    """...and the word after it."""

    @property
    def words_off(self) -> int:
        """Words in the context less those played; the one cut short may count or not."""
        nearest = min(max(self.context_words, self.played_words), self.begun_words)
        return self.context_words - nearest

    @property
    def off_ms(self) -> float:
        """How far the end of what was played is from where the context would be right: above 0
        the last word of the context was not played to its end, below 0 the next one was."""
        if self.played_ms < self.context_ms:
            return round(self.context_ms - self.played_ms, 1)
        return round(min(0.0, self.next_ms - self.played_ms), 1)


async def speak(synthesizer: Synthesizer, text: str) -> Spoken:
    """Word by word, as an agent writes it."""
    stream = synthesizer.open()
    for word in text.split():
        stream.write(f"{word} ")
    stream.end()
    pieces, ends, samples = [], [], 0
    async for speech in stream:
        pieces.append(speech.pcm)
        samples += len(speech.pcm)
        ends += [1000 * samples / RATE_OUT] * len(words(speech.text))
    pcm = np.concatenate(pieces) if pieces else np.zeros(0, np.int16)
    return Spoken(soxr.resample(pcm, RATE_OUT, RATE_IN).astype(np.int16), tuple(ends))


def played_until_ms(reply: Pcm, played: Pcm) -> float | None:
    """Where in the reply what was played (both at 16 kHz) ends; None when it is not in there."""
    loud = np.flatnonzero(np.abs(played.astype(np.int32)) > AUDIBLE)
    size = RATE_IN * TAIL_MS // 1000
    if not len(loud) or loud[-1] < size or len(reply) < size:
        return None
    tail = played[loud[-1] + 1 - size : loud[-1] + 1].astype(np.float64)
    whole = reply.astype(np.float64)
    length = 1 << (len(whole) + size).bit_length()
    spectrum = np.fft.rfft(whole, length) * np.conj(np.fft.rfft(tail, length))
    products = np.fft.irfft(spectrum, length)[: len(whole) - size + 1]
    energy = np.cumsum(np.concatenate(([0.0], whole**2)))
    norms = np.sqrt(np.maximum(energy[size:] - energy[:-size], 1.0) * np.sum(tail**2))
    likeness = products / norms
    at = int(np.argmax(likeness))
    return (at + size) * 1000 / RATE_IN if likeness[at] >= LIKE else None


def compare(reply: Spoken, played: Pcm, context: str) -> Exact | None:
    """None when what was played cannot be found in the reply."""
    until = played_until_ms(reply.pcm, played)
    if until is None:
        return None
    kept = len(words(context))
    over = sum(end <= until for end in reply.ends_ms)
    begun = min(len(reply.ends_ms), over + 1)
    ends = (0.0, *reply.ends_ms, float("inf"))
    kept = min(kept, len(reply.ends_ms))
    return Exact(kept, over, begun, round(until, 1), round(ends[kept], 1), round(ends[kept + 1], 1))
