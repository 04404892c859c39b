"""Streaming text from an engine that only transcribes whole clips: a rolling window of the audio is
transcribed repeatedly and the results are merged.

The window starts with the utterance and grows with it. A window that is long enough is closed at
its quietest place: the text up to there stays, and the next window starts slightly before it, so
that a word at the cut is complete in one of the two. Words repeated there are removed.

Text is stable once two consecutive windows agree on it from the utterance's start (local
agreement).
"""

from dataclasses import dataclass

import numpy as np

from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.speech.recognizer import Partial
from offhook.pipeline.speech.streams.audio_chunks import split
from offhook.pipeline.speech.streams.partials import with_stable_prefix

WINDOW_S = 12.0
"""Maximum window in s, plus a little; less than the 30 s that Whisper-like servers process at
once."""
OVERLAP_MS = 200
OVERLAP_WORDS = 2
OVERLAP_CHARS = 4
"""Maximum characters repeated at a cut, as much speech as OVERLAP_MS."""


@dataclass(frozen=True)
class Window:
    start: int
    stop: int
    """Position in samples of the utterance."""
    closes: bool


class RollingText:
    """The text of one utterance: call `window`, the engine, then `update`, repeatedly."""

    def __init__(self) -> None:
        self._start = 0
        self._before = ""
        """Text of the closed windows."""
        self._last = ""
        self._stable = ""

    def window(self, pcm: Pcm) -> Window:
        """Returns the next window to transcribe; `pcm` is the utterance so far."""
        chunks = split(pcm[self._start :], WINDOW_S)
        return Window(self._start, self._start + chunks[0][1], len(chunks) > 1)

    def update(self, window: Window, text: str) -> Partial:
        """Merges the text of a window and returns the partial of the utterance."""
        whole = with_stable_prefix(self._stable, joined(self._before, text))
        if window.closes:
            self._before = whole
            self._start = window.stop - OVERLAP_MS * RATE_IN // 1000
        agreed = whole[: agreement(self._last, whole)]
        self._last = whole
        if len(agreed) > len(self._stable):
            self._stable = agreed
        return Partial(whole, len(self._stable), window.stop * 1000 // RATE_IN)


def joined(before: str, text: str) -> str:
    """Concatenates both without what the second repeats of the first's end."""
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
    """Returns the length of the common prefix, up to the end of a word if there are spaces."""
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
    """Converts 16-bit little-endian bytes to samples (a copy)."""
    return np.frombuffer(bytes(pcm), "<i2").astype(np.int16)
