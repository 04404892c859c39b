"""A file that belongs to the process that writes it, and to anybody once that process is gone."""

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX, SUFFIX = "calls-", ".jsonl"


class SpoolFile:
    """An open spool, locked: the lock ends with the process, however it ends."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    @classmethod
    def create(cls, folder: Path) -> "SpoolFile":
        """Creates a spool that only our user can read. Raises OSError."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        while True:
            descriptor, name = tempfile.mkstemp(SUFFIX, PREFIX, folder)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.path.exists(name):  # else another process has taken it for one that was left
                return cls(Path(name), descriptor)
            os.close(descriptor)

    @classmethod
    def left_in(cls, folder: Path) -> Iterator["SpoolFile"]:
        """Yields the spools of processes that are gone."""
        for path in sorted(folder.glob(f"{PREFIX}*{SUFFIX}")):
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_APPEND)
            except FileNotFoundError:
                continue  # another process was faster
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # its process runs
                os.close(descriptor)
                continue
            spool = cls(path, descriptor)
            try:
                yield spool
            finally:
                spool.close()

    def append(self, data: bytes) -> None:
        """Appends all of it or nothing. Raises OSError."""
        before = os.fstat(self._descriptor).st_size
        try:
            written = os.write(self._descriptor, data)
            while written < len(data):
                written += os.write(self._descriptor, data[written:])
        except OSError:
            os.ftruncate(self._descriptor, before)
            os.lseek(self._descriptor, before, os.SEEK_SET)
            raise

    def read(self) -> bytes:
        return self.path.read_bytes()

    def delete(self) -> None:
        self.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Closes the file and gives up its lock. Idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(descriptor)
