"""The memory of a process excluding garbage (glibc).

While calls come and go the resident size varies by tens of MB: objects of Pipecat and aiortc are in
reference cycles until Python collects them, and glibc keeps freed memory. Neither is a leak. After
a collection and malloc_trim, what remains is referenced.
"""

import ctypes
import gc
import resource
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from aiohttp import web

SMALL_BLOCK_BYTES = 512
"""Maximum size of blocks that Python allocates without malloc."""


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
    """Memory in use."""
    """Bytes allocated with malloc: libraries' and Python's larger objects."""
    small_blocks: int
    """Blocks of Python's own allocator."""
    objects: int
    """Objects tracked by the cyclic collector."""
    rss_mb: float

    @property
    def at_most_bytes(self) -> int:
        """An upper bound, so that a difference of two misses no growth."""
        return self.malloc_bytes + SMALL_BLOCK_BYTES * self.small_blocks


def held() -> HeapUsage:
    """Measures this process; takes tens of ms. Raises OSError or AttributeError without glibc
    2.33."""
    libc = ctypes.CDLL("libc.so.6")
    for _ in range(3):  # finalizers create garbage themselves
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
    """Adds GET /memory."""

    async def memory(request: web.Request) -> web.Response:
        return web.json_response(asdict(held()))

    app.router.add_get("/memory", memory)
