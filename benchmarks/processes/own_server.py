"""Starts a server of our own for a benchmark, on loopback, and stops it afterwards."""

import asyncio
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path

import aiohttp

from benchmarks.processes.process import END_S
from offhook.processes.child_io import ending_with_us

HOST = "127.0.0.1"
POLL_S = 0.1
READY_S = 5.0
LOGGED_CHARS = 2000
"""Characters from the end of its log quoted if it does not start."""


def free_port() -> int:
    """Returns a port of 127.0.0.1 free for TCP and UDP."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Returns different ports of 127.0.0.1, each free for TCP and UDP."""
    ports: list[int] = []
    with ExitStack() as bound:
        while len(ports) < count:
            tcp = bound.enter_context(socket.socket())
            udp = bound.enter_context(socket.socket(type=socket.SOCK_DGRAM))
            tcp.bind(("127.0.0.1", 0))
            port: int = tcp.getsockname()[1]
            with suppress(OSError):  # another program's UDP socket has it
                udp.bind(("127.0.0.1", port))
                ports.append(port)
    return ports


async def is_ready(url: str) -> bool:
    """Returns whether a server or worker answers GET /readyz with 200."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(READY_S)) as http:
        try:
            async with http.get(f"{url}/readyz") as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False


@asynccontextmanager
async def started(
    arguments: Sequence[str],
    is_there: Callable[[], Awaitable[bool]],
    within_s: float,
    absent: str,
    environment: Mapping[str, str] | None = None,
    module: str = "offhook",
    within: Sequence[str] = (),
    log: Path | None = None,
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Runs `python -m MODULE ARGUMENTS` and yields its process from the time `is_there` returns
    True; `environment` replaces our own, `within` is a command that executes it, `log` a file for
    what it writes. It ends with the block, and killed with this process. Raises RuntimeError,
    `absent` and the end of its log, if it exits or does not start in time."""
    with tempfile.TemporaryDirectory() as folder:
        log = log or Path(folder) / "log"
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *(*within, sys.executable, "-m", module, *arguments),
                stdout=output,
                stderr=output,
                env=environment,
                preexec_fn=ending_with_us(),
            )
        try:
            until = time.monotonic() + within_s
            while not await is_there():
                if process.returncode is not None or time.monotonic() >= until:
                    words = log.read_text()[-LOGGED_CHARS:]
                    raise RuntimeError(f"{absent}:\n{words}")
                await asyncio.sleep(POLL_S)
            yield process
        finally:
            if process.returncode is None:
                process.terminate()
            try:
                await asyncio.wait_for(process.wait(), END_S)
            except TimeoutError:
                process.kill()
                await process.wait()
