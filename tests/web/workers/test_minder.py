"""A worker that an engine places is started again, checked, drained, and ends with its parent."""

import asyncio
import os
import signal
import sys
import textwrap
from pathlib import Path

import aiohttp
import pytest

from offhook.web.workers import minder_io
from offhook.web.workers.minder_io import Minder, WorkerFailed, free_port
from tests.support.processes import gone
from tests.support.waiting import HANGS_S, until
from tests.web.workers.workers import ROOT, told

HOST = "127.0.0.1"
WORKER = [sys.executable, "-m", "offhook", "worker", "asr", "--engine", "pocketsphinx"]
MINDS_FOR_EVER = f"""
import asyncio
from offhook.web.workers.minder_io import Minder

async def mind():
    minder = Minder({WORKER}, "{HOST}")
    await minder.start()
    print(minder.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(mind())
"""


@pytest.fixture(autouse=True)
def of_this_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


async def given_up(minder: Minder) -> str:
    """Why; a check while the process is ending may fail, too."""
    async with asyncio.timeout(HANGS_S):
        while True:
            try:
                await minder.check()
            except WorkerFailed as failed:
                if "does not answer" not in str(failed):
                    return str(failed)
            await asyncio.sleep(0.02)


async def ready(minder: Minder) -> None:
    while not (await minder.check())["ready"]:
        await asyncio.sleep(0.1)


async def test_a_killed_worker_comes_back_at_its_address_and_a_hung_one_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    minder = Minder(WORKER, HOST)
    await minder.start()
    first, url = minder.pid, minder.url
    try:
        answer = await minder.check()
        assert (answer["engine"], answer["streams"]) == ("pocketsphinx", 0)
        os.kill(first, signal.SIGKILL)
        await until(lambda: minder.pid != first)
        await ready(minder)
        assert minder.url == url
        monkeypatch.setattr(minder_io, "CHECK_S", 0.3)
        os.kill(minder.pid, signal.SIGSTOP)
        with pytest.raises(WorkerFailed, match=f"the worker at {url} does not answer"):
            await minder.check()
    finally:
        async with asyncio.timeout(HANGS_S):
            await minder.stop(3600)
    assert gone(minder.pid)


async def test_a_worker_drains_before_it_ends() -> None:
    minder = Minder([*WORKER, "--max-streams", "2"], HOST)
    await minder.start()
    async with (
        aiohttp.ClientSession(minder.url) as http,
        http.ws_connect("/ws/transcribe?rate=16000", compress=0) as socket,
    ):
        await told(socket, "ready")
        await socket.send_bytes(bytes(3200))
        while (await minder.check())["streams"] != 1:
            await asyncio.sleep(0.02)
        stopping = asyncio.create_task(minder.stop(HANGS_S))
        await asyncio.sleep(0.3)
        await socket.send_json({"type": "flush"})
        await told(socket, "final")
        assert not stopping.done()
    await stopping
    assert gone(minder.pid)


async def test_a_worker_is_killed_with_its_parent() -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", MINDS_FOR_EVER, stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    worker = int(await parent.stdout.readline())
    assert not gone(worker)
    parent.kill()
    await parent.wait()
    await until(lambda: gone(worker))


async def test_one_that_ends_before_it_is_ready_is_an_error() -> None:
    with pytest.raises(WorkerFailed, match="ended with status 3 before it was ready"):
        await Minder([sys.executable, "-S", "-c", "raise SystemExit(3)"], HOST).start()


async def test_one_that_keeps_ending_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says `ready` and ends; what Ray sets is not in its environment."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    script = tmp_path / "short.py"
    script.write_text(
        textwrap.dedent(
            """
            import http.server, os, sys
            assert "RAY_AUTH_TOKEN" not in os.environ

            class Ready(http.server.BaseHTTPRequestHandler):
                def do_GET(self):
                    self.send_response(200)
                    self.send_header("Content-Type", "application/json")
                    self.end_headers()
                    self.wfile.write(b'{"ready": true}')

            host, _, port = sys.argv[-1].rpartition(":")
            http.server.HTTPServer((host, int(port)), Ready).handle_request()
            sys.exit(2)
            """
        )
    )
    minder = Minder([sys.executable, "-S", str(script)], HOST)
    await minder.start()
    assert await given_up(minder) == "the worker ended 4 times; the last ended with status 2"
    await minder.stop(1)


def test_ports_are_of_the_address() -> None:
    assert free_port("127.0.0.2") > 0
    assert Minder(["worker"], "::1").url.startswith("http://[::1]:")
