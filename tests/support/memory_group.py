"""A control group whose processes get little memory: the kernel kills one that takes more."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path("/sys/fs/cgroup")


@contextmanager
def memory_group() -> Iterator[Path]:
    """A group beneath this process's own, without a limit yet; skips the test where none can be
    made. See cgroups(7)."""
    place = _own() / f"offhook-test-{os.getpid()}"
    try:
        place.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")
    try:
        if _limit(place) is None:
            pytest.skip("no control group of memory can be made")
        yield place
    finally:
        place.rmdir()


def move(pid: int, place: Path, limit_bytes: int) -> None:
    """Moves a process into a group. What it has is not counted there, what it takes from now on
    is."""
    limit = _limit(place)
    assert limit is not None
    (place / "cgroup.procs").write_text(str(pid))
    limit.write_text(str(limit_bytes))


def _limit(place: Path) -> Path | None:
    files = [place / "memory.max", place / "memory.limit_in_bytes"]
    return next((file for file in files if file.exists()), None)


def _own() -> Path:
    rows = [row.split(":", 2) for row in Path("/proc/self/cgroup").read_text().splitlines()]
    for _, controllers, path in rows:
        if "memory" in controllers.split(","):
            return ROOT / "memory" / path.lstrip("/")
    return ROOT / rows[-1][2].lstrip("/")
