"""Child processes: all are started, watched and ended here, and none outlives this process.

Each is a process group of its own (setsid(2)): Ctrl-C reaches this process only, which ends it, and
whoever is left of its group when it ends is killed. It ends after its parent, however that ends: by
itself, when its input or a socket closes, and on Linux the kernel kills it as well, should it hang.

Uses nothing but the standard library: Ray's environment, which starts workers, has no more.
"""

import asyncio
import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import IO, Any

SOCKETS = "INHERITED_SOCKETS"
"""Variable of a child's environment with the numbers of the sockets that it inherits."""
LINE_BYTES = 1 << 16
"""Maximum length of a line that a child writes to its standard error; a longer one is left out."""
POLL_S = 0.05
"""Interval in s at which it is looked whether a child has ended, where the kernel does not say."""
PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)  # before a fork: loading a library after it may wait for a lock for ever


class ChildFailed(OSError):
    """Raised when a child does not become ready; the message says why."""


class Child(subprocess.Popen[bytes]):
    """A process that we have started."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdin: int = subprocess.DEVNULL,
        env: Mapping[str, str] | None = None,
        sockets: Sequence[socket.socket] = (),
        ends_in_order: bool = False,
        **options: Any,
    ) -> None:
        """`stdin`, `env` and `options` are those of `subprocess.Popen`. The child gets `sockets` by
        `inherited_sockets`. One that `ends_in_order` after this process is not killed by the
        kernel: it calls `end_with_input`. Raises OSError."""
        files = [each.fileno() for each in sockets]
        if files:
            env = {**(os.environ if env is None else env), SOCKETS: " ".join(map(str, files))}
        options |= {"stdin": stdin, "env": env, "pass_fds": files, "bufsize": 0}
        ending = None if ends_in_order else ending_with_us()
        self._oom_kills = oom_kills()
        self._transports: list[asyncio.BaseTransport] = []
        start = partial(
            super().__init__, command, start_new_session=True, preexec_fn=ending, **options
        )
        if threading.current_thread() is threading.main_thread():
            start()
        else:  # the kernel kills it with the thread that has started it
            _starter().submit(start).result()

    def poll(self) -> int | None:
        """Returns its exit status, or the negative number of the signal that has ended it; None: it
        runs."""
        if self.returncode is None and super().poll() is not None:
            self.signal_group(signal.SIGKILL)
        return self.returncode

    @property
    def how_ended(self) -> str:
        """How it has ended, as "was killed by signal 9: out of memory"."""
        status = self.poll()
        if status is None or status >= 0:
            return f"ended with status {status}"
        if status == -signal.SIGKILL:
            known = oom_kills() > self._oom_kills
            why = ": out of memory" if known else " (out of memory, or by hand)"
            return f"was killed by signal 9{why}"
        return f"was killed by signal {-status} ({signal_name(-status)})"

    async def until_ready(self, ready: Awaitable[object], limit_s: float | None = None) -> None:
        """Waits for `ready`. Raises ChildFailed if the child ends before, or `limit_s` is over."""
        waits = [asyncio.ensure_future(each) for each in (ready, self.until_ended())]
        try:
            done, _ = await asyncio.wait(waits, timeout=limit_s, return_when="FIRST_COMPLETED")
            if not done:
                raise ChildFailed(f"was not ready within {limit_s:g} s")
            if waits[0] not in done:
                raise ChildFailed(f"{self.how_ended} before it was ready")
            await waits[0]
        finally:
            for each in waits:
                each.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    # --- its pipes, on an event loop ---

    async def open_input(self, protocol: asyncio.BaseProtocol) -> asyncio.WriteTransport:
        """Returns a transport to its standard input."""
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_write_pipe(lambda: protocol, self.stdin)
        self._transports.append(transport)
        return transport

    async def writer(self) -> asyncio.StreamWriter:
        """Returns a writer to its standard input."""
        protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader())
        transport, loop = await self.open_input(protocol), asyncio.get_running_loop()
        self._writer = asyncio.StreamWriter(transport, protocol, None, loop)  # its end closes it
        return self._writer

    async def reader(
        self, output: IO[bytes] | None, limit: int = LINE_BYTES
    ) -> asyncio.StreamReader:
        """Returns a reader of `stdout` or `stderr`, with lines of up to `limit` bytes."""
        reader = asyncio.StreamReader(limit)
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, output)
        self._transports.append(transport)
        return reader

    async def error_lines(self) -> AsyncIterator[bytes]:
        """Yields the lines of its standard error. However many there are, other tasks run after
        each."""
        reader = await self.reader(self.stderr)
        while True:
            with suppress(ValueError):  # over LINE_BYTES
                if not (line := await reader.readline()):
                    return
                yield line
            await asyncio.sleep(0)

    # --- its end ---

    async def until_ended(self) -> None:
        """Waits until it has ended, whoever holds its output open."""
        if self.poll() is None and hasattr(os, "pidfd_open"):
            with suppress(OSError):  # of a kernel without it
                await _until_readable(os.pidfd_open(self.pid))
        while self.poll() is None:
            await asyncio.sleep(POLL_S)

    async def ends_within(self, limit_s: float) -> bool:
        """Waits until it has ended, `limit_s` at most; returns whether it has."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self.until_ended()
        return self.poll() is not None

    async def end(self, within_s: float = 0.0) -> None:
        """Waits until it has ended, and kills it after `within_s`; closes its pipes."""
        try:
            await self.ends_within(within_s)
        finally:
            self.kill()
            for transport in self._transports:
                transport.close()
        await self.until_ended()

    def end_now(self) -> None:
        """Kills it and waits for its end, which blocks; closes its pipes."""
        self.kill()
        self.wait()
        for pipe in filter(None, (self.stdin, self.stdout)):
            pipe.close()

    def kill(self) -> None:
        """Kills its group."""
        if self.poll() is None:
            self.signal_group(signal.SIGKILL)

    def signal_group(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


async def until_silent(beats: Callable[[], int], interval_s: float, most: int) -> None:
    """Returns when a child whose `beats`, a count, have begun has missed `most` in a row. Intervals
    are counted rather than timed, so that a stall of this process does not count."""
    missed = seen = 0
    while missed < most:
        await asyncio.sleep(interval_s)
        missed = missed + 1 if 0 < beats() == seen else 0
        seen = beats()


async def _until_readable(file: int) -> None:
    """Closes it, too."""
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(file, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(file)
        os.close(file)


@cache
def _starter() -> ThreadPoolExecutor:
    """A thread that lasts as long as this process."""
    return ThreadPoolExecutor(1, "child starter")


# --- in a child ---


def inherited_sockets() -> list[socket.socket]:
    """Returns the sockets that a `Child` was given, once."""
    files = os.environ.pop(SOCKETS, "").split()
    return [socket.socket(fileno=int(file)) for file in files]


def end_with_input(within_s: float = 0.0) -> None:
    """From now on this process ends `within_s` after its standard input, which closes when its
    parent ends, even if its event loop is busy or hangs."""

    def watch() -> None:
        ended = select.poll()
        ended.register(sys.stdin.fileno(), 0)  # its end only, which is always reported
        ended.poll()
        time.sleep(within_s)
        os._exit(0)

    threading.Thread(target=watch, name="end with input", daemon=True).start()


def ending_with_us(number: signal.Signals = signal.SIGKILL) -> Callable[[], None] | None:
    """Returns a `preexec_fn` for a child that gets this signal when the thread that starts it ends,
    and so with this process; None where the kernel cannot do it (it is Linux' prctl(2))."""
    return partial(_end_with, os.getpid(), number) if sys.platform == "linux" else None


def _end_with(parent: int, number: signal.Signals) -> None:
    _libc.prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it has ended meanwhile
        os._exit(1)


# --- how processes end ---


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "of no name"


def oom_kills() -> int:
    """Returns how many processes the system has killed for lack of memory since it started, its own
    or a control group's; 0 where it does not count them. In a container they may be others'."""
    try:
        rows = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(row.split()[1]) for row in rows if row.startswith("oom_kill ")), 0)
