"""The memory of a process that has loaded all it needs."""

import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path

MADV_DONTNEED = 4


def give_back_freed() -> None:
    """Return to the system what loading or calls took and freed again: 12 MB of an edge at its
    start. glibc keeps it otherwise; other C libraries are left alone."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


def let_go_of_code() -> None:
    """Unmap the libraries' code and constants: 45 MB of an edge, most of which only its start
    used. What is used again is mapped again within microseconds, from the system's cache of files;
    the rest is the system's to drop."""
    if sys.platform == "linux":
        try:
            mappings = Path("/proc/self/smaps").read_text()
        except OSError:  # a kernel without it
            return
        advise = ctypes.CDLL(None).madvise
        advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        for start, end in _as_in_files(mappings):
            advise(start, end - start, MADV_DONTNEED)


def _as_in_files(smaps: str) -> Iterator[tuple[int, int]]:
    """Where code or constants begin and end that are exactly as in their file: DONTNEED would also
    take back what was changed of them, by relocation or a debugger."""
    start = end = 0
    untouched = False
    for line in smaps.splitlines():
        name, *fields = line.split()
        if not name.endswith(":"):  # START-END PERMISSIONS OFFSET DEVICE INODE [PATH]
            start, end = (int(address, 16) for address in name.split("-"))
            untouched = fields[0] in ("r-xp", "r--p") and fields[3] != "0"
        elif name in ("Anonymous:", "Swap:"):
            untouched &= fields[0] == "0"
        elif name == "VmFlags:" and untouched:  # the last line
            yield start, end
