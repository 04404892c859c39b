"""The memory of a process that has loaded all it needs."""

import ctypes
import sys


def give_back_freed() -> None:
    """Return to the system what loading took and freed again: 12 MB of an edge. glibc keeps it
    otherwise; other C libraries are left alone."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
