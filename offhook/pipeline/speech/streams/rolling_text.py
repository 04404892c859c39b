"""What is heard so far by an engine that hears whole pieces only: a rolling window of the sound is
given to it again and again, and what it makes of each is put together.

The window begins with the utterance and grows with it. When it is long enough it is closed where
it is quietest: the text of the sound up to there stays, and the next window begins a little before
it, so that a word at the cut is whole in one of the two. Words said twice there are taken out.

Text is stable when two windows in a row say the same from the utterance's beginning on (local
agreement).
"""

from dataclasses import dataclass

import numpy as np

from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.speech.recognizer import Partial
from offhook.pipeline.speech.streams.audio_chunks import split
from offhook.pipeline.speech.streams.partials import keeping

WINDOW_S = 12.0
"""What one request hears at most, and a little more: a server that hears 30 s at a time, as
Whisper does, is asked for one piece."""
OVERLAP_MS = 200
OVERLAP_WORDS = 2
OVERLAP_CHARS = 4
"""That may be said on both sides of a cut: so much speech is OVERLAP_MS."""


@dataclass(frozen=True)
class Window:
    start: int
    stop: int
    """Samples of the utterance."""
    closes: bool


class RollingText:
    """Of one utterance: `window`, the engine, `heard`, again and again."""

    def __init__(self) -> None:
        self._start = 0
        self._before = ""
        """Of the windows that are closed."""
        self._last = ""
        self._stable = ""

    def window(self, pcm: Pcm) -> Window:
        """What to hear next; `pcm` is the utterance so far."""
        chunks = split(pcm[self._start :], WINDOW_S)
        return Window(self._start, self._start + chunks[0][1], len(chunks) > 1)

    def heard(self, window: Window, text: str) -> Partial:
        whole = keeping(self._stable, joined(self._before, text))
        if window.closes:
            self._before = whole
            self._start = window.stop - OVERLAP_MS * RATE_IN // 1000
        agreed = whole[: agreement(self._last, whole)]
        self._last = whole
        if len(agreed) > len(self._stable):
            self._stable = agreed
        return Partial(whole, len(self._stable), window.stop * 1000 // RATE_IN)


def joined(before: str, text: str) -> str:
    """Both, without what the second repeats of the first's end."""
    text = text.strip()
    if not before or not text:
        return before or text
    if " " not in before + text:  # Chinese, Japanese, Thai
        same = max(n for n in range(OVERLAP_CHARS + 1) if before.endswith(text[:n]))
        return before + text[same:]
    ours, theirs = _bare(before.split()), _bare(text.split())
    most = range(OVERLAP_WORDS + 1)
    same = max(n for n in most if not n or (ours[-n:] == theirs[:n] and all(theirs[:n])))
    return " ".join([before, *text.split()[same:]])


def _bare(words: list[str]) -> list[str]:
    return ["".join(filter(str.isalnum, word)).casefold() for word in words]


def agreement(one: str, other: str) -> int:
    """How many characters both begin with, up to the end of a word where there are any."""
    shorter = min(len(one), len(other))
    same = next((n for n in range(shorter) if one[n] != other[n]), shorter)
    if " " not in one + other:
        return same
    while same and not (_ends_word(one, same) and _ends_word(other, same)):
        same -= 1
    return same


def _ends_word(text: str, place: int) -> bool:
    return place == len(text) or text[place].isspace()


def samples(pcm: bytes | bytearray) -> Pcm:
    """16-bit little-endian bytes, copied."""
    return np.frombuffer(bytes(pcm), "<i2").astype(np.int16)
