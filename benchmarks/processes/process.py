"""Child processes of a benchmark: starting, querying, stopping, and measuring their cost.

A child is a module of this package with a `main` that ends when its standard input closes, so no
child outlives its benchmark. Its first line on standard output is JSON. Servers do not look at
their input: they are killed with the benchmark (`own_server.started`).
"""

import argparse
import asyncio
import json
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from aiohttp import ClientSession, web

from offhook.web.http import loop_io
from offhook.web.http.listening_io import Runner

T = TypeVar("T")

START_S = 90
"""Time limit in s for a child's first line."""
END_S = 15
"""Time limit in s for a child to exit by itself; then it is killed."""
LAG_S = 0.020
"""Interval in s at which the lag of a loop is measured."""
LAGS_KEPT = 10_000


class ChildError(RuntimeError):
    """Raised when a child does not start or respond; the message ends with its log."""


def run(main: Coroutine[Any, Any, T]) -> T:
    """Runs a benchmark on the event loop of servers. SIGTERM and SIGINT cancel it, so that what it
    has started ends in order; then SystemExit is raised, with the status that shells have for
    it."""
    signals: list[signal.Signals] = []

    async def until_signal() -> T:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None

        def end(number: signal.Signals) -> None:
            signals.append(number)
            task.cancel()

        if threading.current_thread() is threading.main_thread():  # no other one gets signals
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, end, number)
        return await main

    try:
        found: T = loop_io.run(until_signal())
    except asyncio.CancelledError:
        raise SystemExit(128 + signals[0]) from None
    return found


async def input_lines() -> asyncio.StreamReader:
    """Returns standard input, a pipe, as a non-blocking stream."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


class Child:
    """A running child process."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self.process = process
        self.hello: dict[str, Any] = {}
        """Its first line."""
        self.errors = ""
        """What it has written to standard error, once it has exited."""
        self._log = log

    @property
    def pid(self) -> int:
        return self.process.pid

    async def line(self, seconds: float) -> dict[str, Any]:
        """Returns the next line of the child's output, parsed. Raises ChildError."""
        assert self.process.stdout is not None
        try:
            text = await asyncio.wait_for(self.process.stdout.readline(), seconds)
        except TimeoutError:
            text = b""
        if not text:
            raise ChildError(f"no word from a child:\n{self._log.read_text()[-3000:]}")
        said: dict[str, Any] = json.loads(text)
        return said

    def send(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{text}\n".encode())

    def finish(self) -> None:
        """Asks it to exit."""
        assert self.process.stdin is not None
        self.process.stdin.close()


@asynccontextmanager
async def child(
    module: str, *arguments: str, environment: Mapping[str, str] = MappingProxyType({})
) -> AsyncIterator[Child]:
    """Runs `python -m MODULE ARGUMENTS` as `program` does."""
    command = (sys.executable, "-m", module, *arguments)
    async with program(*command, environment=environment) as running:
        yield running


@asynccontextmanager
async def program(
    *command: str, environment: Mapping[str, str] = MappingProxyType({})
) -> AsyncIterator[Child]:
    """Runs a command from its first line on, with `environment` besides ours; stopped on exit of
    the block."""
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "log"
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=output,
                limit=1 << 24,
                env={**os.environ, **environment},
            )
        running = Child(process, log)
        try:
            running.hello = await running.line(START_S)
            yield running
        finally:
            if process.returncode is None:
                running.finish()
            try:
                await asyncio.wait_for(process.wait(), END_S)
            except TimeoutError:
                process.kill()
                await process.wait()
            running.errors = log.read_text(errors="replace")


@asynccontextmanager
async def children(count: int, module: str, *arguments: str) -> AsyncIterator[list[Child]]:
    """Runs `count` processes as `child` does. As many start at a time as there are cores, and all
    end together. Raises ChildError."""
    starting = asyncio.Semaphore(os.cpu_count() or 1)
    async with AsyncExitStack() as stack:

        async def start() -> Child:
            async with starting:
                return await stack.enter_async_context(child(module, *arguments))

        running = await all_of(start() for _ in range(count))
        try:
            yield running
        finally:
            for one in running:
                one.finish()


async def all_of(starts: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Runs coroutines at once and returns their results. Raises the error of the first that fails,
    and cancels the others."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(start) for start in starts]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]


@dataclass(frozen=True)
class Footprint:
    """Resources of a process and its descendants (Linux)."""

    rss_mb: float
    threads: int
    files: int
    processes: int

    @classmethod
    def of(cls, pid: int) -> "Footprint":
        """Raises OSError if the process has exited or there is no /proc."""
        own = _one(pid)
        below = []
        for child_pid in _children(pid):
            with suppress(OSError):  # it has exited in the meantime
                below.append(cls.of(child_pid))
        return cls(
            round(own.rss_mb + sum(f.rss_mb for f in below), 1),
            own.threads + sum(f.threads for f in below),
            own.files + sum(f.files for f in below),
            1 + sum(f.processes for f in below),
        )


def _one(pid: int) -> Footprint:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    status = dict(line.split(":", 1) for line in lines)
    rss_mb = int(status.get("VmRSS", "0 kB").split()[0]) / 1024
    files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return Footprint(rss_mb, int(status["Threads"]), files, 1)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            found += map(int, (task / "children").read_text().split())
    return found


def cpu_s(pid: int) -> float:
    """Returns the CPU time in s of a process and its descendants so far (Linux). Raises OSError if
    it has exited."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    spent = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # user and system time
    for child_pid in _children(pid):
        with suppress(OSError):  # it has exited in the meantime
            spent += cpu_s(child_pid)
    return spent


class LoopLag:
    """Measures the lag of this process's event loop."""

    def __init__(self) -> None:
        self._lags: deque[float] = deque(maxlen=LAGS_KEPT)

    async def watch(self) -> None:
        """Runs until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LAG_S
            await asyncio.sleep(LAG_S)
            self._lags.append(loop.time() - due)

    def read_ms(self) -> dict[str, float]:
        """Returns percentiles since the last call."""
        lags = np.array(self._lags or (0.0,)) * 1000
        self._lags.clear()
        return {f"p{q}": round(float(np.percentile(lags, q)), 2) for q in (50, 95, 99, 100)}


class OwnCost:
    """What this process of callers takes itself: near a core it is the limit, not the server."""

    def __init__(self) -> None:
        self._lag = LoopLag()
        self.begin()

    async def watch(self) -> None:
        """Measures the lag of the loop until cancelled."""
        await self._lag.watch()

    def begin(self) -> None:
        self._lag.read_ms()
        self._cpu, self._wall = time.process_time(), time.monotonic()

    def read(self) -> dict[str, Any]:
        """Returns the share of a core since `begin`, and the loop's lag since the last time."""
        cpu, wall = time.process_time() - self._cpu, time.monotonic() - self._wall
        return {"cpu_percent": round(100 * cpu / wall, 1), "lag_ms": self._lag.read_ms()}


def thread_cpu_s() -> dict[str, float]:
    """Returns the CPU time of each Python thread so far, by name, pools combined (not on macOS)."""
    found: dict[str, float] = {}
    for thread in threading.enumerate():
        if thread.ident is not None:
            name = re.sub(r"([-_]\d+)+$", "", thread.name)
            seconds = time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
            found[name] = found.get(name, 0.0) + seconds
    return found


def stats_route(app: web.Application, lag: LoopLag) -> None:
    """Adds GET /stats: the cost of the process so far, the same in every server measured."""

    async def stats(request: web.Request) -> web.Response:
        return web.json_response(
            {
                "cpu_s": time.process_time(),
                "thread_cpu_s": thread_cpu_s(),
                "wall_s": time.perf_counter(),
                "threads": threading.active_count(),
                "tasks": len(asyncio.all_tasks()),
                "lag_ms": lag.read_ms(),
            }
        )

    app.router.add_get("/stats", stats)


async def stay(app: web.Application) -> None:
    """Serves on a free port of 127.0.0.1, prints it, and runs until standard input closes."""
    runner = Runner(app)
    await runner.setup()
    await runner.listen("127.0.0.1", 0)
    say({"port": runner.addresses[0][1]})
    try:
        await (await input_lines()).read()
    finally:
        await runner.cleanup()


def core_argument(parser: argparse.ArgumentParser) -> None:
    """Adds `--cpu`, for `keep_to`."""
    parser.add_argument("--cpu", type=int, help="to run on, of those there are")


def keep_to(cpu: int | None) -> None:
    """Runs this process on one core, if it is named."""
    if cpu is not None:
        os.sched_setaffinity(0, {cpu})


def say(data: dict[str, Any]) -> None:
    """Prints one line of JSON for the parent."""
    print(json.dumps(data), flush=True)


async def get_json(http: ClientSession, url: str) -> dict[str, Any]:
    async with http.get(url) as response:
        answer: dict[str, Any] = await response.json()
        return answer
