"""Children that end with their parent, however that ends."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from functools import partial

PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)  # before a fork: loading a library after it may wait for a lock for ever


def ending_with_us(number: signal.Signals = signal.SIGKILL) -> Callable[[], None] | None:
    """Returns a `preexec_fn` for a child that gets this signal when the thread that starts it ends,
    and so with this process; None where the kernel cannot do it (it is Linux' prctl(2))."""
    return partial(_end_with, os.getpid(), number) if sys.platform == "linux" else None


def _end_with(parent: int, number: signal.Signals) -> None:
    _libc.prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it has ended meanwhile
        os._exit(1)
