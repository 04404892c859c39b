"""nanio, a server of S3's protocol that keeps objects as files, as a process that can be killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.support.ports import free_port
from tests.support.waiting import wait_until

KEY, SECRET = "the-key", "the-secret"
IS_THERE = find_spec("nanio") is not None and find_spec("botocore") is not None


class S3Server:
    """One server with the bucket `calls`, whose files lie in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        (folder / "calls").mkdir(parents=True)
        self.log = folder.with_suffix(".log")
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def settings(self) -> dict[str, Any]:
        """Returns the section [s3] of a configuration."""
        return {
            "bucket": "calls",
            "endpoint": f"http://127.0.0.1:{self.port}",
            "prefix": "kept/",
            "access_key": KEY,
            "secret_key": SECRET,
        }

    def start(self) -> None:
        where = ("--data-dir", str(self.folder), "--host", "127.0.0.1", "--port", str(self.port))
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                (sys.executable, "-m", "nanio", "serve", *where),
                env={**os.environ, "NANIO_ACCESS_KEY": KEY, "NANIO_SECRET_KEY": SECRET},
                stdout=log,
                stderr=log,
            )
        wait_until(self._answers)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log.read_text()
        return self.log.read_text().count("Uvicorn running") > self._starts

    _starts = 0

    def kill(self) -> None:
        """Kills it, as a machine that loses its power."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None
            self._starts = self.log.read_text().count("Uvicorn running")

    def names(self) -> list[str]:
        """Returns the names of the objects."""
        kept = self.folder / "calls" / "kept"
        return sorted(path.name for path in kept.iterdir()) if kept.exists() else []

    def everything(self) -> bytes:
        """Returns all bytes of all of its files, also of what was uploaded in part."""
        files = sorted(path for path in self.folder.rglob("*") if path.is_file())
        return b"".join(path.read_bytes() for path in files)


@contextmanager
def serving(folder: Path) -> Iterator[S3Server]:
    server = S3Server(folder)
    try:
        yield server
    finally:
        server.kill()
