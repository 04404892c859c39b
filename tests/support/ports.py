"""Port numbers for servers that must be told theirs before they start."""

import contextlib
import fcntl
import os
import socket
import tempfile
from pathlib import Path

BELOW_EPHEMERAL = range(20_000, 30_000)
"""Ports that no system gives to a socket that asks for none, and no test for RTP."""
SHARE = 500
"""Ports of one process of tests."""


class _Share:
    """The ports of this process, by a lock that it holds as long as it lives."""

    def __init__(self) -> None:
        for self._first in range(BELOW_EPHEMERAL.start, BELOW_EPHEMERAL.stop, SHARE):
            path = Path(tempfile.gettempdir(), f"offhook-tests-{os.getuid()}-{self._first}.lock")
            self._file = path.open("w")
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            self._file.close()
        else:
            raise RuntimeError("so many processes of tests are running that no ports are left")
        self._next = 0

    def take(self, count: int) -> range:
        """Returns the next `count` ports from an even one on; after the last, the first again."""
        if self._next + count > SHARE:
            self._next = 0
        first = self._first + self._next
        self._next += count + count % 2
        return range(first, first + count)


_shares: list[_Share] = []


def free_port(count: int = 2) -> int:
    """Returns the first of `count` ports that nobody listens on now, over UDP or TCP; it is even.
    Several processes of tests never get the same, and one process not soon again."""
    if not _shares:
        _shares.append(_Share())
    while True:
        ports = _shares[0].take(count)
        with contextlib.ExitStack() as held:
            try:
                for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                    for port in ports:
                        held.enter_context(socket.socket(socket.AF_INET, kind)).bind(("", port))
            except OSError:
                continue
            return ports[0]
