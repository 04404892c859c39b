"""How many streams the memory of a GPU holds."""

from typing import TYPE_CHECKING

from offhook.pipeline.engine.pages import PAGE_SIZE
from offhook.pipeline.recognizer import EngineError

if TYPE_CHECKING:
    from offhook.pipeline.models.qwen3_asr import DecoderConfig

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
    page = 2 * c.layers * c.kv_heads * c.head_dim * PAGE_SIZE * 2  # keys and values in bf16
    each = PAGES_PER_STREAM * page + STREAM_BYTES
    streams = min(MAX_STREAMS, int(MEMORY_SHARE * free / each) - MAX_FILES)
    if streams < 1:
        wanted = (MAX_FILES + 1) * each / MEMORY_SHARE
        raise EngineError(
            f"{free / 2**30:.1f} GiB of GPU memory are free, {wanted / 2**30:.1f} GiB are needed"
        )
    return streams, (streams + MAX_FILES) * PAGES_PER_STREAM + 1
