"""What a process holds in memory once its garbage is gone (glibc).

While calls come and go the resident size saws by tens of MB: what Pipecat and aiortc leave behind
refers to itself, so it waits for Python's cyclic collector, and glibc keeps what was freed. Neither
is a leak. After a collection and malloc_trim what is left is what something still refers to.
"""

import ctypes
import gc
import resource
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from aiohttp import web

SMALL_BLOCK_BYTES = 512
"""What Python allocates by itself, without malloc, is at most this long."""


class _MallInfo(ctypes.Structure):
    """mallinfo2(3)"""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


@dataclass(frozen=True)
class HeapUsage:
    malloc_bytes: int
    """Allocated from malloc and not freed: the libraries', and Python's larger objects."""
    small_blocks: int
    """Of Python's own allocator."""
    objects: int
    """That the cyclic collector knows."""
    rss_mb: float

    @property
    def at_most_bytes(self) -> int:
        """An upper bound, so that of two of them the difference misses nothing that grows."""
        return self.malloc_bytes + SMALL_BLOCK_BYTES * self.small_blocks


def held() -> HeapUsage:
    """Of this process; takes tens of ms. Raises OSError or AttributeError without glibc 2.33."""
    libc = ctypes.CDLL("libc.so.6")
    for _ in range(3):  # finalizers make garbage of their own
        gc.collect()
    libc.malloc_trim(0)
    libc.mallinfo2.restype = _MallInfo
    info = libc.mallinfo2()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return HeapUsage(
        info.uordblks + info.hblkhd,
        sys.getallocatedblocks(),
        len(gc.get_objects()),
        round(pages * resource.getpagesize() / (1 << 20), 1),
    )


def memory_route(app: web.Application) -> None:
    """GET /memory"""

    async def memory(request: web.Request) -> web.Response:
        return web.json_response(asdict(held()))

    app.router.add_get("/memory", memory)
