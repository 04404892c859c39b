"""Cutting a long recording at quiet places into chunks that are recognised one by one.

The rule is split_audio_into_chunks of qwen-asr 0.0.6: near each multiple of the length wanted, the
quietest tenth of a second, and in it the quietest sample. Three differences:

- Loudness is summed exactly (there in float32, so that its rounding may choose between places
  equally quiet to seven digits).
- The search goes back at most half a chunk. There, chunks of 5 s and less may be cut one sample
  after their beginning, again and again.
- A recording shorter than the model's least is padded too; there only a piece of a longer one.
"""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from offhook.media.pcm import RATE_IN

Samples: TypeAlias = npt.NDArray[np.int16] | npt.NDArray[np.float32]
"""16 kHz mono, 1-D. A memory-mapped file will do: only what lies near the cuts is read."""

MAX_S = 1200.0
"""s. The longest audio the model is meant to be given at once."""
MIN_S = 0.5
"""s. The shortest; what is shorter is followed by silence."""
SEARCH_S = 5.0
"""s before and after the length wanted in which the quietest place is sought."""
QUIET_MS = 100
"""ms that must be quiet: shorter than this is the closure of a "p" or "t" inside a word."""


def split(pcm: Samples, max_s: float = MAX_S) -> list[tuple[int, int]]:
    """Chunks as (start, end) in samples, in order, without gap or overlap. One lasts about
    `max_s`: at most SEARCH_S more, at least half of it but for the last."""
    most = int(max_s * RATE_IN)
    chunks = []
    start = 0
    while len(pcm) - start > most:
        end = start + _quietest(pcm[start : start + most + _reach(most)], most)
        chunks.append((start, end))
        start = end
    return [*chunks, (start, len(pcm))]


def chunk(pcm: Samples, start: int, end: int) -> Samples:
    """The samples of one chunk, a view; with silence after it, a copy, when it is too short."""
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
    """Where to cut audio that goes on `_reach` beyond the length wanted, or to the end."""
    left = wanted - _reach(wanted)
    wide = np.int64 if pcm.dtype == np.int16 else np.float64
    loudness = np.abs(pcm[left:].astype(wide))
    window = QUIET_MS * RATE_IN // 1000
    if len(loudness) <= window:
        return wanted
    until = np.concatenate(([0], np.cumsum(loudness)))
    quiet = int(np.argmin(until[window:] - until[:-window]))
    return left + quiet + int(np.argmin(loudness[quiet : quiet + window]))
