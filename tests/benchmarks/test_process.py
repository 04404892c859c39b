"""A benchmark's servers end with it, however it ends."""

import os
import signal
import subprocess
import sys
import time

import pytest

from benchmarks.processes.process import Child, ChildError, children
from tests.support.processes import gone

BENCHMARK = """
import asyncio
import sys
from benchmarks.processes.own_server import free_port, started
from benchmarks.processes.process import run

async def main():
    port = free_port()

    async def listens():
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return False
        writer.close()
        return True

    arguments = (str(port), "--bind", "127.0.0.1")
    async with started(arguments, listens, 60, "no server", module="http.server") as server:
        print(server.pid, file=sys.stderr, flush=True)
        try:
            await asyncio.sleep(3600)
        finally:
            print("ends", file=sys.stderr, flush=True)

run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("number", "status", "words"),
    [
        (signal.SIGTERM, 128 + signal.SIGTERM, "ends\n"),
        (signal.SIGINT, 128 + signal.SIGINT, "ends\n"),
        (signal.SIGKILL, -signal.SIGKILL, ""),
    ],
)
def test_servers_end_with_the_benchmark(number: signal.Signals, status: int, words: str) -> None:
    command = (sys.executable, "-c", BENCHMARK)
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as benchmark:
        assert benchmark.stderr is not None
        server = int(benchmark.stderr.readline())
        assert not gone(server)
        os.kill(benchmark.pid, number)
        said = benchmark.stderr.read()
        assert benchmark.wait() == status
    assert said == words
    until = time.monotonic() + 60
    while not gone(server) and time.monotonic() < until:
        time.sleep(0.01)
    assert gone(server)


async def test_children_begin_together_and_end_with_the_block() -> None:
    async with children(3, "benchmarks.servers.model") as running:
        assert len({one.hello["port"] for one in running}) == 3
    assert all(gone(one.pid) for one in running)


async def test_if_one_of_them_does_not_begin_none_is_left() -> None:
    begun: list[Child] = []
    with pytest.raises(ChildError, match="No module named"):
        async with children(2, "benchmarks.none") as running:
            begun += running
    assert not begun
