"""Limits of a child that reads untrusted files: memory, processor time, and what it may see."""

import os
import resource
from contextlib import suppress
from pathlib import Path

KEPT = ("PATH", "LANG", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "OPENBLAS_NUM_THREADS")
"""Variables of the environment that such a child keeps, beside Python's: none of the secrets."""
NICENESS = 5
"""Of such children: packets of calls go first."""
MOST_KILLABLE = b"1000"
"""Their oom_score_adj: when memory ends, they go before the server."""


def child_environment() -> dict[str, str]:
    """Returns the environment of such a child."""
    return {n: v for n, v in os.environ.items() if n in KEPT or n.startswith(("PYTHON", "LC_"))}


def limit_ourselves(more_bytes: int) -> None:
    """Has this process take no more than so much memory beyond what it has, write no file, and
    yield to the server."""
    with suppress(OSError):  # not Linux
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + more_bytes,) * 2)
        Path("/proc/self/oom_score_adj").write_bytes(MOST_KILLABLE)
    for limit in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):
        resource.setrlimit(limit, (0, 0))
    os.nice(NICENESS)


def allow_processor_time(seconds: float) -> None:
    """Has this process end by SIGXCPU when it has computed for so long in all."""
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), resource.RLIM_INFINITY))
