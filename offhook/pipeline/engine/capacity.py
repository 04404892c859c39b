"""How many streams the memory of a GPU holds."""

from typing import TYPE_CHECKING

from offhook.pipeline.engine.pages import PAGE_SIZE
from offhook.pipeline.speech.recognizer import EngineError

if TYPE_CHECKING:
    from offhook.pipeline.models.nemotron.model import NemotronConfig
    from offhook.pipeline.models.qwen3.body import DecoderConfig

MAX_STREAMS = 1024
"""Live streams, where memory allows as many."""
MAX_FILES = 16
PAGES_PER_STREAM = 8
"""KV cache a stream may use: half a minute of sound. Most utterances need three."""
STREAM_BYTES = 4 << 20
"""Of a stream's mel, stem and encoder output on the device, at most."""
MEMORY_SHARE = 0.85
"""Of the memory left after loading; the rest is for graphs and their workspace."""


def capacity(free: int, c: "DecoderConfig") -> tuple[int, int]:
    """Live streams and KV pages, of `free` bytes after the weights. Raises EngineError when there
    is no room for one."""
    each = PAGES_PER_STREAM * page_bytes(c) + STREAM_BYTES
    streams = min(MAX_STREAMS, int(MEMORY_SHARE * free / each) - MAX_FILES)
    if streams < 1:
        raise _too_little(free, (MAX_FILES + 1) * each / MEMORY_SHARE)
    return streams, (streams + MAX_FILES) * PAGES_PER_STREAM + 1


def page_bytes(c: "DecoderConfig") -> int:
    """Of one page of keys and values in bf16."""
    return 2 * c.layers * c.kv_heads * c.head_dim * PAGE_SIZE * 2


def _too_little(free: int, wanted: float) -> EngineError:
    return EngineError(
        f"{free / 2**30:.1f} GiB of GPU memory are free, {wanted / 2**30:.1f} GiB are needed"
    )


def nemotron_capacity(free: int, c: "NemotronConfig") -> int:
    """Live streams, of `free` bytes after the weights, beside MAX_FILES. Raises EngineError when
    there is no room for one."""
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
"""Streams that speak at once, where memory allows as many; a batch takes half of them."""
PAGES_PER_VOICE = 8
"""KV cache a stream may use, on average: what 60 words may need. Segments are shorter where that
is too little."""
PREFIX_PAGES = 64
"""For the beginnings that voices share."""


def voice_capacity(free: int, c: "DecoderConfig", state: int) -> tuple[int, int]:
    """Streams and KV pages, of `free` bytes after the weights; `state`: bytes of the codec's state
    of one stream. Raises EngineError when there is no room for one."""
    page = page_bytes(c)
    each = PAGES_PER_VOICE * page + state
    room = MEMORY_SHARE * free - PREFIX_PAGES * page
    streams = min(MAX_VOICES, int(room / each))
    if streams < 1:
        wanted = (PREFIX_PAGES * page + each) / MEMORY_SHARE
        raise _too_little(free, wanted)
    return streams, PREFIX_PAGES + streams * PAGES_PER_VOICE + 1
