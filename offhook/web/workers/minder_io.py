"""Minds one worker that runs as a child process, for an engine that places the parent.

The parent's environment needs no more of offhook's packages than aiohttp: the worker is started
from an environment of its own.
"""

import asyncio
import math
import os
import socket
from collections.abc import Sequence
from time import monotonic
from typing import Any

import aiohttp

from offhook.processes.child_io import Child, ChildFailed
from offhook.processes.restarts import Restarts

POLL_S = 0.1
"""Interval in s at which a worker that is not ready is asked again."""
RESTART_S = 0.1
"""Pause in s before a worker that has ended is started again; it doubles with each crash of the
last CRASH_WINDOW_S."""
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

    It is killed with this process, however that ends: otherwise it would keep its GPU. `start` and
    the rest belong to one event loop.
    """

    def __init__(self, command: Sequence[str], host: str) -> None:
        """`command` is the worker's command line without `--listen`."""
        self._host = host
        self._port = free_port(host)
        self._command = [*command, "--listen", f"{self._bracketed}:{self._port}"]
        self._child: Child | None = None
        self._minding: asyncio.Task[None] | None = None
        self._was_ready = False
        """Whether the current process has been ready: loading may keep it from answering."""
        self._restarts = Restarts(RESTART_S, CRASH_WINDOW_S, MAX_CRASHES)
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
        return self._child.pid if self._child is not None else 0

    async def start(self) -> None:
        """Returns once the worker is ready. Raises WorkerFailed if it ends before."""
        child = self._child = self._start_child()
        try:
            await child.until_ready(self._until_ready())
        except ChildFailed as failed:
            raise WorkerFailed(f"the worker {failed}") from failed
        except BaseException:
            child.end_now()
            raise
        self._minding = asyncio.create_task(self._mind(child), name="mind worker")

    async def _until_ready(self) -> None:
        while not (await self._ask())["ready"]:
            await asyncio.sleep(POLL_S)

    async def check(self) -> dict[str, Any]:
        """Returns what the worker says of itself: `ready`, `streams` and others. One that is
        loading or draining is healthy. Raises WorkerFailed."""
        answer = await self._ask()
        if self._failure:
            raise WorkerFailed(self._failure)
        assert self._child is not None
        if self._was_ready and self._child.poll() is None and "error" in answer:
            raise WorkerFailed(f"the worker at {self.url} does not answer: {answer['error']}")
        return answer

    async def stop(self, limit_s: float) -> None:
        """Lets the worker drain; kills it after `limit_s`, or at once if it does not answer."""
        if self._minding is not None:
            self._minding.cancel()
            await asyncio.gather(self._minding, return_exceptions=True)
        if self._child is not None:
            answers = "error" not in await self._ask()
            self._child.terminate()
            await self._child.end(limit_s if answers else 0)

    def _start_child(self) -> Child:
        self._was_ready = False
        environment = {name: os.environ[name] for name in os.environ if not name.startswith("RAY_")}
        return Child(self._command, env=environment)

    async def _mind(self, child: Child) -> None:
        while True:
            await child.until_ended()
            if (pause := self._restarts.next_s(monotonic())) == math.inf:
                how = child.how_ended
                self._failure = f"the worker ended {MAX_CRASHES} times; the last {how}"
                return
            await asyncio.sleep(pause)
            child = self._child = self._start_child()

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
