"""Splits a long recording at quiet places into chunks that are recognized one by one.

The rule is split_audio_into_chunks of qwen-asr 0.0.6: near each multiple of the target length, find
the quietest tenth of a second, and in it the quietest sample. There are three differences:

- Loudness is summed exactly (float32 there, whose rounding may decide between places equal to seven
  digits).
- The search goes back at most half a chunk. There, chunks of 5 s and less may be cut one sample
  after their start, repeatedly.
- A recording shorter than the model's minimum is padded too; there only the pieces of a longer one
  are.
"""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from offhook.media.pcm import RATE_IN

Samples: TypeAlias = npt.NDArray[np.int16] | npt.NDArray[np.float32]
"""16 kHz mono samples, 1-D. May be memory-mapped: only samples near the cuts are read."""

MAX_S = 1200.0
"""Maximum chunk in s, the longest input the model was designed for; longer audio is split at quiet
places."""
MIN_S = 0.5
"""Minimum chunk in s; shorter ones are padded with silence."""
SEARCH_S = 5.0
"""Range in s before and after the target length that is searched for the quietest place."""
QUIET_MS = 100
"""Length of a quiet place in ms; shorter ones can be the closure of a "p" or "t" within a word."""


def split(pcm: Samples, max_s: float = MAX_S) -> list[tuple[int, int]]:
    """Returns chunks as (start, end) in samples, contiguous and in order. Each lasts about `max_s`:
    at most SEARCH_S more, and at least half of it except for the last."""
    most = int(max_s * RATE_IN)
    chunks = []
    start = 0
    while len(pcm) - start > most:
        end = start + _quietest(pcm[start : start + most + _reach(most)], most)
        chunks.append((start, end))
        start = end
    return [*chunks, (start, len(pcm))]


def chunk(pcm: Samples, start: int, end: int) -> Samples:
    """Returns the samples of one chunk: a view, or a copy padded with silence if it is too
    short."""
    piece = pcm[start:end]
    missing = int(MIN_S * RATE_IN) - len(piece)
    if missing <= 0:
        return piece
    padded: Samples = np.zeros(len(piece) + missing, pcm.dtype)
    padded[: len(piece)] = piece
    return padded


def _reach(most: int) -> int:
    return min(int(SEARCH_S * RATE_IN), most // 2)


def _quietest(pcm: Samples, wanted: int) -> int:
    """Returns where to cut audio that extends `_reach` beyond the target length, or to the end."""
    left = wanted - _reach(wanted)
    wide = np.int64 if pcm.dtype == np.int16 else np.float64
    loudness = np.abs(pcm[left:].astype(wide))
    window = QUIET_MS * RATE_IN // 1000
    if len(loudness) <= window:
        return wanted
    until = np.concatenate(([0], np.cumsum(loudness)))
    quiet = int(np.argmin(until[window:] - until[:-window]))
    return left + quiet + int(np.argmin(loudness[quiet : quiet + window]))
