"""The processes that decode files, of a server or of this process."""

import contextlib
import os
from pathlib import Path

from offhook.media.files.decoding_io import COMMAND


def hosts(parent: int) -> list[int]:
    """Returns the ids of the processes that start decoders for `parent` (one, or none yet)."""
    return [pid for pid in children(parent) if _runs(pid, COMMAND[-1])]


def decoders(parent: int = 0) -> list[int]:
    """Returns the ids of the processes that decode a file for `parent`; 0: this process."""
    return [pid for host in hosts(parent or os.getpid()) for pid in children(host)]


def children(parent: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{parent}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended
            found += [int(pid) for pid in task.read_text().split()]
    return found


def _runs(pid: int, word: str) -> bool:
    try:
        return word in Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return False
