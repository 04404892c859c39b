"""Computes how many streams fit in the memory of a GPU."""

from typing import TYPE_CHECKING

from offhook.pipeline.engine.pages import PAGE_SIZE
from offhook.pipeline.speech.recognizer import EngineError

if TYPE_CHECKING:
    from offhook.pipeline.models.nemotron.model import NemotronConfig
    from offhook.pipeline.models.qwen3.body import DecoderConfig

MAX_STREAMS = 1024
"""Upper limit of live recognition streams."""
MAX_FILES = 16
PAGES_PER_STREAM = 8
"""Average KV pages of a recognition stream: half a minute of audio; most utterances need three."""
STREAM_BYTES = 4 << 20
"""Upper bound in bytes of a stream's mel, stem and encoder output on the device."""
MEMORY_SHARE = 0.85
"""Share of the memory free after loading that streams may use; the rest is for CUDA graphs and
their workspace."""


def capacity(free: int, c: "DecoderConfig") -> tuple[int, int]:
    """Returns the live streams and KV pages that fit in `free` bytes after loading the weights.
    Raises EngineError if not even one fits."""
    each = PAGES_PER_STREAM * page_bytes(c) + STREAM_BYTES
    streams = min(MAX_STREAMS, int(MEMORY_SHARE * free / each) - MAX_FILES)
    if streams < 1:
        raise _too_little(free, (MAX_FILES + 1) * each / MEMORY_SHARE)
    return streams, (streams + MAX_FILES) * PAGES_PER_STREAM + 1


def page_bytes(c: "DecoderConfig") -> int:
    """Returns the bytes of one page of keys and values in bf16."""
    return 2 * c.layers * c.kv_heads * c.head_dim * PAGE_SIZE * 2


def _too_little(free: int, wanted: float) -> EngineError:
    return EngineError(
        f"{free / 2**30:.1f} GiB of GPU memory are free, {wanted / 2**30:.1f} GiB are needed"
    )


def nemotron_capacity(free: int, c: "NemotronConfig") -> int:
    """Returns the live streams that fit in `free` bytes after loading the weights, besides
    MAX_FILES files. Raises EngineError if not even one fits."""
    e = c.encoder
    caches = e.layers * (2 * c.ring + e.conv_kernel - 1) * e.hidden_size
    heard = c.predictor_size * (max(c.lookaheads) + 2 + 2 * c.predictor_layers)
    each = 2 * (caches + heard)  # bf16
    streams = min(MAX_STREAMS, int(MEMORY_SHARE * free / each) - MAX_FILES)
    if streams < 1:
        raise _too_little(free, (MAX_FILES + 1) * each / MEMORY_SHARE)
    return streams


# --- speaking ---

MAX_VOICES = 1024
"""Upper limit of concurrent synthesis streams; a batch holds half of them."""
PAGES_PER_VOICE = 8
"""Average KV pages of a synthesis stream, enough for about 60 words. With less, segments are
shorter."""
PREFIX_PAGES = 64
"""Pages for the prompt prefixes shared by streams of the same voice."""


def voice_capacity(free: int, c: "DecoderConfig", state: int) -> tuple[int, int]:
    """Returns the synthesis streams and KV pages that fit in `free` bytes after loading the
    weights; `state` is the size in bytes of one stream's codec state. Raises EngineError if not
    even one fits."""
    page = page_bytes(c)
    each = PAGES_PER_VOICE * page + state
    room = MEMORY_SHARE * free - PREFIX_PAGES * page
    streams = min(MAX_VOICES, int(room / each))
    if streams < 1:
        wanted = (PREFIX_PAGES * page + each) / MEMORY_SHARE
        raise _too_little(free, wanted)
    return streams, PREFIX_PAGES + streams * PAGES_PER_VOICE + 1
