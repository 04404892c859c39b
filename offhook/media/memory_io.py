"""Reduces the memory of a process that has finished loading."""

import ctypes
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

MADV_DONTNEED = 4
PAGE_BYTES = resource.getpagesize()


def trim_heap() -> None:
    """Returns freed heap memory to the system, 12 MB for an edge at start; glibc would keep it.
    Does nothing with other C libraries."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


def give_back_memory() -> None:
    """Returns to the system what a process no longer uses: freed heap memory, and the code of the
    libraries, most of which is used only at start and by requests."""
    trim_heap()
    release_code_pages()


def resident_bytes() -> int:
    """Returns the resident memory of this process; 0 where the system does not report it."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES
    except OSError:
        return 0


def release_code_pages() -> None:
    """Unmaps the libraries' code and constants, 45 MB for an edge, mostly used only at start. What
    is used again is mapped from the page cache within microseconds; the system may drop the
    rest."""
    if sys.platform == "linux":
        try:
            mappings = Path("/proc/self/smaps").read_text()
        except OSError:  # the kernel does not support it
            return
        advise = ctypes.CDLL(None).madvise
        advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        for start, end in _as_in_files(mappings):
            advise(start, end - start, MADV_DONTNEED)


def _as_in_files(smaps: str) -> Iterator[tuple[int, int]]:
    """Yields address ranges of code and constants that are identical to their file: DONTNEED would
    also undo changes by relocation or a debugger."""
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
