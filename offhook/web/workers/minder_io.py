"""Minds one worker that runs as a child process, for an engine that places the parent.

The parent's environment needs no more of offhook's packages than aiohttp: the worker is started
from an environment of its own.
"""

import asyncio
import os
import socket
import subprocess
from collections import deque
from collections.abc import Sequence
from time import monotonic
from typing import Any

import aiohttp

from offhook.media.memory_io import oom_kills
from offhook.media.parent_io import ending_with_us, how_ended

POLL_S = 0.1
"""Interval at which the process is looked at; one that has ended is started again after it."""
CHECK_S = 3.0
"""Time limit in s for an answer of GET /readyz; then a worker that was ready counts as failed, and
Ray replaces it."""
MAX_CRASHES = 4
"""Crashes within CRASH_WINDOW_S after which the worker is given up, and Ray replaces it."""
CRASH_WINDOW_S = 300.0
"""Period in s in which MAX_CRASHES crashes end the attempts to start the worker again."""


class WorkerFailed(Exception):
    """Raised when the worker ends too often, or does not answer; the message says why."""


class Minder:
    """Runs a worker on a free port of an address; it is started again whenever it ends.

    It is killed with the thread that calls `start`, and so with this process, however that ends:
    otherwise it would keep its GPU. `start` and the rest belong to one event loop.
    """

    def __init__(self, command: Sequence[str], host: str) -> None:
        """`command` is the worker's command line without `--listen`."""
        self._host = host
        self._port = free_port(host)
        self._command = [*command, "--listen", f"{self._bracketed}:{self._port}"]
        self._process: subprocess.Popen[bytes] | None = None
        self._oom_kills = 0
        """`oom_kills` when it started."""
        self._minding: asyncio.Task[None] | None = None
        self._was_ready = False
        """Whether the current process has been ready: loading may keep it from answering."""
        self._crashes: deque[float] = deque(maxlen=MAX_CRASHES)
        self._failure = ""

    @property
    def _bracketed(self) -> str:
        return f"[{self._host}]" if ":" in self._host else self._host

    @property
    def url(self) -> str:
        return f"http://{self._bracketed}:{self._port}"

    @property
    def pid(self) -> int:
        """Returns the process id of the worker; 0 before `start`."""
        return self._process.pid if self._process is not None else 0

    async def start(self) -> None:
        """Returns once the worker is ready. Raises WorkerFailed if it ends before."""
        process = self._process = self._spawn()
        try:
            while not (await self._ask())["ready"]:
                if process.poll() is not None:
                    how = how_ended(process.returncode, self._oom_kills)
                    raise WorkerFailed(f"the worker {how} before it was ready")
                await asyncio.sleep(POLL_S)
        except BaseException:
            process.kill()
            process.wait()
            raise
        self._minding = asyncio.create_task(self._mind(), name="mind worker")

    async def check(self) -> dict[str, Any]:
        """Returns what the worker says of itself: `ready`, `streams` and others. One that is
        loading or draining is healthy. Raises WorkerFailed."""
        answer = await self._ask()
        if self._failure:
            raise WorkerFailed(self._failure)
        assert self._process is not None
        if self._was_ready and self._process.poll() is None and "error" in answer:
            raise WorkerFailed(f"the worker at {self.url} does not answer: {answer['error']}")
        return answer

    async def stop(self, limit_s: float) -> None:
        """Lets the worker drain; kills it after `limit_s`, or at once if it does not answer."""
        if self._minding is not None:
            self._minding.cancel()
            await asyncio.gather(self._minding, return_exceptions=True)
        if self._process is None:
            return
        until = monotonic() + (0 if "error" in await self._ask() else limit_s)
        self._process.terminate()
        while self._process.poll() is None:
            if monotonic() > until:
                self._process.kill()
            await asyncio.sleep(POLL_S)

    def _spawn(self) -> "subprocess.Popen[bytes]":
        self._was_ready = False
        self._oom_kills = oom_kills()
        environment = {name: os.environ[name] for name in os.environ if not name.startswith("RAY_")}
        return subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            env=environment,
            preexec_fn=ending_with_us(),
        )

    async def _mind(self) -> None:
        while not self._failure:
            await asyncio.sleep(POLL_S)
            assert self._process is not None
            if (status := self._process.poll()) is None:
                continue
            self._crashes.append(monotonic())
            if len(self._crashes) == MAX_CRASHES and (
                self._crashes[-1] - self._crashes[0] < CRASH_WINDOW_S
            ):
                how = how_ended(status, self._oom_kills)
                self._failure = f"the worker ended {MAX_CRASHES} times; the last {how}"
            else:
                self._process = self._spawn()

    async def _ask(self) -> dict[str, Any]:
        """Returns the body of GET /readyz; without an answer `ready` is false and `error` says
        why."""
        limit = aiohttp.ClientTimeout(total=CHECK_S)
        try:
            async with (
                aiohttp.ClientSession(timeout=limit) as http,
                http.get(f"{self.url}/readyz") as response,
            ):
                answer: dict[str, Any] = await response.json()
        except (aiohttp.ClientError, TimeoutError) as error:
            return {"ready": False, "error": str(error) or type(error).__name__}
        self._was_ready = self._was_ready or bool(answer["ready"])
        return answer


def free_port(host: str) -> int:
    """Returns a TCP port of an address that nobody listens on. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
