"""Children that end with their parent, however that ends; and how they have ended themselves."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from functools import partial

from offhook.media.memory_io import oom_kills

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


def how_ended(status: int | None, oom_kills_before: int) -> str:
    """Returns how a child has ended, as "was killed by signal 9: out of memory". `status` is its
    exit status or the negative number of a signal, `oom_kills_before` what `oom_kills` was when it
    started."""
    if status is None or status >= 0:
        return f"ended with status {status}"
    if status == -signal.SIGKILL:
        known = oom_kills() > oom_kills_before
        why = ": out of memory" if known else " (out of memory, or by hand)"
        return f"was killed by signal 9{why}"
    return f"was killed by signal {-status} ({signal_name(-status)})"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "of no name"
