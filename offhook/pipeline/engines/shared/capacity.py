"""Divides the memory of a GPU, and says how many streams it follows in real time.

Everything is counted: weights before, then per stream its keys and values and its state, and once
for all the workspace of the largest launches. Nothing here asks a device.
"""

from math import sqrt
from typing import TYPE_CHECKING

from offhook.pipeline.engines.shared.pages import PAGE_SIZE
from offhook.pipeline.speech.errors import EngineError

if TYPE_CHECKING:
    from offhook.pipeline.engines.shared.qwen3.config import DecoderConfig

MIB = 1 << 20
"""Number of bytes in a MiB."""
SHARED = 0.5
"""Maximum share of a GPU's memory that a worker uses, weights included, unless set otherwise:
recognition and synthesis fit on one GPU, whichever loads first. The number of streams is what fits
in it; with less memory than one stream needs the engine does not load."""
ALONE = 1.0
"""The same for a worker that has the GPU for itself."""
RESERVE = 1 << 30
"""Bytes left free: CUDA's own, and what a forced aligner or voice encoders need for a moment."""
GRAPH_BYTES = 8 * MIB
"""Bytes of a captured graph besides its tensors."""
WORKSPACE_SHARE = 0.25
"""Share of the memory that the largest launches may need; beyond it they are made smaller."""

MAX_STREAMS = 2048
"""Maximum live recognition streams, however much memory there is; further ones are refused with
EngineOverloaded."""
MAX_FILES = 16
"""Maximum files transcribed at once, besides the live streams; further ones are refused with
EngineOverloaded."""
PAGES_PER_STREAM = 4
"""Average KV pages of an open recognition stream: eight, half a minute of audio, of each second
one, whose caller speaks (most utterances need three), and one of those who listen."""
SPEAKS = 0.4
"""Share of a call in which its caller speaks."""
DEVIATIONS = 1.0
"""Standard deviations by which more callers may speak at once than on average. When still more do,
updates come late or are merged; when as many do as the device follows, nobody else is admitted."""

MAX_VOICES = 4096
"""Maximum concurrent synthesis streams, however much memory there is; further ones are refused with
EngineOverloaded."""


def budget(free: int, total: int, taken: int, share: float) -> int:
    """Returns the bytes that a worker may still take of a GPU with `free` of `total` bytes free, of
    which it has `taken` already, mostly for weights."""
    return max(0, min(free, int(share * total) - taken) - RESERVE)


def page_bytes(c: "DecoderConfig") -> int:
    """Returns the bytes of one page of keys and values in 16 bits."""
    return 2 * c.layers * c.kv_heads * c.head_dim * PAGE_SIZE * 2


def row_bytes(c: "DecoderConfig", vocabulary: int = 0) -> int:
    """Returns the bytes of the tensors of one row in the widest layer; `vocabulary`: of its logits,
    in 16 bits and for sampling in 32."""
    attention = (c.heads + 2 * c.kv_heads) * c.head_dim
    return 2 * (4 * c.hidden_size + attention + 3 * c.ffn) + 6 * vocabulary


def too_little(room: int, wanted: float) -> EngineError:
    """Returns the error of a model of which not even one stream fits in `room` bytes."""
    return EngineError(
        f"{room / 2**30:.1f} GiB of GPU memory are to be had beside the weights, "
        f"{wanted / 2**30:.1f} GiB are needed"
    )


# --- in real time ---


def speaking_at_once(calls: int, share: float, deviations: float) -> float:
    """Returns how many of the `calls` speak at once, each for a `share` of the time whenever chance
    has it: the mean, and so many standard deviations more."""
    return calls * share + deviations * sqrt(calls * share * (1 - share))


def open_streams(followed: int, fit: int | None = None) -> int:
    """Returns how many recognition streams may be open of which at most `followed` are in use, each
    by a caller who speaks SPEAKS of the time: the inverse of `speaking_at_once`. `fit`: those for
    which there is memory, if that limits them."""
    spread = DEVIATIONS * sqrt(SPEAKS * (1 - SPEAKS))
    root = (sqrt(spread**2 + 4 * SPEAKS * followed) - spread) / (2 * SPEAKS)
    wanted = max(followed, int(root**2))
    return wanted if fit is None else min(fit, wanted)


def followed(work_ms: float, streams: int, period_ms: float, load: float) -> int:
    """Returns how many streams a device follows of which each needs a part of `work_ms` every
    `period_ms`: `work_ms` is what `streams` of them take together, and `load` the share of the time
    that they may take."""
    return max(1, int(load * period_ms * streams / work_ms))
