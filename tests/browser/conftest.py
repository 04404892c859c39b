"""A real server, a real browser, and a microphone that says what the test wants."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import wave
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soxr
from aiohttp import web

from offhook.media.pcm import RATE_OUT, Pcm
from offhook.web.app.cli.caller_io import spoken, trimmed
from offhook.web.workers.engines.engines_io import open_synthesizer
from tests.support.waiting import HANGS_S

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MICROPHONE_RATE = 48_000
"""What Chromium's fake microphone plays without resampling."""
DRIVE_S = 900
WAIT = "One moment, please."
"""What a caller hears when words are late, as they are on a busy machine."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def chromium() -> str:
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    return found


@pytest.fixture(scope="session")
def program() -> str:
    """Firefox."""
    found = shutil.which("firefox-esr") or shutil.which("firefox")
    if found is None:
        pytest.skip("needs Firefox: apt-get install firefox-esr")
    return found


@pytest.fixture(scope="session")
def packages() -> Path:
    """node_modules as the lock file has it."""
    missing = [name for name in ("node", "npm") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"needs {' and '.join(missing)}: apt-get install nodejs npm")
    lock, installed = HERE / "package-lock.json", HERE / "node_modules"
    stamp = installed / ".installed-from"
    if not stamp.exists() or stamp.read_bytes() != lock.read_bytes():
        command = ["npm", "ci", "--no-audit", "--no-fund", "--loglevel=error"]
        done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=HANGS_S)
        if done.returncode:
            pytest.skip(f"npm ci failed: {done.stderr.strip()[-300:]}")
        shutil.copyfile(lock, stamp)
    return installed


class Server:
    """`offhook serve` in a process of its own, and what it logs."""

    def __init__(self) -> None:
        self.url = ""
        self.pid = 0
        self.log: list[dict[str, Any]] = []

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [line for line in self.log if line.get("event") == kind]

    def calls(self) -> list[str]:
        return [line["call"] for line in self.events("call_started")]

    def faults(self) -> list[str]:
        """Warnings and errors, but for those of a machine that is busy with other work."""
        logged = [line["message"] for line in self.log if line["level"] in ("WARNING", "ERROR")]
        return [message for message in logged if not message.startswith("overloaded")]


@asynccontextmanager
async def serving(*arguments: str, **environment: str) -> AsyncIterator[Server]:
    """A server on a free port of this machine."""
    server = Server()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "offhook", "serve", *arguments),
        cwd=ROOT,
        stderr=asyncio.subprocess.PIPE,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OFFHOOK_SERVER_PORT": "0",
            "OFFHOOK_SERVER_DRAIN_SECONDS": "0",
            "OFFHOOK_WEBRTC_ADDRESSES": '["127.0.0.1"]',
            "OFFHOOK_LOG_JSON_LINES": "true",
            "OFFHOOK_LOG_WORDS": "true",
            **environment,
        },
    )
    server.pid = process.pid
    ready = asyncio.Event()

    async def read() -> None:
        assert process.stderr is not None
        async for text in process.stderr:
            try:
                line = json.loads(text)
            except json.JSONDecodeError:
                sys.stderr.write(text.decode())
            else:  # shown with a test that fails
                sys.stderr.write(f"{line['time'][11:23]} {line['message'][:160]}\n")
                server.log.append(line)
                if "port" in line:
                    server.url = f"http://localhost:{line['port']}"
                    ready.set()
        ready.set()

    reader = asyncio.create_task(read())
    try:
        async with asyncio.timeout(HANGS_S):
            await ready.wait()
        assert server.url, "the server did not start"
        yield server
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        try:
            await asyncio.wait_for(process.wait(), HANGS_S)
        except TimeoutError:
            process.kill()
            await process.wait()
            raise AssertionError("the server did not stop when told to") from None
        finally:
            await reader


def bundled(packages: Path, name: str, folder: Path) -> Path:
    """A script of the folder `client`, and what it imports, as one in `folder`."""
    out = folder / name
    command = [str(packages / ".bin" / "esbuild"), str(HERE / "client" / name), "--bundle"]
    command.append(f"--outfile={out}")
    subprocess.run(command, check=True, capture_output=True, text=True, cwd=HERE)
    return out


@asynccontextmanager
async def page_of_another_site(script: Path) -> AsyncIterator[str]:
    """A web application of its own, with a page that has nothing but the script: its origin."""

    async def send(request: web.Request) -> web.FileResponse:
        index = request.path == "/"
        return web.FileResponse(HERE / "client" / "index.html" if index else script)

    app = web.Application()
    app.router.add_get("/", send)
    app.router.add_get("/client.js", send)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://localhost:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def node(script: str, *flags: str, limit_s: float = DRIVE_S, **options: Any) -> Any:
    """Runs a script of this folder in node with its options; gives what it reports."""
    process = await asyncio.create_subprocess_exec(
        *("node", *flags, script, json.dumps(options)),
        cwd=HERE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), limit_s)
    except BaseException:
        process.terminate()  # a script closes its browser
        await process.wait()
        raise
    assert process.returncode == 0, f"{script}:\n{err.decode()}\n{out.decode()}"
    return json.loads(out)


@pytest.fixture
def drive(packages: Path, chromium: str) -> Callable[..., Any]:
    """`node` for scripts that drive Chromium."""
    return partial(node, chromium=chromium)


async def microphone(
    path: Path, script: Sequence[float | str], rate: int = MICROPHONE_RATE
) -> Path:
    """A sound file of lines to say and seconds of silence between them."""
    synthesizer = open_synthesizer()
    await synthesizer.start()
    pieces: list[Pcm] = []
    for part in script:
        if isinstance(part, str):
            pieces.append(trimmed(await spoken(synthesizer, part)))
        else:
            pieces.append(np.zeros(int(part * RATE_OUT), np.int16))
    await synthesizer.close()
    pcm = soxr.resample(np.concatenate(pieces), RATE_OUT, rate)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(pcm.tobytes())
    return path
